//! The observations of an examination: plain values as each sentinel and node reported them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tls::{CertificateFacts, Fault, OutsideText};

use sentinel::{Denied, Epoch, MyId, NodeAddr, NodeReport, Role};

/// The channel in which sentinels introduce themselves.
pub(crate) const HELLO: &str = "__sentinel__:hello";

/// Everything observed about one master.
#[derive(Debug, Clone)]
pub struct Observed {
    /// Sentinel's name of the master.
    pub name: Arc<str>,
    /// Every sentinel that was asked, the configured ones first.
    pub sentinels: Vec<ObservedSentinel>,
    /// Every Redis node that a sentinel names.
    pub nodes: Vec<ObservedNode>,
    /// The certificates that we show, with the configuration section of each.
    pub own_certificates: Vec<(&'static str, CertificateFacts)>,
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
    /// Its certificate, verified or not; `None` without TLS.
    pub certificate: Option<CertificateFacts>,
}

/// Why there is no answer. Its text is the cause as part of a sentence, without a remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExamineError {
    /// Its name does not resolve; with the cause.
    #[error("{0}")]
    Unresolved(String),
    /// No connection could be made; with the cause.
    #[error("{0}")]
    Unreachable(String),
    /// No connection could be made, since this host has no local port for it.
    #[error("this host has no local port left for a connection to it")]
    OutOfPorts,
    /// Connected, and no answer arrived.
    #[error("it accepts the connection and does not answer")]
    Unresponsive,
    /// It refused the connection or the authentication.
    #[error("{0}")]
    Denied(Denied),
    /// The server at this address is not a sentinel, or not a Redis server.
    #[error("not a server of the expected kind, a sentinel or Redis")]
    UnexpectedServer,
    /// TLS failed, or there is TLS where none is configured.
    #[error("{}", .0.what)]
    Tls(Fault),
    /// Another sentinel answers there than the one that was announced.
    #[error("another sentinel answers there")]
    OtherSentinel,
    /// The address is one of our own listeners.
    #[error("it is one of our own listeners")]
    LeadsBack,
    /// The option `nodes` does not permit the announced address, so it was not dialled.
    #[error("it is outside service.nodes and was not asked")]
    OutsideNodes,
}

impl ExamineError {
    /// The word for scripts.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Unresolved(_) => "unresolved",
            Self::Unreachable(_) => "unreachable",
            Self::OutOfPorts => "out_of_ports",
            Self::Unresponsive => "unresponsive",
            Self::Denied(_) => "denied",
            Self::UnexpectedServer => "unexpected_server",
            Self::Tls(_) => "tls",
            Self::OtherSentinel => "other_sentinel",
            Self::LeadsBack => "own_listener",
            Self::OutsideNodes => "outside_nodes",
        }
    }
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
    /// The masters that it monitors, as listed by `INFO`.
    pub watched: Vec<Watched>,
    /// The `run_id` of its process, as reported by `INFO`; not its MYID.
    pub run_id: Option<OutsideText>,
    /// The path of its configuration file on its host, as reported by `INFO`.
    pub config_file: Option<OutsideText>,
    /// Its answer about our master.
    pub master: MasterAnswer,
}

/// A master that a sentinel monitors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// Its name.
    pub name: OutsideText,
    /// Its address; `None` for an invalid one.
    pub addr: Option<NodeAddr>,
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
    /// The `run_id` of the master's process in its last `INFO`; empty before the first.
    pub run_id: Box<str>,
    /// A failover is in progress.
    pub failing_over: bool,
    /// How many sentinels must consider the master down.
    pub quorum: Option<u64>,
    /// `down-after-milliseconds`.
    pub down_after: Option<Duration>,
    /// `failover-timeout`.
    pub failover_timeout: Option<Duration>,
    /// `parallel-syncs`.
    pub parallel_syncs: Option<u64>,
    /// It runs a notification or reconfiguration script.
    pub scripts: bool,
    /// The other sentinels that it knows.
    pub peers: Vec<ObservedPeer>,
    /// The replicas that it knows.
    pub replicas: Vec<ObservedReplica>,
    /// The result of `SENTINEL CKQUORUM`. `None` if the command was refused.
    pub ckquorum: Option<Result<(), String>>,
}

impl ObservedMaster {
    /// The master and the replicas that it lists.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &NodeAddr> {
        std::iter::once(&self.addr).chain(self.replicas.iter().map(|it| &it.addr))
    }
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
    /// Answers that only the doctor asks for.
    pub details: NodeDetails,
    /// Its certificate, verified or not; `None` without TLS.
    pub certificate: Option<CertificateFacts>,
}

