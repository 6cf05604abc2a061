//! Secrets and services that change together: a service that a reload adds with secret files, whose
//! secrets are rotated, and that is removed.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use harness::{Client, Cluster, Load, Node, Pointsman, Signal, wait_until};

use crate::credentials::{PROBE, WATCH, acl, kill, secret, status, write};
use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(60);
const DRAIN: &str = "[shutdown]\ndrain_spread = \"200ms\"\ndrain_timeout = \"3s\"\n\
                     accept_min = \"0s\"\naccept_quiet = \"0s\"\n";

fn reloads(pointsman: &Pointsman, result: &str) -> f64 {
    let series = format!("pointsman_config_reloads_total{{result=\"{result}\"}}");
    metric(pointsman, &series).expect("a counter")
}

/// A service that logs in at its node with the secret in `redis`, and at the sentinels with the one
/// in `sentinel`.
fn service(name: &str, listen: SocketAddr, cluster: &Cluster, files: [&Path; 2]) -> String {
    let sentinels: Vec<String> = cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
    let [redis, sentinel] = files;
    format!(
        "[[service]]\nname = {name:?}\nlisten = [\"{listen}\"]\nsentinels = {sentinels:?}\n\
         [service.auth]\nusername = \"probe\"\npassword_file = {redis:?}\n\
         [service.sentinel_auth]\nusername = \"watch\"\npassword_file = {sentinel:?}\n"
    )
}

/// Serves the first service.
fn start(cluster: &Cluster, [redis, sentinel]: [&Path; 2]) -> Pointsman {
    let logins = format!(
        "[service.auth]\nusername = \"probe\"\npassword_file = {redis:?}\n\
         [service.sentinel_auth]\nusername = \"watch\"\npassword_file = {sentinel:?}\n"
    );
    builder(cluster).services(&["alpha"]).without_logins().lines(DRAIN).lines(&logins).start()
}

/// Writes the configuration and asks for a reload at once.
fn configure(pointsman: &Pointsman, services: &[&str]) {
    let path = pointsman.process().log_path().with_file_name("pointsman.toml");
    let text = std::fs::read_to_string(&path).expect("the file");
    let admin = text.find("[admin]").expect("the admin section");
    let end = text[admin..].find("\n[service.").map_or(text.len(), |at| admin + at + 1);
    write(&path, &(services.concat() + &text[admin..end]));
    pointsman.process().signal(Signal::HUP);
}

/// All connections for this service use the configured credentials.
#[track_caller]
fn wait_renewed(pointsman: &Pointsman, service: &str) {
    wait_until("all connections to be renewed", PATIENCE, || {
        ["redis", "sentinel"].iter().all(|servers| {
            ["outdated", "refused"].iter().all(|what| {
                let labels = format!("{{service=\"{service}\",servers=\"{servers}\"}}");
                metric(pointsman, &format!("pointsman_credentials_{what}{labels}")) == Some(0.0)
            })
        })
    });
}

/// The number of connections that a user has to a server.
fn connections(server: &Node, user: &str) -> usize {
    let list = server.ask(&["CLIENT", "LIST"]).expect("CLIENT LIST");
    let user = format!("user={user} ");
    list.text().expect("text").lines().filter(|line| line.contains(&user)).count()
}

fn is_listed(pointsman: &Pointsman, name: &str) -> bool {
    let (_, metrics) = pointsman.get("/metrics").expect("metrics");
    metrics.contains(&format!("service=\"{name}\""))
}

#[test]
fn rotates_secret_of_added_service_and_removes_it() {
    let cluster = Cluster::builder()
        .masters(&["alpha", "beta"])
        .replicas(0)
        .user(&format!("probe on >zero {PROBE}"))
        .sentinel_user(&format!("watch on >zero {WATCH}"))
        .start();
    let [of_alpha, of_sentinel] = ["alpha", "sentinel"].map(|it| secret(&cluster, it, "zero"));
    let of_beta: PathBuf = cluster.folder().join("beta");
    let pointsman = start(&cluster, [&of_alpha, &of_sentinel]);
    let (alpha, beta) = (pointsman.addr_of("alpha").expect("an address"), cluster.address().port());
    let one = service("alpha", alpha, &cluster, [&of_alpha, &of_sentinel]);
    let two = service("beta", beta, &cluster, [&of_beta, &of_sentinel]);
    let on_beta = cluster.master_addr("beta").expect("a master");
    let on_beta = cluster.node_at(on_beta).expect("its node");
    let mut load = Load::to(alpha).writers(4).start();

    // A new service has no secret to keep: the reload is refused as a whole.
    configure(&pointsman, &[&one, &two]);
    wait_until("the refusal", PATIENCE, || reloads(&pointsman, "refused") >= 1.0);
    assert!(!is_listed(&pointsman, "beta"));
    let faults = status(&pointsman)["config"]["faults"].to_string();
    assert!(faults.contains("service.auth.password_file"), "{faults}");
    assert!(Client::connect(beta).is_err());
    // The file appears, which completes the reload.
    write(&of_beta, "zero");
    let mut client = {
        wait_until("beta", PATIENCE, || is_listed(&pointsman, "beta"));
        Client::connect(beta).expect("a connection")
    };
    assert!(client.cmd(&["SET", "where", "beta"]).expect("SET").is_ok());
    wait_until("one shared connection to each sentinel", PATIENCE, || {
        cluster.sentinels().iter().all(|it| connections(it, "watch") == 1)
    });

    // Its secret changes, and is used for new connections.
    acl(std::slice::from_ref(on_beta), &["probe", "resetpass", ">one"]);
    let applied = reloads(&pointsman, "applied");
    write(&of_beta, "one");
    wait_until("the reload", PATIENCE, || reloads(&pointsman, "applied") > applied);
    wait_renewed(&pointsman, "beta");
    kill(std::slice::from_ref(on_beta), "probe");
    wait_until("a new connection", PATIENCE, || connections(on_beta, "probe") == 1);
    wait_renewed(&pointsman, "alpha");

    // One reload changes the secret that both share, and removes the service.
    acl(cluster.sentinels(), &["watch", "resetpass", ">one"]);
    write(&of_sentinel, "one");
    configure(&pointsman, &[&one]);
    let (rest, _) = client.read_to_end().expect("an orderly end");
    assert!(rest.is_empty());
    wait_until("the end of beta", PATIENCE, || !is_listed(&pointsman, "beta"));
    assert!(!status(&pointsman)["services"].to_string().contains("beta"));
    wait_renewed(&pointsman, "alpha");
    wait_until("its connections to end", PATIENCE, || {
        connections(on_beta, "probe") == 0
            && cluster.sentinels().iter().all(|it| connections(it, "watch") == 1)
    });
    kill(cluster.sentinels(), "watch");
    let up = "pointsman_sentinels_up{service=\"alpha\"}";
    wait_until("the sentinels", PATIENCE, || {
        metric(&pointsman, up) == Some(3.0)
            && cluster.sentinels().iter().all(|it| connections(it, "watch") == 1)
    });
    load.stop();
    assert_eq!(load.errors(), Vec::<String>::new());
    assert_eq!(metric(&pointsman, "pointsman_config_pending_restart"), Some(0.0));
    let log = pointsman.process().log();
    assert!(log.contains("removed service has ended") && !log.contains("\"one\""), "{log}");
}
