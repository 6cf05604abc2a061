//! The import as a whole: small files in, configuration and report out. Whole files in the styles
//! found in the field are in tests/import.

use proptest::prelude::*;

use super::*;

mod checks;
mod clients;
mod report;
mod routing;
mod services;
mod tls;

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
        folder: &|path| files_in(path),
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

fn refused_with(text: &str, names: &[&str]) -> String {
    refused(&import_with(text, &named(names)))
}

#[test]
fn refuses_broken_files_with_position() {
    for (text, parts) in [
        ("", &["no listener leads to Redis"][..]),
        ("{\"a\": 1}\n", &["h.cfg:1:1: ", "precedes the first section"]),
        ("listen a\n bind \":1\n", &["h.cfg:2:7: the quote \" is not closed"]),
        (
            "listen\n bind :1\n server a h:6379\n",
            &["h.cfg:1:1: the section \"listen\" has no name"],
        ),
        (
            "listen a\n bind redis:1\n server a h:6379\n",
            &["h.cfg:2:2: \"redis:1\" is not an address"],
        ),
        ("listen a\n bind \"${NO}:1\"\n server a h:6379\n", &["set the variable"]),
        ("listen a\n server a h:6379\n", &["no listener leads to Redis"]),
        (
            "listen a\n server a h:6379\n option redis-check\n",
            &["no frontend leads to the Redis servers"],
        ),
        ("listen a\n bind abns@s\n server a h:6379\n", &["h.cfg:1:1: a has no address that"]),
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
        "server s h:6379 ssl verify required ca-file /ca.pem crt /c.pem sni str(h)",
        "bind :6380 ssl crt /x.pem ca-file /ca.pem verify required force-tlsv13",
        "ssl-default-bind-options no-tlsv13 ssl-min-ver",
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

/// The inputs with which the import is fuzzed, and variations of them.
#[test]
fn imports_or_refuses_the_fuzz_corpus() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut imported_count, mut random) = (0, fastrand::Rng::with_seed(7));
    for file in std::fs::read_dir(folder.join("../../fuzz/corpus/haproxy_cfg")).unwrap() {
        let input = std::fs::read(file.unwrap().path()).unwrap();
        for variation in 0..100 {
            let mut bytes = input.clone();
            for _ in 0..variation % 8 {
                if !bytes.is_empty() {
                    let at = random.usize(..bytes.len());
                    bytes[at] = random.u8(b'\n'..b'~');
                }
            }
            let Ok(text) = String::from_utf8(bytes) else { continue };
            let options = ImportOptions { allow_plaintext: true, ..ImportOptions::default() };
            let imported = import_with(&text, &options);
            assert_eq!(imported.toml.is_empty(), !imported.refusals.is_empty());
            assert!(imported.toml.parse::<toml::Table>().is_ok(), "{text}\n{}", imported.toml);
            imported_count += usize::from(imported.refusals.is_empty());
        }
    }
    assert!(imported_count > 100, "the corpus is of no use: {imported_count}");
}

/// The folders that the import sees.
fn files_in(path: &str) -> Option<Vec<String>> {
    let files: &[&str] = match path.trim_end_matches('/') {
        "/certs" => &["a.pem", "a.pem.issuer", "b.pem", "b.pem.key", "b.pem.ocsp"],
        "/etc" => &["redis.pem"],
        _ => return None,
    };
    Some(files.iter().map(|it| (*it).to_owned()).collect())
}
