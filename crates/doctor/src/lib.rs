//! The doctor: examines every sentinel and every Redis node once, directly, and reports what is
//! wrong and what to do.
//!
//! It works with and without a running proxy, because it examines the cluster itself: with the same
//! connections, credentials and address map as discovery, from the host of the proxy. Observing and
//! judging are separate: [`examine`] collects [`Observed`], and [`diagnose`] derives [`Finding`]s
//! from it without a socket. The certificates of the own listeners are
//! [examined](Examined::add_listeners) beside it. A [`Report`] shows all of it as text or JSON.
//!
//! The doctor never changes the cluster. It prints the commands, and an operator runs them.

mod diagnose;
mod document;
mod examine;
mod host_facts;
mod listeners;
mod observed;
mod report;

#[cfg(test)]
mod cause_tests;
#[cfg(test)]
mod tests;

pub use diagnose::{Context, Finding, Severity, diagnose};
pub use examine::{Examination, examine};
pub use host_facts::foreign_addresses;
pub use listeners::{ListenerFile, ListenerPair, ListenerSection, Trouble};
pub use observed::{
    AclUser, ExamineError, MasterAnswer, NodeDetails, Observed, ObservedMaster, ObservedNode,
    ObservedPeer, ObservedReplica, ObservedSentinel, SentinelAnswer, Watched, WriteGuard,
};
pub use report::{Examined, Report};
