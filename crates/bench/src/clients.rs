//! `cargo xtask bench clients`: what popular client libraries notice of a failover, through
//! pointsman and through haproxy.
//!
//! The real libraries are fetched from their registries below cargo's target folder. Mostly idle
//! clients authenticate, select a database and a name, and send ten requests per second. The
//! program is a debug build: errors are counted here, and pauses of a second. redis-benchmark
//! follows in failovers of its own: its clients are never idle, would take CPU time from the
//! others, and always have a request in flight, for which nothing is promised.

mod libraries;
mod maintenance;
mod secured;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ExitCode};
use std::time::{Duration, SystemTime};

use clap::Args;
use harness::{Cluster, Haproxy, Pointsman, find_in_path, pause};
use serde_json::Value;
use setup::{build, files, install};

use self::libraries::Library;
use self::secured::Secured;
use crate::markdown;
use crate::raw::benches;
use crate::stats::number;

/// How long the clients run. Fifty processes take seconds to start on a busy machine.
const LIFE: Duration = Duration::from_secs(22);
/// The number of clients that redis_benchmark.py starts at most.
const BUSY: u32 = 16;
/// Pauses before this are ignored: the machine is busy with starting the clients, and a first
/// request waits for its connection.
const SETTLE: Duration = Duration::from_secs(5);
/// The time of the failover.
const FAILOVER: Duration = Duration::from_secs(9);

/// Options of `bench clients`.
#[derive(Debug, Args)]
pub(crate) struct ClientsOptions {
    /// Clients of each library.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Only print the figures; write nothing to benches/.
    #[arg(long)]
    dry: bool,
    /// Clients over TLS with certificates, through pointsman only; writes benches/CLIENTS_TLS.md.
    #[arg(long)]
    tls: bool,
    /// Clients that ask for maintenance notifications, with and without them, through pointsman
    /// only; writes benches/CLIENTS_MAINTENANCE.md.
    #[arg(long, conflicts_with_all = ["tls", "clients"])]
    maintenance: bool,
}

/// The results of a library's clients, and how many errors occurred without a request in flight at
/// the kill.
struct Seen {
    told: Value,
    unexplained: usize,
    /// When the failover was ordered, in milliseconds of Unix time.
    ordered: u64,
}

/// Runs the measurement.
///
/// # Errors
/// A message for people, if something is missing or a run fails.
pub(crate) fn run(options: &ClientsOptions) -> Result<ExitCode, String> {
    install::for_failovers()?;
    let pointsman = build::pointsman_or(None)?;
    if options.maintenance {
        return maintenance::run(&pointsman, options.dry);
    }
    let stand = Stand {
        pointsman,
        haproxy: find_in_path("haproxy").unwrap_or_else(|| PathBuf::from("/usr/sbin/haproxy")),
        clients: options.clients,
        tls: options.tls,
    };
    let mut idle = vec![libraries::REDIS_PY, libraries::IOREDIS];
    idle.extend((!options.tls).then_some(libraries::REDIS_RS));
    idle.extend([libraries::REDIS_CLI, libraries::GO_REDIS]);
    let (idle, without_go) = libraries::fetch(idle)?;
    let mut table = markdown::table(&HEAD, &[]);
    print!("{table}");
    let (rows, clean) = stand.rows(&idle)?;
    table += &rows;
    if !options.tls {
        // They always have a request in flight, for which nothing is promised.
        table += &stand.rows(&[libraries::REDIS_BENCHMARK])?.0;
    }
    if without_go.is_some() {
        table += "\ngo-redis was left out: its program could not be had where this was written.\n";
    }
    let (file, preface) = if options.tls {
        let preface = include_str!("clients/preface_with_tls.md");
        ("CLIENTS_TLS.md", preface.replace("{clients}", &options.clients.to_string()))
    } else {
        ("CLIENTS.md", preface(options.clients))
    };
    if !options.dry {
        files::write(benches().join(file), preface + &table)?;
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

const HEAD: [&str; 9] = [
    "failover",
    "through",
    "library",
    "answers",
    "errors",
    "of them not in flight",
    "wrong replies",
    "longest pause",
    "begun after",
];

fn preface(clients: u32) -> String {
    let (settle, busy) = (SETTLE.as_secs(), clients.min(BUSY));
    format!(include_str!("clients/preface.md"), clients = clients, settle = settle, busy = busy)
}

/// Formats a row of the table and prints it.
fn row(kill: bool, ours: bool, seen: &Seen) -> String {
    let text = |key: &str| {
        seen.told.get(key).map_or_else(|| "?".to_owned(), ToString::to_string).replace('"', "")
    };
    let row = markdown::row(&[
        if kill { "SIGKILL" } else { "planned" }.to_owned(),
        if ours { "pointsman" } else { "haproxy" }.to_owned(),
        text("library"),
        text("answered"),
        text("errors"),
        if kill { seen.unexplained.to_string() } else { text("errors") },
        text("wrong"),
        format!("{} ms", text("longest_ms")),
        seen.begun(),
    ]);
    print!("{row}");
    row
}

/// The programs and options of all runs.
struct Stand {
    pointsman: PathBuf,
    haproxy: PathBuf,
    clients: u32,
    tls: bool,
}

impl Stand {
    /// The rows of all failovers with these libraries, and whether Pointsman kept its promises.
    fn rows(&self, libraries: &[Library]) -> Result<(String, bool), String> {
        let (mut rows, mut clean) = (String::new(), true);
        let all = [(false, false), (false, true), (true, false), (true, true)];
        for (kill, ours) in all.into_iter().filter(|(_, ours)| *ours || !self.tls) {
            for seen in self.scene(libraries, ours, kill)? {
                rows += &row(kill, ours, &seen);
                clean &= !ours || seen.is_clean(kill);
            }
        }
        Ok((rows, clean))
    }

    /// One failover of a new cluster with these libraries at once; returns the results of each.
    fn scene(&self, libraries: &[Library], ours: bool, kill: bool) -> Result<Vec<Seen>, String> {
        let cluster = Cluster::builder().user("app on >pw ~* &* +@all").start();
        if ours && self.tls {
            let (_pointsman, addr, tls) = Secured::start(&self.pointsman, &cluster);
            self.failover(&cluster, addr, Some(&tls), libraries, kill)
        } else if ours {
            let pointsman = Pointsman::builder(&self.pointsman, &cluster).start();
            self.failover(&cluster, pointsman.addr(), None, libraries, kill)
        } else {
            let haproxy = Haproxy::start(&self.haproxy, &cluster);
            self.failover(&cluster, haproxy.addr(), None, libraries, kill)
        }
    }

    fn failover(
        &self,
        cluster: &Cluster,
        addr: SocketAddr,
        tls: Option<&Secured>,
        libraries: &[Library],
        kill: bool,
    ) -> Result<Vec<Seen>, String> {
        let children: Vec<Child> = libraries
            .iter()
            .map(|library| library.start(addr, tls, self.clients))
            .collect::<Result<_, String>>()?;
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
            let at = told
                .get("errors_at")
                .and_then(Value::as_array)
                .ok_or("a client does not say when its errors were")?;
            let unexplained =
                at.iter().filter(|at| !at.as_u64().is_some_and(|at| around.contains(&at))).count();
            Ok(Seen { told, unexplained, ordered: begin })
        });
        seen.collect()
    }
}

