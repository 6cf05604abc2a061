//! The configuration of one service's discovery.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use resp::ServerCommands;
use target::{EmptyPool, PoolWriter, TargetWriter};
use tls::ClientTls;

use crate::link::auth::Credentials;
use crate::link::login::{Access, Login};
use crate::link::renewal::RenewalPermit;
use crate::net::own_addresses::OwnAddresses;
use crate::net::resolve::Resolver;
use crate::prober::{ProbeSettings, ProberFactory};
use crate::replicas::publisher::Replicas;
use crate::{Allowlist, MachineRules, NodeAddr, ReplicaRules, Verify};

/// Configuration of one service's discovery.
#[derive(Debug)]
pub struct DiscoveryConfig {
    /// The name of the service, in logs, metrics and the status.
    pub name: Arc<str>,
    /// Sentinel's name of the master.
    pub master_name: Arc<str>,
    /// The configured sentinels. A name may have several addresses.
    pub sentinels: Vec<NodeAddr>,
    /// Credentials for the sentinels.
    pub sentinel_auth: Option<Credentials>,
    /// Credentials for the redis nodes.
    pub auth: Option<Credentials>,
    /// The settings of TLS to the sentinels; plain text without.
    pub sentinel_tls: Option<ClientTls>,
    /// The settings of TLS to the redis nodes; plain text without.
    pub redis_tls: Option<ClientTls>,
    /// The rules of the machine.
    pub rules: MachineRules,
    /// The timeout of one probe of a redis node.
    pub probe_timeout: Duration,
    /// Whether sentinels learned from other sentinels are queried too.
    pub learn: bool,
    /// Announced address to the address to dial.
    pub address_map: BTreeMap<NodeAddr, NodeAddr>,
    /// Where nodes and learned sentinels may be.
    pub nodes: Allowlist,
    /// Where the target is published.
    pub target_writer: TargetWriter,
    /// Where the master's commands are stored that the built-in table lacks.
    pub commands: ServerCommands,
    /// The replicas for readers, if configured.
    pub replicas: Option<Replicas>,
    /// The pool of live sentinels for a listener, if configured.
    pub sentinel_pool: Option<PoolWriter>,
}

/// The factory for the node probers of the service.
pub(crate) fn prober_factory(
    watch: &DiscoveryConfig,
    own: &OwnAddresses,
    (resolver, permit): (&Resolver, &RenewalPermit),
) -> ProberFactory {
    let settings =
        probe_settings(watch.rules.verify, watch.probe_timeout, &watch.address_map, &watch.nodes);
    ProberFactory {
        login: Login::new(
            Access { credentials: watch.auth.as_ref(), tls: watch.redis_tls.as_ref() },
            resolver.host(),
        ),
        permit: permit.clone(),
        settings: ArcSwap::from_pointee(settings),
        own: own.clone(),
        resolver: resolver.clone(),
        commands: watch.commands.clone(),
    }
}

/// The settings of the service's node probers.
pub(crate) fn probe_settings(
    verify: Verify,
    timeout: Duration,
    address_map: &BTreeMap<NodeAddr, NodeAddr>,
    nodes: &Allowlist,
) -> ProbeSettings {
    let address_map = address_map.iter();
    let address_map = address_map.map(|(from, to)| (from.clone().normal(), to.clone())).collect();
    ProbeSettings { verify, timeout, address_map, nodes: nodes.clone() }
}

/// What can be changed in one service's discovery while it runs. Its sentinels and its pools are
/// changed by themselves.
#[derive(Debug, Clone)]
pub struct DiscoveryChange {
    /// Credentials for the sentinels.
    pub sentinel_auth: Option<Credentials>,
    /// Credentials for the redis nodes.
    pub auth: Option<Credentials>,
    /// The settings of TLS to the sentinels. New contents of its files need no change.
    pub sentinel_tls: Option<ClientTls>,
    /// The settings of TLS to the redis nodes.
    pub redis_tls: Option<ClientTls>,
    /// The rules of the machine.
    pub rules: MachineRules,
    /// The timeout of one probe of a redis node.
    pub probe_timeout: Duration,
    /// Whether sentinels learned from other sentinels are queried too.
    pub learn: bool,
    /// Announced address to the address to dial.
    pub address_map: BTreeMap<NodeAddr, NodeAddr>,
    /// Where nodes and learned sentinels may be.
    pub nodes: Allowlist,
    /// Rules for eligible replicas, and what readers get without one.
    pub replicas: (ReplicaRules, EmptyPool),
}
