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
    /// The requested node is the master.
    #[error("{0} is the master already")]
    AlreadyMaster(NodeAddr),
    /// Not enough sentinels list the requested node.
    #[error(
        "{node} is listed as a healthy replica by {listed} of {members} sentinels; {majority} are required"
    )]
    NotListed {
        /// The node.
        node: NodeAddr,
        /// Sentinels that list it as up.
        listed: usize,
        /// Members of the electorate.
        members: usize,
        /// How many would be enough.
        majority: usize,
    },
    /// The requested node cannot be promoted.
    #[error("{node} cannot be promoted: {problem}")]
    NotPromotable {
        /// The node.
        node: NodeAddr,
        /// Why, for operators.
        problem: String,
    },
    /// Another process has raised a priority, or was killed before it restored it.
    #[error(
        "another process is switching over to a named replica, or was killed meanwhile: the \
         replica-priority of {node} is {value}; repeat it when that is done, or, if nobody is \
         doing that: redis-cli -h {} -p {} CONFIG SET replica-priority {former}",
        .node.host,
        .node.port
    )]
    PrioritiesInUse {
        /// The node.
        node: NodeAddr,
        /// Its temporary value.
        value: u64,
        /// The value before.
        former: u64,
    },
    /// The sentinel did not learn of the changed priorities.
    #[error(
        "sentinel {sentinel} does not report {node} as the first choice after {} s: {problem}",
        .wait.as_secs()
    )]
    NotReported {
        /// The sentinel.
        sentinel: NodeAddr,
        /// The requested node.
        node: NodeAddr,
        /// What it reports instead.
        problem: String,
        /// How long it was waited for.
        wait: Duration,
    },
    /// The failover promoted another replica than the requested one.
    #[error("{to} became the master, not {requested}; traffic flows to it")]
    OtherReplica {
        /// The requested node.
        requested: NodeAddr,
        /// The new master.
        to: NodeAddr,
    },
    /// The switchover succeeded, and a priority is not restored.
    #[error(
        "{to} is the master, but {nodes}; it is tried again every few seconds as long as this \
         process runs"
    )]
    NotRestored {
        /// The new master.
        to: NodeAddr,
        /// The nodes, with the command for each.
        nodes: String,
    },
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
    /// The master does not do what the sentinel ordered in a coordinated failover.
    #[error(
        "{master} does not carry out the FAILOVER of sentinel {sentinel}: the sentinels' user on \
         every node needs +failover +client|pause +client|unpause, and the replica has to be \
         connected; with --pause-clients it is not needed; the old master stays, and traffic flows \
         again; the sentinel gives up after its failover-timeout"
    )]
    NotCarriedOut {
        /// The master.
        master: NodeAddr,
        /// The sentinel.
        sentinel: NodeAddr,
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
