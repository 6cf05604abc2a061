//! Faults between the prober and a Redis node: a server that is busy and full, names with addresses
//! of two families, a kernel that lets a process bind addresses of other machines, and packet loss.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use harness::{
    Client, Cluster, Family, Filter, Launch, LostDial, Pointsman, Process, alone, encode,
    find_in_path, http_get, wait_until,
};
use serde_json::Value as Json;

use crate::{DEDICATED, PROGRAM, builder, metric};

const PATIENCE: Duration = Duration::from_secs(30);

fn of_service(pointsman: &Pointsman, name: &str) -> f64 {
    metric(pointsman, &format!("pointsman_{name}{{service=\"mymaster\"}}")).unwrap_or(-1.0)
}

fn status(pointsman: &Pointsman) -> String {
    pointsman.get("/status").map(|(_, status)| status).unwrap_or_default()
}

/// The number of the server's clients, when the prober has asked for the server's commands, for
/// which it has a connection of its own.
fn connected_clients(admin: &mut Client) -> u32 {
    wait_until("the end of that question", PATIENCE, || {
        let asked = admin.cmd(&["INFO", "commandstats"]).expect("INFO").to_string();
        let clients = admin.cmd(&["CLIENT", "LIST"]).expect("CLIENT LIST").to_string();
        asked.contains("cmdstat_command") && !clients.contains("cmd=command")
    });
    let info = admin.cmd(&["INFO", "clients"]).expect("INFO").to_string();
    let count = info.lines().find_map(|line| line.strip_prefix("connected_clients:"));
    count.and_then(|it| it.trim().parse().ok()).expect("a number of clients")
}

/// The probe has a connection from before, so the master looks well from there.
#[test]
fn names_full_master_in_verdict() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pointsman = builder(&cluster).service_line(DEDICATED).start();
    assert!(pointsman.client().cmd(&["SET", "before", "1"]).expect("SET").is_ok());
    let mut admin = cluster.nodes()[0].client();
    let full = connected_clients(&mut admin).to_string();
    assert!(admin.cmd(&["CONFIG", "SET", "maxclients", &full]).expect("CONFIG SET").is_ok());
    let (fail, mut clients) = ("new connections of clients to it fail", Vec::new());
    wait_until("the verdict", PATIENCE, || {
        let mut client = pointsman.client();
        client.send(&encode(&["GET", "before"])).expect("GET");
        clients.push(client);
        let status = status(&pointsman);
        if status.contains(fail) { Ok(()) } else { Err(status) }
    });
    assert!(admin.cmd(&["CONFIG", "SET", "maxclients", "1000"]).expect("CONFIG SET").is_ok());
    wait_until("a client to be served", PATIENCE, || {
        pointsman.client().cmd(&["PING"]).is_ok_and(|it| it.text() == Some("PONG"))
    });
    wait_until("the end of the warning", PATIENCE, || !status(&pointsman).contains(fail));
}

