//! Whether the master carries out a coordinated failover.
//!
//! `SENTINEL FAILOVER … COORDINATED` makes the sentinel send `MULTI`, `CLIENT PAUSE … WRITE`,
//! `FAILOVER TO …` and `EXEC` to the master. The sentinel ignores the replies and waits for the
//! promotion until its `failover-timeout`, three minutes by default. So nothing happens if its user
//! may not run these commands, and if only `FAILOVER` fails, the pause outlasts it: no client can
//! write for the same three minutes. The master's own `INFO replication` shows both.

use std::time::{Duration, Instant};

use super::catch_up::ReplicationState;

/// A sentinel sends the commands about 100 ms after it has selected the replica.
const SENT_AFTER: Duration = Duration::from_secs(1);
/// Interval of reading the master's state.
const READ_EVERY: Duration = Duration::from_millis(100);
/// A master that reports no failover for this long carries none out.
const IDLE_FOR: Duration = Duration::from_millis(300);

/// Follows one handover from the order on.
#[derive(Debug, Default)]
pub(super) struct Handover {
    /// When the master is read next, from the selection on; `None` while an answer is pending.
    read_at: Option<Instant>,
    idle_since: Option<Instant>,
}

impl Handover {
    /// A replica was selected, so the commands may have reached the master.
    pub(super) fn select(&mut self, now: Instant) {
        self.read_at = Some(now + SENT_AFTER);
    }

    /// The replica was promoted: there is nothing to watch any more.
    pub(super) fn promote(&mut self) {
        self.read_at = None;
    }

    /// Whether the master is to be read now; a read that is due counts as sent.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        self.read_at.take_if(|at| now >= *at).is_some()
    }

    /// Records an answer. `true` if the master does not carry it out.
    pub(super) fn read(&mut self, now: Instant, state: Option<ReplicationState>) -> bool {
        self.read_at = Some(now + READ_EVERY);
        // Without an answer nothing is known about the time since the last one.
        let is_idle = state.is_some_and(|it| it.is_master && !it.is_handing_over);
        let since = self.idle_since.filter(|_| is_idle).unwrap_or(now);
        self.idle_since = is_idle.then_some(since);
        now.saturating_duration_since(since) >= IDLE_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn state(is_master: bool, is_handing_over: bool) -> Option<ReplicationState> {
        let (link_up, offset, priority) = (true, 1, 100);
        Some(ReplicationState { is_master, link_up, offset, priority, is_handing_over })
    }

    #[test]
    fn judges_only_after_the_selection() {
        let start = Instant::now();
        let mut handover = Handover::default();
        assert!(!handover.is_due(start + MS(60_000)));
        handover.select(start);
        assert!(!handover.is_due(start + MS(999)) && handover.is_due(start + MS(1000)));
        assert!(!handover.is_due(start + MS(9000)), "one read at a time");
    }

    #[test]
    fn takes_only_lasting_idleness_for_a_failure() {
        let start = Instant::now();
        let idle = state(true, false);
        let mut handover = Handover::default();
        handover.select(start);
        assert!(!handover.read(start + MS(1000), idle) && !handover.read(start + MS(1299), idle));
        assert!(handover.read(start + MS(1300), idle));
        for other in [None, state(true, true), state(false, false)] {
            let mut handover = Handover::default();
            handover.select(start);
            assert!(!handover.read(start + MS(1000), idle));
            assert!(!handover.read(start + MS(1200), other));
            assert!(!handover.read(start + MS(1400), idle), "{other:?}");
            assert!(!handover.read(start + MS(1699), idle));
            assert!(handover.read(start + MS(1700), idle));
        }
        let mut handover = Handover::default();
        handover.select(start);
        handover.promote();
        assert!(!handover.is_due(start + MS(60_000)));
    }
}
