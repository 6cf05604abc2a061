//! Counts instructions: a program under valgrind's callgrind, run twice with different amounts of
//! work.
//!
//! Of the data plane, the busiest thread counts: the worker. The clock thread runs some 5,000
//! instructions per tick, so in a sum over all threads each second that a run takes longer on a
//! slow machine would add a percent.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::{Address, Client, Family, Launch, Process, Signal, find_in_path, wait_until};
use setup::files;

use crate::load::{Loader, Workload};
use crate::stats::number;

/// How long the proxy may take to start or stop under valgrind.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    /// The scanner alone, in one of the cases of its program.
    Scanner(&'static str),
    /// The data plane, with this many requests at once.
    Pump(usize),
}

impl Case {
    /// In the order of the output.
    pub(super) const ALL: [Self; 7] = [
        Self::Scanner("get"),
        Self::Scanner("set"),
        Self::Scanner("pipeline"),
        Self::Scanner("bulk"),
        Self::Scanner("list"),
        Self::Pump(1),
        Self::Pump(16),
    ];

    /// The name in the file of budgets.
    pub(super) fn name(self) -> String {
        match self {
            Self::Scanner(case) => format!("scanner {case}"),
            Self::Pump(1) => "pump get".to_owned(),
            Self::Pump(_) => "pump pipeline".to_owned(),
        }
    }

    /// Instructions per unit of work.
    ///
    /// # Errors
    /// A message for people: what failed.
    pub(super) fn count(self, [scanner, proxy]: &[PathBuf; 2]) -> Result<f64, String> {
        let (few, many) = (1000, 3000);
        let count = |times: u32| match self {
            Self::Scanner(case) => alone(scanner, case, times),
            Self::Pump(at_once) => between(proxy, at_once, times),
        };
        let (least, most) = (count(few)?, count(many)?);
        let per_time = most.checked_sub(least).ok_or("more work took fewer instructions")?;
        Ok(number(per_time) / f64::from(many - few))
    }
}

fn valgrind() -> Result<PathBuf, String> {
    find_in_path("valgrind").ok_or_else(|| "valgrind is missing".to_owned())
}

/// The output file of callgrind; for several threads, each file name has the thread number
/// appended.
const OUT: &str = "callgrind.out";

/// Counts a program that ends by itself.
fn alone(program: &Path, case: &str, times: u32) -> Result<u64, String> {
    let mut command = Command::new(valgrind()?);
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .arg(case)
        .arg(times.to_string())
        .stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(format!("{case} failed under valgrind:\n{said}"));
    }
    collected(&said)
}

/// Counts the data plane between a client and a backend in lockstep: the next requests are sent
/// when the previous ones are answered.
fn between(program: &Path, at_once: usize, times: u32) -> Result<u64, String> {
    let words = |error: std::io::Error| format!("the data plane under valgrind: {error}");
    let loader = Loader::start(0, IpAddr::V4(Ipv4Addr::LOCALHOST)).map_err(words)?;
    let address = Address::claim(Family::Ipv4);
    let listen = address.port();
    let kept = tempfile::tempdir().map_err(words)?;
    let out = format!("--callgrind-out-file={}", kept.path().join(OUT).display());
    let flags = ["--tool=callgrind".to_owned(), "--separate-threads=yes".to_owned(), out];
    let plain = [
        program.display().to_string(),
        listen.to_string(),
        loader.sink().to_string(),
        "1".to_owned(),
    ];
    let args = flags.into_iter().chain(plain).map(Into::into).collect();
    let name = "counted".to_owned();
    let folder = kept.path().to_owned();
    let process =
        Process::start(&Launch { name, program: valgrind()?, args, env: Vec::new(), folder });
    let mut client = wait_until("the data plane to accept under valgrind", PATIENCE, || {
        assert!(process.is_running(), "it ended: {}", process.log());
        Client::connect_within(listen, PATIENCE)
    });
    let (requests, reply) = (Workload::SMALL.request().repeat(at_once), Workload::SMALL.reply());
    let mut came = Vec::new();
    for _ in 0..times {
        client.send(&requests).map_err(words)?;
        came = client.read_exact(reply.len() * at_once).map_err(words)?;
    }
    if !came.ends_with(&reply) {
        return Err("the backend's reply did not come through".to_owned());
    }
    drop(client);
    process.signal(Signal::TERM);
    process.wait_exit(PATIENCE);
    busiest(kept.path()).map_err(|error| format!("{error}:\n{}", process.log()))
}

/// The count of the busiest thread.
fn busiest(folder: &Path) -> Result<u64, String> {
    let is_count = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(OUT))
    };
    let profiles = files::list(folder)?.into_iter().filter(is_count);
    let counts = profiles.filter_map(|path| total(&files::read(path).ok()?));
    counts.max().ok_or_else(|| "valgrind counted nothing".to_owned())
}

/// The totals line of a callgrind file.
fn total(profile: &str) -> Option<u64> {
    profile
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("totals: "))
        .and_then(|number| number.trim().parse().ok())
}

/// The sum that callgrind prints at the end.
fn collected(said: &str) -> Result<u64, String> {
    let line = said.lines().rev().find_map(|line| line.split_once("Collected : "));
    let number = line.and_then(|(_, number)| number.trim().parse().ok());
    number.ok_or_else(|| format!("valgrind counted nothing:\n{said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_last_count_of_valgrind() {
        assert_eq!(collected("==1== Callgrind\n==1== Collected : 815087\n==1==\n"), Ok(815_087));
        assert!(collected("killed").is_err());
    }

    #[test]
    fn takes_the_busiest_thread() {
        let folder = tempfile::tempdir().unwrap();
        assert!(busiest(folder.path()).is_err());
        for (name, text) in [
            ("callgrind.out", ""),
            ("callgrind.out-01", "thread: 1\nsummary: 7\n\ntotals: 8\n"),
            ("callgrind.out-02", "thread: 2\n0 99\ntotals: 90\n"),
            ("counted.log", "totals: 1000\n"),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        assert_eq!(busiest(folder.path()), Ok(90));
    }
}
