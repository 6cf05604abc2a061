//! TLS of clients, Redis and sentinels: converted, refused by name, or given up.

use super::*;

/// A listener for Redis, with `before` above its only server and `after` at the end of that line.
fn server(before: &str, after: &str) -> String {
    format!("listen redis\n bind :6379\n option redis-check\n{before} server a h:6380{after}\n")
}

fn bind(options: &str) -> String {
    server("", "").replace(":6379", &format!(":6379 {options}"))
}

fn table_of(imported: &Import, name: &str) -> String {
    let service = service(imported);
    service.get(name).map(ToString::to_string).unwrap_or_default()
}

/// The keys of a table of the service as they are compared: `key=value`, in alphabetic order.
fn keys_of(imported: &Import, name: &str) -> String {
    let service = service(imported);
    let Some(table) = service.get(name) else { return String::new() };
    let keys = table.as_table().unwrap().iter();
    keys.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn converts_tls_of_clients() {
    for (options, expected) in [
        ("ssl crt /x.pem", r#"certificate_files=["/x.pem"]"#),
        ("ssl crt /x.pem crt /y.pem", r#"certificate_files=["/x.pem", "/y.pem"]"#),
        ("ssl crt /x.pem default-crt /y.pem", r#"certificate_files=["/y.pem", "/x.pem"]"#),
        ("ssl crt /etc/redis.pem", r#"certificate_files=["/etc/redis.pem"]"#),
        (
            "ssl crt /certs/",
            r#"certificate_files=["/certs/a.pem", "/certs/b.pem"] key_files=["/certs/a.pem", "/certs/b.pem.key"]"#,
        ),
        (
            "ssl crt /x.pem verify required ca-file /ca.pem",
            r#"certificate_files=["/x.pem"] client_ca_file="/ca.pem" client_certificates="required""#,
        ),
        (
            "ssl crt /x.pem verify optional ca-file /ca.pem ssl-min-ver TLSv1.3",
            r#"certificate_files=["/x.pem"] client_ca_file="/ca.pem" client_certificates="optional" min_version="1.3""#,
        ),
        // Without `verify` haproxy asks for no certificate.
        ("ssl crt /x.pem ca-file /ca.pem", r#"certificate_files=["/x.pem"]"#),
        ("ssl crt /x.pem no-tlsv13", r#"certificate_files=["/x.pem"] max_version="1.2""#),
    ] {
        let imported = import(&bind(options));
        assert_eq!(keys_of(&imported, "tls"), expected, "{options}");
        assert_eq!(table_of(&imported, "tls_listen"), "[\"0.0.0.0:6379\"]", "{options}");
        assert_eq!(table_of(&imported, "listen"), "[]", "{options}");
        assert_eq!(line(&imported, 2).outcome, LineOutcome::Mapped, "{options}");
    }
    let both = bind("").replace(" option", " bind :6380 ssl crt /x.pem\n option");
    let imported = import(&both);
    assert_eq!(table_of(&imported, "listen"), "[\"0.0.0.0:6379\"]");
    assert_eq!(table_of(&imported, "tls_listen"), "[\"0.0.0.0:6380\"]");
}

#[test]
fn applies_defaults_of_global_to_tls() {
    let global = "global\n ca-base /ca\n crt-base /crt/\n ssl-default-bind-options force-tlsv13\n \
                  ssl-default-bind-ciphersuites TLS_AES_128_GCM_SHA256\n ssl-server-verify none\n";
    let imported = import(&format!("{global}{}", bind("ssl crt x.pem verify required ca-file c")));
    let expected = r#"certificate_files=["/crt/x.pem"] client_ca_file="/ca/c" client_certificates="required" min_version="1.3""#;
    assert_eq!(keys_of(&imported, "tls"), expected);
    let imported = import(&format!("{global}{}", server("", " ssl")));
    assert_eq!(keys_of(&imported, "redis_tls"), r#"enabled=true verify="none""#);
}

#[test]
fn converts_tls_to_redis() {
    for (before, after, expected) in [
        ("", " ssl verify none", r#"enabled=true verify="none""#),
        ("", " ssl ca-file /ca.pem", r#"ca_file="/ca.pem" enabled=true verify="chain""#),
        (
            "",
            " ssl verify required ca-file /ca.pem verifyhost redis.example",
            r#"ca_file="/ca.pem" enabled=true server_name="redis.example" verify="full""#,
        ),
        (
            "",
            " ssl verify required ca-file @system-ca sni str(redis.example)",
            r#"enabled=true server_name="redis.example" verify="full""#,
        ),
        (
            "",
            " ssl ca-file /ca.pem verifyhost h",
            r#"ca_file="/ca.pem" enabled=true verify="full""#,
        ),
        (
            "",
            " ssl ca-file /ca.pem crt /client.pem",
            r#"ca_file="/ca.pem" certificate_file="/client.pem" enabled=true verify="chain""#,
        ),
        (
            "",
            " ssl verify none crt /certs/b.pem",
            r#"certificate_file="/certs/b.pem" enabled=true key_file="/certs/b.pem.key" verify="none""#,
        ),
        (" default-server ssl verify none\n", "", r#"enabled=true verify="none""#),
        (" default-server ssl verify none\n", " no-ssl", ""),
        // The line itself wins over its defaults.
        (
            " default-server ssl verify none\n",
            " verify required ca-file /ca.pem",
            r#"ca_file="/ca.pem" enabled=true verify="chain""#,
        ),
    ] {
        let imported = import(&server(before, after));
        assert_eq!(keys_of(&imported, "redis_tls"), expected, "{before}{after}");
        assert_eq!(keys_of(&imported, "sentinel_tls"), "", "{before}{after}");
        let number = if before.is_empty() { 4 } else { 5 };
        assert!(line(&imported, number).note.contains("a sentinel is assumed"), "{before}{after}");
    }
    let unverified = import(&server("", " ssl verify none"));
    assert!(line(&unverified, 4).note.contains("is not verified"), "{:?}", line(&unverified, 4));
}

#[test]
fn converts_tls_to_sentinels() {
    let voters = |check: &str, options: &str| {
        format!(
            "frontend f\n bind :6379\n use_backend b if {{ nbsrv(v) ge 2 }}\nbackend b\n \
             server a h:6379\nbackend v\n option tcp-check\n{check} \
             tcp-check send SENTINEL\\ master\\ m\\r\\n\n server s h:26379 check{options}\n"
        )
    };
    for (check, options, expected) in [
        ("", " check-ssl verify none", r#"enabled=true verify="none""#),
        ("", " ssl ca-file /ca.pem", r#"ca_file="/ca.pem" enabled=true verify="chain""#),
        (" tcp-check connect ssl\n", " verify none", r#"enabled=true verify="none""#),
        (" tcp-check connect\n", " check-ssl verify none", ""),
        (" tcp-check connect default\n", " check-ssl verify none", r#"enabled=true verify="none""#),
        (
            "",
            " check-ssl ca-file /ca.pem check-sni s.example",
            r#"ca_file="/ca.pem" enabled=true server_name="s.example" verify="full""#,
        ),
        ("", "", ""),
    ] {
        let imported = import(&voters(check, options));
        assert_eq!(keys_of(&imported, "sentinel_tls"), expected, "{check}{options}");
        assert_eq!(keys_of(&imported, "redis_tls"), "", "{check}{options}");
    }
}

/// A file with statistics on these lines; they begin at line 7.
fn admin(binds: &str) -> String {
    format!("{}listen s\n mode http\n {binds}\n stats enable\n", server("", ""))
}

/// An address whose TLS is not converted is left out, and never opened in plain text.
#[test]
fn leaves_out_admin_addresses_with_tls() {
    let text = admin("bind :9 ssl crt /x.pem\n bind :10");
    let imported = import(&text);
    let listens = |imported: &Import| table(imported)["admin"]["listen"].to_string();
    assert_eq!(listens(&imported), "[\"0.0.0.0:10\"]");
    let found = line(&imported, 7);
    assert_eq!(found.outcome, LineOutcome::Unmatched);
    assert!(found.note.contains("[admin.tls]"), "{found:?}");
    let options = ImportOptions { allow_plaintext: true, ..ImportOptions::default() };
    let plain = import_with(&text, &options);
    assert_eq!(listens(&plain), "[\"0.0.0.0:9\", \"0.0.0.0:10\"]");
}

/// An option that cannot be kept is refused by name, at its line.
#[test]
fn refuses_tls_without_counterpart() {
    let passthrough = "passes the clients' TLS through";
    let two = |one: &str, other: &str| format!("{} server b i:6380{other}\n", server("", one));
    for (text, number, part) in [
        (bind("ssl"), 2, "without a certificate"),
        (bind("ssl crt-list /l"), 2, "`crt-list` has no counterpart"),
        (bind("ssl crt /x.pem crl-file /c"), 2, "`crl-file` has no counterpart"),
        (bind("ssl crt /x.pem verify required"), 2, "without a `ca-file`"),
        (bind("ssl crt /x.pem verify required ca-file @system-ca"), 2, "is not a file"),
        (bind("ssl crt /x.pem verify required ca-file /certs"), 2, "is a folder"),
        (bind("ssl crt /unknown/"), 2, "are unknown"),
        (bind("ssl crt \"${NO}\""), 2, "is not a path"),
        (bind("ssl crt @store/x"), 2, "is not a file"),
        (bind("ssl crt /x.pem force-tlsv11"), 2, "which this line excludes"),
        (bind("").replace(":6379", "/run/s ssl crt /x.pem"), 2, "no TLS on Unix sockets"),
        (
            bind("ssl crt /x.pem").replace(" option", " bind :7 ssl crt /y.pem\n option"),
            3,
            "its TLS differs",
        ),
        (server("", " ssl crl-file /c"), 4, "`crl-file` has no counterpart"),
        (server("", " ssl ca-file /ca sni req.ssl_sni"), 4, "computes the name"),
        (server("", " check check-ssl"), 4, passthrough),
        (server(" tcp-check connect ssl\n", ""), 4, passthrough),
        (two(" ssl verify none", ""), 5, "is reached without TLS"),
        (two(" ssl verify none", " ssl ca-file /ca"), 5, "its TLS differs"),
        (two(" ssl ca-file /a verifyhost x", " ssl ca-file /a verifyhost y"), 5, "its TLS differs"),
    ] {
        let refused = refusal(&text);
        assert!(refused.starts_with(&format!("h.cfg:{number}:2: ")), "{text}: {refused}");
        assert!(refused.contains(part), "{text}: {refused}");
        let options = ImportOptions { allow_plaintext: true, ..ImportOptions::default() };
        assert_eq!(import_with(&text, &options).refusals, [], "{text}");
    }
}

#[test]
fn reports_tls_options_that_are_dropped() {
    for (options, part) in [
        ("strict-sni", "`strict-sni` has no counterpart"),
        ("ssl-min-ver TLSv1.0", "TLS 1.1 and older is refused"),
        ("ciphers HIGH:!aNULL", "the list of ciphers is not converted"),
        ("ciphersuites TLS_AES_128_GCM_SHA256", "the list of ciphers is not converted"),
    ] {
        let imported = import(&bind(&format!("ssl crt /x.pem {options}")));
        let line = line(&imported, 2);
        assert_eq!(line.outcome, LineOutcome::Assumed, "{options}");
        assert!(line.note.contains(part), "{options}: {line:?}");
    }
    let shared = import(&server("", " ssl verify none"));
    assert!(line(&shared, 1).note.contains("service.sentinel_tls"), "{:?}", line(&shared, 1));
}

#[test]
fn drops_tls_with_allow_plaintext() {
    for (text, number) in [
        (bind("ssl crt /x.pem"), 2),
        (server("", " ssl verify none"), 4),
        (server("", " check check-ssl"), 4),
        (server(" default-server ssl\n", ""), 4),
        (format!("defaults\n default-server check-ssl\n{}", server("", "")), 2),
        (server(" tcp-check connect port 26379 ssl\n", ""), 4),
    ] {
        let options = ImportOptions { allow_plaintext: true, ..ImportOptions::default() };
        let imported = import_with(&text, &options);
        assert_eq!(line(&imported, number).outcome, LineOutcome::Unmatched, "{text}");
        assert!(imported.toml.contains(&format!("#   h.cfg:{number}: ")), "{}", imported.toml);
        assert!(imported.toml.contains("# WITHOUT TLS"), "{}", imported.toml);
        assert_eq!(table_of(&imported, "listen"), "[\"0.0.0.0:6379\"]");
    }
    let web = "frontend w\n mode http\n bind :443 ssl\n default_backend b\nbackend b\n server a h:443 ssl\n";
    let imported = import(&format!("{web}{}", server("", "")));
    assert_eq!(keys_of(&imported, "tls"), "", "TLS that stays in haproxy");
}
