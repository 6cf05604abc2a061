//! What the service manager is told: started, reloading, stopping, still alive, needs more time.
//!
//! The protocol is systemd's (sd_notify(3)) and costs a datagram a second. Without `NOTIFY_SOCKET` every message goes nowhere.
//! The watchdog is fed from the verdict of liveness: if an event loop hangs, the service manager hears nothing and restarts us,
//! as a kubelet would for `/alive`.
//!
//! Deliberately absent: a thread of its own. If the loop that tells this hangs, silence is the right message.

use std::time::Duration;

use drain::Phase;
use sd_notify::NotifyState;
use tracing::debug;

/// How often the service manager is told how things stand, if it does not want to hear of us more often.
const EVERY: Duration = Duration::from_secs(1);

/// How much more time each message asks for while the process drains. The next message comes long before.
const EXTENSION_US: u32 = 15_000_000;

/// The line to the service manager.
#[derive(Debug)]
pub struct Supervisor {
    watchdog: bool,
    every: Duration,
    said: String,
}

impl Supervisor {
    /// Looks into the environment for what the service manager wants.
    #[must_use]
    pub fn find() -> Self {
        let watchdog = sd_notify::watchdog_enabled();
        Self { watchdog: watchdog.is_some(), every: pace(watchdog), said: String::new() }
    }

    /// How often [`tick`](Self::tick) is to be called.
    #[must_use]
    pub fn every(&self) -> Duration {
        self.every
    }

    /// The process serves.
    pub fn ready(&self) {
        tell(&[NotifyState::Ready]);
    }

    /// A reload begins; [`ready`](Self::ready) ends it.
    pub fn reloading(&self) {
        // Newer managers want the time by their clock, which only a broken system cannot tell.
        match NotifyState::monotonic_usec_now() {
            Ok(now) => tell(&[NotifyState::Reloading, now]),
            Err(_) => tell(&[NotifyState::Reloading]),
        }
    }

    /// The shutdown begins.
    pub fn stopping(&self) {
        tell(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(EXTENSION_US)]);
    }

    /// Tells how things stand: that all loops turn, that a drain goes on, and `status` for people where it has changed.
    pub fn tick(&mut self, alive: bool, phase: Phase, status: String) {
        let mut states = Vec::new();
        if self.watchdog && alive {
            states.push(NotifyState::Watchdog);
        }
        if phase > Phase::Serving {
            states.push(NotifyState::ExtendTimeoutUsec(EXTENSION_US));
        }
        if status != self.said {
            self.said = status;
            states.push(NotifyState::Status(&self.said));
        }
        if !states.is_empty() {
            tell(&states);
        }
    }
}

/// Twice within the watchdog's interval, and once a second in any case.
fn pace(watchdog: Option<Duration>) -> Duration {
    watchdog.map_or(EVERY, |interval| (interval / 2).min(EVERY)).max(Duration::from_millis(10))
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        debug!(%error, "the service manager cannot be told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_fed_at_half_its_interval_at_the_latest() {
        assert_eq!(pace(None), Duration::from_secs(1));
        assert_eq!(pace(Some(Duration::from_secs(30))), Duration::from_secs(1));
        assert_eq!(pace(Some(Duration::from_millis(500))), Duration::from_millis(250));
        assert_eq!(pace(Some(Duration::ZERO)), Duration::from_millis(10));
    }
}
