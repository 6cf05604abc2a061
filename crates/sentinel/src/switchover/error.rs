//! Why a switchover does not start, or ends without a new master.

use std::time::Duration;

use crate::NodeAddr;

/// Why a switchover does not start, or ends without a new master. Unless the message says
/// otherwise, nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SwitchoverError {
    /// There is no settled master to switch from.
    #[error(
        "there is no settled master, or traffic is held already: a failover may be in progress"
    )]
    Unsettled,
    /// The sentinels could not agree on a new master, either.
    #[error(
        "only {agree} of {members} sentinels are reachable and name the current master; \
         {majority} are required"
    )]
    NoMajority {
        /// Sentinels that are up and agree.
        agree: usize,
        /// Members of the electorate.
        members: usize,
        /// How many would be enough.
        majority: usize,
    },
    /// There is no replica to switch to.
    #[error("no replica follows the master with its link up: there is no candidate for promotion")]
    NoReplica,
    /// A replica does not reach the master's offset.
    #[error("{node} lags by {lag} bytes and did not catch up in time")]
    Lagging {
        /// The replica.
        node: NodeAddr,
        /// Bytes it has not applied.
        lag: u64,
    },
    /// The master's offset kept changing although its clients are paused.
    #[error("the master still receives writes although its clients are paused")]
    WrittenTo,
    /// Clients that do not pass through this proxy were to be paused, and are not.
    #[error(
        "clients that bypass this proxy cannot be paused: {0}; repeat it without --pause-clients"
    )]
    NotPaused(String),
    /// A pause that is long enough would make the sentinels consider the master down.
    #[error(
        "clients that bypass this proxy cannot be paused for long enough: \
         down-after-milliseconds is {} ms, and the \
         sentinels get no answer to PING during a pause; repeat it without --pause-clients",
        .0.as_millis()
    )]
    TooLong(Duration),
    /// A node does not answer as required.
    #[error("{node}: {problem}")]
    Node {
        /// The node.
        node: NodeAddr,
        /// The problem, for operators.
        problem: String,
    },
    /// A failover is in progress already.
    #[error("sentinel {0} is already failing over; repeat it when that is done")]
    FailingOver(NodeAddr),
    /// No sentinel accepted the failover command.
    #[error("no sentinel starts the failover: {0}")]
    Refused(String),
    /// The sentinel that accepted the command does not start the failover.
    #[error(
        "sentinel {0} accepted the failover command and did not start it within {wait} ms: it \
         may be in TILT, and may still start it; \
         traffic flows again",
        wait = .1.as_millis()
    )]
    NotBegun(NodeAddr, Duration),
    /// The sentinel aborted the failover.
    #[error(
        "sentinel {sentinel} aborted the failover ({event}): the old master stays, and traffic \
         flows again"
    )]
    Aborted {
        /// The sentinel.
        sentinel: NodeAddr,
        /// Its event.
        event: Box<str>,
    },
    /// The connection to the sentinel that accepted the command was lost.
    #[error(
        "sentinel {sentinel} accepted the failover command and was lost ({problem}): whether it \
         promotes a replica is unknown; \
         traffic follows the sentinels"
    )]
    LeaderLost {
        /// The sentinel.
        sentinel: NodeAddr,
        /// How, for operators.
        problem: String,
    },
    /// There is a new master, but not as a result of this command.
    #[error(
        "{to} became the master by another failover than the one that was requested; traffic \
         flows to it"
    )]
    OtherFailover {
        /// The new master.
        to: NodeAddr,
    },
    /// The failover was started, and no new master was verified in time.
    #[error(
        "the failover was started, but no new master was verified in time; traffic follows the \
         sentinels"
    )]
    NoCommit,
    /// Another switchover is in progress.
    #[error("another switchover of this service is in progress")]
    Busy,
    /// The requester disconnected before the failover was started.
    #[error("the requester disconnected before the failover was started")]
    Abandoned,
}
