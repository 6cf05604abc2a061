//! A cluster without IPv4: the configuration that the chart renders for a Service of family IPv6
//! runs in a network namespace that has no IPv4 address, before a real master and sentinel.

use std::path::PathBuf;
use std::process::Command;

use serde_json::json;
use setup::{files, root, run};

use super::cases::rendered;
use super::tools::Tools;

pub(super) fn check(tools: &Tools) -> Result<String, String> {
    let program = setup::build::of_tests("deploy", "pointsman")?;
    let master = json!({"name": "mymaster", "port": 6379, "sentinels": ["[::1]:26379"]});
    let values = json!({"masters": [master], "service": {"ipFamilies": ["IPv6"]}});
    let objects = rendered(tools, "default", &values)?;
    let config = objects.iter().find_map(|it| it["data"]["pointsman.toml"].as_str());
    let config = config.ok_or("no configuration")?;
    let folder = files::temporary()?;
    files::write(folder.path().join("pointsman.toml"), config)?;
    let script: PathBuf = root().join("crates/xtask/src/deploy/ipv6.sh");
    let mut command = Command::new("unshare");
    command.arg("--net").arg("sh").arg(script).arg(folder.path()).arg(program);
    let said = run(&mut command).map_err(|why| format!("{why}\n{config}"))?;
    if said.lines().last() == Some("PONG") {
        Ok("ready, and a client reached the master".to_owned())
    } else {
        Err(format!("{said}\n{config}"))
    }
}
