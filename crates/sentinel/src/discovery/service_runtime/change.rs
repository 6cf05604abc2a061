//! Applies changed settings to one service.

use std::time::Duration;

use super::ServiceRuntime;
use crate::discovery::config::{DiscoveryChange, probe_settings};
use crate::discovery::learned_addresses::LearnedAddresses;
use crate::link::links::Links;
use crate::{MachineEvent, MachineRules};

/// For how long a check of all deadlines is trusted.
pub(super) fn lease(rules: &MachineRules) -> Duration {
    rules.stall.max(rules.poll * 2)
}

impl ServiceRuntime {
    /// Applies changed settings.
    pub(crate) fn change(&mut self, change: DiscoveryChange, links: &Links) {
        let rules = &change.rules;
        self.lease = lease(rules);
        self.probers.set(probe_settings(rules.verify, change.probe_timeout, &change.address_map));
        self.probers.set_credentials(change.auth.as_ref());
        if let Some(publisher) = &mut self.replica_publisher {
            publisher.set_rules(change.replicas.0, change.replicas.1);
        }
        if self.machine.rules() != rules {
            self.step(MachineEvent::Rules(Box::new(change.rules)), links);
        }
    }

    /// Sentinels that others list are not used any more.
    pub(crate) fn forget_learned(&mut self) {
        self.learned_addresses = LearnedAddresses::default();
    }
}
