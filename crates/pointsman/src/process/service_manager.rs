//! Reports the state of the process to the service manager: started, reloading, stopping, alive,
//! needs more time.
//!
//! The protocol is systemd's (sd_notify(3)) and costs one datagram per second. Without
//! `NOTIFY_SOCKET` messages are discarded. The watchdog message depends on the liveness check: if
//! an event loop hangs, the service manager receives none and restarts the process, as a kubelet
//! would because of `/alive`.
//!
//! **Sending never blocks.** The kernel queues few messages for the service manager (ten by
//! default). A send that waited for a manager that does not read would stop the main loop, and with
//! it signals, discovery and the drain. A message that does not fit is therefore dropped. Periodic
//! messages are repeated anyway. Messages that are sent only once (started, reloading, stopping)
//! are queued here in order and retried before any later message: otherwise a manager that is
//! merely slow would treat a start as failed.
//!
//! It has no thread of its own: if the main loop hangs, silence is the right message. The available
//! crate for the protocol blocks.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use drain::Phase;
use rustix::time::{ClockId, clock_gettime};
use tracing::debug;

/// Interval of the periodic messages, unless the watchdog requires a shorter one.
const INTERVAL: Duration = Duration::from_secs(1);

/// Asks for more time while the process drains. The next message is sent long before that time
/// ends.
const EXTEND: &str = "EXTEND_TIMEOUT_USEC=15000000\n";

/// The connection to the service manager.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    socket: Option<NotifySocket>,
    watchdog: bool,
    /// The interval at which [`tick`](Self::tick) is to be called.
    pub(crate) interval: Duration,
    last_status: String,
    /// Messages that are sent only once and are not delivered yet, oldest first, each with its key.
    unsent: Vec<(&'static str, String)>,
}

/// The address on which the service manager receives.
#[derive(Debug)]
struct NotifySocket {
    socket: UnixDatagram,
    addr: SocketAddr,
}

impl ServiceManager {
    /// Reads from the environment what the service manager expects.
    pub(crate) fn find() -> Self {
        let text = |name: &str| std::env::var(name).ok();
        let watchdog = watchdog(text("WATCHDOG_USEC"), text("WATCHDOG_PID"), std::process::id());
        let socket = std::env::var_os("NOTIFY_SOCKET")
            .filter(|name| !name.is_empty())
            .map(|name| NotifySocket::at(&name))
            .transpose();
        let socket = socket
            .inspect_err(|error| debug!(%error, "cannot notify the service manager"))
            .ok()
            .flatten();
        Self {
            socket,
            watchdog: watchdog.is_some(),
            interval: message_interval(watchdog),
            last_status: String::new(),
            unsent: Vec::new(),
        }
    }

    /// Reports that the process serves.
    pub(crate) fn ready(&mut self) {
        self.queue("READY=1", "");
    }

    /// Reports that a reload begins; [`ready`](Self::ready) ends it.
    pub(crate) fn reloading(&mut self) {
        // Newer versions of systemd require the time of the monotonic clock.
        let now = clock_gettime(ClockId::Monotonic);
        let us = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
        self.queue("RELOADING=1", &format!("MONOTONIC_USEC={us}\n"));
    }

    /// Reports that the shutdown begins.
    pub(crate) fn stopping(&mut self) {
        self.queue("STOPPING=1", EXTEND);
    }

    /// Sends the periodic message: the watchdog message if `alive`, a request for more time during
    /// a drain, and `status` if it has changed.
    pub(crate) fn tick(&mut self, alive: bool, phase: Phase, status: String) {
        if !self.flush() {
            return;
        }
        let mut message = String::new();
        if self.watchdog && alive {
            message.push_str("WATCHDOG=1\n");
        }
        if phase > Phase::Serving {
            message.push_str(EXTEND);
        }
        let changed = status != self.last_status;
        if changed {
            // A line break would begin another message.
            message.push_str(&format!("STATUS={}\n", status.replace('\n', " ")));
        }
        if !message.is_empty() && self.send(&message) && changed {
            self.last_status = status;
        }
    }

    /// Sends now, or as soon as the socket has room. Of equal messages only the last is kept.
    fn queue(&mut self, what: &'static str, more: &str) {
        self.unsent.retain(|(unsent, _)| *unsent != what);
        self.unsent.push((what, format!("{what}\n{more}")));
        self.flush();
    }

