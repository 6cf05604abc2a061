//! Clients that leave without having sent a request, such as health checks, port scans and floods:
//! their share of recent sessions, and how many clients may come at once while they are frequent.
//!
//! The share is an average that forgets: each session counts a little, and its weight fades with
//! those that follow. It knows no time, since a flood that has ended costs nothing until the next
//! client comes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The whole, as a share of sessions.
const ALL: u32 = 1 << 16;

/// How much the latest session counts: the share is that of the last hundred or so.
const LATEST: u32 = 64;

/// Clients without a request are frequent above this share.
const FREQUENT: u32 = ALL / 8;

/// Doubtful clients that connect: ten at once, and one per second.
const DOUBTFUL: Rate = Rate { between: 1_000_000, in_a_row: 10 };

/// Accepted clients while those without a request are frequent: four per millisecond. Accepting
/// more in a row would keep established sessions, and other programs on the core, waiting. The
/// listener asks after it has accepted, so the fourth in a row is the first that is not admitted.
const ACCEPTED: Rate = Rate { between: 250, in_a_row: 3 };

/// A rate that may be exceeded for a moment.
#[derive(Debug)]
struct Rate {
    /// Microseconds from one to the next.
    between: u64,
    /// How many may come at once.
    in_a_row: u64,
}

/// When all that was admitted would have come at the rate, in microseconds of the worker's clock.
#[derive(Debug, Default)]
struct Admitted(AtomicU64);

impl Admitted {
    fn admits(&self, now: u64, rate: &Rate) -> bool {
        let due = self.0.load(Ordering::Relaxed).max(now);
        let admits = due + rate.between - now <= rate.between * rate.in_a_row;
        if admits {
            self.0.store(due + rate.between, Ordering::Relaxed);
        }
        admits
    }
}

/// What is known of recent clients of a listener on one worker, which alone writes it.
#[derive(Debug, Default)]
pub(crate) struct SilentClients {
    share: AtomicU32,
    doubtful: Admitted,
    accepted: Admitted,
}

impl SilentClients {
    /// A session has ended.
    pub(crate) fn record(&self, was_silent: bool) {
        let share = self.share.load(Ordering::Relaxed);
        let latest = if was_silent { ALL / LATEST } else { 0 };
        self.share.store(share - share.div_ceil(LATEST) + latest, Ordering::Relaxed);
    }

    pub(crate) fn are_frequent(&self) -> bool {
        self.share.load(Ordering::Relaxed) > FREQUENT
    }

    /// Whether a client that may never send a request may connect: a few do at once, so that a
    /// person who types notices nothing of health checks.
    pub(crate) fn admits_doubtful(&self, now: u64) -> bool {
        self.doubtful.admits(now, &DOUBTFUL)
    }

    /// Whether another client may be accepted at once after this one. `now` is asked for if it may
    /// not always.
    pub(crate) fn admits_accept(&self, now: impl FnOnce() -> u64) -> bool {
        !self.are_frequent() || self.accepted.admits(now(), &ACCEPTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_share_of_recent_sessions() {
        let clients = SilentClients::default();
        let mut after = 0;
        while !clients.are_frequent() {
            clients.record(true);
            after += 1;
        }
        assert_eq!(after, 9, "silent clients in a row");
        (0..300).for_each(|n| clients.record(n % 10 == 0));
        assert!(!clients.are_frequent(), "a tenth");
        (0..300).for_each(|n| clients.record(n % 6 == 0));
        assert!(clients.are_frequent(), "a sixth");
        (0..2000).for_each(|_| clients.record(false));
        assert_eq!(clients.share.load(Ordering::Relaxed), 0);
        (0..100_000).for_each(|_| clients.record(true));
        assert!(clients.share.load(Ordering::Relaxed) <= ALL);
    }

    #[test]
    fn limits_accepts_only_while_silent_clients_are_frequent() {
        let clients = SilentClients::default();
        assert!((0..100).all(|_| clients.admits_accept(|| 0)));
        (0..9).for_each(|_| clients.record(true));
        let admitted = |now: u64| (0..100).filter(|_| clients.admits_accept(|| now)).count();
        assert_eq!([admitted(0), admitted(100), admitted(1000)], [3, 0, 3]);
    }

    #[test]
    fn admits_ten_doubtful_clients_and_one_per_second() {
        let clients = SilentClients::default();
        let admitted = |now: u64| (0..100).filter(|_| clients.admits_doubtful(now)).count();
        assert_eq!(admitted(0), 10);
        assert_eq!(admitted(999_999), 0);
        assert_eq!(admitted(2_500_000), 2);
        assert_eq!(admitted(60_000_000), 10);
    }
}
