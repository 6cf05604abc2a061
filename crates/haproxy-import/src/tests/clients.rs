//! Rules on clients: allowed networks and the PROXY protocol.

use super::*;

fn one(bind: &str, rules: &[&str]) -> Import {
    let rules: String = rules.iter().map(|rule| format!(" {rule}\n")).collect();
    let text =
        format!("defaults\n mode tcp\nlisten redis\n bind :6379 {bind}\n{rules} server a h:6379\n");
    import_with(&text, &named(&["m"]))
}

fn value(imported: &Import, key: &str) -> Option<String> {
    service(imported).get(key).map(ToString::to_string)
}

const TEN: &str = "acl ten src 10.0.0.0/8";
const LOOP: &str = "acl loop src ::1";

#[test]
fn converts_rules_that_permit_networks() {
    for rules in [
        &["tcp-request connection reject if !{ src 10.0.0.0/8 ::1 }"][..],
        &["tcp-request connection reject unless { src 10.9.9.9/8 ::1 }"],
        &[
            "acl inside src 10.0.0.0/8",
            "acl inside src ::1",
            "tcp-request content reject if !inside",
        ],
        &["acl inside src -- 10.0.0.0/255.0.0.0 ::1", "tcp-request session reject unless inside"],
        &[
            "tcp-request connection accept if { src 10.0.0.0/8 }",
            "tcp-request connection accept if { src ::1 }",
            "tcp-request connection reject",
        ],
        &[
            "tcp-request connection accept if { src 10.0.0.0/8 }",
            "tcp-request connection reject if ! { src ::1 }",
        ],
        &[TEN, LOOP, "tcp-request connection reject if !ten !loop"],
        &[TEN, LOOP, "tcp-request connection reject unless ten or loop"],
        &[TEN, "tcp-request content silent-drop if ! ten !{ src ::1 }"],
        &["tcp-request connection silent-drop unless { src 10.0.0.0/8 } || { src ::1 }"],
        &[
            TEN,
            LOOP,
            "tcp-request connection accept if ten || loop",
            "tcp-request connection reject if TRUE",
        ],
        &[
            TEN,
            LOOP,
            "tcp-request connection accept unless !ten !loop",
            "tcp-request connection reject",
        ],
        // A later rule has to be passed as well.
        &[
            "tcp-request connection reject if !{ src 10.0.0.0/8 ::1 }",
            "tcp-request content reject unless { src ::1 10.0.0.0/8 }",
        ],
    ] {
        let imported = one("", rules);
        let allow = value(&imported, "allow");
        assert_eq!(allow.as_deref(), Some("[\"10.0.0.0/8\", \"::1/128\"]"), "{rules:?}");
        let rule = imported.report.lines.iter().rfind(|it| it.line.starts_with("tcp-request"));
        assert_eq!(rule.unwrap().outcome, LineOutcome::Mapped, "{rules:?}");
    }
}

/// Names of ACLs are case-sensitive.
#[test]
fn tells_acls_apart_by_case() {
    let imported = one(
        "",
        &[
            "acl INTERNAL src 127.0.0.2",
            "acl internal src 127.0.0.0/8",
            "tcp-request connection reject if !INTERNAL",
        ],
    );
    assert_eq!(value(&imported, "allow").as_deref(), Some("[\"127.0.0.2/32\"]"));
    assert_eq!(line(&imported, 6).outcome, LineOutcome::Unmatched, "{:?}", line(&imported, 6));
}

/// An `accept` ends its own stage only: the client still has to pass the rules of later stages.
#[test]
fn admits_no_more_than_each_stage() {
    let within = "tcp-request connection accept if { src 127.0.0.0/8 }";
    let other = "tcp-request connection accept if { src 10.0.0.0/8 }";
    let close = "tcp-request connection reject";
    let one = "tcp-request content reject if !{ src 127.0.0.1 }";
    for (rules, allow) in [
        (&[within, one][..], Some("[\"127.0.0.1/32\"]")),
        // What an `accept` admits without a `reject` after it is everyone.
        (&[within], None),
        (&[within, "tcp-request connection reject if { src_conn_rate ge 100 }"], None),
    ] {
        let imported = plain(rules);
        assert_eq!(value(&imported, "allow").as_deref(), allow, "{rules:?}");
    }
    // Clients that pass all of several lists are not computed.
    let session = "tcp-request session reject unless { src 127.0.0.1 ::1 }";
    for rules in [&[other, close, one][..], &[within, close, one], &[session, one]] {
        let refused = refused(&plain(rules));
        assert!(refused.contains("its networks differ from those of an earlier"), "{refused}");
    }
}

fn plain(rules: &[&str]) -> Import {
    one("", rules)
}

#[test]
fn reports_rules_on_anything_but_the_source() {
    for rules in [
        &["tcp-request connection reject if { src_conn_rate ge 100 }"][..],
        &["tcp-request connection reject if { dst_port 6379 } !{ dst 10.0.0.1 }"],
        &["tcp-request connection track-sc0 src"],
    ] {
        let imported = one("", rules);
        assert_eq!(value(&imported, "allow"), None, "{rules:?}");
        let rule = imported.report.lines.iter().rfind(|it| it.line.starts_with("tcp-request"));
        assert_eq!(rule.unwrap().outcome, LineOutcome::Unmatched, "{rules:?}");
    }
}