impl Seen {
    /// When the longest pause began, in seconds after the failover or the kill; a dash if there was
    /// none.
    fn begun(&self) -> String {
        let at = self.told.get("longest_at").and_then(Value::as_u64).filter(|at| *at > 0);
        let after = |at| (number(at) - number(self.ordered)) / 1e3;
        at.map_or_else(|| "-".to_owned(), |at| format!("{:.1} s", after(at)))
    }

    fn is_clean(&self, kill: bool) -> bool {
        let number = |key: &str| self.told.get(key).and_then(Value::as_u64).unwrap_or(u64::MAX);
        // After a kill, requests in flight are lost, and no others may be.
        let lost = if kill { self.unexplained as u64 } else { number("errors") };
        number("wrong") == 0 && lost == 0
    }
}

/// A request counts as in flight if it started this long before or after the kill: on its way to a
/// dying server, or on a connection whose end has not been noticed.
const SLACK: u64 = 500;

/// Milliseconds of Unix time.
#[allow(
    clippy::disallowed_methods,
    reason = "the clients are other processes, with no other clock in common"
)]
fn now() -> u64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

fn told(child: Child) -> Result<Value, String> {
    let output = child
        .wait_with_output()
        .map_err(|error| format!("a client cannot be waited for: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line)
        .map_err(|error| format!("a client said nothing that is understood ({error}): {text}"))
}

#[cfg(test)]
mod tests {
    use super::{Seen, row};

    #[test]
    fn tells_failover_pause_from_earlier_pause() {
        let seen = |longest_at: u64| Seen {
            told: serde_json::json!({"library": "it 1", "answered": 9, "errors": 2, "wrong": 0, "longest_ms": 7, "longest_at": longest_at}),
            unexplained: 1,
            ordered: 20_000,
        };
        assert_eq!(
            row(true, true, &seen(20_100)),
            "| SIGKILL | pointsman | it 1 | 9 | 2 | 1 | 0 | 7 ms | 0.1 s |\n"
        );
        assert_eq!(
            row(false, false, &seen(12_000)),
            "| planned | haproxy | it 1 | 9 | 2 | 2 | 0 | 7 ms | -8.0 s |\n"
        );
        assert!(row(false, true, &seen(0)).ends_with("| 7 ms | - |\n"));
    }
}
