//! The replicas for readers as the status shows them.

use crate::NodeAddr;
use crate::replicas::eligibility::{Lag, ReplicaState};

/// The replicas for readers.
#[derive(Debug, Clone)]
pub struct ReplicaPoolSnapshot {
    /// The number of replicas that serve readers; `None` until known.
    pub eligible: Option<usize>,
    /// The master serves readers while no replica is eligible.
    pub master_serves_reads: bool,
    /// Every replica that is listed, or was a moment ago.
    pub replicas: Vec<ReplicaSnapshot>,
    /// How often a replica was ejected.
    pub ejections: u64,
    /// How often an ejected replica was readmitted.
    pub readmissions: u64,
}

/// One replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaSnapshot {
    /// The announced address.
    pub addr: NodeAddr,
    /// Whether it serves readers, and otherwise why not.
    pub state: ReplicaState,
    /// Its lag at its last answer.
    pub lag: Lag,
    /// Its current sessions.
    pub sessions: usize,
    /// Connections of sessions to it that failed, as long as it has been a target.
    pub failed_connects: usize,
}
