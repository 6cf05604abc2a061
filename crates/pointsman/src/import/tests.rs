//! The import as a whole: small files in, what comes of them out. Whole files in the styles that people have are in tests/import.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn import(text: &str) -> Imported {
    import_with(text, &Given::default())
}

fn import_with(text: &str, given: &Given) -> Imported {
    haproxy(&[("h.cfg".to_owned(), text.to_owned())], given, &|name| (name == "PORT").then(|| "7000".to_owned()))
}

fn table(imported: &Imported) -> toml::Table {
    assert_eq!(imported.faults, []);
    imported.toml.parse().unwrap_or_else(|error| panic!("{error}\n{}", imported.toml))
}

fn service(imported: &Imported) -> toml::Table {
    table(imported)["service"][0].as_table().unwrap().clone()
}

fn entry(imported: &Imported, line: usize) -> &Entry {
    imported.account.iter().find(|entry| entry.place.line == line).unwrap_or_else(|| panic!("nothing on line {line}"))
}

fn fault(text: &str) -> String {
    let imported = import(text);
    assert_eq!(imported.toml, "");
    imported.faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// One listener before one server, with `lines` in it.
fn listen(lines: &str) -> String {
    format!("listen redis\n bind :6379\n server a 10.0.0.1:6379\n{lines}")
}

#[test]
fn every_line_that_says_something_is_accounted_for_once() {
    for name in ["argo-cd", "bitnami", "blog-role", "blog-sentinel", "hand-written", "redis-ha"] {
        let path = format!("{}/tests/import/{name}.cfg", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        let given = Given { names: vec![(Some("cache".to_owned()), "cache".to_owned())], ..Given::default() };
        let imported = import_with(&text, &given);
        assert_eq!(imported.faults, [], "{name}");
        let spoken =
            text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.trim().starts_with('#'));
        let lines: Vec<usize> = spoken.map(|(index, _)| index + 1).collect();
        let accounted: Vec<usize> = imported.account.iter().map(|entry| entry.place.line).collect();
        assert_eq!(accounted, lines, "{name}");
        assert!(
            imported.account.iter().all(|entry| !entry.note.is_empty() && !entry.note.contains("not known")),
            "{name}"
        );
    }
}

#[test]
fn no_password_is_in_the_account() {
    let text = "global\n setenv X hunter2\n nonsense hunter2\nuserlist u\n user a insecure-password hunter2\n\
                listen stats\n mode http\n bind :1\n stats enable\n stats auth a:hunter2\n\
                listen redis\n bind :6379\n option tcp-check\n tcp-check send \"PING\\r\\nAUTH hunter2\\r\\n\"\n\
                tcp-check expect string hunter2\n server a 10.0.0.1:6379 # hunter2\n";
    let imported = import(text);
    assert_eq!(service(&imported)["auth"]["password"].as_str(), Some("hunter2"));
    let told = imported.account.iter().map(|entry| format!("{} {}\n", entry.line, entry.note)).collect::<String>();
    assert!(!told.contains("hunter2"), "{told}");
    assert_eq!(imported.account.len(), 16);
}

#[test]
fn a_password_is_found_however_the_check_says_it() {
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
        ("tcp-check send *2\\r\\n$4\\r\\nAUTH\\r\\n$2\\r\\npw\\r\\n", None, "password", "pw"),
    ] {
        let auth =
            service(&import(&listen(&format!(" option tcp-check\n {line}\n"))))["auth"].as_table().unwrap().clone();
        assert_eq!(auth.get("username").and_then(toml::Value::as_str), user, "{line}");
        assert_eq!(auth.get(key).and_then(toml::Value::as_str), Some(value), "{line}");
    }
    let mixed = import(&listen(" tcp-check send \"AUTH ${A}${B}\\r\\n\"\n"));
    assert!(!service(&mixed).contains_key("auth"));
    assert_eq!(entry(&mixed, 4).verdict, Verdict::Unmatched);
}

