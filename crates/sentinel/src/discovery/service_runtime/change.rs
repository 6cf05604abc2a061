//! Applies changed settings to one service.

use target::PoolWriter;

use super::ServiceRuntime;
use crate::discovery::absence_limit::AbsenceLimit;
use crate::discovery::config::{DiscoveryChange, probe_settings};
use crate::discovery::learned_addresses::LearnedAddresses;
use crate::discovery::sentinel_pool::SentinelPool;
use crate::link::links::Links;
use crate::link::login::Access;
use crate::replicas::publisher::{ReplicaPublisher, Replicas};
use crate::{MachineEvent, MachineRules};

/// For how long a check of all deadlines is trusted.
pub(super) fn absence_limit(rules: &MachineRules) -> AbsenceLimit {
    AbsenceLimit::new(rules.absence, rules.stall)
}

impl ServiceRuntime {
    /// Applies changed settings.
    pub(crate) fn change(&mut self, change: DiscoveryChange, links: &Links) {
        let rules = &change.rules;
        let (map, nodes) = (&change.address_map, &change.nodes);
        self.probers.set(probe_settings(rules.verify, change.probe_timeout, map, nodes));
        self.probers.set_access(Access {
            credentials: change.auth.as_ref(),
            tls: change.redis_tls.as_ref(),
        });
        if let Some(publisher) = &mut self.replica_publisher {
            publisher.set_rules(change.replicas.0, change.replicas.1);
        }
        if self.machine.rules() != rules {
            self.absence_limit = absence_limit(rules);
            self.step(MachineEvent::Rules(Box::new(change.rules)), links);
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