#[test]
fn keeps_gate_open_while_master_is_busy_and_full() {
    // Sentinel's timeout is longer than the master is busy: only the prober could close the gate.
    let cluster =
        Cluster::builder().replicas(0).sentinels(1).down_after(Duration::from_secs(60)).start();
    let pointsman = builder(&cluster).service_line("hold_timeout = \"2s\"").start();
    let node = &cluster.nodes()[0];
    let mut admin = node.client();
    let mut clients: Vec<Client> = (0..8).map(|_| pointsman.client()).collect();
    for client in &mut clients {
        assert!(client.cmd(&["SET", "before", "1"]).expect("SET").is_ok());
    }
    let connected = connected_clients(&mut admin);
    // Busy for longer than any probe timeout, and full from the moment it wakes: there is no room
    // for a connection that replaces another.
    let (busy, full) = (encode(&["DEBUG", "SLEEP", "7"]), (connected - 1).to_string());
    admin
        .send(&[busy, encode(&["CONFIG", "SET", "maxclients", &full])].concat())
        .expect("the commands");
    for client in &mut clients {
        client.send(&encode(&["SET", "during", "1"])).expect("SET");
    }
    wait_until("the prober to notice", PATIENCE, || {
        status(&pointsman).contains("\"unresponsive\"")
    });
    assert!(admin.read_value().expect("the end of the sleep").is_ok());
    let woke = Instant::now();
    assert!(admin.read_value().expect("CONFIG SET").is_ok());
    for client in &mut clients {
        let answer = client.read_value().expect("an answer");
        assert!(answer.is_ok(), "{answer:?} {:?} after the master woke", woke.elapsed());
    }
    eprintln!("all answered {:?} after the master woke", woke.elapsed());
    // Longer than it takes to detect that a node is gone.
    serves_for(Duration::from_secs(3), &mut clients);
    // Its probe connection ends and there is no room for another: that is also an answer.
    let prober = probe_connection(&mut admin);
    let killed = admin.cmd(&["CLIENT", "KILL", "ADDR", &prober]).expect("CLIENT KILL");
    assert_eq!(killed.int(), Some(1));
    wait_until("the limit to be told", PATIENCE, || {
        let status = status(&pointsman);
        if status.contains("raise maxclients") && status.contains("\"connection_rejected\"") {
            Ok(())
        } else {
            Err(status)
        }
    });
    serves_for(Duration::from_secs(3), &mut clients);
    assert_eq!(
        (of_service(&pointsman, "holds_total"), of_service(&pointsman, "target_generation")),
        (0.0, 1.0)
    );
    assert!(admin.cmd(&["CONFIG", "SET", "maxclients", "1000"]).expect("CONFIG SET").is_ok());
    wait_until("the prober to get in", PATIENCE, || {
        let status = status(&pointsman);
        if status.contains("\"stable\"") && !status.contains("maxclients") {
            Ok(())
        } else {
            Err(status)
        }
    });
    assert_eq!(
        (of_service(&pointsman, "holds_total"), of_service(&pointsman, "target_generation")),
        (0.0, 1.0)
    );
}

/// Checks that every client's writes are answered for this long.
#[track_caller]
fn serves_for(long: Duration, clients: &mut [Client]) {
    let began = Instant::now();
    while began.elapsed() < long {
        for client in clients.iter_mut() {
            let answer = client.cmd(&["SET", "after", "1"]).expect("an answer");
            assert!(answer.is_ok(), "{answer:?}");
        }
        harness::pause(Duration::from_millis(10));
    }
}

/// The prober's connection in the node's client list.
fn prober_line(admin: &mut Client) -> Option<String> {
    let list = admin.cmd(&["CLIENT", "LIST"]).expect("CLIENT LIST");
    list.text()?.lines().find(|line| line.contains(" name=pointsman ")).map(str::to_owned)
}

/// The source address of the prober's connection to a node.
#[track_caller]
fn probe_connection(admin: &mut Client) -> String {
    let line = prober_line(admin).expect("the prober's connection");
    line.split(' ').find_map(|word| word.strip_prefix("addr=")).expect("its address").to_owned()
}

#[test]
fn finds_a_replaced_node_at_the_same_address() {
    if !alone("faults_probe::finds_a_replaced_node_at_the_same_address") {
        return;
    }
    let cluster =
        Cluster::builder().replicas(0).sentinels(1).down_after(Duration::from_secs(60)).start();
    let pointsman = builder(&cluster).service_line("hold_timeout = \"20s\"").start();
    let node = &cluster.nodes()[0];
    // A probe that the other kernel has acknowledged and that will not be answered: nothing is left
    // to retransmit.
    node.stop();
    wait_until("the prober to notice", PATIENCE, || {
        status(&pointsman).contains("\"unresponsive\"")
    });
    // The host vanishes silently, and another process appears at its address.
    let filter = Filter::drop_all(node.addr().port()).expect("a filter");
    node.kill();
    node.start();
    drop(filter);
    node.wait_answers();
    let back = Instant::now();
    wait_until("the new process to be verified", PATIENCE, || {
        of_service(&pointsman, "target_generation") == 2.0
    });
    eprintln!("verified {:?} after it answered", back.elapsed());
    assert!(pointsman.client().cmd(&["SET", "after", "1"]).expect("SET").is_ok());
}

/// Runs a command, in the network namespace of process `of` if given.
#[track_caller]
fn run(of: Option<u32>, words: &str) {
    let words = words.split(' ');
    let status = match of {
        Some(pid) => Command::new("nsenter")
            .arg(format!("--net=/proc/{pid}/ns/net"))
            .arg("--")
            .args(words)
            .status(),
        None => {
            let mut words = words;
            Command::new(words.next().expect("a program")).args(words).status()
        }
    };
    assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{status:?}");
}

