//! What is handled, by whom and when.

use crate::proxy::driver::Happened;
use crate::wire::{Body, Pid, Us};

/// A connection by its number; never reused within a run.
pub(crate) type ConnId = usize;

/// Something that a process handles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    /// Somebody connected.
    Accepted(ConnId),
    /// A message arrived.
    Message(ConnId, Body),
    /// The other side closed, or is not there any more.
    Closed(ConnId),
    /// A dial came to an end; `None`: refused, or no answer in time.
    Dialled(u64, Option<ConnId>),
    /// A timer that it set.
    Timer(u64),
    /// It has just been stopped and continued.
    Continued,
}

/// What the invariants have to hear of.
#[derive(Debug)]
pub(crate) enum Fact {
    /// A client was told that its write was done, by this node, at this time.
    Acked { pid: Pid, node: Pid, id: u32, executed: Us },
    /// Something happened at a proxy's route.
    Happened(Pid, Happened),
}

/// How names resolve now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dns {
    /// The processes behind the configured names.
    pub(crate) sentinels: Vec<Pid>,
    pub(crate) missing: bool,
    pub(crate) left_out: Vec<Pid>,
    pub(crate) late: Us,
}

/// What the world has to handle.
#[derive(Debug)]
pub(crate) enum Event {
    To(Pid, u32, Input),
    Fault(usize),
    Heal(usize),
    Sample,
}

#[derive(Debug)]
pub(super) struct Queued(pub(super) Us, pub(super) u64, pub(super) Event);

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Queued {}
impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}
