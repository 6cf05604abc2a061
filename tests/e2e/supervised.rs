//! Under a service manager that listens, as systemd does: READY, RELOADING, STOPPING, more time, and the watchdog.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use harness::{Cluster, Signal, wait_until};

use crate::builder;

const PATIENCE: Duration = Duration::from_secs(30);

/// The service manager's ear.
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

#[test]
fn a_service_manager_is_told_how_things_stand() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let path = cluster.folder().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_nonblocking(true).expect("a mode");
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
    // It goes on, as long as the loops turn.
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
