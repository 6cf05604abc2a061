//! Frontends with several backends: one dataset and one role for each address, or a refusal.

use super::*;

/// A backend of three servers that asks for the role.
fn servers(name: &str, role: &str, host: &str) -> String {
    format!(
        "backend {name}\n option redis-check\n tcp-check expect string role:{role}\n \
         server r1 {host}1:6379\n server r2 {host}2:6379\n"
    )
}

/// A backend that asks two sentinels of a site for `mymaster`.
fn votes(name: &str, host: &str) -> String {
    format!(
        "backend {name}\n tcp-check send SENTINEL\\ master\\ mymaster\\r\\n\n \
         server s1 {host}1:26379\n server s2 {host}2:26379\n"
    )
}

fn frontend(rules: &str) -> String {
    format!("frontend f\n bind :1\n{rules}")
}

fn with_sentinel(text: &str) -> Import {
    let sentinels = vec![(Some("f".to_owned()), "s:26379".to_owned())];
    import_with(text, &ImportOptions { sentinels, ..ImportOptions::default() })
}

/// Both sites call their master `mymaster`. haproxy serves one of them, never both.
#[test]
fn refuses_a_standby_site_with_sentinels_of_its_own() {
    let sites = [("a", "a"), ("b", "b")]
        .map(|(name, host)| servers(name, "master", host) + &votes(&format!("votes_{name}"), host));
    let sites = sites.concat();
    let standby = " use_backend b if { nbsrv(votes_a) lt 2 } { nbsrv(votes_b) ge 2 }\n";
    let shown = refusal(&(frontend(&format!("{standby} default_backend a\n")) + &sites));
    assert!(shown.contains("h.cfg:1:1: f can lead to servers that no sentinel"), "{shown}");
    assert!(shown.contains("--sentinel f=HOST:PORT"), "{shown}");
    // Sentinels of both are asked.
    for rules in [
        format!("{standby} use_backend a if {{ nbsrv(votes_a) ge 2 }}\n"),
        format!("{standby} default_backend a\n"),
    ] {
        let text = frontend(&rules) + &sites;
        let shown = refused_with(&text, &["f=mymaster"]);
        assert!(shown.contains("asks sentinels without a common address: a1:26379 and b"));
        assert_eq!(with_sentinel(&text).refusals, [], "{rules}");
    }
    // Readers are no exception.
    let rules =
        " use_backend a if { nbsrv(votes_a) ge 2 }\n use_backend b if { nbsrv(votes_b) ge 2 }\n";
    let writers = "listen w\n bind :2\n tcp-check expect string role:master\n server x a1:6379\n";
    let readers = writers.to_owned() + &frontend(rules) + &sites.replace("master\n", "slave\n");
    let shown = refused_with(&readers, &["f=mymaster"]);
    assert!(shown.contains("asks sentinels without a common address"), "{shown}");
    // A vote of one site does not select the other.
    let acl = " acl is_a nbsrv(votes_a) ge 2\n use_backend a if is_a\n";
    for rules in [
        " use_backend b if { nbsrv(votes_a) lt 2 }\n use_backend a\n".to_owned(),
        format!("{acl} use_backend b if !is_a\n"),
        format!("{acl} use_backend b if ! is_a\n"),
        format!("{acl} use_backend b unless is_a\n"),
    ] {
        let without = frontend(&rules)
            + &servers("a", "master", "a")
            + &servers("b", "master", "b")
            + &votes("votes_a", "a");
        assert!(refusal(&without).contains("no sentinel"), "{rules}");
    }
}

/// Each node has a backend, and the same sentinels vote for one of them.
#[test]
fn accepts_a_backend_for_each_node_of_one_master() {
    let text = |rules: &str| {
        let nodes = ["a", "b"]
            .map(|name| format!("backend {name}\n option redis-check\n server r {name}:6379\n"));
        format!("{}{}{}{}", frontend(rules), nodes.concat(), votes("va", "s"), votes("vb", "s"))
    };
    for rules in [
        " use_backend a if { nbsrv(va) ge 2 }\n use_backend b if { nbsrv(vb) ge 2 }\n",
        " acl is_a nbsrv(va) ge 2\n acl is_b nbsrv(vb) ge 2\n use_backend a if is_a\n \
         use_backend b if is_b\n",
    ] {
        let service = service(&import(&text(rules)));
        assert_eq!(service["sentinels"].to_string(), "[\"s1:26379\", \"s2:26379\"]", "{rules}");
    }
}

/// haproxy connects to the port that the client used: here to two datasets.
#[test]
fn refuses_servers_without_a_port_for_several_ports() {
    let check = " option redis-check\n tcp-check expect string role:master\n";
    let one = format!("listen f\n bind :21001\n bind :21101\n{check} server r1 h check port 1\n");
    let part = "h has no port, and its clients use several: 21001, 21101";
    let shown = refused_with(&one, &["f=m"]);
    assert!(shown.contains(&format!("h.cfg:6:2: {part}")), "{shown}");
    let two = format!(
        "frontend f\n bind :21001\n default_backend b\nfrontend g\n bind :21101\n \
         default_backend b\nbackend b\n{check} server r1 h\n"
    );
    assert!(refused_with(&two, &["f=m", "g=n"]).contains(part));
    let own = one.replace("h check", "h:6379 check");
    assert_eq!(services(&import_with(&own, &named(&["f=m"]))).len(), 1);
    let list = one.replace("f\n bind :21001\n bind :21101", "f\n bind :21001,:21101");
    assert!(refused_with(&list, &["f=m"]).contains(part));
    // haproxy reads addresses in `bind` lines only.
    let old = one.replace("f\n bind :21001\n bind :21101", "f :21001");
    assert!(refused_with(&old, &["f=m"]).contains("h.cfg:1:1: an address in the head"));
}

