//! Applies changed settings to one service.

use target::{EmptyPool, PoolWriter};

use super::ServiceRuntime;
use crate::discovery::absence_limit::AbsenceLimit;
use crate::discovery::config::DiscoverySettings;
use crate::discovery::learned_addresses::LearnedAddresses;
use crate::discovery::sentinel_pool::SentinelPool;
use crate::link::links::Links;
use crate::replicas::publisher::{ReplicaPublisher, Replicas};
use crate::{MachineEvent, MachineRules, ReplicaRules};

/// For how long a check of all deadlines is trusted.
pub(super) fn absence_limit(rules: &MachineRules) -> AbsenceLimit {
    AbsenceLimit::new(rules.absence, rules.stall)
}

impl ServiceRuntime {
    /// Applies changed settings.
    pub(crate) fn change(&mut self, settings: DiscoverySettings, links: &Links) {
        self.probers.set(settings.probe_settings());
        self.probers.set_access(settings.node_access());
        if *self.machine.rules() != settings.rules {
            self.absence_limit = absence_limit(&settings.rules);
            self.step(MachineEvent::Rules(Box::new(settings.rules)), links);
        }
    }

    /// Changes which replicas are eligible, and what readers get without one.
    pub(crate) fn set_replica_rules(&mut self, rules: ReplicaRules, empty: EmptyPool) {
        if let Some(publisher) = &mut self.replica_publisher {
            publisher.set_rules(rules, empty);
        }
    }

    /// Begins or ends to publish the replicas for readers.
    pub(crate) fn set_replicas(&mut self, replicas: Option<Replicas>, links: &Links) {
        self.replica_publisher = replicas.map(ReplicaPublisher::new);
        self.update_replicas();
        self.publish(links);
    }

    /// Begins or ends to publish the live sentinels.
    pub(crate) fn set_sentinel_pool(&mut self, pool: Option<PoolWriter>, links: &Links) {
        self.sentinel_pool = pool.map(SentinelPool::new);
        self.update_sentinel_pool(links);
    }

    /// Forgets the sentinels that others list.
    pub(crate) fn forget_learned(&mut self) {
        self.learned_addresses = LearnedAddresses::default();
    }
}
