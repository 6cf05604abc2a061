//! The configuration of one service's discovery.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use resp::ServerCommands;
use target::{PoolWriter, TargetWriter};
use tls::ClientTls;

use crate::link::auth::Credentials;
use crate::link::login::Access;
use crate::prober::ProbeSettings;
use crate::replicas::publisher::Replicas;
use crate::{Allowlist, MachineRules, NodeAddr};

/// Configuration of one service's discovery.
#[derive(Debug)]
pub struct DiscoveryConfig {
    /// The name of the service, in logs, metrics and the status.
    pub name: Arc<str>,
    /// Sentinel's name of the master.
    pub master_name: Arc<str>,
    /// The configured sentinels. A name may have several addresses.
    pub sentinels: Vec<NodeAddr>,
    /// What can be changed while it runs.
    pub settings: DiscoverySettings,
    /// Where the target is published.
    pub target_writer: TargetWriter,
    /// Where is stored what the master says of its commands.
    pub commands: ServerCommands,
    /// The replicas for readers, if configured.
    pub replicas: Option<Replicas>,
    /// The pool of live sentinels for a listener, if configured.
    pub sentinel_pool: Option<PoolWriter>,
}

/// What can be changed in one service's discovery while it runs. Its sentinels and its pools are
/// changed by themselves. The doctor examines with these settings, too.
#[derive(Debug, Clone, Default)]
pub struct DiscoverySettings {
    /// Credentials for the sentinels.
    pub sentinel_auth: Option<Credentials>,
    /// Credentials for the redis nodes.
    pub auth: Option<Credentials>,
    /// The settings of TLS to the sentinels; plain text without. New contents of its files need no
    /// change.
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
}

impl DiscoverySettings {
    /// How connections to the sentinels log in.
    pub(crate) fn sentinel_access(&self) -> Access<'_> {
        Access { credentials: self.sentinel_auth.as_ref(), tls: self.sentinel_tls.as_ref() }
    }

    /// How connections to the redis nodes log in.
    pub(crate) fn node_access(&self) -> Access<'_> {
        Access { credentials: self.auth.as_ref(), tls: self.redis_tls.as_ref() }
    }

    /// The settings of the service's node probers.
    pub(crate) fn probe_settings(&self) -> ProbeSettings {
        let address_map = self.address_map.iter();
        let address_map = address_map.map(|(from, to)| (from.clone().normal(), to.clone()));
        ProbeSettings {
            verify: self.rules.verify,
            timeout: self.probe_timeout,
            address_map: address_map.collect(),
            nodes: self.nodes.clone(),
        }
    }
}