/// Another network namespace, connected to this one: 10.77.0.1 and fd77::1 here, 10.77.0.2 and
/// fd77::2 there. It lives as long as its process.
#[track_caller]
fn neighbour(folder: &Path) -> Process {
    let program = find_in_path("unshare").expect("unshare");
    let args = ["--net", "--", "sleep", "3600"].map(Into::into).to_vec();
    let name = "neighbour".to_owned();
    let process =
        Process::start(&Launch { name, program, args, env: Vec::new(), folder: folder.to_owned() });
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    wait_until("another namespace", PATIENCE, || {
        namespace(&process.pid().to_string()) != namespace("self")
    });
    run(None, &format!("ip link set there netns {}", process.pid()));
    for line in [
        "ip link set lo up",
        "ip addr add 10.77.0.2/24 dev there",
        "ip -6 addr add fd77::2/64 dev there nodad",
        "ip link set there up",
    ] {
        run(Some(process.pid()), line);
    }
    process
}

/// A pointsman in the other namespace, and the address of its admin server. The first service
/// listens on every address there, at the port of Redis.
fn pointsman_in(
    neighbour: &Process,
    cluster: &Cluster,
    services: &[&str],
) -> (SocketAddr, Process) {
    let admin: SocketAddr = ([10, 77, 0, 2], cluster.address().port().port()).into();
    let sentinel = cluster.sentinels()[0].addr();
    let mut toml = format!("[admin]\nlisten = [\"{admin}\"]\n");
    for (number, name) in services.iter().enumerate() {
        let port = if number == 0 {
            cluster.nodes()[0].addr().port()
        } else {
            cluster.address().port().port()
        };
        let listen = format!("\"0.0.0.0:{port}\", \"[::]:{port}\"");
        toml += &format!(
            "[[service]]\nname = \"{name}\"\nsentinels = [\"{sentinel}\"]\nlisten = [{listen}]\n"
        );
    }
    let file = cluster.folder().join("pointsman.toml");
    std::fs::write(&file, toml).expect("a configuration");
    let namespace = format!("--net=/proc/{}/ns/net", neighbour.pid());
    let launch = Launch {
        name: "pointsman".to_owned(),
        program: find_in_path("nsenter").expect("nsenter"),
        args: [&namespace, "--", PROGRAM, "run", "--config", &file.to_string_lossy()]
            .map(Into::into)
            .to_vec(),
        env: Vec::new(),
        folder: cluster.folder().to_owned(),
    };
    (admin, Process::start(&launch))
}

/// The role of a node in the status of a service.
fn role_of(admin: SocketAddr, service: &str, node: &str) -> Result<String, String> {
    let (_, text) = http_get(admin, "/status").map_err(|error| error.to_string())?;
    let status: Json = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let services = status["services"].as_array().ok_or("no services")?;
    let service = services.iter().find(|it| it["name"] == service).ok_or("no such service")?;
    let node = service["nodes"].as_array().and_then(|it| it.iter().find(|it| it["addr"] == node));
    node.and_then(|it| it["role"].as_str().map(str::to_owned)).ok_or_else(|| service.to_string())
}

