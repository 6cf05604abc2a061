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
    // A vote of one site does not select the other.
    let without = format!(
        "{}{}",
        frontend(" use_backend b if { nbsrv(votes_a) lt 2 }\n use_backend a\n"),
        servers("a", "master", "a") + &servers("b", "master", "b") + &votes("votes_a", "a")
    );
    assert!(refusal(&without).contains("no sentinel"), "{}", refusal(&without));
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
    // The address of `listen` counts, and so does a range.
    for binds in ["f :21001\n bind :21101", "f\n bind :21001,:21101"] {
        let text = one.replace("f\n bind :21001\n bind :21101", binds);
        assert!(refused_with(&text, &["f=m"]).contains(part), "{binds}");
    }
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
        assert!(shown.contains("--name f=NAME"), "{shown}");
        let named = import_with(&text(rule), &named(&["f=m"]));
        assert_eq!(line(&named, 3).outcome, LineOutcome::Unmatched, "{rule}");
    }
}
