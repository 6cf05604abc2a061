//! The messages of links, node probers and name lookups to the discovery driver, and the timeouts
//! of the links.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tls::{Fault, Version};
use tokio::time::Instant;

use crate::link::auth::Denied;
use crate::link::connection::{ConnectionError, Protocol};
use crate::link::poll::PollOutcome;
use crate::net::resolve::ResolveError;
use crate::{MyId, NodeAddr, Notice, Probe};

/// Identifies a link; never reused within a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LinkId(pub(crate) u64);

/// An event of a link.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// Connected, and the handshake is complete.
    Up { id: MyId, addr: SocketAddr, protocol: Protocol, events: bool, tls: Option<Version> },
    /// A poll about one master was answered. Its commands were written at `asked_at`, and the last
    /// reply was read from the socket at `received_at`.
    Polled {
        master: Arc<str>,
        asked_at: Instant,
        received_at: std::time::Instant,
        outcome: PollOutcome,
    },
    /// The sentinel reported its number of connections.
    Connections(u32),
    /// An event was published; `master` is `None` for an event about the sentinel itself. Read from
    /// the socket at `received_at`.
    Notice { master: Option<Box<str>>, notice: Notice, received_at: std::time::Instant },
    /// The connection ended, or could not be made.
    Down(LinkError),
    /// New connections fail, while the present one works.
    Unrenewed(LinkError),
}

/// Why a link is down.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Its name has no address.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The connection failed.
    #[error(transparent)]
    Connection(ConnectionError),
    /// TLS failed.
    #[error("{0} (service.sentinel_tls)")]
    Tls(Fault),
    /// The sentinel refused the connection or a command.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// It did not answer a poll in time.
    #[error("it does not answer within {} ms", .0.as_millis())]
    Unresponsive(Duration),
    /// Another sentinel answers at this address than the one that was announced.
    #[error("another sentinel answers at this address than the one that was announced")]
    WrongIdentity,
    /// The announced address is one of our own listeners.
    #[error("this address is one of our own listeners")]
    LeadsBack,
    /// It does not know `SENTINEL MYID`.
    #[error("it does not know SENTINEL MYID: no sentinel (usual port: 26379), or older than 6.2")]
    NoIdentity,
}

impl From<ConnectionError> for LinkError {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::Tls(fault) => Self::Tls(fault),
            error => Self::Connection(error),
        }
    }
}

/// Why a node cannot be verified, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProbeProblem {
    /// It refused the connection or a command.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// TLS failed.
    #[error("{0} (service.redis_tls)")]
    Tls(Fault),
    /// It is asked for its role and does not tell it.
    #[error(
        "it does not tell its role: ROLE is renamed or disabled there (rename-command); \
         verify = \"ping\" does not ask for it, and trusts the sentinels alone"
    )]
    NoRole,
    /// It is probed on a connection from before.
    #[error(
        "a new connection to it fails, while the one from before works: compare service.redis_tls \
         and service.auth with what it expects"
    )]
    Unrenewed,
    /// It serves, but refuses a part of the requests; see `PingReply::refusal`.
    #[error("{0}")]
    Refuses(&'static str),
}

/// An event of a node prober.
#[derive(Debug)]
pub(crate) enum ProbeEvent {
    /// A probe was answered, or failed.
    Probed { probe: Box<Probe>, problem: Option<ProbeProblem>, tls: Option<Version> },
    /// The idle connection ended.
    ConnectionLost,
}

/// Timeouts of the sentinel connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Of a dial.
    pub connect: Duration,
    /// Of a command.
    pub command: Duration,
    /// The shortest pause before a lost sentinel is dialled again.
    pub reconnect_min: Duration,
    /// The longest pause; pauses double in between, with jitter.
    pub reconnect_max: Duration,
    /// How long sent bytes may stay unacknowledged.
    pub user: Duration,
}

/// A message to the driver.
#[derive(Debug)]
pub(crate) enum DriverMessage {
    Link(LinkId, LinkEvent),
    NodeProber(usize, NodeAddr, ProbeEvent),
    /// The seed with this index now has these addresses.
    Seed(usize, Vec<SocketAddr>),
}
