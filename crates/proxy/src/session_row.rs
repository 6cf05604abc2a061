//! What is reported of one session when an operator asks for the sessions.
//!
//! Made by the session itself, on its worker, when its worker visits it
//! ([`visits`](crate::runtime::tasks::visits)), and nothing of it is kept. Names come from clients:
//! they are truncated and escaped here, so that nothing that they contain reaches a terminal.

use std::cell::Cell;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use resp::ClientFacts;
use tls::OutsideText;

use crate::address::ListenAddr;
use crate::labelled::labelled;
use crate::not_carried::NotCarried;

/// Maximum characters of a name that are reported.
const MAX_NAME: usize = 64;

labelled! {
    /// The state of a session. If several apply, it is the first one listed.
    #[derive(Default)]
    pub enum ListedState {
        /// Ends, and delivers its last bytes.
        Closing = "closing",
        /// Waits for a target, or for its turn to connect to one.
        Held = "held",
        /// Completes its TLS handshake.
        Handshaking = "handshaking",
        /// Connects to its first target.
        Connecting = "connecting",
        /// Moves to another target.
        Moving = "moving",
        /// Was asked to leave, by a shutdown or an ejected replica.
        Draining = "draining",
        /// Forwarded without being tracked.
        Opaque = "opaque",
        /// A blocking command waits for its reply.
        Blocked = "blocked",
        /// A reply is owed, or a request or reply is incomplete.
        InFlight = "in_flight",
        /// Receives messages of channels or patterns.
        Subscribed = "subscribed",
        /// Nothing is in flight, and only its server has its state.
        Pinned = "pinned",
        /// Nothing is in flight.
        #[default]
        Idle = "idle",
    }
}

labelled! {
    /// What a session waits for.
    #[derive(Default)]
    pub enum WaitsFor {
        /// For the next request of its client.
        #[default]
        Request = "request",
        /// For a reply.
        Reply = "reply",
        /// For its client to read.
        ClientToRead = "client_to_read",
        /// For its server to read.
        ServerToRead = "server_to_read",
        /// For a target that may be used.
        Target = "target",
        /// For its turn to connect.
        Permit = "permit",
        /// For the rest of the TLS handshake.
        Handshake = "handshake",
        /// For a connection to its target.
        Connection = "connection",
        /// For a moment at which it can leave.
        Boundary = "boundary",
        /// For its client to close the connection.
        Close = "close",
    }
}

labelled! {
    /// Which connection a session of a service that shares connections has to its target.
    pub enum ConnectionUse {
        /// Those that it shares with other sessions, even if none is open yet.
        Shared = "shared",
        /// One of its own.
        Dedicated = "dedicated",
    }
}

/// The name of a session: unique within the process and, since it begins with a number drawn at the
/// start of the process, nearly certainly among processes. A session keeps it when it moves to
/// another target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SessionId {
    /// Drawn at the start of the process.
    pub(crate) process: u32,
    pub(crate) worker: u32,
    /// The slot of its task, and how often that was used before.
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl SessionId {
    /// Parses the output of [`Display`](fmt::Display).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let process = parts.next().filter(|part| part.len() == 8)?;
        let mut number = || {
            let part = parts.next()?;
            let plain = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse().ok().filter(|_| plain)
        };
        let (worker, slot, generation) = (number()?, number()?, number()?);
        let process = u32::from_str_radix(process, 16).ok()?;
        let id = Self { process, worker, slot, generation };
        // Written in one way only, so that a log can be searched for it.
        (parts.next().is_none() && id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, worker, slot, generation } = self;
        write!(f, "{process:08x}-{worker}-{slot}-{generation}")
    }
}

/// What a client has said about itself, safe for a terminal. See [`ClientFacts`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListedClient {
    /// The user.
    pub user: Option<OutsideText>,
    /// The name.
    pub name: Option<OutsideText>,
    /// The name of its library.
    pub library: Option<OutsideText>,
    /// The version of its library.
    pub library_version: Option<OutsideText>,
    /// The database.
    pub database: Option<u32>,
    /// The version of the protocol.
    pub protocol: Option<u8>,
}

impl From<ClientFacts<'_>> for ListedClient {
    fn from(facts: ClientFacts<'_>) -> Self {
        let shown = |text: Option<&[u8]>| text.map(|text| OutsideText::of_bytes(text, MAX_NAME));
        Self {
            user: shown(facts.user),
            name: shown(facts.name),
            library: shown(facts.library),
            library_version: shown(facts.library_version),
            database: facts.database,
            protocol: facts.protocol,
        }
    }
}

