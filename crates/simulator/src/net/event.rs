//! Events: what is handled, by which process and when.

use crate::wire::{Addr, Message, Micros, Pid};

/// A connection by its number; never reused within a run.
pub(crate) type ConnId = usize;

/// An input of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProcessInput {
    /// A peer connected.
    Accepted(ConnId),
    /// A message arrived.
    Message(ConnId, Message),
    /// The other side closed, or is gone.
    Closed(ConnId),
    /// A dial ended; `None`: refused, or timed out.
    Dialled(u64, Option<ConnId>),
    /// A timer that the process set.
    Timer(u64),
    /// The process was stopped and has just continued.
    Continued,
}

/// An observation about a proxy, for the oracle.
#[derive(Debug)]
pub(crate) enum Observation {
    /// A write was acknowledged to a client, by this node, at this time.
    Acked { node: Pid, id: u32, executed: Micros },
    /// A write was forwarded to this node after a stop of the proxy, before it received any view.
    ForwardedUnproven { node: Pid },
    /// Something of it reached a process outside the cluster.
    Leaked { node: Pid, leak: Leak },
    /// Requests are forwarded again, or for the first time.
    Opened {
        to: Addr,
        how: String,
        /// Distinct sentinels that named this address in a poll that was sent after the gate
        /// closed.
        fresh: usize,
        /// The gate was closed because the reachable sentinels were a minority.
        minority: bool,
        /// How long it was closed, if it was.
        shut_for: Option<Micros>,
    },
    /// An operator's order was carried out.
    Ordered { to: Addr },
    /// An invariant of the machine was violated.
    InvariantBroken(String),
}

/// How names resolve now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dns {
    /// The processes that the configured names stand for.
    pub(crate) sentinels: Vec<Pid>,
    pub(crate) missing: bool,
    pub(crate) left_out: Vec<Pid>,
    pub(crate) late: Micros,
}

/// An event of the simulation.
#[derive(Debug)]
pub(crate) enum Event {
    To(Pid, u32, ProcessInput),
    Fault(usize),
    Heal(usize),
    Sample,
}

/// What reached a process outside the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leak {
    /// A client's request.
    Request,
    /// Readers are sent there.
    Readers,
    /// The password for Redis nodes.
    NodePassword,
    /// The password for sentinels.
    SentinelPassword,
}
