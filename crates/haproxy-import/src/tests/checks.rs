//! What is read from checks, variables, defaults and TLS options.

use super::*;

#[test]
fn finds_password_in_every_spelling() {
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let resp = "*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$2\r\npw\r\n";
    for (line, user, key, value) in [
        ("tcp-check send AUTH\\ pw\\r\\n", None, "password", "pw"),
        ("tcp-check send \"auth u pw\\r\\nPING\\r\\n\"", Some("u"), "password", "pw"),
        ("tcp-check send AUTH\\ \n tcp-check send pw\\r\\n", None, "password", "pw"),
        ("tcp-check send 'HELLO 3 AUTH default pw'\\r\\n", None, "password", "pw"),
        ("tcp-check send \"AUTH ${PW}\\r\\n\"", None, "password_env", "PW"),
        ("tcp-check send-lf \"AUTH u $PW\"\\r\\n", Some("u"), "password_env", "PW"),
        (&format!("tcp-check send-binary {}", hex(resp)), Some("u"), "password", "pw"),
        (r"tcp-check send AUTH\ päss\r\n", None, "password", "päss"),
        ("tcp-check send-binary 4155544820c3a40d0a", None, "password", "ä"),
        ("tcp-check send *2\\r\\n$4\\r\\nAUTH\\r\\n$2\\r\\npw\\r\\n", None, "password", "pw"),
    ] {
        let imported = import(&listen(&format!(" option tcp-check\n {line}\n")));
        let auth = service(&imported)["auth"].as_table().unwrap().clone();
        assert_eq!(auth.get("username").and_then(toml::Value::as_str), user, "{line}");
        assert_eq!(auth.get(key).and_then(toml::Value::as_str), Some(value), "{line}");
    }
}

/// A computed password is neither guessed nor written as text.
#[test]
fn reports_computed_passwords() {
    for send in [
        "send \"AUTH ${A}${B}\\r\\n\"",
        "send-lf \"AUTH %[env(A)]\\r\\n\"",
        "send-lf \"AUTH %[env(A),b64dec]\\r\\n\"",
        "send-lf \"AUTH %[env(A)]x\\r\\n\"",
        "send-lf \"AUTH %ci\\r\\n\"",
        r#"send 'AUTH "horse\x20battery"'\r\n"#,
        r#"send "AUTH \"horse battery\"\r\n""#,
        r#"send "AUTH 'horse' \r\n""#,
        r"send AUTH\ horse\xe4\r\n",
        r"send AUTH\ horse\xe4\ pw\r\n",
        "send-binary 4155544820e40d0a",
        r#"send "AUTH horse \"\"\r\n""#,
        "send-binary-lf %[env(A),hex]",
    ] {
        let imported = import(&listen(&format!(" tcp-check {send}\n")));
        assert!(!service(&imported).contains_key("auth"), "{send}");
        let report = imported.report.render(true);
        assert!(!(report + &imported.toml).contains("horse"), "{send}");
        assert_eq!(line(&imported, 4).outcome, LineOutcome::Unmatched, "{send}");
    }
}

#[test]
fn takes_variables_that_the_file_sets() {
    let text = format!(
        "global\n setenv PW secret\n setenv M one\n presetenv PORT 1\n presetenv T 5s\n{}",
        "listen redis\n bind \"127.0.0.1:${PORT}\"\n server a 10.0.0.1:6379\n timeout connect \"${T}\"\n \
         tcp-check send \"AUTH ${PW}\\r\\n\"\n tcp-check connect port 26379\n \
         tcp-check send \"SENTINEL master ${M}\\r\\n\"\n"
    );
    let imported = import(&text);
    let service = service(&imported);
    assert_eq!(service["name"].as_str(), Some("one"));
    assert_eq!(
        service["listen"].to_string(),
        "[\"127.0.0.1:7000\"]",
        "the environment wins over presetenv"
    );
    assert_eq!(service["connect_timeout"].as_str(), Some("5s"));
    assert_eq!(service["auth"]["password"].as_str(), Some("secret"));
    assert!(!imported.report.render(true).contains("secret"));
}

