//! Why a switchover does not begin, or ends without a new master.

use std::time::Duration;

use crate::NodeAddr;

/// Why a switchover does not begin, or ends without one. Unless it says otherwise, nothing was
/// changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Nothing to switch from.
    #[error("there is no master now, or traffic is held already: a failover may be under way")]
    Unsettled,
    /// Sentinels could not agree on the next master either.
    #[error(
        "only {agree} of {members} sentinels are reached and name the present master; {majority} are needed"
    )]
    NoMajority {
        /// Sentinels that are up and agree.
        agree: usize,
        /// Members of the electorate.
        members: usize,
        /// How many would be enough.
        majority: usize,
    },
    /// Nothing to switch to.
    #[error("no replica follows the master with its link up: there is nobody to promote")]
    NoReplica,
    /// A replica does not reach the master's offset.
    #[error("{node} lags {lag} bytes behind and has not caught up in time")]
    Lagging {
        /// The replica.
        node: NodeAddr,
        /// Bytes it has not applied.
        lag: u64,
    },
    /// The master's offset never stood still although its clients are paused.
    #[error("the master is still written to although its clients are paused")]
    WrittenTo,
    /// The clients that do not pass here were to be paused, and are not.
    #[error(
        "clients that do not pass here cannot be paused: {0}; repeat it without --pause-clients"
    )]
    NotPaused(String),
    /// A pause that is long enough would make the sentinels hold the master to be down.
    #[error(
        "clients that do not pass here cannot be paused for long enough: down-after-milliseconds is {} ms, and the \
         sentinels get no answer to PING during a pause; repeat it without --pause-clients",
        .0.as_millis()
    )]
    TooLong(Duration),
    /// A node does not answer as it has to.
    #[error("{node}: {problem}")]
    Node {
        /// Whom.
        node: NodeAddr,
        /// What for, for people.
        problem: String,
    },
    /// A failover is under way already.
    #[error("sentinel {0} is failing over already; repeat it when that is over")]
    FailingOver(NodeAddr),
    /// No sentinel took the order.
    #[error("no sentinel starts the failover: {0}")]
    Refused(String),
    /// The sentinel that took the order does nothing.
    #[error(
        "sentinel {0} took the order and has not begun within {wait} ms: it may be in TILT, and may still begin; \
         traffic flows again",
        wait = .1.as_millis()
    )]
    NotBegun(NodeAddr, Duration),
    /// The sentinel that took the order gave up.
    #[error(
        "sentinel {sentinel} aborted the failover ({event}): the old master stays, and traffic flows again"
    )]
    Aborted {
        /// The sentinel.
        sentinel: NodeAddr,
        /// Its event.
        event: Box<str>,
    },
    /// The sentinel that took the order cannot be asked any more.
    #[error(
        "sentinel {sentinel} took the order and was lost ({problem}): whether it promotes a replica is not known; \
         traffic flows as the sentinels decide"
    )]
    LeaderLost {
        /// The sentinel.
        sentinel: NodeAddr,
        /// How, for people.
        problem: String,
    },
    /// There is a new master, but not by this order.
    #[error(
        "{to} became the master by another failover than the one that was ordered; traffic flows to it"
    )]
    OtherFailover {
        /// The new master.
        to: NodeAddr,
    },
    /// Ordered, and nothing came of it in time.
    #[error(
        "the failover was ordered, but no new master was verified in time; traffic flows as the sentinels decide"
    )]
    NoCommit,
    /// Another one is under way.
    #[error("another switchover of this service is under way")]
    Busy,
    /// Whoever asked for it went away before it was ordered.
    #[error("whoever asked for it went away")]
    Abandoned,
}
