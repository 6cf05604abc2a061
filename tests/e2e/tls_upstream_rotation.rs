//! Rotation towards Redis and Sentinel under load: our client certificate, then the CA on both
//! sides, in the order in which it is done with a bundle of both.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use harness::{Certificates, Client, Cluster, Load, Node, Pointsman, wait_until};
use serde_json::Value as Json;

use crate::credentials::status;
use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(60);

/// The files of one pointsman: `ca.crt`, `client.crt` and `client.key`.
struct OwnFiles(PathBuf);

impl OwnFiles {
    fn sections(&self) -> String {
        let file = |name: &str| self.0.join(name);
        let keys = format!(
            "enabled = true\nca_file = {:?}\ncertificate_file = {:?}\nkey_file = {:?}\n",
            file("ca.crt"),
            file("client.crt"),
            file("client.key")
        );
        format!("[service.redis_tls]\n{keys}[service.sentinel_tls]\n{keys}")
    }

    /// Trusts these authorities.
    fn trust(&self, authorities: &[&Certificates]) {
        replace(&self.0.join("ca.crt"), &bundle(authorities));
    }

    /// Shows a new certificate of this authority.
    fn identify(&self, authority: &Certificates) {
        let new = authority.issue("rotated", &["client"]);
        for (from, to) in [(new.key, "client.key"), (new.certificate, "client.crt")] {
            replace(&self.0.join(to), &std::fs::read_to_string(from).expect("a file"));
        }
    }
}

fn bundle(authorities: &[&Certificates]) -> String {
    let read = |it: &&Certificates| std::fs::read_to_string(it.ca_file()).expect("a CA");
    authorities.iter().map(read).collect()
}

/// In one step, so that no part of it is read.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("replaced");
    std::fs::write(&new, text).expect("a file");
    std::fs::rename(&new, path).expect("the exchange");
}

/// Changes files, and waits until new connections on both sides use them.
fn exchange(pointsman: &Pointsman, change: impl FnOnce()) {
    let applied = || {
        let log = pointsman.process().log();
        ["sentinel_tls", "redis_tls"]
            .map(|side| log.matches(&format!("{side}: the files themselves")).count())
    };
    let before = applied();
    change();
    wait_until("the new files to be in use", PATIENCE, || {
        let now = applied();
        if now[0] > before[0] && now[1] > before[1] { Ok(()) } else { Err(format!("{now:?}")) }
    });
}

fn rows(pointsman: &Pointsman, kind: &str) -> Vec<Json> {
    status(pointsman)["services"][0][kind].as_array().cloned().unwrap_or_default()
}

#[track_caller]
fn wait_all_up(pointsman: &Pointsman) {
    wait_until("every server to be reached", PATIENCE, || {
        let (sentinels, nodes) = (rows(pointsman, "sentinels"), rows(pointsman, "nodes"));
        let connected = |it: &Json| it["up"] == true && it["tls_fault"].is_null();
        let answers = |it: &Json| it["pong"] == true && it["tls_fault"].is_null();
        let all = sentinels.len() == 3 && nodes.len() == 3;
        if all && sentinels.iter().all(connected) && nodes.iter().all(answers) {
            Ok(())
        } else {
            Err(format!("{sentinels:?} {nodes:?}"))
        }
    });
}

/// Restarts sentinels one after another, so that there is a majority all the time.
fn restart_sentinels(cluster: &Cluster, pointsman: &Pointsman) {
    for sentinel in cluster.sentinels() {
        sentinel.kill();
        sentinel.restart();
        wait_all_up(pointsman);
        cluster.wait_whole();
    }
}

/// A server reads its files again. Its established connections stay.
fn reread(node: &Node, folder: &Path) {
    let file =
        |extension: &str| folder.join(format!("{}.{extension}", node.name())).display().to_string();
    let (certificate, key) = (file("crt"), file("key"));
    let ca = folder.join("ca.crt").display().to_string();
    let command = [
        "CONFIG",
        "SET",
        "tls-cert-file",
        &certificate,
        "tls-key-file",
        &key,
        "tls-ca-cert-file",
        &ca,
    ];
    assert!(node.ask(&command).expect("CONFIG SET").is_ok());
}

/// Gives a server a certificate of this authority.
fn reissue(cluster: &Cluster, node: &Node, authority: &Certificates) {
    let ip = cluster.address().ip().to_string();
    let new = authority.issue(node.name(), &[&ip, "localhost", "redis.test"]);
    let folder = cluster.folder().join("tls");
    for (from, extension) in [(new.key, "key"), (new.certificate, "crt")] {
        let to = folder.join(format!("{}.{extension}", node.name()));
        if from != to {
            replace(&to, &std::fs::read_to_string(from).expect("a file"));
        }
    }
}

/// Connects again and again, each time with a handshake at Redis; returns how often, and the
/// failures.
fn call(pointsman: &Pointsman, stop: &Arc<AtomicBool>) -> JoinHandle<(usize, Vec<String>)> {
    let (addr, stop) = (pointsman.addr(), Arc::clone(stop));
    std::thread::spawn(move || {
        let (mut served, mut failures) = (0, Vec::new());
        while !stop.load(Ordering::Relaxed) {
            let answer =
                Client::connect_within(addr, PATIENCE).and_then(|mut it| it.cmd(&["PING"]));
            match answer {
                Ok(reply) if reply.text() == Some("PONG") => served += 1,
                other => failures.push(format!("{other:?}")),
            }
            harness::pause(Duration::from_millis(10));
        }
        (served, failures)
    })
}

