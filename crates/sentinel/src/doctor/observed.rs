//! The observations of an examination: plain values as each sentinel and node reported them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::{Denied, Epoch, MyId, NodeAddr, NodeReport};

/// Everything observed about one master.
#[derive(Debug, Clone)]
pub struct Observed {
    /// Sentinel's name of the master.
    pub name: Arc<str>,
    /// Every sentinel that was asked, the configured ones first.
    pub sentinels: Vec<ObservedSentinel>,
    /// Every Redis node that a sentinel names.
    pub nodes: Vec<ObservedNode>,
}

/// One sentinel.
#[derive(Debug, Clone)]
pub struct ObservedSentinel {
    /// As configured, or as other sentinels announce it.
    pub addr: NodeAddr,
    /// It is configured; otherwise other sentinels listed it.
    pub configured: bool,
    /// Its answer.
    pub answer: Result<SentinelAnswer, ExamineError>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExamineError {
    /// Its name does not resolve; with the cause.
    Unresolved(String),
    /// No connection could be made; with the cause.
    Unreachable(String),
    /// Connected, and no answer arrived.
    Unresponsive,
    /// It refused the connection or the authentication.
    Denied(Denied),
    /// The server at this address is not a sentinel, or not a Redis server.
    UnexpectedServer,
    /// Another sentinel answers there than the one that was announced.
    OtherSentinel,
    /// The address is one of our own listeners.
    LeadsBack,
}

/// The answer of a sentinel.
#[derive(Debug, Clone)]
pub struct SentinelAnswer {
    /// Its MYID.
    pub id: MyId,
    /// The address at which it was reached.
    pub reached: SocketAddr,
    /// It speaks RESP3.
    pub resp3: bool,
    /// Commands that its ACL does not allow our user to run.
    pub refused: Vec<Denied>,
    /// It is in TILT mode.
    pub tilt: bool,
    /// The names of the masters that it monitors, as listed by `INFO`.
    pub watched: Vec<String>,
    /// Its answer about our master.
    pub master: MasterAnswer,
}

/// A sentinel's answer about the master.
#[derive(Debug, Clone)]
pub enum MasterAnswer {
    /// It monitors no master of this name.
    UnknownName,
    /// It refused the commands; see [`SentinelAnswer::refused`].
    Denied,
    /// No usable answer; with the cause.
    Malformed(&'static str),
    /// Its view.
    Known(Box<ObservedMaster>),
}

/// A sentinel's view of the master.
#[derive(Debug, Clone)]
pub struct ObservedMaster {
    /// The master's announced address.
    pub addr: NodeAddr,
    /// The config-epoch.
    pub epoch: Epoch,
    /// It considers the master down.
    pub down: bool,
    /// A failover is in progress.
    pub failing_over: bool,
    /// How many sentinels must consider the master down.
    pub quorum: Option<u64>,
    /// `down-after-milliseconds`.
    pub down_after: Option<Duration>,
    /// `failover-timeout`.
    pub failover_timeout: Option<Duration>,
    /// The other sentinels that it knows.
    pub peers: Vec<ObservedPeer>,
    /// The replicas that it knows.
    pub replicas: Vec<ObservedReplica>,
    /// The result of `SENTINEL CKQUORUM`. `None` if the command was refused.
    pub ckquorum: Option<Result<(), String>>,
}

/// A sentinel in the list of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedPeer {
    /// Its MYID, if known.
    pub id: Option<MyId>,
    /// Its address; `None` for an invalid one.
    pub addr: Option<NodeAddr>,
    /// Not considered down.
    pub up: bool,
}

/// A replica in the list of a sentinel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedReplica {
    /// Its announced address.
    pub addr: NodeAddr,
    /// Considered down, or not connected.
    pub down: bool,
    /// Its link to the master is up.
    pub linked: bool,
    /// `replica-priority`; 0 is never promoted.
    pub priority: Option<u64>,
}

/// One Redis node.
#[derive(Debug, Clone)]
pub struct ObservedNode {
    /// As announced.
    pub addr: NodeAddr,
    /// The dialled address, once known: the resolved one, or that of the address map.
    pub dialled: Option<SocketAddr>,
    /// Its report.
    pub answer: Result<NodeReport, ExamineError>,
}

impl Observed {
    /// Every sentinel that answered, with its answer.
    pub(super) fn answered(&self) -> impl Iterator<Item = (&ObservedSentinel, &SentinelAnswer)> {
        self.sentinels.iter().filter_map(|it| Some((it, it.answer.as_ref().ok()?)))
    }

    /// Every sentinel that knows the master, with its view.
    pub(super) fn views(
        &self,
    ) -> impl Iterator<Item = (&ObservedSentinel, &SentinelAnswer, &ObservedMaster)> {
        self.answered().filter_map(|(sentinel, answer)| match &answer.master {
            MasterAnswer::Known(view) => Some((sentinel, answer, &**view)),
            _ => None,
        })
    }
}
