//! `pointsman sentinels` against real clusters, healthy and with each kind of fault. No proxy runs
//! here.

use std::process::{Command, Stdio};
use std::time::Duration;

use harness::{Cluster, wait_until};
use serde_json::Value as Json;

use crate::PROGRAM;

const PATIENCE: Duration = Duration::from_secs(30);

/// The doctor's result for `name`, with additional lines in the service's configuration: exit code
/// and document.
fn examine(cluster: &Cluster, name: &str, lines: &str) -> (Option<i32>, Json) {
    let sentinels: Vec<String> = cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
    let config = cluster.folder().join(format!("doctor-{name}.toml"));
    std::fs::write(
        &config,
        format!("[[service]]\nname = {name:?}\nsentinels = {sentinels:?}\n{lines}\n"),
    )
    .expect("a file");
    let config = config.to_string_lossy().into_owned();
    let (code, text) = run(&["--config", &config, "--json"]);
    (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

fn run(args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(PROGRAM);
    command.arg("sentinels").args(args).env_clear().stdin(Stdio::null());
    // A name server that does not answer delays the test little: one query per name.
    command.env("RES_OPTIONS", "timeout:1 attempts:1").env("LOCALDOMAIN", "");
    let output = command.output().expect("the program");
    (output.status.code(), String::from_utf8(output.stdout).expect("UTF-8"))
}

fn findings(document: &Json) -> &[Json] {
    document["services"][0]["findings"].as_array().expect("findings")
}

/// The finding with this code about `about`, perhaps among others, as `problem; remedy`.
fn find(document: &Json, code: &str, about: &str) -> Result<String, String> {
    let is_about =
        |it: &Json| it["about"].as_str().is_some_and(|it| it.split(", ").any(|it| it == about));
    let found = findings(document).iter().find(|it| it["code"] == code && is_about(it));
    let text = |key: &str, it: &Json| it[key].as_str().unwrap_or_default().to_owned();
    found.map(|it| format!("{}; {}", text("message", it), text("remedy", it))).ok_or_else(|| {
        format!("no {code} about {about} in {:#}", document["services"][0]["findings"])
    })
}

#[test]
fn finds_healthy_cluster_and_wrong_flags() {
    let cluster = Cluster::builder().start();
    let (code, document) = examine(&cluster, "mymaster", "");
    assert_eq!((code, &document["healthy"]), (Some(0), &Json::Bool(true)), "{document:#}");
    let service = &document["services"][0];
    assert_eq!(
        (
            service["sentinels"].as_array().unwrap().len(),
            service["nodes"].as_array().unwrap().len()
        ),
        (3, 3)
    );
    let roles: Vec<&str> =
        service["nodes"].as_array().unwrap().iter().filter_map(|it| it["role"].as_str()).collect();
    assert_eq!(roles.iter().filter(|role| **role == "master").count(), 1);

    let users = find(&document, "hello-users", &cluster.master().addr().to_string());
    assert!(users.expect("a note").contains("ACL SETUSER default resetchannels"));

    let (code, document) = examine(&cluster, "nosuch", "");
    assert_eq!(code, Some(2));
    assert_eq!(findings(&document).len(), 1, "one finding once: {document:#}");
    let first = cluster.sentinel_addrs()[0].to_string();
    let said = find(&document, "unknown-name", &first).expect("an unknown name");
    assert!(
        said.contains("monitors no master named nosuch") && said.contains("it monitors: mymaster"),
        "{said}"
    );

    // One sentinel is enough to find all others, and a name that does not resolve is reported in
    // addition.
    let (code, page) =
        run(&["--service", "mymaster", "--sentinel", &first, "--sentinel", "nowhere.invalid"]);
    assert_eq!(code, Some(2), "{page}");
    assert!(
        page.contains("FAULT nowhere.invalid:26379: the name does not resolve (dns)"),
        "{page}"
    );
    assert!(page.contains("1 fault, 0 warnings") && !page.contains('\u{1b}'), "{page}");
    assert!(cluster.sentinel_addrs().iter().all(|it| page.contains(&it.to_string())), "{page}");
    let (code, page) = run(&["--service", "mymaster", "--sentinel", &first]);
    assert!(code == Some(0) && page.contains("\n  healthy\n"), "{page}");
    // A Redis server is not a sentinel.
    let redis = cluster.nodes()[0].addr().to_string();
    let (_, page) = run(&["--service", "mymaster", "--sentinel", &redis]);
    assert!(page.contains("(no-sentinel)"), "{page}");
    assert_eq!(run(&["--sentinel", ":0"]).0, Some(78));
    assert_eq!(run(&["--nonsense"]).0, Some(64));
}

#[test]
fn reports_passwords_and_acls_without_secrets() {
    let narrow = "narrow on >narrow-pw resetkeys resetchannels -@all +auth +hello +ping +info +client|setname \
                  +sentinel|get-master-addr-by-name +sentinel|master +sentinel|sentinels +sentinel|myid";
    let mute = "mute on >mute-pw resetkeys resetchannels -@all +auth +hello +ping +client|setname";
    let cluster = Cluster::builder()
        .password("redis-pw")
        .sentinel_password("sentinel-pw")
        .sentinel_user(narrow)
        .user(mute)
        .start();
    let sentinel = cluster.sentinel_addrs()[1].to_string();
    let master = cluster.master().addr().to_string();
    let right = "[service.auth]\npassword = \"redis-pw\"\n[service.sentinel_auth]\npassword = \"sentinel-pw\"";
    let (code, document) = examine(&cluster, "mymaster", right);
    assert_eq!(code, Some(0), "{document:#}");

    let said = |lines: &str, code: &str, about: &str| {
        let (exit, document) = examine(&cluster, "mymaster", lines);
        assert_eq!(exit, Some(2));
        let text = document.to_string();
        assert!(!text.contains("-pw"), "a secret was shown: {text}");
        find(&document, code, about).expect("a finding")
    };
    let nobody = said("", "password", &sentinel);
    assert!(
        nobody.contains("requires a password") && nobody.contains("set service.sentinel_auth"),
        "{nobody}"
    );
    let wrong = said("[service.sentinel_auth]\npassword = \"not-it-pw\"", "password", &sentinel);
    assert!(
        wrong.contains("rejects the user or the password; check service.sentinel_auth"),
        "{wrong}"
    );
    let wrong = "[service.auth]\npassword = \"not-it-pw\"\n[service.sentinel_auth]\npassword = \"sentinel-pw\"";
    assert!(said(wrong, "password", &master).contains("check service.auth"));
    let narrow = said(
        "[service.sentinel_auth]\nusername = \"narrow\"\npassword = \"narrow-pw\"",
        "acl",
        &sentinel,
    );
    assert!(narrow.contains("SENTINEL REPLICAS, SENTINEL CKQUORUM, SUBSCRIBE"), "{narrow}");
    assert!(narrow.contains("+sentinel|replicas +sentinel|ckquorum +subscribe &*"), "{narrow}");
    let mute = "[service.auth]\nusername = \"mute\"\npassword = \"mute-pw\"\n[service.sentinel_auth]\npassword = \"sentinel-pw\"";
    let mute = said(mute, "acl", &master);
    assert!(mute.contains("run ROLE") && mute.contains("+role"), "{mute}");
}

#[test]
fn reports_dead_sentinels_and_lost_quorum() {
    let cluster = Cluster::builder().start();
    let [one, two, three] = [0, 1, 2].map(|number| cluster.sentinel_addrs()[number].to_string());
    cluster.sentinels()[2].kill();
    wait_until("the dead sentinel in the report, once", PATIENCE, || {
        let (code, document) = examine(&cluster, "mymaster", "");
        assert_eq!(code, Some(2));
        find(&document, "unreachable", &three)?;
        assert!(find(&document, "peers-down", &one).is_err(), "{document:#}");
        // Two of three are still a quorum.
        if find(&document, "quorum", &one).is_ok() {
            Err("no quorum already".to_owned())
        } else {
            Ok(())
        }
    });
    cluster.sentinels()[1].stop();
    wait_until("the lack of a quorum to be told", PATIENCE, || {
        let (_, document) = examine(&cluster, "mymaster", "");
        find(&document, "unresponsive", &two)?;
        let quorum = find(&document, "quorum", &one)?;
        assert!(quorum.contains("NOQUORUM"), "{quorum}");
        find(&document, "majority", "mymaster")
    });
    cluster.sentinels()[1].cont();
    // The ghost: it is not configured, and other sentinels still list it.
    let (_, page) = run(&["--service", "mymaster", "--sentinel", &one]);
    assert!(page.contains(&format!("WARNING {three}: it is listed as a sentinel by")), "{page}");
}

#[test]
fn reports_disagreement_and_unreachable_address() {
    let cluster = Cluster::builder().start();
    let replica = cluster.nodes()[1].addr();
    let odd = &cluster.sentinels()[2];
    let (ip, port) = (replica.ip().to_string(), replica.port().to_string());
    odd.ask(&["SENTINEL", "REMOVE", "mymaster"]).expect("REMOVE");
    odd.ask(&["SENTINEL", "MONITOR", "mymaster", &ip, &port, "2"]).expect("MONITOR");
    let (code, document) = examine(&cluster, "mymaster", "");
    assert_eq!(code, Some(2));
    let said = find(&document, "disagreement", "mymaster").expect("a disagreement");
    assert!(said.contains(&format!("{replica} by {}", odd.addr())), "{said}");

    // An address without a listener, announced by the only sentinel that is asked.
    let nowhere = cluster.address().port();
    odd.ask(&["SENTINEL", "REMOVE", "mymaster"]).expect("REMOVE");
    odd.ask(&["SENTINEL", "MONITOR", "lost", &ip, &nowhere.port().to_string(), "1"])
        .expect("MONITOR");
    let (_, page) = run(&["--service", "lost", "--sentinel", &odd.addr().to_string()]);
    assert!(
        page.contains(&format!(
            "FAULT {nowhere}: the sentinels announce this master; cannot connect"
        )),
        "{page}"
    );
    assert!(page.contains("(not-dialable)") && page.contains("address_map"), "{page}");
    assert!(page.contains("(few-sentinels)") && page.contains("(no-replicas)"), "{page}");
}

/// What Redis tells about its write guard, what this host tells about a virtual address, and what
/// only the operator knows.
#[test]
fn reports_write_guard_virtual_address_and_zones() {
    let cluster = Cluster::builder().start();
    let (master, first) = (cluster.master(), cluster.sentinel_addrs()[0]);
    let about = master.addr().to_string();
    let (_, document) = examine(&cluster, "mymaster", "listen = [\"192.0.2.9:6379\"]");
    let off = find(&document, "min-replicas", &about).expect("a note");
    assert!(off.contains("min-replicas-to-write is off"), "{off}");
    let bind = find(&document, "nonlocal-bind", "192.0.2.9:6379").expect("a finding");
    assert!(bind.contains("net.ipv4.ip_nonlocal_bind is "), "{bind}");

    let require = |replicas: &str| {
        master.ask(&["CONFIG", "SET", "min-replicas-to-write", replicas]).expect("CONFIG SET");
    };
    require("3");
    assert!(master.ask(&["SET", "a", "1"]).is_err(), "NOREPLICAS");
    let (code, document) = examine(&cluster, "mymaster", "");
    let impossible = find(&document, "min-replicas", &about).expect("a fault");
    assert!(code == Some(2) && impossible.contains("it refuses all writes"), "{impossible}");
    require("1");
    let (code, document) = examine(&cluster, "mymaster", "");
    assert_eq!(code, Some(0), "{document:#}");
    assert!(find(&document, "min-replicas", &about).is_err(), "{document:#}");

    let zone = format!("{}=a", first.ip());
    let (_, page) =
        run(&["--service", "mymaster", "--sentinel", &first.to_string(), "--zone", &zone]);
    let expected = "3 of 3 sentinels run in zone a, the zone of the master (one-zone)";
    assert!(page.contains(expected), "{page}");
    assert_eq!(run(&["--zone", "nonsense"]).0, Some(64));
}
