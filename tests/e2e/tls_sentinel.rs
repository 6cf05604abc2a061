//! Discovery, orders and the doctor in front of Redis and Sentinel that speak TLS only and demand
//! client certificates.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use harness::{Certificates, Cluster, Node, Pointsman, wait_until};
use serde_json::Value as Json;

use crate::credentials::status;
use crate::switchover::{TOKEN, order, stderr};
use crate::{PROGRAM, builder, metric};

const PATIENCE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);

#[expect(clippy::disallowed_methods, reason = "the validity of certificates is in wall time")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// Both sections with these keys.
fn sections(keys: &str) -> String {
    format!(
        "[service.redis_tls]\nenabled = true\n{keys}\n[service.sentinel_tls]\nenabled = true\n{keys}\n"
    )
}

/// The keys that name the cluster's CA, and the client certificate in these files.
fn keys(cluster: &Cluster, client: &str) -> String {
    let folder = cluster.folder().join("tls");
    let file = |extension: &str| folder.join(format!("{client}.{extension}"));
    format!(
        "ca_file = {:?}\ncertificate_file = {:?}\nkey_file = {:?}",
        cluster.certificates().ca_file(),
        file("crt"),
        file("key")
    )
}

fn start(cluster: &Cluster) -> Pointsman {
    let pointsman = builder(cluster)
        .lines(&sections(&keys(cluster, "client")))
        .arg("--set=admin.control=true")
        .arg("--set=admin.control_token_env=E2E_TOKEN")
        .env("E2E_TOKEN", TOKEN)
        .start();
    wait_all_up(&pointsman);
    pointsman
}

fn service(pointsman: &Pointsman) -> Json {
    status(pointsman)["services"][0].clone()
}

fn rows<'a>(service: &'a Json, kind: &str) -> &'a [Json] {
    service[kind].as_array().expect("rows")
}

/// The row of one server.
fn row(pointsman: &Pointsman, kind: &str, node: &Node) -> Json {
    let service = service(pointsman);
    let addr = node.addr().to_string();
    rows(&service, kind).iter().find(|it| it["addr"] == *addr).cloned().unwrap_or_default()
}

/// Waits until every sentinel is connected and every node answers, over TLS.
#[track_caller]
fn wait_all_up(pointsman: &Pointsman) {
    wait_until("every server to be reached over TLS", PATIENCE, || {
        let service = service(pointsman);
        let (sentinels, nodes) = (rows(&service, "sentinels"), rows(&service, "nodes"));
        let connected = |it: &Json| it["up"] == true && it["tls"] == "1.3";
        let answers = |it: &Json| it["pong"] == true && it["tls"] == "1.3";
        let all = sentinels.len() == 3
            && nodes.len() == 3
            && sentinels.iter().all(connected)
            && nodes.iter().all(answers);
        if all { Ok(()) } else { Err(service.to_string()) }
    });
}

/// Waits until the program follows the master that the sentinels name.
#[track_caller]
fn wait_follows(pointsman: &Pointsman, master: &Node) {
    wait_until("the new master to be followed", PATIENCE, || {
        let service = service(pointsman);
        let followed = service["target"]["name"] == *master.addr().to_string();
        if followed && service["gate"] == "open" { Ok(()) } else { Err(service.to_string()) }
    });
}

#[test]
fn follows_failovers_of_servers_that_speak_tls_only() {
    let cluster = Cluster::builder().tls().start();
    let pointsman = start(&cluster);
    wait_follows(&pointsman, cluster.master());

    // A failover that somebody else has ordered.
    cluster.failover();
    wait_follows(&pointsman, cluster.master());
    cluster.wait_whole();
    wait_all_up(&pointsman);

    // An order: it talks to the master, the replicas and the sentinels on connections of its own.
    let before = cluster.master().addr();
    let ordered = order(&pointsman, &["switchover"], TOKEN);
    assert!(ordered.status.success(), "{}", stderr(&ordered));
    wait_until("the sentinels to agree", PATIENCE, || {
        cluster
            .current_master_addr()
            .and_then(|it| if it == before { Err(it.to_string()) } else { Ok(()) })
    });
    wait_follows(&pointsman, cluster.master());
    cluster.wait_whole();
    wait_all_up(&pointsman);

    // A crash.
    let dead = cluster.master();
    dead.kill();
    wait_until("another master", PATIENCE, || {
        cluster
            .current_master_addr()
            .and_then(|it| if it == dead.addr() { Err(it.to_string()) } else { Ok(()) })
    });
    wait_follows(&pointsman, cluster.master());
}