impl ObservedNode {
    pub(super) fn report(&self) -> Option<&NodeReport> {
        self.answer.as_ref().ok()
    }

    /// The node that it follows.
    pub(super) fn master(&self) -> Option<&NodeAddr> {
        match &self.report()?.role {
            Role::Replica { master, .. } => Some(master),
            _ => None,
        }
    }
}

/// Answers of a node that only the doctor asks for, as far as its ACL allows them.
#[derive(Debug, Clone, Default)]
pub struct NodeDetails {
    /// Its answer to `PING`, if that is not `PONG`.
    pub ping: Option<OutsideText>,
    /// The error with which it answers `ROLE`.
    pub role_error: Option<OutsideText>,
    /// The error with which it answers `INFO`.
    pub info_error: Option<OutsideText>,
    /// When it refuses writes for lack of replicas; `None` if unknown.
    pub write_guard: Option<WriteGuard>,
    /// Whether it keeps its data on a disk; `None` if unknown.
    pub persists: Option<bool>,
    /// Its users; `None` if unknown.
    pub users: Option<Vec<AclUser>>,
    /// The users with which sentinels are connected to it.
    pub sentinel_users: BTreeSet<OutsideText>,
}

/// A user of a Redis server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AclUser {
    /// Its name.
    pub name: OutsideText,
    /// It can log in.
    pub enabled: bool,
    /// It needs no password.
    pub nopass: bool,
    /// It may publish in the channel of the sentinels.
    pub announces: bool,
}

/// `min-replicas-to-write` of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteGuard {
    /// `min-replicas-to-write`; `None` if our user may not read it.
    pub to_write: Option<u64>,
    /// How many replicas satisfy it now. Only reported while both it and `min-replicas-max-lag` are
    /// above 0: otherwise nothing refuses writes.
    pub good: Option<u64>,
}

/// A sentinel that knows the master, with its answer and its view.
type SentinelView<'a> = (&'a ObservedSentinel, &'a SentinelAnswer, &'a ObservedMaster);

impl Observed {
    /// Every sentinel that answered, with its answer.
    pub(super) fn answered(&self) -> impl Iterator<Item = (&ObservedSentinel, &SentinelAnswer)> {
        self.sentinels.iter().filter_map(|it| Some((it, it.answer.as_ref().ok()?)))
    }