#[test]
fn tells_role_by_expected_reply() {
    let replica = |expect: &str| {
        let text = format!(
            "listen master\n bind :1\n option redis-check\n tcp-check expect string role:master\n server a h:6379\n\
             listen other\n bind :2\n tcp-check send PING\\r\\n\n tcp-check expect {expect}\n server a h:6379\n"
        );
        let imported = import(&text);
        let service = service(&imported);
        let listens = service["listen"].as_array().unwrap().len();
        assert_eq!(listens == 1, service.contains_key("replica_listen"), "{}", imported.toml);
        listens == 1
    };
    for expect in [
        "string role:slave",
        "! string role:master",
        "!string role:master",
        "!! string role:slave",
        "rstring ^role:(slave|replica)",
        "binary 736c617665",
        "string role:slave comment \"never the master\"",
        "string role:slave error-status L7RSP on-success \"no master\"",
        "comment string min-recv 4 string role:slave",
        "binary 736c617665 comment master",
    ] {
        assert!(replica(expect), "{expect}");
    }
    for expect in [
        "string role:master",
        "! string role:slave",
        "binary 6d6173746572",
        "string +PONG",
        "string role:master comment \"a slave is refused\"",
        "string role:master comment !",
        "string role:master on-error \"this is a slave\"",
        "min-recv 4 comment binary ! string role:slave comment slave",
        "comment role:slave",
    ] {
        assert!(!replica(expect), "{expect}");
    }
}

/// A check that accepts both roles asks for none, and a master speaks of replicas as well.
#[test]
fn tells_no_role_of_a_check_for_both() {
    for (expect, is_assumed) in [
        ("rstring role:(master|slave)", true),
        ("rstring connected_slaves:[1-9]", true),
        ("string slave0", true),
        ("rstring role:master.*connected_slaves:2", false),
        ("string role:master\\r\\nconnected_slaves:1", false),
    ] {
        let text = "listen rw\n bind :1\n option redis-check\n tcp-check expect string role:master\n server a h:6379\n";
        let other = format!("listen any\n bind :2\n tcp-check expect {expect}\n server a h:6379\n");
        let imported = import(&(text.to_owned() + &other));
        assert!(!service(&imported).contains_key("replica_listen"), "{expect}");
        let head = line(&imported, 6);
        assert_eq!(head.note.contains("no check asks for the role"), is_assumed, "{head:?}");
    }
}

/// A query for replicas or for the quorum does not make a listener one of the master.
#[test]
fn tells_role_by_sentinel_command() {
    let outcome = |command: &str| {
        let check = format!(
            " tcp-check connect port 26379\n tcp-check send \"SENTINEL {command} m\\r\\n\"\n"
        );
        let readers = "listen other\n bind :2\n server a 10.0.0.1:6379\n";
        let master = listen(" tcp-check expect string role:master\n");
        import(&format!("{master}{readers}{check}"))
    };
    for command in ["slaves", "replicas"] {
        assert!(service(&outcome(command)).contains_key("replica_listen"), "{command}");
    }
    let quorum = outcome("ckquorum");
    assert_eq!(line(&quorum, 5).outcome, LineOutcome::Assumed);
    assert_eq!(line(&outcome("get-master-addr-by-name"), 5).outcome, LineOutcome::Mapped);
}

#[test]
fn inherits_defaults_as_haproxy_does() {
    let text = "defaults one\n timeout connect 1s\ndefaults two from one\n timeout client-fin 5s\n\
                defaults three\n timeout connect 9s\n";
    let connect = |head: &str| {
        let text = format!("{text}{}", listen("").replace("listen redis", head));
        let service = service(&import(&text));
        service.get("connect_timeout").and_then(toml::Value::as_str).map(str::to_owned)
    };
    assert_eq!(connect("listen redis").as_deref(), Some("9s"));
    assert_eq!(connect("listen redis from one").as_deref(), Some("1s"));
    assert_eq!(connect("listen redis from two").as_deref(), Some("1s"));
    assert_eq!(connect("listen redis from three\n timeout connect 2s").as_deref(), Some("2s"));
    let lost = refusal(&format!("{text}listen r from four\n bind :1\n server a h:6379\n"));
    assert!(lost.contains("h.cfg:7:1: there is no section \"defaults four\""), "{lost}");
}

