//! The doctor: examines every sentinel and every Redis node once, directly, and reports what is
//! wrong and what to do.
//!
//! It works with and without a running proxy, because it examines the cluster itself: with the same
//! connections, credentials and address map as discovery, from the host of the proxy. Observing and
//! judging are separate: [`examine`] collects [`Observed`], and [`diagnose`] derives [`Finding`]s
//! from it without a socket.
//!
//! The doctor never changes the cluster. It prints the commands, and an operator runs them.

mod acl;
mod ask;
#[cfg(test)]
mod cause_tests;
mod cures;
mod diagnose;
mod durability;
mod electorate;
mod nodes;
mod observed;
mod placement;
mod priorities;
mod read;
mod settings;
#[cfg(test)]
mod tests;
mod tls_ports;
mod transport;

use std::net::SocketAddr;
use std::sync::Arc;

pub use acl::AclUser;
pub use diagnose::{Context, Finding, HostFacts, Severity, diagnose};
pub use observed::{
    ExamineError, MasterAnswer, NodeDetails, Observed, ObservedMaster, ObservedNode, ObservedPeer,
    ObservedReplica, ObservedSentinel, SentinelAnswer, Watched, WriteGuard,
};

pub use cures::quote;
pub use transport::{CERTIFICATE_SOON, days, subject};

use crate::{DiscoverySettings, NodeAddr, Resolver};

/// The service to examine, with its credentials.
#[derive(Debug)]
pub struct Examination {
    /// Sentinel's name of the master.
    pub name: Arc<str>,
    /// The configured sentinels; names may resolve to several addresses.
    pub sentinels: Vec<NodeAddr>,
    /// How they and the nodes are reached. `verify` says which commands may be sent to a node.
    pub settings: DiscoverySettings,
    /// Our own listeners, if known, which must not be dialled.
    pub own: Vec<SocketAddr>,
}

/// Examines every server once. Needs a tokio runtime; takes less than a minute if up to 16
/// sentinels and 16 nodes hang in every step.
pub async fn examine(examination: Examination, resolver: &Resolver) -> Observed {
    ask::examine(Arc::new(ask::Asking::new(examination)), resolver).await
}
