//! Applies changed rules to a running machine.
//!
//! Almost every rule is read where it is used, so storing it is sufficient. What was scheduled or
//! concluded with the old rules is done again.

use std::time::Instant;

use super::Machine;
use crate::MachineRules;

impl Machine {
    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> &MachineRules {
        &self.rules
    }

    /// Applies these rules from now on. A deadline that has begun to run keeps its time.
    pub(super) fn set_rules(&mut self, now: Instant, rules: MachineRules) {
        if rules.verify != self.rules.verify {
            // Answers to other commands prove other things: a node that was only asked PING would
            // look like one that does not know its role.
            self.nodes.forget(now);
        }
        self.rules = rules;
        // The next queries were scheduled with the old intervals, which may be much longer.
        self.pacing.ask_now(now);
        self.nodes.probe_soon(now);
    }
}