#[test]
fn reports_certificates_that_change_under_tls_links() {
    let cluster = Cluster::builder().tls().start();
    let pointsman = start(&cluster);
    let certificates = cluster.certificates();
    let ip = cluster.address().ip().to_string();
    let sentinel = &cluster.sentinels()[0];
    let restart = || {
        sentinel.kill();
        sentinel.restart();
    };

    // Another certificate of the same authority.
    certificates.issue("sentinel-0", &[&ip]);
    restart();
    wait_all_up(&pointsman);

    // An expired one: a sentinel that cannot be reached, and nothing else.
    let now = now();
    certificates.issue_within("sentinel-0", &[&ip], (now - DAY * 9, now - DAY * 5));
    restart();
    wait_until("the expired certificate to be reported", PATIENCE, || {
        let row = row(&pointsman, "sentinels", sentinel);
        let problem = row["problem"].as_str().unwrap_or_default();
        let reported = row["up"] == false
            && row["tls_fault"] == "expired"
            && problem.starts_with("its certificate expired 5 days ago; renew");
        if reported { Ok(()) } else { Err(row.to_string()) }
    });
    let series =
        "pointsman_tls_faults{service=\"mymaster\",servers=\"sentinel\",fault=\"expired\"}";
    assert_eq!(metric(&pointsman, series), Some(1.0));
    wait_follows(&pointsman, cluster.master());
    let (code, document) = examine(&cluster, &sections(&keys(&cluster, "client")));
    assert_eq!(code, Some(2));
    let said = find(&document, "certificate-expired", &sentinel.addr().to_string());
    assert!(said.contains("expired 5 days ago") && said.contains("service.sentinel_tls"), "{said}");
    certificates.issue("sentinel-0", &[&ip]);
    restart();
    wait_all_up(&pointsman);
    assert_eq!(metric(&pointsman, series), None);

    // The files of the client certificate are exchanged, for one that the servers refuse.
    // Established connections stay, and what new ones meet is reported.
    let commits = service(&pointsman)["target"]["generation"].clone();
    let other = Certificates::new(&cluster.folder().join("other"));
    exchange(&cluster, &other, &pointsman);
    let up = |it: &Json| it["up"] == true;
    assert!(rows(&service(&pointsman), "sentinels").iter().all(up), "links were closed");
    wait_all(&pointsman, |it| it["tls_fault"] == "refused" && it["problem"].is_string());
    assert!(rows(&service(&pointsman), "sentinels").iter().all(up), "links were closed");
    wait_follows(&pointsman, cluster.master());
    restart();
    wait_until("the refused certificate to be reported", PATIENCE, || {
        let row = row(&pointsman, "sentinels", sentinel);
        let is_reported = row["tls_fault"] == "refused" && row["up"] == false;
        if is_reported { Ok(()) } else { Err(row.to_string()) }
    });
    let others = service(&pointsman);
    assert_eq!(rows(&others, "sentinels").iter().filter(|it| up(it)).count(), 2, "{others}");
    exchange(&cluster, certificates, &pointsman);
    wait_all_up(&pointsman);
    wait_all(&pointsman, |it| it["tls_fault"].is_null() && it["problem"].is_null());
    assert_eq!(service(&pointsman)["target"]["generation"], commits, "nothing was switched");
}

/// Waits until this holds for the row of every sentinel and node.
#[track_caller]
fn wait_all(pointsman: &Pointsman, holds: impl Fn(&Json) -> bool) {
    wait_until("what new connections meet", PATIENCE, || {
        let seen = service(pointsman);
        let servers = [rows(&seen, "sentinels"), rows(&seen, "nodes")].concat();
        if servers.iter().all(&holds) { Ok(()) } else { Err(seen.to_string()) }
    });
}

/// Replaces the files of the client certificate, and waits until they are in use.
fn exchange(cluster: &Cluster, authority: &Certificates, pointsman: &Pointsman) {
    let applied =
        || pointsman.process().log().matches("sentinel_tls: the files themselves").count();
    let before = applied();
    let new = authority.issue("client", &["client"]);
    let folder = cluster.folder().join("tls");
    for (from, to) in [(new.key, "client.key"), (new.certificate, "client.crt")] {
        if from != folder.join(to) {
            std::fs::copy(from, folder.join(to)).expect("a copy");
        }
    }
    wait_until("the new files to be in use", PATIENCE, || applied() > before);
}

/// The doctor's exit code and document for the first service with these sections.
fn examine(cluster: &Cluster, sections: &str) -> (Option<i32>, Json) {
    let sentinels: Vec<String> = cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
    let config: PathBuf = cluster.folder().join("doctor.toml");
    let text = format!("[[service]]\nname = \"mymaster\"\nsentinels = {sentinels:?}\n{sections}\n");
    std::fs::write(&config, text).expect("a file");
    doctor(&config)
}