    /// Every sentinel that knows the master, with its view.
    pub(super) fn views(&self) -> impl Iterator<Item = SentinelView<'_>> {
        self.answered().filter_map(|(sentinel, answer)| match &answer.master {
            MasterAnswer::Known(view) => Some((sentinel, answer, &**view)),
            _ => None,
        })
    }

    /// The views that decide: those of configured sentinels, if most of these answer and are enough
    /// for a failover, otherwise all. Anybody who may publish may have announced the others.
    pub(super) fn trusted(&self) -> impl Iterator<Item = SentinelView<'_>> {
        let depends = self.depends_on_learned();
        self.views().filter(move |(it, ..)| it.configured || depends)
    }

    /// Whether the configured sentinels that answer are too few to decide.
    pub(super) fn depends_on_learned(&self) -> bool {
        let all = self.sentinels.iter().filter(|it| it.configured).count();
        let ours = || self.views().filter(|(it, ..)| it.configured);
        let needs_more = |quorum: u64| usize::try_from(quorum).is_ok_and(|quorum| quorum > all);
        ours().count() * 2 <= all || ours().all(|(.., it)| it.quorum.is_some_and(needs_more))
    }

    /// The entries of other sentinels in all views.
    pub(super) fn peers(&self) -> impl Iterator<Item = &ObservedPeer> {
        self.views().flat_map(|(.., view)| &view.peers)
    }

    /// The entries of replicas in all views.
    pub(super) fn replicas(&self) -> impl Iterator<Item = &ObservedReplica> {
        self.views().flat_map(|(.., view)| &view.replicas)
    }

    /// The trusted views at the highest epoch of these.
    pub(super) fn newest(&self) -> impl Iterator<Item = SentinelView<'_>> {
        let highest = self.trusted().map(|(.., view)| view.epoch).max();
        self.trusted().filter(move |(.., view)| Some(view.epoch) == highest)
    }

    /// The masters that are named at the highest epoch.
    pub(super) fn named(&self) -> BTreeSet<&NodeAddr> {
        self.newest().map(|(.., view)| &view.addr).collect()
    }

    /// Whether a failover is in progress.
    pub(super) fn is_failing_over(&self) -> bool {
        self.trusted().any(|(.., view)| view.failing_over)
    }

    /// The number of sentinels that answer or are listed, without former IDs. Several that run with
    /// one identity count each.
    pub(super) fn sentinel_count(&self) -> usize {
        let present = self.peers().filter(|it| self.successor(it).is_none() && !self.is_void(it));
        let listed: BTreeSet<&MyId> = present.filter_map(|it| it.id.as_ref()).collect();
        self.processes().len() + listed.into_iter().filter(|id| !self.answers(id)).count()
    }

    /// The sentinels that answer: the identity and the process of each.
    pub(super) fn processes(&self) -> BTreeSet<(&MyId, Option<&str>)> {
        self.answered().map(|(_, answer)| (&answer.id, answer.run_id.as_deref())).collect()
    }

    /// Whether a sentinel with this identity answers.
    pub(super) fn answers(&self, id: &MyId) -> bool {
        self.answered().any(|(_, answer)| answer.id == *id)
    }

    /// The sentinels that answer at this address.
    pub(super) fn answered_at(&self, addr: &NodeAddr) -> impl Iterator<Item = &SentinelAnswer> {
        let is_there = move |(sentinel, answer): &(&ObservedSentinel, &SentinelAnswer)| {
            sentinel.addr == *addr || NodeAddr::from(answer.reached) == *addr
        };
        self.answered().filter(is_there).map(|(_, answer)| answer)
    }

    /// The ID with which the sentinel at the address of this peer answers, if no sentinel answers
    /// with the listed one: it was given a new ID. One whose ID answers elsewhere as well is no
    /// successor: it may be a copy, which is given a new one first.
    pub(super) fn successor(&self, peer: &ObservedPeer) -> Option<&MyId> {
        let (id, addr) = (peer.id.as_ref()?, peer.addr.as_ref()?);
        if self.answers(id) {
            return None;
        }
        self.answered_at(addr).find(|it| !self.shares_its_id(it)).map(|it| &it.id)
    }

    /// Whether no sentinel answers with the ID of this peer, and it has no address: sentinels
    /// before Redis 7 keep the entry of a former ID like this.
    fn is_void(&self, peer: &ObservedPeer) -> bool {
        peer.addr.is_none() && peer.id.as_ref().is_some_and(|id| !self.answers(id))
    }

    /// Whether the same ID answers at another address as well.
    fn shares_its_id(&self, answer: &SentinelAnswer) -> bool {
        let mut same = self.answered().filter(|(_, other)| other.id == answer.id);
        same.any(|(_, other)| other.reached != answer.reached)
    }

    /// Whether a sentinel lists this peer under a former ID and keeps it: it lists its present ID,
    /// too, and did not drop the former one for it, or finds the former one down. Before it has
    /// received the hello with the new ID, the entry may still be replaced.
    pub(super) fn is_former(&self, view: &ObservedMaster, peer: &ObservedPeer) -> bool {
        let Some(present) = self.successor(peer) else { return self.is_void(peer) };
        !peer.up || view.peers.iter().any(|it| it.up && it.id.as_ref() == Some(present))
    }

    /// Whether a listed sentinel that every lister finds down does not answer here either. One at a
    /// configured address may come back; one at the address of a running sentinel was replaced by
    /// it.
    pub(super) fn is_peer_gone(&self, peer: &ObservedPeer) -> bool {
        let mut silent = self.sentinels.iter().filter(|it| it.configured && it.answer.is_err());
        let expected = silent.any(|it| Some(&it.addr) == peer.addr.as_ref());
        let is_up = self.peers().any(|it| it.up && it.id == peer.id && it.addr == peer.addr);
        !is_up && !expected && !peer.id.as_ref().is_some_and(|id| self.answers(id))
    }

    /// Whether a listed replica is gone: every sentinel that lists it finds it down, no master has
    /// it among its replicas, and it cannot be reached from here at all. One that hangs or refuses
    /// us runs, and so does one that announces an address which nobody reaches.
    pub(super) fn is_replica_gone(&self, addr: &NodeAddr) -> bool {
        let mut masters = self.nodes.iter().filter_map(ObservedNode::report);
        self.is_node_gone(addr)
            && self.replicas().all(|it| it.down || it.addr != *addr)
            && !masters.any(|it| it.replicas.iter().flatten().any(|it| it.addr == *addr))
    }

    /// Whether a node cannot be reached from here at all. One that hangs or refuses us runs.
    pub(super) fn is_node_gone(&self, addr: &NodeAddr) -> bool {
        self.node(addr).is_some_and(|node| {
            matches!(node.answer, Err(ExamineError::Unreachable(_) | ExamineError::Unresolved(_)))
        })
    }

    pub(super) fn node(&self, addr: &NodeAddr) -> Option<&ObservedNode> {
        self.nodes.iter().find(|node| node.addr == *addr)
    }
}
