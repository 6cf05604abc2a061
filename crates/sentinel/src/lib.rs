//! Turns what sentinels and redis nodes say into one verified move of the points.

mod machine;
mod notice;
mod timers;
mod types;

pub use machine::{Action, Basis, Cause, Claim, Commit, Committed, Event, Finding, Lack, Machine, Note, State, Story};
pub use notice::{CHANNELS, Notice};
pub use timers::{Minority, Rules, Verify};
pub use types::{Epoch, Lineage, MyId, NodeAddr, Probe, ProbeFailure, ReplicaView, Report, Role, View};