/// Without such a rule the import would admit clients that haproxy turns away.
#[test]
fn refuses_rules_by_source_that_it_cannot_convert() {
    let reject = "tcp-request connection reject";
    for rules in [
        &[reject][..],
        &["tcp-request connection reject if { src 10.0.0.0/8 }"],
        &["tcp-request connection silent-drop if { src 10.0.0.0/8 }"],
        &["tcp-request session reject if LOCALHOST"],
        &["tcp-request session reject unless { src 10.0.0.0/8 } !{ src 10.1.0.0/16 }"],
        &["tcp-request content accept if { src -f /etc/a }", "tcp-request content reject if TRUE"],
        &["tcp-request connection reject if !{ src -f /etc/allowed }"],
        &["tcp-request connection accept if { src -f /etc/allowed }", reject],
        &["tcp-request connection accept if !{ src 10.0.0.0/8 }", reject],
        &["tcp-request connection reject if !{ src office.example }"],
        &["tcp-request connection reject if !{ src,ipmask(8) 10.0.0.0 }"],
        &["tcp-request connection reject if !{ src 10.0.0.0/8 } { dst_port 6379 }"],
        &["tcp-request connection silent-drop rst-ttl 5 if !{ src 10.0.0.0/8 }"],
        &[TEN, LOOP, "tcp-request connection reject if !ten or !loop"],
        &[TEN, LOOP, "tcp-request connection reject unless ten loop"],
        &[TEN, LOOP, "tcp-request connection reject if !ten loop"],
        &["acl a src 10.0.0.0/8", "acl a dst 10.0.0.1", "tcp-request connection reject if !a"],
        &[
            "tcp-request connection accept if { dst 10.0.0.1 }",
            "tcp-request connection reject if !{ src 10.0.0.0/8 }",
        ],
        &[TEN, "tcp-request session reject if !ten", "tcp-request session reject if LOCALHOST"],
    ] {
        let refusal = refused(&one("", rules));
        assert!(refusal.contains("this rule by `src` cannot be converted"), "{rules:?}: {refusal}");
    }
}

/// Rules may stand in a backend, and since 2.6 in the defaults that a section names.
#[test]
fn converts_rules_of_backends_and_defaults() {
    let rule = "tcp-request content reject if !{ src 10.0.0.0/8 }";
    for [in_defaults, in_backend] in [[rule, ""], ["", rule]] {
        let imported = import_with(
            &format!(
                "defaults tcp\n mode tcp\n {in_defaults}\nfrontend redis from tcp\n bind :6379\n \
                 default_backend nodes\nbackend nodes\n mode tcp\n {in_backend}\n \
                 server a h:6379\n"
            ),
            &named(&["m"]),
        );
        assert_eq!(value(&imported, "allow").as_deref(), Some("[\"10.0.0.0/8\"]"));
    }
}

#[test]
fn refuses_listeners_that_accept_different_networks() {
    let listener = |name: &str, port: u16, rule: &str| {
        format!("listen {name}\n bind :{port}\n {rule}\n server a h:6379\n")
    };
    let rule = "tcp-request connection reject if !{ src 10.0.0.0/8 }";
    let text = format!("defaults\n mode tcp\n{}{}", listener("a", 1, rule), listener("b", 2, ""));
    let refusal = refused_with(&text, &["m"]);
    assert!(refusal.contains("listeners of one service accept different networks"), "{refusal}");
}

#[test]
fn converts_proxy_protocol_of_all_addresses() {
    let everyone = "[\"0.0.0.0/0\", \"::/0\"]";
    let imported = one("accept-proxy", &[]);
    assert_eq!(value(&imported, "proxy_protocol_from").as_deref(), Some(everyone));
    assert_eq!(line(&imported, 4).outcome, LineOutcome::Assumed, "everyone may claim an address");
    let expected = "tcp-request connection expect-proxy layer4 if { src 10.0.0.5 10.0.0.6 }";
    let imported = one("", &[expected]);
    let value_of = |key| value(&imported, key);
    let from = value_of("proxy_protocol_from");
    assert_eq!(from.as_deref(), Some("[\"10.0.0.5/32\", \"10.0.0.6/32\"]"));
    assert_eq!(line(&imported, 5).outcome, LineOutcome::Mapped);
    let after = "tcp-request session reject if !{ src 192.0.2.0/24 }";
    let imported = one("accept-proxy", &[after]);
    assert_eq!(value(&imported, "allow").as_deref(), Some("[\"192.0.2.0/24\"]"));
    // A rule before the header concerns the load balancer, also above the line that demands it.
    let before = "tcp-request connection reject if !{ src 10.0.0.5 }";
    for imported in [one("", &[before, expected]), one("accept-proxy", &[before, after])] {
        let refusal = refused(&imported);
        assert!(refusal.contains("this rule by `src` cannot be converted"), "{refusal}");
    }
    let imported = one("accept-proxy\n bind :6380", &[]);
    assert_eq!(value(&imported, "proxy_protocol_from"), None);
    assert_eq!(line(&imported, 4).outcome, LineOutcome::Unmatched);
}

#[test]
fn keeps_readers_open_if_only_the_master_is_restricted() {
    let readers = |rule: &str| {
        let text = format!(
            "defaults\n mode tcp\n\
             listen redis\n bind :6379\n tcp-request connection reject if !{{ src 10.0.0.0/8 }}\n\
             \x20option tcp-check\n tcp-check expect string role:master\n server a h:6379\n\
             listen redis_ro\n bind :6380\n{rule}\
             \x20option tcp-check\n tcp-check expect string role:slave\n server a h:6379\n"
        );
        let imported = import_with(&text, &named(&["m"]));
        assert_eq!(value(&imported, "allow").as_deref(), Some("[\"10.0.0.0/8\"]"));
        value(&imported, "replica_allow").unwrap()
    };
    assert_eq!(readers(""), "[\"0.0.0.0/0\", \"::/0\"]");
    let rule = " tcp-request connection reject unless { src 10.1.0.0/16 }\n";
    assert_eq!(readers(rule), "[\"10.1.0.0/16\"]");
}