/// The negotiated parameters of a TLS connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlsFacts {
    /// The version.
    pub version: tls::Version,
    /// The cipher, as IANA registers it.
    pub cipher: &'static str,
}

/// One session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionRow {
    /// Its name.
    pub id: SessionId,
    /// The name of its service in the data plane.
    pub service: Arc<str>,
    /// The address of its client; `None` at a Unix socket.
    pub client: Option<SocketAddr>,
    /// The address that its client connected to; `None` while it has no target.
    pub listener: Option<ListenAddr>,
    /// The TLS of its client; `None` without TLS, and while it has no target.
    pub client_tls: Option<TlsFacts>,
    /// The TLS of its target.
    pub target_tls: Option<TlsFacts>,
    /// What its client has said; nothing is known while it has no target.
    pub said: ListedClient,
    /// Its state.
    pub state: ListedState,
    /// What it waits for.
    pub waits_for: WaitsFor,
    /// Why it would be closed if its target were lost now; `None` if it would be carried.
    pub not_carried: Option<NotCarried>,
    /// The unknown command that pinned it.
    pub unknown_command: Option<Box<str>>,
    /// Its target, and the target's generation.
    pub upstream: Option<(SocketAddr, u64)>,
    /// Whether it shares connections; `None` if its service does not share them, and while it has
    /// no connection.
    pub connection: Option<ConnectionUse>,
    /// Why it got a connection of its own although its service shares connections: one of
    /// [`SharedSnapshot::reasons`](crate::SharedSnapshot::reasons). `None` if it shares, and if it
    /// began before its service shared.
    pub promotion: Option<&'static str>,
    /// Since it was accepted.
    pub age: Duration,
    /// Since its client last sent something, if the system reports that: not for Unix sockets, and
    /// not while it has no target.
    pub idle: Option<Duration>,
    /// Bytes forwarded from the client, and to it.
    pub bytes: (u64, u64),
    /// Requests forwarded in full.
    pub commands: u64,
    /// Requests without a complete reply; `None` if it is not tracked.
    pub in_flight: Option<u64>,
}

impl SessionRow {
    /// The address of the client; `None` at a Unix socket.
    #[must_use]
    pub fn client_ip(&self) -> Option<IpAddr> {
        self.client.map(|addr| addr.ip())
    }

    /// The address of the client with its port, or `unix`.
    #[must_use]
    pub fn client_name(&self) -> String {
        self.client.map_or_else(|| "unix".to_owned(), |addr| addr.to_string())
    }
}

thread_local! {
    static ROW: Cell<Option<Box<SessionRow>>> = const { Cell::new(None) };
}

/// Leaves the row of the session that is being visited for its worker.
pub(crate) fn leave(row: SessionRow) {
    ROW.set(Some(Box::new(row)));
}

/// Takes the row that the visited session has left.
pub(crate) fn take() -> Option<Box<SessionRow>> {
    ROW.take()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn parses_its_own_ids_and_nothing_else() {
        let id = SessionId { process: 0xab, worker: 1, slot: 42, generation: 7 };
        assert_eq!(id.to_string(), "000000ab-1-42-7");
        assert_eq!(SessionId::parse("000000ab-1-42-7"), Some(id));
        for text in [
            "",
            "ab-1-42-7",
            "000000ab-1-42",
            "000000ab-1-42-7-1",
            "000000AB-1-42-7",
            "000000ab-01-42-7",
            "000000ab-+1-42-7",
            "000000ab-1-42-4294967296",
            "000000ab-1-42-",
            "000000ag-1-42-7",
            "+00000ab-1-42-7",
        ] {
            assert_eq!(SessionId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn has_distinct_labels_in_snake_case() {
        let labels: Vec<&str> = ListedState::ALL.iter().map(|it| it.label()).collect();
        let waits: Vec<&str> = WaitsFor::ALL.iter().map(|it| it.label()).collect();
        for labels in [labels, waits] {
            assert_eq!(labels.iter().collect::<BTreeSet<_>>().len(), labels.len());
            let plain = |label: &str| label.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            assert!(labels.iter().all(|label| plain(label)), "{labels:?}");
        }
    }
}
