//! What the service manager is told: started, reloading, stopping, still alive, needs more time.
//!
//! The protocol is systemd's (sd_notify(3)) and costs a datagram a second. Without `NOTIFY_SOCKET`
//! every message goes nowhere. The watchdog is fed from the verdict of liveness: if an event loop
//! hangs, the service manager hears nothing and restarts us, as a kubelet would for `/alive`.
//!
//! **Nobody waits for the service manager.** The kernel keeps few messages for it (ten by default),
//! and one that does not read would stop the loop that tells it, with signals, discovery and the
//! drain. So a message that finds no room is dropped. For what is said again anyway nothing is lost
//! by that. What is said only once (started, reloading, stopping) is owed to it, in the order in
//! which it happened, and tried again before whatever comes next: a manager that is merely slow
//! must not take a start for a failed one.
//!
//! Deliberately absent: a thread of its own, since if the loop that tells this hangs, silence is
//! the right message; and a crate for the protocol, since the one there is waits.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use drain::Phase;
use rustix::time::{ClockId, clock_gettime};
use tracing::debug;

/// How often the service manager is told how things stand, if it does not want to hear of us more
/// often.
const EVERY: Duration = Duration::from_secs(1);

/// Asks for more time while the process drains. The next message comes long before.
const EXTEND: &str = "EXTEND_TIMEOUT_USEC=15000000\n";

/// The line to the service manager.
#[derive(Debug)]
pub struct Supervisor {
    ear: Option<Ear>,
    watchdog: bool,
    every: Duration,
    said: String,
    /// What is said only once and has not been heard yet, oldest first, with the name of each.
    owed: Vec<(&'static str, String)>,
}

/// Where the service manager listens.
#[derive(Debug)]
struct Ear {
    socket: UnixDatagram,
    addr: SocketAddr,
}

impl Supervisor {
    /// Looks into the environment for what the service manager wants.
    #[must_use]
    pub fn find() -> Self {
        let text = |name: &str| std::env::var(name).ok();
        let watchdog = watchdog(text("WATCHDOG_USEC"), text("WATCHDOG_PID"), std::process::id());
        let ear = std::env::var_os("NOTIFY_SOCKET")
            .filter(|name| !name.is_empty())
            .map(|name| Ear::at(&name))
            .transpose();
        let ear = ear
            .inspect_err(|error| debug!(%error, "the service manager cannot be told"))
            .ok()
            .flatten();
        Self {
            ear,
            watchdog: watchdog.is_some(),
            every: pace(watchdog),
            said: String::new(),
            owed: Vec::new(),
        }
    }

    /// How often [`tick`](Self::tick) is to be called.
    #[must_use]
    pub fn every(&self) -> Duration {
        self.every
    }

    /// The process serves.
    pub fn ready(&mut self) {
        self.owe("READY=1", "");
    }

    /// A reload begins; [`ready`](Self::ready) ends it.
    pub fn reloading(&mut self) {
        // Newer managers want the time by their clock.
        let now = clock_gettime(ClockId::Monotonic);
        let us = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
        self.owe("RELOADING=1", &format!("MONOTONIC_USEC={us}\n"));
    }

    /// The shutdown begins.
    pub fn stopping(&mut self) {
        self.owe("STOPPING=1", EXTEND);
    }

    /// Tells how things stand: that all loops turn, that a drain goes on, and `status` for people
    /// where it has changed.
    pub fn tick(&mut self, alive: bool, phase: Phase, status: String) {
        if !self.pay() {
            return;
        }
        let mut message = String::new();
        if self.watchdog && alive {
            message.push_str("WATCHDOG=1\n");
        }
        if phase > Phase::Serving {
            message.push_str(EXTEND);
        }
        let news = status != self.said;
        if news {
            // A second line would be a message of its own.
            message.push_str(&format!("STATUS={}\n", status.replace('\n', " ")));
        }
        if !message.is_empty() && self.tell(&message) && news {
            self.said = status;
        }
    }

    /// Tells now, or as soon as there is room. The same thing is owed once: its last time.
    fn owe(&mut self, what: &'static str, more: &str) {
        self.owed.retain(|(owed, _)| *owed != what);
        self.owed.push((what, format!("{what}\n{more}")));
        self.pay();
    }

    /// Whether nothing is owed any more.
    fn pay(&mut self) -> bool {
        while let Some((_, message)) = self.owed.first() {
            if !self.tell(message) {
                return false;
            }
            self.owed.remove(0);
        }
        true
    }

