//! The share of recent sessions whose clients left without having sent anything: health checks,
//! port scans, floods.
//!
//! An average that forgets: each session counts a little, and its weight fades with those that
//! follow. It knows no time, since a flood that has ended costs nothing until the next client
//! comes.
//!
//! Deliberately absent: what follows from it (`session::first_bytes`).

use std::sync::atomic::{AtomicU32, Ordering};

/// The whole, as a share of sessions.
const ALL: u32 = 1 << 16;

/// How much the latest session counts: the share is that of the last hundred or so.
const LATEST: u32 = 64;

/// Clients without a word are frequent above this share.
const FREQUENT: u32 = ALL / 8;

/// The share of recent sessions whose clients left without having sent anything. Written by one
/// worker.
#[derive(Debug, Default)]
pub(crate) struct SilentClients(AtomicU32);

impl SilentClients {
    /// A session has ended.
    pub(crate) fn record(&self, was_silent: bool) {
        let share = self.0.load(Ordering::Relaxed);
        let latest = if was_silent { ALL / LATEST } else { 0 };
        self.0.store(share - share.div_ceil(LATEST) + latest, Ordering::Relaxed);
    }

    pub(crate) fn are_frequent(&self) -> bool {
        self.0.load(Ordering::Relaxed) > FREQUENT
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
        assert_eq!(clients.0.load(Ordering::Relaxed), 0);
        (0..100_000).for_each(|_| clients.record(true));
        assert!(clients.0.load(Ordering::Relaxed) <= ALL);
    }
}