    /// Sends the queued messages. Returns whether none is left.
    fn flush(&mut self) -> bool {
        while let Some((_, message)) = self.unsent.first() {
            if !self.send(message) {
                return false;
            }
            self.unsent.remove(0);
        }
        true
    }

    /// Returns whether the message was sent, or there is no service manager.
    fn send(&self, message: &str) -> bool {
        let Some(NotifySocket { socket, addr }) = &self.socket else { return true };
        let sent = socket.send_to_addr(message.as_bytes(), addr);
        if let Err(error) = &sent {
            debug!(%error, "cannot notify the service manager");
        }
        sent.is_ok()
    }
}

impl NotifySocket {
    /// Connects to a path, or to the abstract name that follows an `@`.
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

/// Returns the watchdog interval, if the service manager has set one for this process.
fn watchdog(interval_us: Option<String>, pid: Option<String>, own: u32) -> Option<Duration> {
    let interval = interval_us?.parse().ok().filter(|us| *us > 0).map(Duration::from_micros)?;
    let ours = pid.is_none_or(|pid| pid.parse() == Ok(own));
    ours.then_some(interval)
}

/// Returns half of the watchdog's interval, at most one second.
fn message_interval(watchdog: Option<Duration>) -> Duration {
    watchdog
        .map_or(INTERVAL, |interval| (interval / 2).min(INTERVAL))
        .max(Duration::from_millis(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &OsStr) -> ServiceManager {
        let socket = Some(NotifySocket::at(name).unwrap());
        ServiceManager {
            socket,
            watchdog: true,
            interval: INTERVAL,
            last_status: String::new(),
            unsent: Vec::new(),
        }
    }

    /// Returns the messages received so far.
    fn received(manager: &UnixDatagram) -> Vec<String> {
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
    fn feeds_watchdog_within_half_its_interval() {
        assert_eq!(message_interval(None), Duration::from_secs(1));
        assert_eq!(message_interval(Some(Duration::from_secs(30))), Duration::from_secs(1));
        assert_eq!(message_interval(Some(Duration::from_millis(500))), Duration::from_millis(250));
        assert_eq!(message_interval(Some(Duration::ZERO)), Duration::from_millis(10));
    }

    #[test]
    fn ignores_watchdog_of_another_process() {
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
    fn queues_messages_while_manager_does_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let mut service_manager = at(path.as_os_str());
        // Fills the kernel's queue: from here on, no call may wait.
        let stuffing = UnixDatagram::unbound().unwrap();
        stuffing.set_nonblocking(true).unwrap();
        while stuffing.send_to(b"X=1\n", &path).is_ok() {}
        service_manager.ready();
        for _ in 0..3 {
            service_manager.reloading();
            service_manager.ready();
            service_manager.tick(true, Phase::Serving, "serving".to_owned());
        }
        service_manager.stopping();
        assert!(received(&manager).iter().all(|message| message == "X=1\n"));
        service_manager.tick(true, Phase::Draining, "draining".to_owned());
        let received = received(&manager);
        let lines: Vec<&str> = received.iter().flat_map(|message| message.lines()).collect();
        let [reloading, time, rest @ ..] = lines.as_slice() else { panic!("{lines:?}") };
        assert!(*reloading == "RELOADING=1" && time.starts_with("MONOTONIC_USEC="), "{lines:?}");
        let extend = EXTEND.trim_end();
        assert_eq!(
            rest,
            ["READY=1", "STOPPING=1", extend, "WATCHDOG=1", extend, "STATUS=draining"]
        );
    }

    #[test]
    fn repeats_status_until_it_is_sent() {
        let name = format!("@pointsman-service_manager-{}", std::process::id());
        let addr = SocketAddr::from_abstract_name(&name.as_bytes()[1..]).unwrap();
        let mut service_manager = at(OsStr::new(&name));
        service_manager.watchdog = false;
        // The socket does not exist yet.
        service_manager.tick(true, Phase::Serving, "serving".to_owned());
        let manager = UnixDatagram::bind_addr(&addr).unwrap();
        manager.set_nonblocking(true).unwrap();
        for _ in 0..3 {
            service_manager.tick(true, Phase::Serving, "serving".to_owned());
        }
        assert_eq!(received(&manager), ["STATUS=serving\n"]);
    }
}
