//! The doctor: asks every sentinel and every redis node once, directly, and says what is wrong and
//! what to do.
//!
//! It works with and without a running proxy, because it looks with its own eyes: the same
//! connections, credentials and address map as discovery, from the place where the proxy runs.
//! Looking and judging are apart: [`examine`] brings [`Observed`] home, and [`diagnose`] turns that
//! into [`Finding`]s without a socket.
//!
//! Deliberately absent: any change to the cluster. What is to be done is said, and a person does
//! it.

mod ask;
mod diagnose;
mod nodes;
mod observed;
mod read;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

pub use diagnose::{Context, Finding, Severity, diagnose};
pub use observed::{
    Account, NoAnswer, Observed, ObservedNode, ObservedPeer, ObservedReplica, ObservedSentinel,
    Says, Word,
};

use crate::{Credentials, NodeAddr, Resolver, Verify};

/// Whom to examine, and how to get in.
#[derive(Debug)]
pub struct Patient {
    /// Sentinel's name of the master.
    pub name: Arc<str>,
    /// Where to begin; names may give several addresses.
    pub sentinels: Vec<NodeAddr>,
    /// For the sentinels.
    pub sentinel_auth: Option<Credentials>,
    /// For the redis nodes.
    pub auth: Option<Credentials>,
    /// What a node has to prove, and so what may be asked of it.
    pub verify: Verify,
    /// Whether sentinels that others tell of are asked too.
    pub learn: bool,
    /// Announced address to the address to dial.
    pub address_map: BTreeMap<NodeAddr, NodeAddr>,
    /// Our own listeners, where they are known: nothing may lead back to them.
    pub own: Vec<SocketAddr>,
}

/// Asks everybody once. Needs a tokio runtime; over in less than half a minute whatever is wrong.
pub async fn examine(patient: Patient, resolver: &Resolver) -> Observed {
    ask::examine(Arc::new(patient), resolver).await
}