#[test]
fn roles_are_told_by_what_is_expected() {
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
fn defaults_are_inherited_as_haproxy_does() {
    let text = "defaults one\n timeout connect 1s\ndefaults two from one\n timeout client-fin 5s\ndefaults three\n timeout connect 9s\n";
    let connect = |head: &str| {
        let text = format!("{text}{}", listen("").replace("listen redis", head));
        let service = service(&import(&text));
        service.get("connect_timeout").and_then(toml::Value::as_str).map(str::to_owned)
    };
    assert_eq!(connect("listen redis").as_deref(), Some("9s"));
    assert_eq!(connect("listen redis from one").as_deref(), Some("1s"));
    assert_eq!(connect("listen redis from two").as_deref(), Some("1s"));
    assert_eq!(connect("listen redis from three\n timeout connect 2s").as_deref(), Some("2s"));
    assert!(
        fault(&format!("{text}listen r from four\n bind :1\n server a h:6379\n")).contains("h.cfg:7:1: no section")
    );
}

#[test]
fn bounds_and_times_find_their_keys() {
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
    assert_eq!(service["half_close_timeout"].as_str(), Some("59s"), "below what connection tracking allows");
    assert!(!service.contains_key("connect_timeout"), "no time at all is no bound here");
    let too_many = import(&format!("global\n maxconn 100\n{}", listen(" maxconn 400\n")));
    assert!(!too_many.toml.contains("max_connections = 400") && too_many.toml.contains("max_connections = 100"));
}

#[test]
fn what_is_not_said_is_assumed_and_marked() {
    let imported = import(&listen(" option redis-check\n"));
    let service = service(&imported);
    assert_eq!(service["sentinels"].to_string(), "[\"10.0.0.1:26379\"]");
    assert_eq!(entry(&imported, 1).verdict, Verdict::Assumed, "nobody asked for the role");
    assert_eq!(entry(&imported, 3).verdict, Verdict::Assumed, "where the sentinels are");
    assert!(imported.toml.contains("\"mymaster\" is assumed"), "{}", imported.toml);
    let given = Given { names: vec![(None, "m".to_owned())], sentinels: vec![Endpoint::parse("s", 26379).unwrap()] };
    let given = import_with(&listen(""), &given);
    assert!(!given.toml.contains("assumed") && given.toml.contains("\"s:26379\""), "{}", given.toml);
}

#[test]
fn two_listeners_before_one_master_are_one_service_and_before_two_are_told() {
    let same = "listen a\n bind :1\n server x h1:6379\nlisten b\n bind :2\n server x h1:6379\n";
    assert_eq!(service(&import(same))["listen"].as_array().unwrap().len(), 2);
    let other = same.replace("bind :2\n server x h1", "bind :2\n server x h2");
    assert!(fault(&other).contains("h.cfg:4:1: b would be a second service"), "{}", fault(&other));
    let given = Given { names: vec![(Some("b".to_owned()), "beta".to_owned())], ..Given::default() };
    assert_eq!(table(&import_with(&other, &given))["service"].as_array().unwrap().len(), 2);
}

#[test]
fn losses_are_named() {
    let text = "listen redis\n bind :6379 ssl crt /x.pem\n bind :6380 accept-proxy\n bind abns@s\n\
                server a h:6379 ssl verify none\n server b h:6380 maxconn 5\n";
    let imported = import(text);
    for (line, part) in [(2, "WITHOUT TLS"), (3, "PROXY"), (4, "UNIX"), (5, "WITHOUT TLS"), (6, "max_connections")] {
        let entry = entry(&imported, line);
        assert!(entry.verdict == Verdict::Unmatched && entry.note.contains(part), "{entry:?}");
    }
}

#[test]
fn broken_files_are_faults_with_their_place() {
    for (text, parts) in [
        ("", &["no listener leads to Redis"][..]),
        ("{\"a\": 1}\n", &["h.cfg:1:1: ", "before the first section"]),
        ("listen a\n bind \":1\n", &["h.cfg:2:7: the quote \" is not closed"]),
        ("listen\n bind :1\n server a h:6379\n", &["h.cfg:1:1: the section \"listen\" has no name"]),
        ("listen a\n bind redis:1\n server a h:6379\n", &["h.cfg:2:2: \"redis:1\" is not an address"]),
        ("listen a\n bind \"${NO}:1\"\n server a h:6379\n", &["set the variable"]),
        ("listen a\n server a h:6379\n", &["h.cfg:1:1: a listens nowhere"]),
        ("listen a\n bind :1\n server a \"${NO}:6379\"\n", &["h.cfg:3:2: ", "set the variable"]),
        ("frontend f\n mode http\n bind :80\n", &["no listener leads to Redis"]),
        (
            "listen a\n bind :1\n server a h:1\n tcp-check send \"SENTINEL master ${X}\\r\\n\"\n",
            &["h.cfg:4:2: ", "cannot be the name", "--name a=NAME"],
        ),
        ("listen a\0\n", &["h.cfg:1:1: the line holds a zero byte"]),
    ] {
        let shown = fault(text);
        assert!(parts.iter().all(|part| shown.contains(part)), "{text:?}: {shown}");
    }
    let twice = import("listen a\n bind *:1\n bind [::]:1 v4v6\n server a h:6379\n");
    assert_eq!(service(&twice)["listen"].to_string(), "[\"0.0.0.0:1\", \"[::]:1\"]");
    let filled = import("listen a\n bind \"127.0.0.1:${PORT}\"\n server a h:6379\n");
    assert_eq!(service(&filled)["listen"].to_string(), "[\"127.0.0.1:7000\"]");
}

#[test]
fn several_files_are_read_as_one() {
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let files = [file("a.cfg", "defaults\n timeout connect 3s\n"), file("b.cfg", &listen(""))];
    let imported = haproxy(&files, &Given::default(), &|_| None);
    assert_eq!(service(&imported)["connect_timeout"].as_str(), Some("3s"));
    let names: BTreeSet<&str> = imported.account.iter().map(|entry| &*entry.place.file).collect();
    assert_eq!(names, BTreeSet::from(["a.cfg", "b.cfg"]));
}

/// Lines that mean something, put together at random: far more of the code is reached than by random letters.
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
        "mode http",
        "stats auth",
        "monitor-uri",
    ]);
    prop_oneof![8 => known.prop_map(str::to_owned), 1 => ".{0,30}", 1 => "[ -~]{0,30}"]
}

proptest! {
    #[test]
    fn no_text_makes_it_panic_and_what_it_writes_is_toml(lines in prop::collection::vec(arbitrary_line(), 0..40)) {
        let imported = import(&lines.join("\n"));
        prop_assert_eq!(imported.toml.is_empty(), !imported.faults.is_empty());
        prop_assert!(imported.toml.parse::<toml::Table>().is_ok(), "{}", imported.toml);
    }
}
