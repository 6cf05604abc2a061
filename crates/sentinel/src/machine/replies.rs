//! What becomes of the old master's replies while the gate is shut.
//!
//! Requests in flight when a master hangs are executed when it wakes up, and acknowledged by a
//! master that a replica has replaced: the writes are lost. So from the first evidence of a
//! promotion on, a reply acknowledges nothing. Evidence is the order for the promotion, the
//! leader's or the candidate's own word that it has happened, and a majority's word for a newer
//! master. The mere selection of a candidate comes 50 to 90 ms earlier and is none: what a healthy
//! master answers until the promotion is replicated, and no planned failover would be without
//! errors otherwise. Only where the master does not answer when a candidate is selected, nothing
//! that it says later counts: the promotion is known two messages later, and a master that wakes at
//! that moment may be faster.
//!
//! While the master is unconfirmed or out of reach, replies wait until it is known whether it is
//! still the master: requests sent into an outage are executed when the network is back, by a
//! master that may have been superseded meanwhile.

use target::ReplyPolicy;

use super::state::{Basis, Cause, State};
use super::{Action, Machine};
use crate::ProbeFailure;

impl Machine {
    /// Says what becomes of replies whenever that changes. Level-triggered, as all of this.
    pub(super) fn set_replies(&mut self) {
        let was = self.replies;
        let want = if self.held { self.replies_by_state(was) } else { ReplyPolicy::Pass };
        self.replies = want;
        // An opened gate lets replies pass by itself.
        if self.held && was != want {
            self.actions.push(Action::ReplyPolicy(want));
        }
    }

    /// Whether the published master did not answer when it was last asked. One that denies an
    /// answer has given one.
    pub(super) fn is_target_silent(&self) -> bool {
        let target = self.committed.as_ref().and_then(|committed| self.nodes.get(&committed.addr));
        let outcome = target.and_then(|node| node.last.as_ref()).map(|probe| &probe.outcome);
        matches!(outcome, Some(Err(ProbeFailure::Silent | ProbeFailure::Unreachable)))
    }

    fn replies_by_state(&self, was: ReplyPolicy) -> ReplyPolicy {
        let present = self.committed.as_ref().map(|committed| &committed.addr);
        match &self.state {
            State::Armed { cause: Cause::Ordered | Cause::Promoted, .. } => ReplyPolicy::Drop,
            // Evidence stays evidence until the hold that it belongs to comes to nothing.
            State::Committing { .. } | State::Unconfirmed { .. } if was == ReplyPolicy::Drop => {
                ReplyPolicy::Drop
            }
            State::Committing { addr, basis: Basis::Solo | Basis::Majority, .. }
                if present != Some(addr) =>
            {
                ReplyPolicy::Drop
            }
            State::Unconfirmed { .. } | State::NoMaster { .. } => ReplyPolicy::Wait,
            State::Armed { .. } if self.is_in_grave_doubt() => ReplyPolicy::Wait,
            _ => ReplyPolicy::Pass,
        }
    }
}
