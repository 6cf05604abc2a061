//! Describes the machine and the versions: the first line of the raw data. Contains no host or
//! folder names.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use harness::Binary;
use serde_json::{Map, Value, json};

use crate::space;

/// The machine and all versions.
pub(super) fn describe(program: &Path, others: &[(String, Option<String>)]) -> Value {
    let others: Map<String, Value> =
        others.iter().map(|(name, said)| (name.clone(), json!(said))).collect();
    json!({
        "cpu": cpu(&read("/proc/cpuinfo")),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory_mib": memory(&read("/proc/meminfo")),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "network_namespace": space::entered().is_some(),
        "pointsman": said(Command::new(program).arg("--version")),
        "revision": revision(),
        "others": others,
        "redis": redis(),
    })
}

/// A one-sentence summary for people.
pub(super) fn sentence(machine: &Value) -> String {
    let text = |key: &str| machine.get(key).and_then(Value::as_str).unwrap_or("?").to_owned();
    let cores = machine.get("cores").and_then(Value::as_u64).unwrap_or(0);
    let others = machine.get("others").and_then(Value::as_object).into_iter().flatten();
    let others: String =
        others.map(|(name, said)| format!("{}, ", said.as_str().unwrap_or(name))).collect();
    format!(
        "{cores} cores of {}, Linux {}; {} ({}), {others}Redis and Sentinel {}.",
        text("cpu"),
        text("kernel"),
        text("pointsman"),
        text("revision"),
        text("redis")
    )
}

/// Microseconds for which some process had to wait for a core, since boot.
pub(super) fn waited_for_cpu() -> Option<u64> {
    read("/proc/pressure/cpu")
        .lines()
        .find(|line| line.starts_with("some"))?
        .rsplit_once("total=")?
        .1
        .trim()
        .parse()
        .ok()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn cpu(info: &str) -> Option<&str> {
    info.lines().find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim()))
}

fn memory(info: &str) -> Option<u64> {
    let kib: u64 = info.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok()
    })?;
    Some(kib / 1024)
}

/// The first line of a command's output.
pub(super) fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().map(tidy)
}

/// A version without the home page that haproxy appends.
pub(super) fn tidy(line: &str) -> String {
    line.split(" - http").next().unwrap_or(line).trim().to_owned()
}

/// The `v=` field of redis-server's version.
fn redis() -> Option<String> {
    let program = Binary::Server.find()?;
    let line = said(Command::new(program).arg0(Binary::Server.name()).arg("--version"))?;
    line.split(' ').find_map(|word| word.strip_prefix("v=").map(str::to_owned))
}

/// The commit of this build; `-modified` with uncommitted changes.
fn revision() -> Option<String> {
    let mut git = Command::new("git");
    git.current_dir(env!("CARGO_MANIFEST_DIR")).args([
        "describe",
        "--always",
        "--abbrev=10",
        "--dirty=-modified",
    ]);
    said(&mut git)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortens_versions() {
        assert_eq!(
            tidy("HAProxy version 3.0.11 2026/05/20 - https://x/"),
            "HAProxy version 3.0.11 2026/05/20"
        );
        assert_eq!(tidy("nginx version: nginx/1.22.1"), "nginx version: nginx/1.22.1");
    }

    #[test]
    fn reads_kernel_figures() {
        assert_eq!(cpu("processor\t: 0\nmodel name\t: A CPU\nflags\t: x\n"), Some("A CPU"));
        assert_eq!(memory("MemTotal:        8145408 kB\nMemFree: 1 kB\n"), Some(7954));
    }
}
