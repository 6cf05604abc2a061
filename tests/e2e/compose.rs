//! deploy/compose/compose.yaml, played without Docker: the files and command lines that it gives to
//! Redis, Sentinel and Pointsman, started as processes. Every container's address is given to the
//! loopback interface of a network namespace. Changed is only what a container would isolate: each
//! process binds its own address, and its `/data` and `/etc` are folders of its own.

use std::path::Path;
use std::time::Duration;

use harness::{Binary, Client, Launch, Process, alone, find_in_path, http_get, wait_until};
use serde_json::Value;

use crate::yaml::{document, text};

const FILE: &str = "deploy/compose/compose.yaml";
const PATIENCE: Duration = Duration::from_secs(60);

fn compose() -> Value {
    let path = format!("{}/{FILE}", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    document(&file)
}

/// Starts a service of Redis or Sentinel as its container would, in a folder of its own.
fn container(compose: &Value, name: &str, folder: &Path) -> Process {
    let service = &compose["services"][name];
    let address = text(&service["networks"]["redis"]["ipv4_address"]);
    let folder = folder.join(name);
    let (data, etc) = (folder.join("data"), folder.join("etc"));
    for folder in [&folder, &data, &etc] {
        std::fs::create_dir(folder).expect("a folder");
    }
    let own = |text: &str| {
        let text = text.replace("/data", data.to_str().expect("UTF-8"));
        text.replace("/etc/", &format!("{}/", etc.display()))
    };
    for config in service["configs"].as_array().expect("configs") {
        let content = text(&compose["configs"][text(&config["source"])]["content"]);
        std::fs::write(own(text(&config["target"])), own(content)).expect("a file");
    }
    let command = service["command"].as_array().expect("a command");
    let [shell, flag, script] = command.as_slice() else { panic!("{name}: {command:?}") };
    assert_eq!((text(shell), text(flag)), ("sh", "-c"));
    let program = find_in_path(text(shell)).expect("a shell");
    let script = format!("{} --bind {address}", own(text(script)));
    let args = ["-c".into(), script.into()].to_vec();
    let env = vec![("PATH".into(), path_with_redis(&folder))];
    Process::start(&Launch { name: name.to_owned(), program, args, env, folder })
}

/// `PATH` with the programs of Redis under the names that they have in the image: a machine may
/// have them under another one.
fn path_with_redis(folder: &Path) -> String {
    let bin = folder.join("bin");
    std::fs::create_dir(&bin).expect("a folder");
    let mut folders = Vec::new();
    for binary in [Binary::Server, Binary::Sentinel] {
        let program = binary.in_folder(&bin);
        folders.push(program.parent().expect("a folder").to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    let path = std::env::join_paths(folders).expect("folders");
    path.into_string().expect("UTF-8")
}

/// Pointsman with the file of the compose file; it binds its container's address.
fn pointsman(compose: &Value, folder: &Path) -> Process {
    let config = folder.join("pointsman.toml");
    std::fs::write(&config, text(&compose["configs"]["pointsman"]["content"])).expect("a file");
    let address = text(&compose["services"]["pointsman"]["networks"]["redis"]["ipv4_address"]);
    let command = compose["services"]["pointsman"]["command"].as_array().expect("a command");
    let words = command.iter().map(text).map(|word| {
        if word == "/etc/pointsman/pointsman.toml" { config.clone().into() } else { word.into() }
    });
    let own = ["--listen", &format!("{address}:6379"), "--admin", &format!("{address}:8888")];
    Process::start(&Launch {
        name: "pointsman".to_owned(),
        program: crate::PROGRAM.into(),
        args: words.chain(own.map(Into::into)).collect(),
        env: Vec::new(),
        folder: folder.to_owned(),
    })
}

#[test]
fn compose_file_serves_and_survives_failover() {
    if !alone("compose::compose_file_serves_and_survives_failover") {
        return;
    }
    let compose = compose();
    let services = compose["services"].as_object().expect("services");
    for service in services.values() {
        let address = text(&service["networks"]["redis"]["ipv4_address"]);
        let mut ip = std::process::Command::new("ip");
        ip.args(["addr", "add", &format!("{address}/32"), "dev", "lo"]);
        assert!(ip.status().expect("ip").success());
    }
    let folder = tempfile::tempdir().expect("a folder");
    let names: Vec<&String> = services.keys().filter(|name| *name != "pointsman").collect();
    assert_eq!(names.len(), 6);
    let nodes: Vec<Process> =
        names.iter().map(|name| container(&compose, name, folder.path())).collect();
    let proxy = pointsman(&compose, folder.path());
    let alive = || {
        for process in nodes.iter().chain([&proxy]) {
            assert!(process.is_running(), "it ended: {}", process.tail());
        }
    };
    let sentinel = "172.30.0.21:26379".parse().expect("an address");
    let asked = |words: &[&str]| -> Result<harness::Value, String> {
        let mut client = Client::connect(sentinel).map_err(|error| error.to_string())?;
        client.cmd(words).map_err(|error| error.to_string())
    };
    wait_until("sentinels that agree, and replicas that follow", PATIENCE, || {
        alive();
        let quorum = asked(&["SENTINEL", "CKQUORUM", "mymaster"])?;
        let replicas = asked(&["SENTINEL", "REPLICAS", "mymaster"])?;
        let others = asked(&["SENTINEL", "SENTINELS", "mymaster"])?;
        let linked = |fields: &[harness::Value]| {
            let [key, value] = fields else { return false };
            key.text() == Some("master-link-status") && value.text() == Some("ok")
        };
        let replicas = replicas.items();
        let up = replicas.iter().filter(|it| it.items().chunks(2).any(linked)).count();
        let whole = !quorum.is_error() && others.items().len() == 2 && up == 2;
        if whole { Ok(()) } else { Err(format!("{up} replicas follow; {quorum:?}")) }
    });
    let admin = "172.30.0.10:8888".parse().expect("an address");
    wait_until("pointsman to be ready", PATIENCE, || {
        alive();
        http_get(admin, "/ready").is_ok_and(|(status, _)| status == 200)
    });
    let front = "172.30.0.10:6379".parse().expect("an address");
    let mut client = Client::connect(front).expect("a client");
    assert!(client.cmd(&["SET", "key", "before"]).expect("SET").is_ok());
    // On a connection of its own: a session that used WAIT is not carried.
    let mut waits = Client::connect(front).expect("a client");
    assert!(waits.cmd(&["SET", "other", "before"]).expect("SET").is_ok());
    assert_eq!(waits.cmd(&["WAIT", "2", "10000"]).expect("WAIT").int(), Some(2));
    drop(waits);
    let master = || asked(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"]);
    let first = master().expect("a master");
    assert!(asked(&["SENTINEL", "FAILOVER", "mymaster"]).expect("an order").is_ok());
    wait_until("another master", PATIENCE, || {
        let now = master()?;
        if now == first { Err(format!("{now:?}")) } else { Ok(()) }
    });
    // The same connection, on the new master.
    assert_eq!(client.cmd(&["GET", "key"]).expect("GET").text(), Some("before"));
    assert!(client.cmd(&["SET", "key", "after"]).expect("SET").is_ok());
    let role = client.cmd(&["ROLE"]).expect("ROLE");
    assert_eq!(role.items().first().and_then(|it| it.text()), Some("master"));
}