/// Any backend may be meant, those of other datasets as well.
#[test]
fn refuses_computed_and_unknown_backends() {
    let backend = |name: &str, host: &str| servers(name, "master", host);
    let text = |rule: &str| {
        let rules = format!(" {rule}\n default_backend r_1\n");
        frontend(&rules) + &backend("r_1", "h") + &backend("r_2", "i")
    };
    for rule in [
        "use_backend r_%[dst_port]",
        "use_backend r_%[dst_port] if TRUE",
        "use_backend r_1 if { src 10.0.0.0/8 }\n use_backend r_%[dst_port]",
        "use_backend r_3 if { nbsrv(r_1) lt 1 }",
    ] {
        let shown = refusal(&text(rule));
        assert!(shown.contains("is computed, or not in the file"), "{rule}: {shown}");
        assert!(shown.contains("give each group of servers a frontend of its own"), "{shown}");
        assert!(refused_with(&text(rule), &["f=m"]).contains("is computed"), "{rule}");
    }
}

/// A writers' frontend, and one with the backends of masters `m` and replicas `s`.
fn split(rules: &str) -> String {
    let old = "frontend old\n bind :9\n default_backend m\n";
    frontend(rules) + old + &servers("m", "master", "h") + &servers("s", "slave", "h")
}

/// The addresses of writers and of readers, and what readers get without a replica.
fn exposed(imported: &Import) -> String {
    let service = service(imported);
    let of = |key: &str| service.get(key).map(ToString::to_string).unwrap_or_default();
    let empty = service.get("replicas").map(|it| it["empty"].to_string());
    format!("{} {} {}", of("listen"), of("replica_listen"), empty.unwrap_or_default())
}

#[test]
fn keeps_writers_away_from_replicas() {
    let both = "[\"0.0.0.0:1\", \"0.0.0.0:9\"]  ";
    for rules in [
        " use_backend s if { nbsrv(m) lt 1 }\n default_backend m\n",
        " use_backend s if { nbsrv(m) lt 1 }\n use_backend m\n",
        " use_backend m if { nbsrv(m) ge 1 }\n use_backend s if { nbsrv(s) ge 1 }\n",
    ] {
        let imported = import_with(&split(rules), &named(&["f=m", "old=m"]));
        assert_eq!(exposed(&imported), both, "{rules}");
        let mut all = imported.report.lines.iter();
        let rule = all.find(|it| it.line.starts_with("use_backend s")).unwrap();
        assert_eq!(rule.outcome, LineOutcome::Assumed, "{rules}");
        assert!(rule.note.contains("led writers to replicas"), "{rule:?}");
    }
}

#[test]
fn refuses_roles_by_client_or_traffic() {
    for rules in [
        " bind :2\n use_backend s if { dst_port 2 }\n default_backend m\n",
        " bind :2\n use_backend m if { dst_port 1 }\n default_backend s\n",
        " use_backend m if { src 10.0.0.0/8 }\n default_backend s\n",
        " acl up nbsrv(m) ge 1\n acl UP src 10.0.0.0/8\n use_backend m if UP\n default_backend s\n",
    ] {
        let shown = refused_with(&split(rules), &["f=m", "old=m"]);
        assert!(shown.contains("f selects the master or replicas by client or traffic"), "{shown}");
    }
    // Readers are subject to the other rules as well.
    let replicas = servers("t", "slave", "i");
    let two = split(" use_backend t if { src 10.0.0.0/8 }\n default_backend s\n") + &replicas;
    assert!(refused_with(&two, &["f=mymaster"]).contains("selects between different servers"));
    let computed = split(" use_backend %[dst_port]\n default_backend s\n");
    assert!(refusal(&computed).contains("is computed, or not in the file"));
    let same = split(" use_backend u if { src 10.0.0.0/8 }\n default_backend s\n");
    let same = import_with(&(same + &servers("u", "slave", "h")), &named(&["f=mymaster"]));
    assert_eq!(line(&same, 3).outcome, LineOutcome::Unmatched);
}

#[test]
fn lets_readers_fall_back_to_the_master() {
    for (condition, outcome) in [
        ("nbsrv(s) lt 1", LineOutcome::Mapped),
        ("nbsrv(s) eq 0", LineOutcome::Mapped),
        ("nbsrv(s) lt 2", LineOutcome::Assumed),
        ("nbsrv(m) ge 2", LineOutcome::Assumed),
    ] {
        let rules = format!(" use_backend m if {{ {condition} }}\n default_backend s\n");
        let imported = import(&split(&rules));
        let expected = "[\"0.0.0.0:9\"] [\"0.0.0.0:1\"] \"master\"";
        assert_eq!(exposed(&imported), expected, "{condition}");
        assert_eq!(line(&imported, 3).outcome, outcome, "{condition}");
    }
    // The key applies to all readers of a service.
    let more = "frontend more\n bind :3\n default_backend s\n";
    let rules = " use_backend m if { nbsrv(s) lt 1 }\n default_backend s\n";
    for text in [split(rules) + more, more.to_owned() + &split(rules)] {
        let imported = import(&text);
        assert!(exposed(&imported).ends_with("\"master\""));
        let mut all = imported.report.lines.iter();
        let rule = all.find(|it| it.line.starts_with("use_backend m")).unwrap();
        assert_eq!(rule.outcome, LineOutcome::Assumed, "{rule:?}");
    }
}