#[test]
fn rotates_client_certificate_and_ca_under_load() {
    let cluster = Cluster::builder().tls().start();
    let old = cluster.certificates();
    let new = Certificates::named(&cluster.folder().join("new-ca"), "new CA");
    let (servers, own) = (cluster.folder().join("tls"), OwnFiles(cluster.folder().join("own")));
    std::fs::create_dir_all(&own.0).expect("a folder");
    let old_ca = std::fs::read_to_string(old.ca_file()).expect("a CA");
    replace(&own.0.join("ca.crt"), &old_ca);
    own.identify(old);
    let pointsman =
        builder(&cluster).service_line("hold_timeout = \"30s\"").lines(&own.sections()).start();
    wait_all_up(&pointsman);
    let generation = status(&pointsman)["services"][0]["target"]["generation"].clone();
    let mut load = Load::to(pointsman.addr()).writers(8).rate(500).start();
    let stop = Arc::<AtomicBool>::default();
    let callers = [call(&pointsman, &stop), call(&pointsman, &stop)];
    wait_until("some writes", PATIENCE, || load.counts().acknowledged > 100);
    let both = format!("{old_ca}{}", bundle(&[&new]));

    // Another client certificate of the same CA.
    exchange(&pointsman, || own.identify(old));
    // Every side trusts both authorities, before any shows a certificate of the new one.
    exchange(&pointsman, || replace(&own.0.join("ca.crt"), &both));
    replace(&servers.join("ca.crt"), &both);
    cluster.nodes().iter().for_each(|node| reread(node, &servers));
    restart_sentinels(&cluster, &pointsman);
    exchange(&pointsman, || own.identify(&new));
    for node in cluster.nodes() {
        reissue(&cluster, node, &new);
        reread(node, &servers);
    }
    cluster.sentinels().iter().for_each(|sentinel| reissue(&cluster, sentinel, &new));
    restart_sentinels(&cluster, &pointsman);
    exchange(&pointsman, || own.trust(&[&new]));
    restart_sentinels(&cluster, &pointsman);
    let seen = load.counts().acknowledged;
    wait_until("writes by the new CA", PATIENCE, || load.counts().acknowledged > seen + 500);

    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        let (served, failures) = caller.join().expect("a caller");
        println!("{served} connections");
        assert!(served > 100 && failures.is_empty(), "of {served}: {failures:?}");
    }
    load.stop();
    println!("{:?}", load.counts());
    assert_eq!(load.errors(), Vec::<String>::new());
    let verdict = load.verify(pointsman.addr()).expect("a look at the master");
    assert!(verdict.acknowledged > 1000 && verdict.missing == 0, "{verdict:?}");
    let target = &status(&pointsman)["services"][0]["target"]["generation"];
    assert_eq!(*target, generation, "nothing was switched");

    lists_own_certificates(&pointsman);
    refuses_old_ca(&cluster, &pointsman, &old_ca, &both);
}

/// The certificates that are shown to servers are those of the new CA, in status and metrics.
fn lists_own_certificates(pointsman: &Pointsman) {
    let listed = status(pointsman)["config"]["certificates"].clone();
    for side in ["redis", "sentinel"] {
        let own = listed.as_array().into_iter().flatten().find(|it| it["side"] == side);
        let issuer = own.and_then(|it| it["issuer"].as_str()).unwrap_or_default();
        assert!(issuer.contains("new CA"), "{side}: {listed}");
        let file = own.and_then(|it| it["file"].as_str()).unwrap_or_default();
        let name = "pointsman_tls_certificate_not_after_seconds";
        let labels = format!("{{service=\"mymaster\",side=\"{side}\",file={file:?}}}");
        assert!(metric(pointsman, &(name.to_owned() + &labels)) > Some(0.0), "{side}");
    }
}

/// The old CA is not trusted any more, on either side.
fn refuses_old_ca(cluster: &Cluster, pointsman: &Pointsman, old_ca: &str, both: &str) {
    let (old, servers) = (cluster.certificates(), cluster.folder().join("tls"));
    let (sentinel, replica) = (&cluster.sentinels()[0], cluster.replicas()[0]);
    replace(&old.ca_file(), old_ca);
    for node in [sentinel, replica] {
        reissue(cluster, node, old);
    }
    replace(&servers.join("ca.crt"), both);
    sentinel.kill();
    sentinel.restart();
    reread(replica, &servers);
    replica.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no"]).expect("closed");
    for (kind, node) in [("sentinels", sentinel), ("nodes", replica)] {
        wait_until("the certificate of the old CA to be refused", PATIENCE, || {
            let addr = node.addr().to_string();
            let row = rows(pointsman, kind).into_iter().find(|it| it["addr"] == *addr);
            let fault = row.as_ref().map(|it| it["tls_fault"].clone()).unwrap_or_default();
            if fault == "unknown_issuer" { Ok(()) } else { Err(format!("{row:?}")) }
        });
    }
}