fn doctor(config: &Path) -> (Option<i32>, Json) {
    let mut command = Command::new(PROGRAM);
    command.arg("sentinels").arg("--json").arg("--config").arg(config).env_clear();
    let output = command.output().expect("the program");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let document = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr))
    });
    (output.status.code(), document)
}

/// The finding with this code about a server, as `problem; remedy`.
#[track_caller]
fn find(document: &Json, code: &str, about: &str) -> String {
    let findings = document["services"][0]["findings"].as_array().expect("findings");
    let is_it = |it: &&Json| {
        it["code"] == code && it["about"].as_str().is_some_and(|it| it.contains(about))
    };
    let found = findings.iter().find(is_it).unwrap_or_else(|| {
        panic!("no {code} about {about} in {:#}", document["services"][0]["findings"])
    });
    format!("{}; {}", found["message"].as_str().unwrap(), found["remedy"].as_str().unwrap())
}

#[test]
fn doctor_names_each_fault_of_tls_with_its_cure() {
    let cluster = Cluster::builder().tls().start();
    let certificates = cluster.certificates();
    let sentinel = cluster.sentinels()[0].addr().to_string();
    let good = keys(&cluster, "client");
    let (code, document) = examine(&cluster, &sections(&good));
    assert_eq!((code, &document["healthy"]), (Some(0), &Json::Bool(true)), "{document:#}");

    let said = |sections: &str, code: &str, about: &str| {
        let (_, document) = examine(&cluster, sections);
        find(&document, code, about)
    };
    let text = said("", "tls-on-plain", &sentinel);
    assert!(text.contains("answers with TLS") && text.contains("enabled = true"), "{text}");

    let other = Certificates::new(&cluster.folder().join("other"));
    let unknown =
        good.replace(&format!("{:?}", certificates.ca_file()), &format!("{:?}", other.ca_file()));
    let text = said(&sections(&unknown), "certificate-unknown-ca", &sentinel);
    assert!(
        text.contains("not issued by a CA in ca_file, but by another one of the same"),
        "{text}"
    );

    let named = format!("{good}\nserver_name = \"cache.test\"");
    let text = said(&sections(&named), "certificate-name", &sentinel);
    assert!(text.contains("not for cache.test") && text.contains("redis.test"), "{text}");
    let (code, document) = examine(&cluster, &sections(&format!("{named}\nverify = \"chain\"")));
    assert_eq!(code, Some(0), "{document:#}");

    let ca_only = format!("ca_file = {:?}", certificates.ca_file());
    let text = said(&sections(&ca_only), "certificate-refused", &sentinel);
    assert!(text.contains("demands a client certificate") && text.contains("key_file"), "{text}");

    let now = now();
    certificates.issue_within("brief", &["client"], (now - DAY, now + DAY * 5));
    let text = said(&sections(&keys(&cluster, "brief")), "certificate-expires", "brief.crt");
    assert!(text.contains("our client certificate expires in 4 days"), "{text}");

    let ip = cluster.address().ip().to_string();
    let replica = &cluster.nodes()[2];
    certificates.issue_within(replica.name(), &[&ip], (now - DAY, now + DAY * 3));
    replica.kill();
    replica.restart();
    let text = said(&sections(&good), "certificate-expires", &replica.addr().to_string());
    assert!(text.contains("its certificate expires in 2 days"), "{text}");

    let signed = &cluster.sentinels()[1];
    certificates.self_signed(signed.name(), &[&ip]);
    signed.kill();
    signed.restart();
    let text = said(&sections(&good), "certificate-self-signed", &signed.addr().to_string());
    assert!(text.contains("ca_file"), "{text}");

    let plain = Cluster::builder().start();
    let (_, document) = examine(&plain, &sections(&good));
    let text = find(&document, "plain-on-tls", &plain.sentinels()[0].addr().to_string());
    assert!(text.contains("plain text") && text.contains("tls-port"), "{text}");
}

/// A server without the time for a handshake, on a busy host, is asked again with more patience.
#[test]
fn doctor_waits_for_the_handshake_of_a_busy_sentinel() {
    let cluster = Cluster::builder().tls().start();
    let good = sections(&keys(&cluster, "client"));
    let busy = &cluster.sentinels()[0];
    busy.stop();
    let (_, document) = std::thread::scope(|scope| {
        let examined = scope.spawn(|| examine(&cluster, &good));
        harness::pause(Duration::from_secs(3));
        busy.cont();
        examined.join().expect("a document")
    });
    let service = &document["services"][0];
    let states: Vec<&Json> = rows(service, "sentinels").iter().map(|it| &it["state"]).collect();
    assert_eq!(states, ["up", "up", "up"], "{service:#}");
}
