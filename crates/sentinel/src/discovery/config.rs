//! The configuration of one service's discovery.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use target::{PoolWriter, TargetWriter};

use crate::link::auth::Credentials;
use crate::net::own_addresses::OwnAddresses;
use crate::net::resolve::Resolver;
use crate::prober::ProberFactory;
use crate::replicas::publisher::Replicas;
use crate::{MachineRules, NodeAddr};

/// Configuration of one service's discovery.
#[derive(Debug)]
pub struct DiscoveryConfig {
    /// Sentinel's name of the master.
    pub name: Arc<str>,
    /// The configured sentinels. A name may have several addresses.
    pub sentinels: Vec<NodeAddr>,
    /// Credentials for the sentinels.
    pub sentinel_auth: Option<Credentials>,
    /// Credentials for the redis nodes.
    pub auth: Option<Credentials>,
    /// The rules of the machine.
    pub rules: MachineRules,
    /// The timeout of one probe of a redis node.
    pub probe_timeout: Duration,
    /// Whether sentinels learned from other sentinels are queried too.
    pub learn: bool,
    /// Announced address to the address to dial.
    pub address_map: BTreeMap<NodeAddr, NodeAddr>,
    /// Where the target is published.
    pub target_writer: TargetWriter,
    /// The replicas for readers, if configured.
    pub replicas: Option<Replicas>,
    /// The pool of live sentinels for a listener, if configured.
    pub sentinel_pool: Option<PoolWriter>,
}

/// The factory for the node probers of the service.
pub(crate) fn prober_factory(
    watch: &DiscoveryConfig,
    own: &OwnAddresses,
    resolver: &Resolver,
) -> ProberFactory {
    let address_map = watch.address_map.iter();
    ProberFactory {
        credentials: watch.auth.clone(),
        verify: watch.rules.verify,
        timeout: watch.probe_timeout,
        address_map: address_map.map(|(from, to)| (from.clone().normal(), to.clone())).collect(),
        own: own.clone(),
        resolver: resolver.clone(),
    }
}