/// Otherwise a listener whose own check is for any node would have the role of the defaults.
#[test]
fn replaces_tcp_checks_of_defaults() {
    let text = |own: &str| {
        format!(
            "defaults\n option tcp-check\n tcp-check send AUTH\\ secret\\r\\n\n \
             tcp-check expect string role:slave\nlisten w\n bind :1\n server a h:6379\n\
             tcp-check send PING\\r\\n\n tcp-check expect string role:master\n\
             listen other\n bind :2\n server a h:6379\n{own}"
        )
    };
    let own = import(&text(" tcp-check send PING\\r\\n\n tcp-check expect string +PONG\n"));
    assert!(!service(&own).contains_key("replica_listen"), "{}", own.toml);
    assert!(line(&own, 10).note.contains("no check asks for the role"), "{:?}", line(&own, 10));
    assert!(!own.toml.contains("secret"), "no check of a listener authenticates");
    let inherited = import(&text(""));
    assert!(service(&inherited).contains_key("replica_listen"), "{}", inherited.toml);
}

#[test]
fn maps_limits_and_timeouts() {
    let global = "global\n maxconn 5000\n nbthread 3\n hard-stop-after 2s\n";
    let imported = import(&format!(
        "{global}{}",
        listen(" maxconn 400\n timeout client-fin 90s\n timeout connect 0\n")
    ));
    let table = table(&imported);
    for (section, key, value) in [
        ("process", "max_connections", "5000"),
        ("process", "workers", "3"),
        ("shutdown", "drain_timeout", "\"2s\""),
        ("shutdown", "drain_spread", "\"2s\""),
    ] {
        assert_eq!(table[section][key].to_string(), value, "{section}.{key}");
    }
    let service = service(&imported);
    assert_eq!(service["max_connections"].as_integer(), Some(400));
    assert_eq!(service["half_close_timeout"].as_str(), Some("59s"), "below the kernel's limit");
    assert!(!service.contains_key("connect_timeout"));
    assert!(line(&imported, 10).note.contains("keeps its default"), "{:?}", line(&imported, 10));
    let too_many = import(&format!("global\n maxconn 100\n{}", listen(" maxconn 400\n")));
    assert!(
        !too_many.toml.contains("max_connections = 400")
            && too_many.toml.contains("max_connections = 100")
    );
}

/// The sentinels are where the check connects to, which need not be where the servers are.
#[test]
fn finds_sentinels_where_checks_connect() {
    let text = |global: &str, connect: &str, server: &str| {
        format!(
            "{global}listen redis\n bind :6379\n tcp-check connect {connect}\n tcp-check send \
             \"SENTINEL master m\\r\\n\"\n server a h:6379 check {server}\n"
        )
    };
    let env = "global\n setenv P 26380\n";
    for (global, connect, server, expected) in [
        ("", "port \"${PORT}\"", "", "h:7000"),
        (env, "port \"${P}\"", "", "h:26380"),
        (env, "port \"${P}\"", "port 1 addr 10.7.7.7", "10.7.7.7:26380"),
        ("", "", "port 26379 addr 10.7.7.7", "10.7.7.7:26379"),
        ("", "addr 10.7.7.8 port 26379", "addr 10.7.7.7", "10.7.7.8:26379"),
        ("defaults\n default-server addr 10.7.7.9 port 5\n", "", "", "10.7.7.9:5"),
        ("defaults\n default-server addr 10.7.7.9\n", "port 6", "", "10.7.7.9:6"),
    ] {
        let imported = import(&text(global, connect, server));
        let sentinels = service(&imported)["sentinels"].to_string();
        assert_eq!(sentinels, format!("[\"{expected}\"]"), "{connect} {server}");
    }
    for (connect, server, part) in [
        ("port \"${NO}\"", "", "\"${NO}\" is not a port; set the variable"),
        ("port x", "", "\"x\" is not a port; name the sentinels: --sentinel HOST:PORT"),
        ("", "port 99999", "\"99999\" is not a port"),
        ("port 26379 addr \"${NO}\"", "", "is not a host; set the variable"),
    ] {
        let shown = refusal(&text("", connect, server));
        assert!(shown.starts_with("h.cfg:5:2: ") && shown.contains(part), "{shown}");
        let sentinels = vec![(None, "s:26379".to_owned())];
        let options = ImportOptions { sentinels, ..ImportOptions::default() };
        assert_eq!(import_with(&text("", connect, server), &options).refusals, [], "{connect}");
    }
}
