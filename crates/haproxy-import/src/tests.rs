//! The import as a whole: small files in, configuration and report out. Whole files in the styles
//! found in the field are in tests/import.

use proptest::prelude::*;

use super::*;

fn import(text: &str) -> Import {
    import_with(text, &ImportOptions::default())
}

fn import_with(text: &str, options: &ImportOptions) -> Import {
    import_files(&[("h.cfg".to_owned(), text.to_owned())], options)
}

fn import_files(files: &[(String, String)], options: &ImportOptions) -> Import {
    let is_host = |text: &str| {
        let (host, port) = text.rsplit_once(':').unwrap_or_default();
        let is_label = |c: char| c.is_ascii_alphanumeric() || "-.:[]".contains(c);
        !host.is_empty() && host.chars().all(is_label) && port.parse::<u16>().is_ok()
    };
    let env = Environment {
        variable: &|name| (name == "PORT").then(|| "7000".to_owned()),
        endpoint: &|text| is_host(text).then(|| text.to_owned()),
    };
    super::import(files, options, &env)
}

fn named(names: &[&str]) -> ImportOptions {
    let split = |text: &&str| match text.split_once('=') {
        Some((listener, name)) => (Some(listener.to_owned()), name.to_owned()),
        None => (None, (*text).to_owned()),
    };
    ImportOptions { names: names.iter().map(split).collect(), ..ImportOptions::default() }
}

fn table(imported: &Import) -> toml::Table {
    assert_eq!(imported.refusals, []);
    imported.toml.parse().unwrap_or_else(|error| panic!("{error}\n{}", imported.toml))
}

fn service(imported: &Import) -> toml::Table {
    table(imported)["service"][0].as_table().unwrap().clone()
}

fn services(imported: &Import) -> Vec<(String, String)> {
    let table = table(imported);
    let all = table["service"].as_array().unwrap().iter();
    all.map(|it| (it["name"].as_str().unwrap().to_owned(), it["listen"].to_string())).collect()
}

fn line(imported: &Import, number: usize) -> &LineReport {
    let found = imported.report.lines.iter().find(|line| line.position.line == number);
    found.unwrap_or_else(|| panic!("no report on line {number}"))
}

fn refusal(text: &str) -> String {
    refused(&import(text))
}

