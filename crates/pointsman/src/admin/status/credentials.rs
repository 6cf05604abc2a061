//! The part of the document about credentials: which servers refuse the configured ones, and where
//! former ones are in use.

use schemars::JsonSchema;
use sentinel::{CredentialStatus, DiscoverySnapshot};
use serde::Serialize;

/// The credentials of one service.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CredentialsStatus {
    /// For the Redis nodes (service.auth).
    pub redis: ServerCredentialsStatus,
    /// For the sentinels (service.sentinel_auth).
    pub sentinels: ServerCredentialsStatus,
}

/// The credentials for one kind of servers. After a change, connections are replaced one after
/// another, and the former credentials are kept until every server has accepted the new ones.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ServerCredentialsStatus {
    /// Number of servers on which credentials from before the last change are in use.
    pub outdated: usize,
    /// The servers that refuse the configured credentials.
    pub refused: Vec<RefusedStatus>,
}

/// A server that refuses the configured credentials.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RefusedStatus {
    /// Its address.
    pub addr: String,
    /// Why, with a remedy.
    pub problem: String,
    /// Whether former credentials are in use there.
    pub fallback: bool,
}

impl CredentialsStatus {
    /// The part for one service, from discovery's snapshot.
    pub(super) fn of(seen: &DiscoverySnapshot) -> Self {
        Self { redis: credentials(&seen.auth), sentinels: credentials(&seen.sentinel_auth) }
    }
}

fn credentials(seen: &CredentialStatus) -> ServerCredentialsStatus {
    let refused = seen.refused.iter().map(|it| RefusedStatus {
        addr: it.addr.to_string(),
        problem: it.denied.to_string(),
        fallback: it.fallback,
    });
    ServerCredentialsStatus { outdated: seen.outdated, refused: refused.collect() }
}
