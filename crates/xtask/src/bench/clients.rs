//! `cargo xtask bench clients`: what the clients that people use notice of a failover, through pointsman and through haproxy.
//!
//! Real libraries, installed for this from their registries into a folder that goes away: mostly idle clients that authenticate,
//! choose a database and a name, and ask ten times a second. The program is built without optimisation: errors are counted here,
//! and pauses of a second.
//!
//! Deliberately absent: throughput, which `cargo xtask bench` measures, and with it redis-benchmark, whose clients are never idle;
//! go-redis, which Debian does not package and whose modules come from a proxy of their own that a build here may not reach.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime};

use clap::Args;
use harness::{Cluster, Haproxy, Pointsman, find_in_path, pause};
use serde_json::Value;

use crate::{build, install};

/// How long the clients live. Half a hundred processes take seconds to start on a busy machine.
const LIFE: Duration = Duration::from_secs(22);
/// When the failover comes.
const FAILOVER: Duration = Duration::from_secs(9);

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Clients of each library.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Show the figures only; nothing is written to benches/.
    #[arg(long)]
    dry: bool,
}

/// A client library and the program that uses it.
struct Library {
    /// What to start, with what before the arguments that all of them have.
    program: PathBuf,
    script: Option<PathBuf>,
    /// Where it was installed, and its version if it does not know that itself.
    home: PathBuf,
    version: String,
}

/// What a library's clients saw, and how many errors they saw without a request in flight at the kill.
struct Seen {
    told: Value,
    unexplained: usize,
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
    let libraries = [python(home.path())?, node(home.path())?, rust()?, command_line()];
    let mut table = String::from(
        "| failover | through | library | answers | errors | of them not in flight | wrong replies | longest pause |\n\
         |---|---|---|---|---|---|---|---|\n",
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
                let number = |key: &str| seen.told.get(key).and_then(Value::as_u64).unwrap_or(u64::MAX);
                // With a master killed, what was in flight is lost, and nothing else may be.
                let lost = if kill { seen.unexplained as u64 } else { number("errors") };
                clean &= !ours || (number("wrong") == 0 && lost == 0);
            }
        }
    }
    if !options.dry {
        let head = format!(
            "# What clients notice of a failover\n\nWritten by `cargo xtask bench clients`: {} clients of each library, which authenticate, \
             choose a database and a name, and ask twice every 100 ms.\nThe libraries retry nothing. An error is a command that failed, or a \
             connection that was lost. A wrong reply is a counter that did not go on by one, or another client's name. An error is of a request in flight if that was begun within half \
             a second of the kill.\nredis-rs is asynchronous and multiplexed with its response timeout raised from half a second to 30 s; redis-cli \
             reads its commands from a pipe; every other client of redis-py and redis-rs speaks RESP3.\n\n",
            options.clients
        );
        fs::write("benches/CLIENTS.md", head + &table).map_err(|error| format!("benches/CLIENTS.md: {error}"))?;
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn row(kill: bool, ours: bool, seen: &Seen) -> String {
    let text = |key: &str| seen.told.get(key).map_or_else(|| "?".to_owned(), ToString::to_string).replace('"', "");
    let mut row = format!("| {} ", if kill { "SIGKILL" } else { "planned" });
    // A String takes whatever is written.
    let _infallible = writeln!(
        row,
        "| {} | {} | {} | {} | {} | {} | {} ms |",
        if ours { "pointsman" } else { "haproxy" },
        text("library"),
        text("answered"),
        text("errors"),
        if kill { seen.unexplained.to_string() } else { text("errors") },
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
) -> Result<Vec<Seen>, String> {
    let children: Vec<Child> =
        libraries.iter().map(|library| library.start(addr, clients)).collect::<Result<_, String>>()?;
    pause(FAILOVER);
    let begin = now();
    if kill {
        cluster.master().kill();
    } else {
        let _failover = cluster.failover();
    }
    let around = begin.saturating_sub(SLACK)..now() + SLACK;
    let seen = children.into_iter().map(|child| {
        let told = told(child)?;
        let at = told.get("errors_at").and_then(Value::as_array).ok_or("a client does not say when its errors were")?;
        let unexplained = at.iter().filter(|at| !at.as_u64().is_some_and(|at| around.contains(&at.into()))).count();
        Ok(Seen { told, unexplained })
    });
    seen.collect()
}

/// How long before or after the kill a request may have been begun that was in flight: on its way to a server that is dying, or to a
/// connection of which it is not known yet that it has died.
const SLACK: u128 = 500;

/// Milliseconds of Unix time.
#[allow(clippy::disallowed_methods, reason = "the clients are other processes, with no other clock in common")]
fn now() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis()
}

fn told(child: Child) -> Result<Value, String> {
    let output = child.wait_with_output().map_err(|error| format!("a client cannot be waited for: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|error| format!("a client said nothing that is understood ({error}): {text}"))
}

impl Library {
    fn start(&self, addr: SocketAddr, clients: u32) -> Result<Child, String> {
        let mut command = Command::new(&self.program);
        command.args(&self.script).env("CLIENTS_VERSION", &self.version).args([
            addr.ip().to_string(),
            addr.port().to_string(),
            clients.to_string(),
        ]);
        command.arg(LIFE.as_secs().to_string()).env("CLIENTS_HOME", &self.home).stdout(Stdio::piped());
        command.spawn().map_err(|error| format!("{}: {error}", self.program.display()))
    }
}

fn python(home: &Path) -> Result<Library, String> {
    let home = home.join("python");
    must(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    let runner = home.join("bin/python");
    must(Command::new(&runner).args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "redis"]))?;
    Ok(Library { program: runner, script: Some("benches/clients/redis_py.py".into()), home, version: String::new() })
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
    let script = Some("benches/clients/ioredis.mjs".into());
    Ok(Library { program: "node".into(), script, home, version: String::new() })
}

/// redis-rs, built from the registry out of the workspace, and kept: that takes minutes.
fn rust() -> Result<Library, String> {
    let home = PathBuf::from("target/clients/redis_rs");
    fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    for file in ["Cargo.toml", "main.rs"] {
        fs::copy(Path::new("benches/clients/redis_rs").join(file), home.join(file))
            .map_err(|error| format!("{file}: {error}"))?;
    }
    let cargo = || {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&home).env("CARGO_TARGET_DIR", "target");
        cargo
    };
    must(cargo().args(["build", "--quiet"]))?;
    let found = cargo().args(["pkgid", "redis"]).output().map_err(|error| format!("cargo pkgid: {error}"))?;
    let version = String::from_utf8_lossy(&found.stdout).trim().rsplit('@').next().unwrap_or_default().to_owned();
    Ok(Library { program: home.join("target/debug/clients-redis-rs"), script: None, home, version })
}

/// redis-cli, which is hiredis and comes with the servers.
fn command_line() -> Library {
    let script = Some("benches/clients/redis_cli.py".into());
    Library { program: "python3".into(), script, home: PathBuf::new(), version: String::new() }
}

fn must(command: &mut Command) -> Result<(), String> {
    let status = command.stdin(Stdio::null()).status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}
