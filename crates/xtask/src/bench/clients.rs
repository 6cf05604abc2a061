//! `cargo xtask bench clients`: what the clients that people use notice of a failover, through pointsman and through haproxy.
//!
//! Real libraries, installed for this from their registries into a folder that goes away: mostly idle clients that authenticate,
//! choose a database and a name, and ask ten times a second. The program is built without optimisation: errors are counted here,
//! and pauses of a second.
//!
//! Deliberately absent: throughput, which `cargo xtask bench` measures.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Args;
use harness::{Cluster, Haproxy, Pointsman, find_in_path, pause};
use serde_json::Value;

use crate::{build, install};

/// How long the clients live; the failover comes after a quarter of it.
const LIFE: Duration = Duration::from_secs(16);

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Clients of each library.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Show the figures only; nothing is written to benches/.
    #[arg(long)]
    dry: bool,
}

/// A client library and the program that uses it.
struct Library {
    script: PathBuf,
    runner: PathBuf,
    home: PathBuf,
}

/// Measures.
///
/// # Errors
/// In words, if something is missing or a run fails.
pub(crate) fn run(options: &Options) -> Result<ExitCode, String> {
    install::for_failovers()?;
    let program = build::pointsman()?;
    let haproxy = find_in_path("haproxy").unwrap_or_else(|| PathBuf::from("/usr/sbin/haproxy"));
    let home = tempfile::tempdir().map_err(|error| format!("no folder for the libraries: {error}"))?;
    let libraries = [python(home.path())?, node(home.path())?];
    let mut table = String::from(
        "| failover | through | library | answers | errors | wrong replies | longest pause |\n|---|---|---|---|---|---|---|\n",
    );
    let mut clean = true;
    for kill in [false, true] {
        for ours in [false, true] {
            let cluster = Cluster::builder().user("app on >pw ~* &* +@all").start();
            let seen = if ours {
                let pointsman = Pointsman::builder(&program, &cluster).start();
                scene(&cluster, pointsman.addr(), &libraries, options.clients, kill)?
            } else {
                let haproxy = Haproxy::start(&haproxy, &cluster);
                scene(&cluster, haproxy.addr(), &libraries, options.clients, kill)?
            };
            for seen in seen {
                let row = row(kill, ours, &seen);
                print!("{row}");
                table += &row;
                let number = |key: &str| seen.get(key).and_then(Value::as_u64).unwrap_or(u64::MAX);
                // With a master killed, what was in flight is lost, and nothing else may be.
                clean &= !ours || (number("wrong") == 0 && (kill || number("errors") == 0));
            }
        }
    }
    if !options.dry {
        let head = format!(
            "# What clients notice of a failover\n\nWritten by `cargo xtask bench clients`: {} clients of each library, which authenticate, \
             choose a database and a name, and ask twice every 100 ms.\nThe libraries retry nothing. An error is a command that failed, or a \
             connection that was lost. A wrong reply is a counter that did not go on by one, or another client's name.\n\n",
            options.clients
        );
        fs::write("benches/CLIENTS.md", head + &table).map_err(|error| format!("benches/CLIENTS.md: {error}"))?;
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn row(kill: bool, ours: bool, seen: &Value) -> String {
    let text = |key: &str| seen.get(key).map_or_else(|| "?".to_owned(), ToString::to_string).replace('"', "");
    let mut row = format!("| {} ", if kill { "SIGKILL" } else { "planned" });
    // A String takes whatever is written.
    let _infallible = writeln!(
        row,
        "| {} | {} | {} | {} | {} | {} ms |",
        if ours { "pointsman" } else { "haproxy" },
        text("library"),
        text("answered"),
        text("errors"),
        text("wrong"),
        text("longest_ms"),
    );
    row
}

/// One failover under all libraries at once, and what each of them saw.
fn scene(
    cluster: &Cluster,
    addr: SocketAddr,
    libraries: &[Library],
    clients: u32,
    kill: bool,
) -> Result<Vec<Value>, String> {
    let children: Vec<Child> =
        libraries.iter().map(|library| library.start(addr, clients)).collect::<Result<_, String>>()?;
    pause(LIFE / 4);
    if kill {
        cluster.master().kill();
    } else {
        let _failover = cluster.failover();
    }
    children.into_iter().map(told).collect()
}

fn told(child: Child) -> Result<Value, String> {
    let output = child.wait_with_output().map_err(|error| format!("a client cannot be waited for: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|error| format!("a client said nothing that is understood ({error}): {text}"))
}

impl Library {
    fn start(&self, addr: SocketAddr, clients: u32) -> Result<Child, String> {
        let mut command = Command::new(&self.runner);
        command.arg(&self.script).args([addr.ip().to_string(), addr.port().to_string(), clients.to_string()]);
        command.arg(LIFE.as_secs().to_string()).env("CLIENTS_HOME", &self.home).stdout(Stdio::piped());
        command.spawn().map_err(|error| format!("{}: {error}", self.runner.display()))
    }
}

fn python(home: &Path) -> Result<Library, String> {
    let home = home.join("python");
    must(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    let runner = home.join("bin/python");
    must(Command::new(&runner).args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "redis"]))?;
    Ok(Library { script: "benches/clients/redis_py.py".into(), runner, home })
}

fn node(home: &Path) -> Result<Library, String> {
    let home = home.join("node");
    fs::create_dir(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    must(
        Command::new("npm")
            .args(["install", "--silent", "--no-fund", "--no-audit", "--prefix"])
            .arg(&home)
            .arg("ioredis"),
    )?;
    Ok(Library { script: "benches/clients/ioredis.mjs".into(), runner: "node".into(), home })
}

fn must(command: &mut Command) -> Result<(), String> {
    let status = command.stdin(Stdio::null()).status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}
