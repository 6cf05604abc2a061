//! Turns what sentinels and redis nodes say into one verified move of the points.
//!
//! Two halves. The [`Machine`] decides and is pure: views, notices, probes and time go in; holds,
//! commits and questions come out. Around it a thin driver, [`Discovery`], keeps one connection to
//! each sentinel (`link`) and an idle one to each redis node (`canary`), and carries out what the
//! machine wants on the [`target::Points`].
//!
//! Deliberately absent: clients. This crate never sees one and never knows how many there are;
//! `route` is all that passes between discovery and the data plane.

mod auth;
mod aviary;
mod backoff;
mod canary;
mod chronicle;
mod clockwatch;
mod conn;
mod discovery;
pub mod doctor;
mod group;
mod handle;
mod hush;
mod jumps;
mod learnt;
mod link;
mod links;
mod loop_guard;
mod machine;
mod notice;
mod perch;
mod questions;
mod reply;
mod resolve;
mod roster;
mod seeds;
mod seen;
mod switchover;
mod tidings;
mod timers;
mod types;
mod wanted;
mod yard;

/// The pure parts of the driver, for the simulator: it answers as sentinels and redis nodes do, and
/// has these make of it what they make of the real ones.
pub mod simulation {
    pub use crate::learnt::{AddressMap, Learnt};
    pub use crate::notice::parse as parse_notice;
    pub use crate::questions::{Peer, Round, read_round};
    pub use crate::reply::Reply;
    pub use crate::roster::{Member, Roster, Ruling};
    pub use crate::switchover::{CatchUp, Standing as Offsets, Verdict};
    pub use crate::yard::judge;
}

pub use auth::{Credentials, Denied};
pub use discovery::{Discovery, Timeouts, Watch};
pub use handle::{Handle, Heartbeat, Order};
pub use machine::{
    Action, Admission, Basis, Cause, Claim, Commit, Committed, Event, Finding, Lack, Machine, Note,
    Pause, State, Story,
};
pub use notice::Notice;
pub use resolve::Resolver;
pub use roster::{Lag, Standing};
pub use seen::{
    Counts, Failover, Seen, SeenMaster, SeenNode, SeenReplica, SeenReplicas, SeenSentinel,
};
pub use switchover::{Limits, Outcome, Plan, Reason, Told, switchover};
pub use timers::{Minority, ReplicaRules, Rules, Verify};
pub use types::{
    Epoch, Lineage, MyId, NodeAddr, Probe, ProbeFailure, ReplicaView, Report, Role, View,
};
pub use yard::Replicas;
