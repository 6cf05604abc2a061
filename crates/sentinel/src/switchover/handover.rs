//! Whether the master carries out a coordinated failover.
//!
//! `SENTINEL FAILOVER … COORDINATED` makes the sentinel send `MULTI`, `CLIENT PAUSE … WRITE`,
//! `FAILOVER TO …` and `EXEC` to the master. The sentinel ignores the replies and waits for the
//! promotion until its `failover-timeout`, three minutes by default. So nothing happens if its user
//! may not run these commands, and if only `FAILOVER` fails, the pause outlasts it: no client can
//! write for the same three minutes. The master's own `INFO replication` shows both.

use std::time::{Duration, Instant};

use crate::link::reply::info_field;

/// A sentinel sends the commands about 100 ms after it has selected the replica.
const SENT_AFTER: Duration = Duration::from_secs(1);
/// Interval of reading the master's state.
const READ_EVERY: Duration = Duration::from_millis(100);
/// A master that reports no failover for this long carries none out.
const IDLE_FOR: Duration = Duration::from_millis(300);

/// What the master reports about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandoverState {
    /// It is a master, and no failover is in progress.
    Idle,
    /// It accepts no writes and waits until the replica has everything.
    WaitingForReplica,
    /// It has become a replica.
    HandedOver,
}

/// Reads `INFO replication`.
pub(super) fn parse_handover(info: &str) -> Option<HandoverState> {
    let field = |name: &str| info_field(info, name);
    if field("role")? != "master" {
        return Some(HandoverState::HandedOver);
    }
    match field("master_failover_state")? {
        "no-failover" => Some(HandoverState::Idle),
        _ => Some(HandoverState::WaitingForReplica),
    }
}

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
    pub(super) fn read(&mut self, now: Instant, state: Option<HandoverState>) -> bool {
        self.read_at = Some(now + READ_EVERY);
        match state {
            Some(HandoverState::Idle) => {
                now.saturating_duration_since(*self.idle_since.get_or_insert(now)) >= IDLE_FOR
            }
            // Without an answer nothing is known about the time since the last one.
            _ => {
                self.idle_since = None;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn reads_state_of_the_handover() {
        let of = |role: &str, state: &str| {
            parse_handover(&format!("# Replication\r\nrole:{role}\r\n{state}\r\n"))
        };
        assert_eq!(of("master", "master_failover_state:no-failover"), Some(HandoverState::Idle));
        let waiting = of("master", "master_failover_state:waiting-for-sync");
        assert_eq!(waiting, Some(HandoverState::WaitingForReplica));
        let over = of("slave", "master_failover_state:failover-in-progress");
        assert_eq!(over, Some(HandoverState::HandedOver));
        assert_eq!(of("master", "connected_slaves:1"), None, "a server before 6.2");
        assert_eq!(parse_handover(""), None);
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
        let idle = Some(HandoverState::Idle);
        let mut handover = Handover::default();
        handover.select(start);
        assert!(!handover.read(start + MS(1000), idle) && !handover.read(start + MS(1299), idle));
        assert!(handover.read(start + MS(1300), idle));
        for other in [None, Some(HandoverState::WaitingForReplica), Some(HandoverState::HandedOver)]
        {
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
