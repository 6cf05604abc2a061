//! A log whose reader stalls, goes away or comes back: the process keeps serving and ends in time,
//! and dropped lines are counted and reported.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use harness::{Client, Cluster, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;

use crate::PROGRAM;

const PATIENCE: Duration = Duration::from_secs(60);
/// A shutdown without waiting takes milliseconds, and writing out the log is bounded to a second.
const END: Duration = Duration::from_secs(10);

fn small() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

/// A process that logs as much as it can, to an output that the test controls.
struct Verbose {
    child: Child,
    listen: SocketAddr,
    admin: SocketAddr,
}

impl Verbose {
    fn start(cluster: &Cluster, stdout: Stdio) -> Self {
        let (listen, admin) = (cluster.address().port(), cluster.address().port());
        let sentinel = cluster.sentinel_addrs()[0].to_string();
        let quick =
            ["accept_min", "accept_quiet", "accept_max"].map(|key| format!("shutdown.{key}=0s"));
        let set =
            ["log.format=json", "log.sessions=all", "log.lines_per_second=0", "log.level=trace"];
        let mut command = Command::new(PROGRAM);
        command.args([
            "run",
            "--sentinel",
            &sentinel,
            "--listen",
            &listen.to_string(),
            "--admin",
            &admin.to_string(),
        ]);
        command.args(
            set.iter()
                .copied()
                .chain(quick.iter().map(String::as_str))
                .flat_map(|it| ["--set", it]),
        );
        let child = command.stdin(Stdio::null()).stdout(stdout).spawn().expect("a pointsman");
        let started = Self { child, listen, admin };
        wait_until("it to be ready", PATIENCE, || started.get("/ready").is_some());
        started
    }

    fn get(&self, path: &str) -> Option<String> {
        harness::http_get(self.admin, path)
            .ok()
            .filter(|(code, _)| *code == 200)
            .map(|(_, text)| text)
    }

    fn dropped(&self) -> Option<u64> {
        let text = self.get("/metrics")?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("pointsman_log_lines_dropped_total "))?
            .to_owned();
        line.parse::<u64>().ok()
    }

    fn ping(&self) {
        let mut client = Client::connect(self.listen).expect("a connection");
        assert_eq!(client.cmd(&["PING"]).expect("an answer").text(), Some("PONG"));
    }

    /// Opens short connections until the queue of lines has overflowed.
    fn overflow(&self) {
        wait_until("lines to be dropped", 2 * PATIENCE, || {
            (0..200).for_each(|_| self.ping());
            self.dropped() > Some(0)
        });
    }

    fn end_by(mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), signal).expect("a signal");
        let mut end = None;
        wait_until("the end of the process", END, || {
            end = self.child.try_wait().expect("its state");
            end.is_some()
        });
        end.expect("waited for")
    }
}

impl Drop for Verbose {
    fn drop(&mut self) {
        // Both fail only if the child has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pipe(process: &mut Verbose) -> ChildStdout {
    process.child.stdout.take().expect("its output")
}

#[test]
fn ends_in_time_when_nobody_reads_the_log() {
    let cluster = small();
    for signal in [Signal::TERM, Signal::QUIT] {
        // The child's handle holds the other end of the pipe, which is never read.
        let process = Verbose::start(&cluster, Stdio::piped());
        process.overflow();
        let end = process.end_by(signal);
        assert_eq!(end.code(), Some(0), "{signal:?}: {end:?}");
    }
}

#[test]
fn serves_and_ends_cleanly_when_the_log_reader_has_gone() {
    let cluster = small();
    let mut process = Verbose::start(&cluster, Stdio::piped());
    process.overflow();
    drop(pipe(&mut process));
    process.ping();
    let end = process.end_by(Signal::TERM);
    assert_eq!(end.code(), Some(0), "{end:?}");
}

#[test]
fn serves_and_ends_cleanly_when_the_disk_is_full() {
    let cluster = small();
    let full = File::options().write(true).open("/dev/full").expect("/dev/full");
    let process = Verbose::start(&cluster, full.into());
    wait_until("lines to be dropped", PATIENCE, || {
        process.ping();
        process.dropped() > Some(0)
    });
    let end = process.end_by(Signal::TERM);
    assert_eq!(end.code(), Some(0), "{end:?}");
}

#[test]
fn reports_dropped_lines_when_the_log_reader_returns() {
    let cluster = small();
    let mut process = Verbose::start(&cluster, Stdio::piped());
    process.overflow();
    let lines = BufReader::new(pipe(&mut process)).lines();
    let (tell, told) = channel();
    // Not joined: if the report is missing, it reads until the process ends.
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let line =
                serde_json::from_str::<Json>(&line).map_err(|error| format!("{error}: {line}"));
            let _ = tell.send(line);
        }
    });
    let next = |what: &str| {
        // A quiet process writes nothing, and reports with the next line.
        wait_until(what, PATIENCE, || {
            process.ping();
            told.try_iter().map(|line| line.expect("JSON")).find(|line| line["message"] == what)
        })
    };
    let report = next("log lines dropped");
    assert!(report["lines"].as_u64() > Some(0), "{report}");
    let end = process.end_by(Signal::TERM);
    assert_eq!(end.code(), Some(0), "{end:?}");
    let last = told.iter().map(|line| line.expect("JSON")).last().expect("a line");
    assert_eq!(last["message"], "stopped", "{last}");
}
