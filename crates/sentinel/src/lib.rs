//! Turns what sentinels and redis nodes say into one verified move of the points.
//!
//! Two halves. The [`Machine`] decides and is pure: views, notices, probes and time go in; holds,
//! commits and questions come out. Around it a thin driver, [`Discovery`], keeps one connection to
//! each sentinel (`link`) and an idle one to each redis node (`canary`), and carries out what the
//! machine wants on the [`target::TargetWriter`].
//!
//! Deliberately absent: clients. This crate never sees one and never knows how many there are;
//! `route` is all that passes between discovery and the data plane.

mod discovery;
pub mod doctor;
mod link;
mod machine;
mod prober;
mod rate_limiter;
mod replicas;
mod switchover;
mod types;

/// The pure parts of the driver, for the simulator: it answers as sentinels and redis nodes do, and
/// has these make of it what they make of the real ones.
pub mod simulation {
    pub use crate::discovery::learned_addresses::{AddressMap, LearnedAddresses};
    pub use crate::link::notice::parse as parse_notice;
    pub use crate::link::poll::{Peer, PollOutcome, read_poll};
    pub use crate::link::reply::Reply;
    pub use crate::replicas::eligibility::{Eligibility, PoolMember, PoolUpdate};
    pub use crate::replicas::publisher::evaluate;
    pub use crate::switchover::{CatchUp, CatchUpStatus, ReplicationOffsets};
}

pub use discovery::handle::{Handle, Heartbeat, Order};
pub use discovery::resolve::Resolver;
pub use discovery::snapshot::{
    Counts, DiscoverySnapshot, Failover, MasterSnapshot, NodeSnapshot, ReplicaPoolSnapshot,
    ReplicaSnapshot, SentinelSnapshot,
};
pub use discovery::{Discovery, Timeouts, Watch};
pub use link::auth::{Credentials, Denied};
pub use link::notice::Notice;
pub use machine::rules::{Minority, ReplicaRules, Rules, Verify};
pub use machine::{
    Action, Admission, Basis, Cause, Claim, Commit, Committed, Event, FailoverTimeline, Finding,
    Lack, Machine, Note, Pause, State,
};
pub use replicas::eligibility::{Lag, ReplicaState};
pub use replicas::publisher::Replicas;
pub use switchover::{
    SwitchoverError, SwitchoverLimits, SwitchoverOptions, SwitchoverOutcome, SwitchoverStep,
    switchover,
};
pub use types::{
    Epoch, Lineage, MyId, NodeAddr, Probe, ProbeFailure, ReplicaView, Report, Role, View,
};
