//! Why a switchover does not start, or ends without a new master.

use std::time::Duration;

use crate::NodeAddr;

/// Why a switchover does not start, or ends without a new master. Unless the message says
/// otherwise, nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SwitchoverError {
    /// There is no settled master to switch from.
    #[error(
        "there is no settled master, or traffic is held already: a failover may be in progress, or \
         an operator has paused the service (`pointsman resume` ends that)"
    )]
    Unsettled,
    /// There is no replica to switch to.
    #[error(
        "no replica with a replica-priority above 0 follows the master with its link up: there is no \
         candidate for promotion"
    )]
    NoReplica,
    /// The master's offset kept changing although its clients are paused.
    #[error("the master still receives writes although its clients are paused")]
    WrittenTo,
    /// Clients that do not pass through this proxy were to be paused, and are not.
    #[error(
        "clients that bypass this proxy cannot be paused: {0}; repeat it without --pause-clients"
    )]
    NotPaused(String),
    /// A node or sentinel does not answer or is not as required.
    #[error("{0}: {1}")]
    Node(NodeAddr, String),
    /// The process stops.
    #[error("the process is stopping")]
    Stopping,
    /// A reload removed the service.
    #[error(
        "the service was removed from the configuration and its sessions are leaving: no \
         switchover begins"
    )]
    ServiceRemoved,
    /// A failover is in progress already.
    #[error("sentinel {0} is already failing over; repeat it when that is done")]
    FailingOver(NodeAddr),
    /// No sentinel accepted the failover command, or would.
    #[error("no sentinel starts the failover: {0}")]
    Refused(String),
    /// The sentinel that accepted the command does not start the failover.
    #[error(
        "sentinel {0} accepted the failover command and did not start it within {wait} ms: it may \
         be in TILT, and may still start it; traffic flows again",
        wait = .1.as_millis()
    )]
    NotBegun(NodeAddr, Duration),
    /// The sentinel aborted the failover, with this event.
    #[error(
        "sentinel {0} aborted the failover ({1}): no replica was promoted, and traffic flows again \
         once the master answers"
    )]
    Aborted(NodeAddr, Box<str>),
    /// The master does not do what the sentinel ordered in a coordinated failover.
    #[error(
        "{0} does not carry out the FAILOVER of sentinel {1}: the sentinels' user on \
         every node needs +failover +client|pause +client|unpause, and the replica has to be \
         connected; with --pause-clients it is not needed; the old master stays, and traffic flows \
         again; the sentinel gives up after its failover-timeout"
    )]
    NotCarriedOut(NodeAddr, NodeAddr),
    /// The connection to the sentinel that accepted the command was lost.
    #[error(
        "sentinel {0} accepted the failover command and was lost ({1}): whether it promotes a \
         replica is unknown; traffic follows the sentinels"
    )]
    LeaderLost(NodeAddr, String),
    /// There is a new master, but not as a result of this command.
    #[error(
        "{0} became the master by another failover than the one that was requested; traffic \
         flows to it"
    )]
    OtherFailover(NodeAddr),
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

impl SwitchoverError {
    pub(super) fn node(node: &NodeAddr, problem: impl Into<String>) -> Self {
        Self::Node(node.clone(), problem.into())
    }
}
