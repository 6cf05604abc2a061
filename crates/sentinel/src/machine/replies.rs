//! Decides how to treat the old master's replies while the gate is closed.
//!
//! When a master hangs, requests in flight are executed once it wakes up, and acknowledged by a
//! master that a replica has replaced: these writes are lost. From the first evidence of a
//! promotion on, replies are therefore dropped, so that none acknowledges a write. Evidence is: the
//! order of the promotion, the leader's report that it happened, and the votes of a majority for a
//! newer master. The mere selection of a candidate comes 50 to 90 ms
//! earlier and is not evidence: until the promotion, the writes that a healthy master acknowledges
//! still reach the candidate, and without these replies every planned failover would cause errors.
//! There is one exception. If the master does not answer when a candidate is selected, none of its
//! later replies counts: the promotion becomes known only two messages later, and a master that
//! wakes up at that moment may be faster.
//!
//! While the master is unconfirmed or unreachable, replies wait until it is known whether it is
//! still the master: requests sent during a network outage are executed when the network is back,
//! by a master that may have been superseded meanwhile. They also wait while a child of the master
//! is seen (`evidence`), since an operator may have detached it.

use target::ReplyPolicy;

use super::state::{Basis, HoldCause, MachineState};
use super::{Machine, MachineAction};
use crate::ProbeFailure;

impl Machine {
    /// Emits an action when the treatment of replies changes. Level-triggered, like the rest of the
    /// machine.
    pub(super) fn set_replies(&mut self) {
        let was = self.hold.replies;
        let want =
            if self.hold.is_closed() { self.replies_by_state(was) } else { ReplyPolicy::Pass };
        self.hold.replies = want;
        // Opening the gate lets replies pass by itself.
        if self.hold.is_closed() && was != want {
            self.actions.push(MachineAction::ReplyPolicy(want));
        }
    }

    /// Whether the published master failed to answer the last query. A refused query is an answer.
    pub(super) fn is_target_silent(&self) -> bool {
        let target = self.committed.as_ref().and_then(|committed| self.nodes.get(&committed.addr));
        let outcome = target.and_then(|node| node.last.as_ref()).map(|probe| &probe.outcome);
        matches!(outcome, Some(Err(ProbeFailure::Unresponsive | ProbeFailure::Unreachable)))
    }

    fn replies_by_state(&self, was: ReplyPolicy) -> ReplyPolicy {
        let present = self.committed.as_ref().map(|committed| &committed.addr);
        match &self.state {
            MachineState::Armed { cause: HoldCause::Ordered, .. } => ReplyPolicy::Drop,
            // Evidence remains valid until the hold that it belongs to ends without a commit.
            MachineState::Committing { .. } | MachineState::Unconfirmed { .. }
                if was == ReplyPolicy::Drop =>
            {
                ReplyPolicy::Drop
            }
            _ if self.is_superseded() && was == ReplyPolicy::Drop => ReplyPolicy::Drop,
            MachineState::Committing {
                addr,
                basis: Basis::SingleSentinel | Basis::Majority,
                ..
            } if present != Some(addr) => ReplyPolicy::Drop,
            MachineState::Unconfirmed { .. } | MachineState::NoMaster { .. } => ReplyPolicy::Wait,
            MachineState::Armed { .. } if self.is_in_grave_doubt() => ReplyPolicy::Wait,
            _ if self.is_superseded() => ReplyPolicy::Wait,
            _ => ReplyPolicy::Pass,
        }
    }
}
