//! What an examination brings to light: plain values, as each sentinel and node gave them, without
//! judgement.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::{Denied, Epoch, MyId, NodeAddr, NodeReport};

/// Everything that was seen of one master.
#[derive(Debug, Clone)]
pub struct Observed {
    /// Sentinel's name of the master.
    pub name: Arc<str>,
    /// Every sentinel that was asked, the configured ones first.
    pub sentinels: Vec<ObservedSentinel>,
    /// Every redis node that a sentinel names.
    pub nodes: Vec<ObservedNode>,
}

/// One sentinel.
#[derive(Debug, Clone)]
pub struct ObservedSentinel {
    /// As configured, or as other sentinels give it.
    pub addr: NodeAddr,
    /// The configuration names it; otherwise others told of it.
    pub configured: bool,
    /// What it said.
    pub answer: Result<Account, NoAnswer>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoAnswer {
    /// Its name has no address; in words.
    Unresolved(String),
    /// Nobody could be reached there; in words.
    Unreachable(String),
    /// Connected, and then nothing came.
    Silent,
    /// It refused us altogether.
    Denied(Denied),
    /// Whoever answers there is no sentinel, or no redis.
    Stranger,
    /// Another sentinel answers there than the one that was told of.
    Other,
    /// It is one of our own listeners.
    LeadsBack,
}

/// What a sentinel that let us in said.
#[derive(Debug, Clone)]
pub struct Account {
    /// Who it is.
    pub id: MyId,
    /// Where it was reached.
    pub reached: SocketAddr,
    /// It speaks RESP3.
    pub resp3: bool,
    /// Commands that its ACL did not let our user run.
    pub refused: Vec<Denied>,
    /// It is in TILT mode.
    pub tilt: bool,
    /// The names of the masters that it watches, as `INFO` lists them.
    pub watched: Vec<String>,
    /// What it says of our master.
    pub says: Says,
}

/// What a sentinel says of the master.
#[derive(Debug, Clone)]
pub enum Says {
    /// It watches no master of this name.
    Unknown,
    /// It did not let us ask; [`Account::refused`] tells what.
    Refused,
    /// No usable answer; in words.
    Malformed(&'static str),
    /// This.
    Knows(Box<Word>),
}

/// A sentinel's knowledge of the master.
#[derive(Debug, Clone)]
pub struct Word {
    /// The master's announced address.
    pub addr: NodeAddr,
    /// The config-epoch.
    pub epoch: Epoch,
    /// It holds the master to be down.
    pub down: bool,
    /// A failover is under way.
    pub failing_over: bool,
    /// How many sentinels have to find the master down.
    pub quorum: Option<u64>,
    /// `down-after-milliseconds`.
    pub down_after: Option<Duration>,
    /// `failover-timeout`.
    pub failover_timeout: Option<Duration>,
    /// The other sentinels that it knows.
    pub peers: Vec<ObservedPeer>,
    /// The replicas that it knows.
    pub replicas: Vec<ObservedReplica>,
    /// `SENTINEL CKQUORUM`: what stands against a failover. `None` if it could not be asked.
    pub ckquorum: Option<Result<(), String>>,
}

/// A sentinel in the list of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedPeer {
    /// Who, where it is known.
    pub id: Option<MyId>,
    /// Where; `None` for an address that cannot be one.
    pub addr: Option<NodeAddr>,
    /// Not held to be down.
    pub up: bool,
}

/// A replica in the list of a sentinel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedReplica {
    /// Where it is announced to be.
    pub addr: NodeAddr,
    /// Held to be down, or not connected.
    pub down: bool,
    /// Its link to the master is up.
    pub linked: bool,
    /// `replica-priority`; 0 is never promoted.
    pub priority: Option<u64>,
}

/// One redis node.
#[derive(Debug, Clone)]
pub struct ObservedNode {
    /// As announced.
    pub addr: NodeAddr,
    /// Where it was dialled, once that was known: the address behind a name, or that of the address
    /// map.
    pub dialled: Option<SocketAddr>,
    /// What it said of itself.
    pub answer: Result<NodeReport, NoAnswer>,
}

impl Observed {
    /// Every sentinel that let us in, with what it said.
    pub(super) fn accounts(&self) -> impl Iterator<Item = (&ObservedSentinel, &Account)> {
        self.sentinels.iter().filter_map(|it| Some((it, it.answer.as_ref().ok()?)))
    }

    /// Every sentinel that knows the master, with what it knows.
    pub(super) fn words(&self) -> impl Iterator<Item = (&ObservedSentinel, &Account, &Word)> {
        self.accounts().filter_map(|(sentinel, account)| match &account.says {
            Says::Knows(word) => Some((sentinel, account, &**word)),
            _ => None,
        })
    }
}
