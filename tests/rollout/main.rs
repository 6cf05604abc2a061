//! Rolling replacements under load, in an environment that behaves like Kubernetes.
//!
//! The short test replaces three pods of pointsman, and no client may notice. The matrix does so
//! with every lag, and with haproxy for comparison; it is started by hand and writes
//! benches/ROLLOUT.md:
//!
//!     cargo test --test rollout -- --ignored --nocapture
//!
//! There is no kubelet and no kube-proxy: their effects on a pod and its clients are produced with
//! the kernel's own means, so that the lag between the two can be set.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests report by a clear panic, and the matrix is for people"
)]

mod clients;
mod network;
mod pod;
mod report;
mod roll;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clients::Crowd;
use pod::Kind;
use roll::{Plan, Record, roll};

/// The environment variable with the path of another pointsman to measure.
const PROGRAM: &str = "ROLLOUT_PROGRAM";

fn program() -> PathBuf {
    std::env::var_os(PROGRAM)
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_pointsman")), PathBuf::from)
}

const CROWD: Crowd = Crowd {
    call_every: Duration::from_millis(10),
    talkers: 50,
    pipeliners: 20,
    think: Duration::from_millis(25),
};

/// Checks that no client noticed the replacement.
///
/// A session ends after a reply, while its client pauses; microseconds lie between the proxy's last
/// check for a next request and the FIN. No proxy can do better: if a core is away in between for
/// as long as a client pauses, that client sends into a closing connection. So that may happen once
/// per such absence, and never on an undisturbed machine.
#[track_caller]
fn nobody_noticed(record: &Record, crowd: Crowd) {
    let line = report::raw(record);
    for (kind, tally) in clients::KINDS.iter().zip(&record.tallies) {
        assert_eq!(tally.errors() - tally.unanswered, 0, "{kind}: {line}");
        assert!(tally.answered > 100, "{kind}: hardly anything was asked: {line}");
    }
    let [callers, keepers @ ..] = &record.tallies;
    assert_eq!(callers.unanswered, 0, "a new client is served: {line}");
    let (cut, absences) = (keepers.iter().map(|it| it.cut).sum::<u64>(), record.absences);
    assert!(
        cut <= absences as u64,
        "{cut} were cut under a request, and the machine was away {absences} times: {line}"
    );
    if cut > 0 {
        println!("{cut} were cut under a request; the machine was away {absences} times");
    }
    assert!(
        record.tallies[1].clean >= crowd.talkers as u64,
        "the clients did not have to move: {line}"
    );
    assert!(record.stops.iter().all(|stop| !stop.killed), "{line}");
}

#[test]
fn replaces_pods_unnoticed() {
    network::inside("replaces_pods_unnoticed", || {
        let settings = "[shutdown]\naccept_min = \"2s\"\naccept_quiet = \"2s\"\naccept_max = \"8s\"\ndrain_spread = \"2s\"\n";
        let crowd = Crowd { talkers: 20, pipeliners: 8, ..CROWD };
        let record =
            roll(Plan { kind: Kind::Pointsman, lag: Duration::from_secs(3), crowd, settings }, 1);
        nobody_noticed(&record, crowd);
        // The lag and the quiet time after it, the spread, the time that a session takes to leave,
        // and a busy machine.
        assert!(
            record.stops.iter().all(|stop| stop.took < Duration::from_secs(12)),
            "{}",
            report::raw(&record)
        );
    });
}

/// The lag is longer than the accepting phase: clients that arrive during it are served, and later
/// ones are refused.
#[test]
fn detects_faults_of_a_rollout() {
    network::inside("detects_faults_of_a_rollout", || {
        let settings = "[shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"\ndrain_spread = \"0s\"\n";
        let crowd = Crowd { talkers: 5, pipeliners: 2, ..CROWD };
        let record =
            roll(Plan { kind: Kind::Pointsman, lag: Duration::from_secs(1), crowd, settings }, 1);
        let callers = &record.tallies[0];
        assert!(
            callers.refused > 10,
            "who does not wait for the node must refuse: {}",
            report::raw(&record)
        );
    });
}

#[test]
#[ignore = "ten minutes; writes benches/ROLLOUT.md"]
fn measures_rollout_matrix() {
    network::inside("measures_rollout_matrix", || {
        let mut records = Vec::new();
        let mut first = 1;
        for lag in [0, 2, 5, 10].map(Duration::from_secs) {
            for kind in Kind::ALL {
                let record = roll(Plan { kind, lag, crowd: CROWD, settings: "" }, first);
                first += 6;
                println!("{}", report::raw(&record));
                records.push(record);
            }
        }
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches");
        let raw: String = records.iter().map(|record| report::raw(record) + "\n").collect();
        std::fs::create_dir_all(folder.join("runs")).expect("a folder");
        std::fs::write(folder.join("runs/rollout.jsonl"), raw).expect("the raw data");
        let table = report::table(&records);
        println!("\n{table}");
        let (before, after) =
            include_str!("rollout.md").split_once("TABLE\n").expect("a place for the table");
        std::fs::write(folder.join("ROLLOUT.md"), format!("{before}{table}{after}"))
            .expect("the report");
        for record in records.iter().filter(|record| record.kind == Kind::Pointsman) {
            nobody_noticed(record, CROWD);
        }
    });
}