#[test]
fn tells_own_addresses_where_any_address_can_be_bound() {
    if !alone("faults_probe::tells_own_addresses_where_any_address_can_be_bound") {
        return;
    }
    for line in [
        "ip link add here type veth peer name there",
        "ip addr add 10.77.0.1/24 dev here",
        "ip -6 addr add fd77::1/64 dev here nodad",
        "ip link set here up",
    ] {
        run(None, line);
    }
    let family = Family::On([10, 77, 0, 1].into());
    let cluster = Cluster::builder().family(family).replicas(0).sentinels(1);
    let cluster = cluster.redis_line("bind 10.77.0.1 fd77::1").start();
    let neighbour = neighbour(cluster.folder());
    let there = Some(neighbour.pid());
    for sysctl in ["net.ipv4.ip_nonlocal_bind=1", "net.ipv6.ip_nonlocal_bind=1"] {
        run(there, &format!("sysctl -q -w {sysctl}"));
    }
    let port = cluster.nodes()[0].addr().port();
    let (admin, _pointsman) =
        pointsman_in(&neighbour, &cluster, &["mymaster", "six", "loop", "loop6", "moving"]);
    let becomes = |service: &str, host: &str, role: &str| {
        wait_until(&format!("{service} at {host} to be {role}"), PATIENCE, || {
            match role_of(admin, service, host) {
                Ok(found) if found == role => Ok(()),
                Ok(found) => Err(found),
                Err(why) => Err(why),
            }
        });
    };
    let here = format!("10.77.0.1:{port}");
    becomes("mymaster", &here, "master");
    let monitor = |name: &str, host: &str| {
        let answer = cluster.sentinels()[0].ask(&[
            "SENTINEL",
            "MONITOR",
            name,
            host,
            &port.to_string(),
            "1",
        ]);
        assert!(answer.expect("SENTINEL MONITOR").is_ok());
    };
    // An address of the other family is not taken for one of our own listeners either.
    monitor("six", "fd77::1");
    becomes("six", &format!("[fd77::1]:{port}"), "master");
    // Our own listeners, through which a probe would reach the master: by one address, by one of
    // the other family, and by one that moves, like those of keepalived.
    run(there, "ip addr add 10.77.0.3/24 dev there");
    for (name, host) in [("loop", "10.77.0.2"), ("loop6", "fd77::2"), ("moving", "10.77.0.3")] {
        monitor(name, host);
        let node =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        becomes(name, &node, "unusable_address");
    }
    run(there, "ip addr del 10.77.0.3/24 dev there");
    becomes("moving", &format!("10.77.0.3:{port}"), "unreachable");
    run(there, "ip addr add 10.77.0.3/24 dev there");
    becomes("moving", &format!("10.77.0.3:{port}"), "unusable_address");
    becomes("mymaster", &here, "master");
    let mut client = Client::connect(([10, 77, 0, 2], port).into()).expect("the listener");
    assert!(client.cmd(&["SET", "a", "b"]).expect("SET").is_ok());
}

/// The program with another `/etc/hosts`.
fn with_hosts(folder: &Path, hosts: &str) -> std::path::PathBuf {
    let (file, script) = (folder.join("hosts"), folder.join("with-hosts"));
    std::fs::write(&file, hosts).expect("a file of hosts");
    let mount = format!("mount --bind '{}' /etc/hosts", file.display());
    let text = format!(
        "#!/bin/sh\nexec unshare --mount sh -c \"{mount} && exec \\\"\\$0\\\" \\\"\\$@\\\"\" '{PROGRAM}' \"$@\"\n"
    );
    std::fs::write(&script, text).expect("a script");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("a program");
    script
}

#[test]
fn stays_with_the_family_that_worked_after_one_lost_dial() {
    if !alone("faults_probe::stays_with_the_family_that_worked_after_one_lost_dial") {
        return;
    }
    let cluster = Cluster::builder().family(Family::Localhost).replicas(0).sentinels(1);
    let cluster =
        cluster.down_after(Duration::from_secs(60)).redis_line("bind 127.0.0.1 ::1").start();
    let program = with_hosts(cluster.folder(), "127.0.0.1 localhost\n::1 localhost\n");
    let mut admin = cluster.nodes()[0].client();
    let port = cluster.nodes()[0].addr().port();
    // Both families lead to the server; then one of them has no listener.
    for (bind, worked) in
        [("127.0.0.1 ::1", format!("127.0.0.1:{port}")), ("::1", format!("[::1]:{port}"))]
    {
        assert!(admin.cmd(&["CONFIG", "SET", "bind", bind]).expect("CONFIG SET").is_ok());
        let pointsman = Pointsman::builder(&program, &cluster).start();
        let mut blocked = pointsman.client();
        blocked.send(&encode(&["BLPOP", "queue", "0"])).expect("BLPOP");
        let prober = probe_connection(&mut admin);
        let lost = LostDial::to(worked.parse().expect("an address")).expect("a rule");
        assert_eq!(
            admin.cmd(&["CLIENT", "KILL", "ADDR", &prober]).expect("CLIENT KILL").int(),
            Some(1)
        );
        wait_until("a dial to be lost", PATIENCE, || lost.is_over());
        let back = wait_until("the prober to be back", PATIENCE, || prober_line(&mut admin));
        assert!(back.contains(&format!(" laddr={worked} ")), "not {worked}: {back}");
        // The lost dial after the end of a connection looked like the end of the process.
        wait_until("calm", PATIENCE, || status(&pointsman).contains("\"stable\""));
        assert_eq!(
            (of_service(&pointsman, "holds_total"), of_service(&pointsman, "target_generation")),
            (1.0, 1.0)
        );
        assert!(admin.cmd(&["LPUSH", "queue", "x"]).expect("LPUSH").int().is_some());
        assert_eq!(blocked.read_value().expect("the item").items()[1].text(), Some("x"));
    }
}