fn refused(imported: &Import) -> String {
    assert_eq!(imported.toml, "");
    imported.refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// One listener with one server, and `lines`.
fn listen(lines: &str) -> String {
    format!("listen redis\n bind :6379\n server a 10.0.0.1:6379\n{lines}")
}

#[test]
fn keeps_passwords_out_of_the_report() {
    let text = "global\n setenv X hunter2\n nonsense hunter2\nuserlist u\n user a insecure-password hunter2\n\
                listen stats\n mode http\n bind :1\n stats enable\n stats auth a:hunter2\n\
                listen redis\n bind :6379\n option tcp-check\n tcp-check send \"PING\\r\\nAUTH hunter2\\r\\n\"\n\
                tcp-check send \"SENTINEL master ${PORT}\\r\\nAUTH hunter2\\r\\n\"\n\
                tcp-check expect string hunter2\n server a 10.0.0.1:6379 # hunter2\n";
    let imported = import_with(text, &named(&["redis=m"]));
    let login = service(&imported)["sentinel_auth"]["password"].as_str().map(str::to_owned);
    assert_eq!(login.as_deref(), Some("hunter2"));
    let shown = imported.report.render(Detail::Everything);
    assert!(!shown.contains("hunter2"), "{shown}");
    assert_eq!(imported.report.lines.len(), 17);
}

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
        ("tcp-check send-lf \"AUTH %[env(PW)]\\r\\n\"", None, "password_env", "PW"),
        ("tcp-check send-lf \"AUTH u %[env('PW')]\\r\\n\"", Some("u"), "password_env", "PW"),
        ("tcp-check send-lf AUTH\\ 1%%\\r\\n", None, "password", "1%"),
        (&format!("tcp-check send-binary {}", hex(resp)), Some("u"), "password", "pw"),
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
        "send-lf \"AUTH %[env(A),b64dec]\\r\\n\"",
        "send-lf \"AUTH %[env(A)]x\\r\\n\"",
        "send-lf \"AUTH %ci\\r\\n\"",
        "send-binary-lf %[env(A),hex]",
    ] {
        let imported = import(&listen(&format!(" tcp-check {send}\n")));
        assert!(!service(&imported).contains_key("auth"), "{send}");
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
    assert_eq!(service["listen"].to_string(), "[\"127.0.0.1:7000\"]", "the environment wins over presetenv");
    assert_eq!(service["connect_timeout"].as_str(), Some("5s"));
    assert_eq!(service["auth"]["password"].as_str(), Some("secret"));
    assert!(!imported.report.render(Detail::Everything).contains("secret"));
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
    for expect in ["string role:slave", "! string role:master", "rstring ^role:(slave|replica)", "binary 736c617665"] {
        assert!(replica(expect), "{expect}");
    }
    for expect in ["string role:master", "! string role:slave", "binary 6d6173746572", "string +PONG"] {
        assert!(!replica(expect), "{expect}");
    }
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

#[test]
fn maps_limits_and_timeouts() {
    let global = "global\n maxconn 5000\n nbthread 3\n hard-stop-after 2s\n grace 20s\n";
    let imported =
        import(&format!("{global}{}", listen(" maxconn 400\n timeout client-fin 90s\n timeout connect 0\n")));
    let table = table(&imported);
    for (section, key, value) in [
        ("process", "max_connections", "5000"),
        ("process", "workers", "3"),
        ("shutdown", "drain_timeout", "\"2s\""),
        ("shutdown", "drain_spread", "\"2s\""),
        ("shutdown", "accept_min", "\"20s\""),
        ("shutdown", "accept_max", "\"20s\""),
    ] {
        assert_eq!(table[section][key].to_string(), value, "{section}.{key}");
    }
    let service = service(&imported);
    assert_eq!(service["max_connections"].as_integer(), Some(400));
    assert_eq!(service["half_close_timeout"].as_str(), Some("59s"), "below the kernel's limit");
    assert!(!service.contains_key("connect_timeout"));
    assert!(line(&imported, 11).note.contains("keeps its default"), "{:?}", line(&imported, 11));
    let too_many = import(&format!("global\n maxconn 100\n{}", listen(" maxconn 400\n")));
    assert!(!too_many.toml.contains("max_connections = 400") && too_many.toml.contains("max_connections = 100"));
}

#[test]
fn names_the_effect_of_each_timeout() {
    for (timeout, part) in [
        ("timeout queue 1m", "Pointsman has no queue"),
        ("timeout connect 0", "service.connect_timeout keeps its default"),
        ("timeout client 1m", "idle clients stay connected"),
        ("timeout nonsense 1m", "this timeout has no effect here"),
    ] {
        let imported = import(&listen(&format!(" {timeout}\n")));
        assert!(line(&imported, 4).note.contains(part), "{:?}", line(&imported, 4));
    }
}

#[test]
fn marks_what_it_assumes() {
    let imported = import(&listen(" option redis-check\n"));
    let service = service(&imported);
    assert_eq!(service["sentinels"].to_string(), "[\"10.0.0.1:26379\"]");
    assert_eq!(line(&imported, 1).outcome, LineOutcome::Assumed, "no check asks for the role");
    assert_eq!(line(&imported, 3).outcome, LineOutcome::Assumed, "where the sentinels are");
    assert!(imported.toml.contains("\"mymaster\" is assumed"), "{}", imported.toml);
    let options = ImportOptions { sentinels: vec!["s:26379".to_owned()], ..named(&["m"]) };
    let given = import_with(&listen(""), &options);
    assert!(!given.toml.contains("assumed") && given.toml.contains("\"s:26379\""), "{}", given.toml);
}

#[test]
fn merges_listeners_only_with_equal_servers() {
    let same = "listen a\n bind :1\n server x h1:6379\nlisten b\n bind :2\n server x h1:6379\n";
    assert_eq!(service(&import(same))["listen"].as_array().unwrap().len(), 2);
    for other in ["h2:6379", "h1:6380", "h1:6379\n server y h2:6379"] {
        let text = same.replace(":2\n server x h1:6379", &format!(":2\n option redis-check\n server x {other}"));
        let refused = refusal(&text);
        assert!(refused.contains("h.cfg:4:1: a and b have different servers"), "{refused}");
        assert!(refused.contains("--name a=NAME --name b=NAME"), "{refused}");
        let names = services(&import_with(&text, &named(&["b=beta"])));
        assert_eq!(names.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["mymaster", "beta"]);
        // A name for both says that they are one master.
        let both = import_with(&text, &named(&["a=m", "b=m"]));
        assert_eq!(services(&both).len(), 1);
        assert_eq!(line(&both, 4).outcome, LineOutcome::Assumed);
        // A name for all does not.
        assert!(refused_with(&text, &["m"]).contains("different servers"));
    }
}

fn refused_with(text: &str, names: &[&str]) -> String {
    refused(&import_with(text, &named(names)))
}

/// A server without a port gets the port that its clients connected to.
#[test]
fn compares_servers_by_effective_port() {
    let text = "listen a\n bind :6379\n server x H1\nlisten b\n bind :2\n server x h1:6379\n";
    assert_eq!(services(&import(text)).len(), 1);
    assert!(
        refusal(&text.replace(":6379\n server x H1", ":6380\n option redis-check\n server x h1")).contains("different")
    );
}

#[test]
fn refuses_names_for_unknown_listeners() {
    let refused = refused_with(&listen(""), &["redsi=m"]);
    assert!(refused.contains("--name redsi=m: no Redis listener has this name; use one of: redis"), "{refused}");
}

#[test]
fn refuses_one_listener_for_several_datasets() {
    let backends = "backend x\n server a h1:6379\nbackend y\n server b h2:6379\n";
    let front = |rule: &str| format!("frontend f\n bind :1\n use_backend x if {rule}\n default_backend y\n{backends}");
    let by_source = refusal(&front("{ src 10.0.0.0/8 }"));
    assert!(by_source.contains("h.cfg:3:2: f selects between different servers by client"), "{by_source}");
    let by_health = refusal(&front("{ nbsrv(x) ge 1 }"));
    assert!(by_health.contains("h.cfg:1:1: the backends of f have different servers"), "{by_health}");
    assert_eq!(services(&import_with(&front("{ nbsrv(x) ge 1 }"), &named(&["f=m"]))).len(), 1);
    let voted = format!(
        "{}backend v\n tcp-check send SENTINEL\\ master\\ m\\r\\n\n server s h1:26379\n",
        front("{ nbsrv(v) ge 1 }")
    );
    assert_eq!(services(&import(&voted)), [("m".to_owned(), "[\"0.0.0.0:1\"]".to_owned())]);
    let two = voted.replace("use_backend x if", "acl other nbsrv(w) ge 1\n use_backend x if other or")
        + "backend w\n tcp-check send SENTINEL\\ master\\ n\\r\\n\n server s h2:26379\n";
    assert!(refusal(&two).contains("the checks of f ask for several masters: m, n"), "{}", refusal(&two));
}

#[test]
fn refuses_two_services_on_one_address() {
    let text = "listen a\n bind :1\n server x h1:6379\nlisten b\n bind 10.0.0.1:1\n server x h2:6379\n";
    let refused = refused_with(text, &["a=a", "b=b"]);
    assert!(refused.contains("h.cfg:5:2: 10.0.0.1:1 is already taken by 0.0.0.0:1 (h.cfg:2)"), "{refused}");
}

#[test]
fn gives_readers_to_the_master_with_their_servers() {
    let text = |servers: &str| {
        format!(
            "listen a\n bind :1\n tcp-check expect string role:master\n server x h1:6379\n server y h2:6379\n\
             listen ro\n bind :2\n tcp-check expect string role:slave\n{servers}"
        )
    };
    let whole = import(&text(" server x h1:6379\n server y h2:6379\n"));
    assert_eq!(service(&whole)["replica_listen"].to_string(), "[\"0.0.0.0:2\"]");
    assert_eq!(line(&whole, 6).outcome, LineOutcome::Mapped);
    assert_eq!(line(&import(&text(" server y h2:6379\n")), 6).outcome, LineOutcome::Assumed);
    let elsewhere = text(" server y h2:6380\n option redis-check\n");
    assert!(refusal(&elsewhere).contains("h.cfg:6:1: ro is for readers, and its servers belong to no single"));
    assert!(service(&import_with(&elsewhere, &named(&["ro=mymaster"]))).contains_key("replica_listen"));
    assert!(refused_with(&elsewhere, &["ro=other"]).contains("belong to no single master"));
}

#[test]
fn recognizes_frontends_for_sentinels() {
    let front = "frontend s\n bind :26379\n default_backend b\nbackend b\n option tcp-check\n \
                 tcp-check send PING\\r\\n\n server s1 h7:26379\n server s2 h8:26379\n";
    let imported = import(&format!("{}{front}", listen(" tcp-check expect string role:master\n")));
    assert_eq!(services(&imported), [("mymaster".to_owned(), "[\"0.0.0.0:6379\"]".to_owned())]);
    assert_eq!(service(&imported)["sentinels"].to_string(), "[\"h7:26379\", \"h8:26379\"]");
    for number in [5, 6, 7, 8] {
        let line = line(&imported, number);
        assert!(line.outcome == LineOutcome::Unmatched && line.note.contains("leads to sentinels"), "{line:?}");
    }
    assert!(refusal(front).contains("no listener leads to Redis, only to sentinels"), "{}", refusal(front));
    // At another port the command shows it.
    let other = front.replace(":26379", ":5000").replace("PING\\r", "SENTINEL\\ masters\\r");
    assert!(refusal(&other).contains("only to sentinels"), "{}", refusal(&other));
}

#[test]
fn refuses_tls_without_allow_plaintext() {
    let server = |before: &str, after: &str| {
        format!("listen redis\n bind :6379\n option redis-check\n{before} server a h:6380{after}\n")
    };
    for (text, number) in [
        (server("", "").replace(":6379", ":6379 ssl crt /x.pem"), 2),
        (server("", " ssl verify none"), 4),
        (server("", " check check-ssl"), 4),
        (server(" default-server ssl\n", ""), 4),
        (format!("defaults\n default-server check-ssl\n{}", server("", "")), 2),
        (server(" tcp-check connect ssl\n", ""), 4),
        (server(" tcp-check connect port 26379 ssl\n", ""), 4),
        (format!("{}listen s\n mode http\n bind :9 ssl\n stats enable\n", server("", "")), 7),
    ] {
        let refused = refusal(&text);
        assert!(refused.contains(&format!("h.cfg:{number}:2: Pointsman does not speak TLS")), "{text}: {refused}");
        let options = ImportOptions { allow_plaintext: true, ..ImportOptions::default() };
        let imported = import_with(&text, &options);
        assert_eq!(line(&imported, number).outcome, LineOutcome::Unmatched, "{text}");
        assert!(imported.toml.contains(&format!("#   h.cfg:{number}: ")), "{}", imported.toml);
        assert!(imported.toml.contains("# WITHOUT TLS"), "{}", imported.toml);
    }
    assert_eq!(import(&server(" default-server ssl\n", " no-ssl")).refusals, []);
    let web = "frontend w\n mode http\n bind :443 ssl\n default_backend b\nbackend b\n server a h:443 ssl\n";
    assert_eq!(import(&format!("{web}{}", listen(""))).refusals, [], "TLS that stays in haproxy");
}

#[test]
fn refuses_guesses_if_strict() {
    let strict = ImportOptions { strict: true, ..ImportOptions::default() };
    let imported = import_with(&listen(""), &strict);
    assert!(refused(&imported).contains("--strict: 2 lines ASSUMED, 0 lines with NO COUNTERPART"));
    assert!(imported.report.render(Detail::Warnings).contains("ASSUMED"));
    let options = ImportOptions { strict: true, sentinels: vec!["s:1".to_owned()], ..named(&[]) };
    let name = import_with(&listen(" tcp-check expect string role:master\n"), &options);
    assert!(refused(&name).contains("--strict: 1 lines ASSUMED"), "the name: {}", refused(&name));
    let options = ImportOptions { names: named(&["redis=m"]).names, ..options };
    let sure = import_with(&listen(" tcp-check expect string role:master\n"), &options);
    assert_eq!(sure.refusals, []);
}

#[test]
fn accepts_empty_and_disabled_sections() {
    let defaults = "defaults\n option redis-check\nlisten unused\nlisten off\n bind :9\n disabled\n server a h:6379\n";
    let imported = import(&format!("{defaults}{}", listen("")));
    assert_eq!(services(&imported).len(), 1);
    assert_eq!(line(&imported, 3).outcome, LineOutcome::Unneeded);
    assert!(line(&imported, 5).note.contains("disabled"), "{:?}", line(&imported, 5));
}

#[test]
fn keeps_other_traffic_in_haproxy() {
    let web = "frontend w\n mode http\n bind :80\n stats enable\n default_backend app\n\
               backend app\n server a h:8080\nlisten db\n bind :3306\n server d h:3306\n";
    let imported = import(&format!("{web}{}", listen("")));
    assert!(!imported.toml.contains(":80\""), "{}", imported.toml);
    for number in 1..=10 {
        assert!(line(&imported, number).note.contains("keep it in haproxy"), "{:?}", line(&imported, number));
    }
}

#[test]
fn takes_statistics_from_a_backend() {
    let stats = "frontend m\n mode http\n bind :8404\n default_backend s\nbackend s\n mode http\n stats enable\n";
    let imported = import(&format!("{stats}{}", listen("")));
    assert_eq!(table(&imported)["admin"]["listen"].to_string(), "[\"0.0.0.0:8404\"]");
    assert_eq!(line(&imported, 5).outcome, LineOutcome::Mapped);
}

#[test]
fn names_what_it_cannot_do() {
    let text = "listen redis\n bind :6379 accept-proxy\n bind /run/s\n\
                server a h:6379 send-proxy\n server b h:6380 maxconn 5\n";
    let imported = import(text);
    for (number, part) in [(2, "PROXY"), (3, "UNIX"), (4, "PROXY"), (5, "per server")] {
        let line = line(&imported, number);
        assert!(line.outcome == LineOutcome::Unmatched && line.note.contains(part), "{line:?}");
    }
}

#[test]
fn refuses_broken_files_with_position() {
    for (text, parts) in [
        ("", &["no listener leads to Redis"][..]),
        ("{\"a\": 1}\n", &["h.cfg:1:1: ", "precedes the first section"]),
        ("listen a\n bind \":1\n", &["h.cfg:2:7: the quote \" is not closed"]),
        ("listen\n bind :1\n server a h:6379\n", &["h.cfg:1:1: the section \"listen\" has no name"]),
        ("listen a\n bind redis:1\n server a h:6379\n", &["h.cfg:2:2: \"redis:1\" is not an address"]),
        ("listen a\n bind \"${NO}:1\"\n server a h:6379\n", &["set the variable"]),
        ("listen a\n server a h:6379\n", &["no listener leads to Redis"]),
        ("listen a\n server a h:6379\n option redis-check\n", &["no frontend leads to the Redis servers"]),
        ("listen a\n bind /s\n server a h:6379\n", &["h.cfg:1:1: a has no TCP address"]),
        ("listen a\n bind :1\n server a \"${NO}:6379\"\n", &["h.cfg:3:2: ", "set the variable"]),
        ("frontend f\n mode http\n bind :80\n", &["no listener leads to Redis"]),
        (
            "listen a\n bind :1\n server a h:6379\n tcp-check send \"SENTINEL master ${X}\\r\\n\"\n",
            &["h.cfg:4:2: ", "cannot be the name", "set the variable", "--name a=NAME"],
        ),
        ("listen a\0\n", &["h.cfg:1:1: the line contains a zero byte"]),
    ] {
        let shown = refusal(text);
        assert!(parts.iter().all(|part| shown.contains(part)), "{text:?}: {shown}");
    }
    let twice = import("listen a\n bind *:1\n bind [::]:1 v4v6\n server a h:6379\n");
    assert_eq!(service(&twice)["listen"].to_string(), "[\"0.0.0.0:1\", \"[::]:1\"]");
    let filled = import("listen a\n bind \"127.0.0.1:${PORT}\"\n server a h:6379\n");
    assert_eq!(service(&filled)["listen"].to_string(), "[\"127.0.0.1:7000\"]");
}

#[test]
fn reads_several_files_as_one() {
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let files = [file("a.cfg", "defaults\n timeout connect 3s\n"), file("b.cfg", &listen(""))];
    let imported = import_files(&files, &ImportOptions::default());
    assert_eq!(service(&imported)["connect_timeout"].as_str(), Some("3s"));
    let mapped = imported.report.render(Detail::Everything);
    assert!(mapped.contains("a.cfg:2  timeout connect 3s"), "{mapped}");
}

/// Equal findings are one group, with the numbers of their lines.
#[test]
fn groups_equal_lines_of_the_report() {
    let checks = " option tcp-check\n tcp-check connect\n tcp-check connect\n".repeat(2);
    let shown = import(&listen(&checks)).report.render(Detail::Everything);
    assert_eq!(shown.matches("Pointsman has no health checks").count(), 1, "{shown}");
    assert!(shown.contains("    h.cfg:4, 7  option tcp-check\n    h.cfg:5-6, 8-9  tcp-check connect\n"), "{shown}");
}

/// Known lines in random order reach far more of the code than random characters do.
fn arbitrary_line() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "global",
        "defaults",
        "defaults d",
        "listen l",
        "listen l from d",
        "frontend f",
        "backend b",
        "userlist u",
        "bind :6379",
        "bind [::]:1-3 ssl",
        "bind",
        "server",
        "server s h:6379 check port x",
        "server s ${X}:1",
        "server-template t 1-3 h:6379",
        "use_backend b if { nbsrv(b) ge 2 }",
        "default_backend b",
        "acl a nbsrv(",
        "maxconn 1",
        "maxconn x",
        "timeout connect 1s",
        "timeout",
        "option redis-check",
        "tcp-check connect port 26379",
        "tcp-check send PING\\r\\n",
        "tcp-check send AUTH\\ x\\r\\n",
        "tcp-check send \"AUTH $X\\r\\n\"",
        "tcp-check send-binary 2a310d0a24",
        "tcp-check send *3\\r\\n$\\r\\n",
        "tcp-check expect",
        "tcp-check send SENTINEL\\ master\\ m\\r\\n",
        "tcp-check expect string role:slave",
        "tcp-check send-lf \"AUTH %[env(X)]%\"",
        "tcp-check send-binary-lf %[hex]",
        "tcp-check connect ssl",
        "default-server ssl",
        "setenv X y",
        "server s h:26379",
        "use_backend b if { src 10.0.0.0/8 } !d",
        "use_backend %[src]",
        "stats enable",
        "mode http",
        "stats auth",
        "monitor-uri",
    ]);
    prop_oneof![8 => known.prop_map(str::to_owned), 1 => ".{0,30}", 1 => "[ -~]{0,30}"]
}

proptest! {
    #[test]
    fn never_panics_and_writes_toml(lines in prop::collection::vec(arbitrary_line(), 0..40)) {
        let imported = import(&lines.join("\n"));
        prop_assert_eq!(imported.toml.is_empty(), !imported.refusals.is_empty());
        prop_assert!(imported.toml.parse::<toml::Table>().is_ok(), "{}", imported.toml);
    }
}
