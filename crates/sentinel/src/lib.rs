//! Discovery of Redis masters and replicas through Sentinel: turns the views of the sentinels and
//! the answers of the nodes into verified switches of the target.
//!
//! It has two halves. The [`Machine`] decides and is pure: views, notices, probes and time go in;
//! holds, commits and queries come out. Around it a thin driver, [`Discovery`], keeps one
//! connection to each sentinel (`link`) and an idle one to each redis node (`prober`), and executes
//! the machine's actions on the [`target::TargetWriter`].
//!
//! This crate never sees a client and does not know how many there are; the `target` crate is the
//! only interface between discovery and the data plane.

mod clock;
mod discovery;
mod labelled;
mod link;
mod machine;
mod net;
mod prober;
mod rate_limiter;
mod replicas;
mod switchover;
mod types;

/// The codecs of the driver, for the simulator, which emulates sentinels and redis nodes, and for
/// fuzzing.
pub mod simulation {
    pub use crate::link::connection::read_replies;
    pub use crate::link::notice::parse as parse_notice;
    pub use crate::link::poll::{PollOutcome, read_poll};
    pub use crate::link::reply::Reply;
}

/// Connections to single servers, as discovery opens them, for the doctor: it asks each server once
/// and reads the replies itself.
pub mod connections {
    pub use crate::link::connection::{ConnectionError, Protocol, RespConnection, USER_TIMEOUT};
    pub use crate::link::handshake::hello;
    pub use crate::link::links::describe;
    pub use crate::link::messages::LinkError;
    pub use crate::link::notice::CHANNELS;
    pub use crate::link::poll::{
        PollOutcome, REPLIES_PER_POLL, SENTINEL_AUTH, entry_address, has_flag, is_healthy,
        poll_commands, read_poll, read_tilt, refusals,
    };
    pub use crate::link::reply::Reply;
    pub use crate::net::loop_guard::{is_local, leads_back};
    pub use crate::net::resolve::{Lookup, ResolveError, is_usable};
    pub use crate::net::stream::{answers_in_plain_text, answers_with_tls};
    pub use crate::net::transport::Transport;
    pub use crate::prober::probe_connection::{ProbeConnection, ProbeError, ProbeResult};
}

pub use discovery::Discovery;
pub use discovery::alarms::{Alarm, AlarmRecord};
pub use discovery::changes::DiscoveryControl;
pub use discovery::config::{DiscoveryConfig, DiscoverySettings};
pub use discovery::handle::{CommandId, DiscoveryHandle, Heartbeat, OperationsSnapshot};
pub use discovery::snapshot::{
    DiscoveryCounts, DiscoverySnapshot, FailoverRecord, MasterSnapshot, NodeSnapshot,
    OverridesSnapshot, SentinelSnapshot,
};
pub use link::auth::{Credentials, Denied};
pub use link::messages::Timeouts;
pub use link::notice::Notice;
pub use link::rotation::{CredentialStatus, RefusedCredentials};
pub use machine::rules::{MachineRules, Minority, ReplicaRules, Verify};
pub use machine::{
    Admission, Basis, Claim, Commit, Committed, FailoverTimeline, FollowOrder, FollowRefusal,
    Followed, HoldCause, Machine, MachineAction, MachineEvent, MachineState, NoMasterReason,
    Override, OverrideEnd, OverrideNews, Pause, Trust, VoteOutcome, Warning,
};
pub use net::allowlist::{AllowedHost, Allowlist};
pub use net::host::{Answer, ByteStream, Host};
pub use net::resolve::Resolver;
pub use replicas::eligibility::{Lag, ReplicaState};
pub use replicas::publisher::{ReplicaPoolSnapshot, ReplicaSnapshot, Replicas};
pub use switchover::{
    PriorityChange, SwitchoverError, SwitchoverOptions, SwitchoverOutcome, SwitchoverStep,
    former_priority, switchover,
};
pub use types::{
    AttachedReplica, Epoch, Lineage, MyId, NodeAddr, NodeReport, PingReply, Probe, ProbeFailure,
    ReplicaView, Role, View,
};
