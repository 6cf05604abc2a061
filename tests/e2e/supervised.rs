//! Under a service manager that listens, like systemd: READY, RELOADING, STOPPING, more time, and
//! the watchdog.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use harness::{Cluster, Signal, wait_until};

use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(30);

/// Receives the messages to the service manager.
struct Ear {
    socket: UnixDatagram,
    heard: String,
}

impl Ear {
    /// Waits for a message with this line.
    #[track_caller]
    fn expect(&mut self, line: &str) {
        wait_until(&format!("{line} in {:?}", self.heard), PATIENCE, || {
            let mut message = [0; 4096];
            while let Ok(length) = self.socket.recv(&mut message) {
                self.heard.push_str(&String::from_utf8_lossy(&message[..length]));
                self.heard.push('\n');
            }
            self.heard.lines().any(|heard| heard.starts_with(line))
        });
    }

    fn forget(&mut self) {
        self.heard.clear();
    }
}

/// The service manager's socket.
fn listen(cluster: &Cluster) -> (PathBuf, UnixDatagram) {
    let path = cluster.folder().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_nonblocking(true).expect("a mode");
    (path, socket)
}

#[test]
fn notifies_the_service_manager() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let (path, socket) = listen(&cluster);
    let mut ear = Ear { socket, heard: String::new() };
    let pointsman = builder(&cluster)
        .env("NOTIFY_SOCKET", path.to_str().expect("a path"))
        .env("WATCHDOG_USEC", "600000")
        .lines("[shutdown]\naccept_min = \"2s\"\naccept_quiet = \"0s\"")
        .start();
    ear.expect("READY=1");
    ear.expect("WATCHDOG=1");
    ear.expect("STATUS=serving; 1 of 1 masters known");
    ear.forget();
    // It continues as long as the event loops run.
    ear.expect("WATCHDOG=1");
    ear.forget();
    pointsman.process().signal(Signal::HUP);
    ear.expect("RELOADING=1");
    ear.expect("MONOTONIC_USEC=");
    ear.expect("READY=1");
    ear.forget();
    pointsman.sigterm();
    ear.expect("STOPPING=1");
    ear.forget();
    ear.expect("EXTEND_TIMEOUT_USEC=");
    assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
}

#[test]
fn survives_a_service_manager_that_hangs() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let (path, socket) = listen(&cluster);
    // Fills the socket's queue, so that no further message fits.
    let stuffing = UnixDatagram::unbound().expect("a socket");
    stuffing.set_nonblocking(true).expect("a mode");
    wait_until("the manager's queue to be full", PATIENCE, || {
        stuffing.send_to(b"X=1\n", &path).is_err()
    });
    let start = || {
        builder(&cluster)
            .env("NOTIFY_SOCKET", path.to_str().expect("a path"))
            .env("WATCHDOG_USEC", "20000")
            .lines("[shutdown]\naccept_min = \"1s\"\naccept_quiet = \"0s\"")
            .start()
    };
    // Started, reloaded, drained and ended, with a message every ten milliseconds that does not
    // fit.
    let first = start();
    first.process().signal(Signal::HUP);
    wait_until("the reload", PATIENCE, || {
        metric(&first, "pointsman_config_reloads_total{result=\"unchanged\"}") >= Some(1.0)
    });
    first.sigterm();
    assert_eq!(first.wait_exit(PATIENCE).code(), Some(0));
    // The next start is reported once the manager reads again: an unreported start would count as
    // failed.
    let next = start();
    assert_eq!(next.client().cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    let mut ear = Ear { socket, heard: String::new() };
    ear.expect("X=1");
    assert!(!ear.heard.contains("STOPPING=1"), "the queue was not full: {}", ear.heard);
    ear.expect("READY=1");
    ear.expect("WATCHDOG=1");
}