    /// Whether it was heard, or there is nobody to hear it.
    fn tell(&self, message: &str) -> bool {
        let Some(Ear { socket, addr }) = &self.ear else { return true };
        let told = socket.send_to_addr(message.as_bytes(), addr);
        if let Err(error) = &told {
            debug!(%error, "the service manager cannot be told");
        }
        told.is_ok()
    }
}

impl Ear {
    /// At a path, or at the abstract name behind an `@`.
    fn at(name: &OsStr) -> io::Result<Self> {
        let addr = match name.as_bytes().strip_prefix(b"@") {
            Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, addr })
    }
}

/// Within which time the service manager wants to hear that we are alive, if it does, and means
/// this process.
fn watchdog(interval_us: Option<String>, pid: Option<String>, own: u32) -> Option<Duration> {
    let interval = interval_us?.parse().ok().filter(|us| *us > 0).map(Duration::from_micros)?;
    let ours = pid.is_none_or(|pid| pid.parse() == Ok(own));
    ours.then_some(interval)
}

/// Twice within the watchdog's interval, and once a second in any case.
fn pace(watchdog: Option<Duration>) -> Duration {
    watchdog.map_or(EVERY, |interval| (interval / 2).min(EVERY)).max(Duration::from_millis(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &OsStr) -> Supervisor {
        let ear = Some(Ear::at(name).unwrap());
        Supervisor { ear, watchdog: true, every: EVERY, said: String::new(), owed: Vec::new() }
    }

    /// What has come by now, until nothing more does.
    fn heard(manager: &UnixDatagram) -> Vec<String> {
        let mut message = [0; 4096];
        let next = || {
            manager
                .recv(&mut message)
                .ok()
                .map(|length| String::from_utf8_lossy(&message[..length]).into())
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn the_watchdog_is_fed_at_half_its_interval_at_the_latest() {
        assert_eq!(pace(None), Duration::from_secs(1));
        assert_eq!(pace(Some(Duration::from_secs(30))), Duration::from_secs(1));
        assert_eq!(pace(Some(Duration::from_millis(500))), Duration::from_millis(250));
        assert_eq!(pace(Some(Duration::ZERO)), Duration::from_millis(10));
    }

    #[test]
    fn a_watchdog_of_another_process_is_not_ours_to_feed() {
        let of =
            |us: &str, pid: Option<&str>| watchdog(Some(us.to_owned()), pid.map(str::to_owned), 7);
        assert_eq!(
            (of("500", None), of("500", Some("7"))),
            (Some(Duration::from_micros(500)), of("500", None))
        );
        assert_eq!(
            (of("500", Some("8")), of("500", Some("x")), of("0", None), of("soon", None)),
            (None, None, None, None)
        );
        assert_eq!(watchdog(None, None, 7), None);
    }

    #[test]
    fn who_does_not_read_is_not_waited_for_and_learns_later_what_is_said_only_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let mut supervisor = at(path.as_os_str());
        // Until the kernel keeps no more: without room, nothing of this may wait.
        let stuffing = UnixDatagram::unbound().unwrap();
        stuffing.set_nonblocking(true).unwrap();
        while stuffing.send_to(b"X=1\n", &path).is_ok() {}
        supervisor.ready();
        for _ in 0..3 {
            supervisor.reloading();
            supervisor.ready();
            supervisor.tick(true, Phase::Serving, "serving".to_owned());
        }
        supervisor.stopping();
        assert!(heard(&manager).iter().all(|message| message == "X=1\n"));
        supervisor.tick(true, Phase::Draining, "draining".to_owned());
        let heard = heard(&manager);
        let lines: Vec<&str> = heard.iter().flat_map(|message| message.lines()).collect();
        let [reloading, time, rest @ ..] = lines.as_slice() else { panic!("{lines:?}") };
        assert!(*reloading == "RELOADING=1" && time.starts_with("MONOTONIC_USEC="), "{lines:?}");
        let extend = EXTEND.trim_end();
        assert_eq!(
            rest,
            ["READY=1", "STOPPING=1", extend, "WATCHDOG=1", extend, "STATUS=draining"]
        );
    }

    #[test]
    fn a_status_that_found_no_room_is_said_again_and_one_that_was_heard_is_not() {
        let name = format!("@pointsman-supervisor-{}", std::process::id());
        let addr = SocketAddr::from_abstract_name(&name.as_bytes()[1..]).unwrap();
        let mut supervisor = at(OsStr::new(&name));
        supervisor.watchdog = false;
        // Nobody is there yet.
        supervisor.tick(true, Phase::Serving, "serving".to_owned());
        let manager = UnixDatagram::bind_addr(&addr).unwrap();
        manager.set_nonblocking(true).unwrap();
        for _ in 0..3 {
            supervisor.tick(true, Phase::Serving, "serving".to_owned());
        }
        assert_eq!(heard(&manager), ["STATUS=serving\n"]);
    }
}
