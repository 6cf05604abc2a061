//! The options of one service's sessions, with defaults that follow from how Redis clients behave,
//! and their replacement while the process runs.
//!
//! A session reads an option when it needs it, so a change applies to every session from its next
//! use of the option on: a timer that is already running is not shortened. Options that the kernel
//! keeps for a socket (keepalive, user timeout) apply to connections opened after the change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use resp::{DEFAULT_REFUSALS, Refusals, StatelessCommands};
use target::Networks;
use tls::ClientTls;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::access_log::AccessLog;
use crate::tls_listening::TlsListening;

/// What happens to a session when its target is no longer the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sessions {
    /// It moves to the new master if it is idle and its state can be replayed there; otherwise it
    /// is closed.
    #[default]
    Carry,
    /// It is closed.
    Close,
}

/// What happens to a subscribed session when its target is no longer the master, with
/// [`Sessions::Carry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Subscriptions {
    /// It is closed, so that its client knows that it has missed messages.
    #[default]
    Close,
    /// It subscribes again at the new master. Messages published in between are lost silently.
    Replay,
}

/// Whether bodies of large values are spliced through a kernel pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Splice {
    /// If the system supports it.
    On,
    /// Never.
    Off,
}

/// Whether sessions share connections to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UpstreamMode {
    /// Each session has a connection of its own.
    #[default]
    Dedicated,
    /// Number of connections per worker that sessions of one group share. Requires
    /// [`Sessions::Carry`].
    Shared(std::num::NonZeroU16),
}

/// How many replicas must have a write before its client receives the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Durability {
    /// The number of replicas, at least one.
    pub replicas: u8,
    /// How long the server waits for them.
    pub timeout: Duration,
    /// What the client receives if they do not confirm in time.
    pub on_timeout: OnTimeout,
}

/// What a client receives whose write is not confirmed in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnTimeout {
    /// `-NOREPLICAS` in place of each reply to a write.
    #[default]
    Error,
    /// Nothing: its connection is closed.
    Close,
}

/// The options of one service's sessions. A zero duration turns a timeout off where that is stated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The timeout of one attempt to connect to the target. A refused or failed attempt is repeated
    /// for as long as a client may be held.
    pub connect_timeout: Duration,
    /// How long a session waits at the gate while there is no target. Keep it below the clients'
    /// own timeouts.
    pub hold_timeout: Duration,
    /// Closes a client that has sent nothing for this long and is owed no reply; zero for never.
    /// Blocked and subscribed sessions and those in a transaction are silent by nature and are
    /// exempt. An incomplete request is no activity, the arrival of its bytes is.
    pub client_idle_timeout: Duration,
    /// Closes a client that has sent nothing at all this long after its connection to the target
    /// was established; zero for never. Time during which the client was held does not count. Until
    /// its first request is complete, a client that stops sending for this long is closed as well.
    pub first_byte_timeout: Duration,
    /// How long the second direction may stay open after the first has ended. Linux's connection
    /// tracking forgets half-closed connections after 60 s (`nf_conntrack_tcp_timeout_close_wait`),
    /// so keep it below.
    pub half_close_timeout: Duration,
    /// How long a session waits for a replica that was ejected because it does not answer; zero for
    /// no limit.
    pub silent_timeout: Duration,
    /// What happens to sessions at a master change.
    pub sessions: Sessions,
    /// Whether sessions share connections. Applies to sessions that begin after a change.
    pub upstream: UpstreamMode,
    /// How many replicas must have a write before its client receives the reply; `None`: none.
    /// Applies to connections opened after a change.
    pub durability: Option<Durability>,
    /// What happens to subscribed sessions at a master change. Applies to sessions that begin after
    /// a change of this option.
    pub subscriptions: Subscriptions,
    /// Commands that count as leaving no state on their connection, in addition to the built-in
    /// table. Applies to sessions that begin after a change of this option.
    pub stateless_commands: StatelessCommands,
    /// Commands that are refused. Applies to sessions that begin after a change of this option.
    pub refusals: Refusals,
    /// The maximum number of client connections of this service.
    pub max_connections: usize,
    /// The maximum number of them per source, which is an IPv4 address or the first 64 bits of an
    /// IPv6 address; zero for no limit.
    pub max_connections_per_source: usize,
    /// The networks whose clients may connect; everyone if it is empty.
    pub allow: Networks,
    /// The networks from which every connection must begin with a header of the PROXY protocol.
    pub proxy_protocol_from: Networks,
    /// How long a connection may take to send it.
    pub proxy_protocol_timeout: Duration,
    /// The idle time after which TCP sends keepalive probes, on both sides; zero turns them off.
    pub keepalive: Duration,
    /// How long sent bytes may stay unacknowledged before the connection is closed, on both sides;
    /// zero for the kernel's default of about a quarter of an hour. It also closes a peer that has
    /// not read anything for this long while bytes wait for it.
    pub user_timeout: Duration,
    /// Whether clients that ask for it receive maintenance notifications, and their handshake is
    /// answered if the server does not know it.
    pub maintenance_push: bool,
    /// Where a client that wants an address is told to move during a drain, as host:port; without
    /// it such a client is not notified.
    pub moving_to: Option<Arc<str>>,
    /// Whether bodies of large values are spliced through a kernel pipe. Applies to connections
    /// opened after a change.
    pub splice: Splice,
    /// Which sessions are logged when they end, and how.
    pub lines: AccessLog,
    /// How TLS sessions begin at the listeners that are for them.
    pub tls: Option<TlsListening>,
    /// How TLS sessions with targets are opened; `None` if targets are connected to without TLS.
    /// Applies to connections opened after a change.
    pub target_tls: Option<ClientTls>,
    /// The hosts that the certificates of targets are verified for, by how the targets are
    /// announced (`host:port`), if it is another host: that of an address map.
    pub target_names: Arc<BTreeMap<Box<str>, Box<str>>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            hold_timeout: Duration::from_secs(10),
            client_idle_timeout: Duration::ZERO,
            first_byte_timeout: Duration::ZERO,
            half_close_timeout: Duration::from_secs(30),
            silent_timeout: Duration::from_secs(10),
            sessions: Sessions::default(),
            upstream: UpstreamMode::default(),
            durability: None,
            subscriptions: Subscriptions::default(),
            stateless_commands: StatelessCommands::default(),
            refusals: Refusals::new(DEFAULT_REFUSALS.split(',')).unwrap_or_default(),
            max_connections: 10_000,
            max_connections_per_source: 0,
            allow: Networks::default(),
            proxy_protocol_from: Networks::default(),
            proxy_protocol_timeout: Duration::from_secs(3),
            keepalive: Duration::from_secs(60),
            user_timeout: Duration::from_secs(30),
            maintenance_push: true,
            moving_to: None,
            splice: Splice::On,
            lines: AccessLog::default(),
            tls: None,
            target_tls: None,
            target_names: Arc::default(),
        }
    }
}

impl Options {
    /// Whether sessions share connections.
    pub(crate) fn shares(&self) -> bool {
        self.upstream != UpstreamMode::Dedicated
    }
}

/// Options that can be replaced while they are used. Cheap to clone; all clones share one value.
#[derive(Debug, Clone)]
pub struct LiveOptions {
    now: Arc<ArcSwap<Options>>,
    changed: Arc<Notify>,
}

impl From<Options> for LiveOptions {
    fn from(options: Options) -> Self {
        Self { now: Arc::new(ArcSwap::from_pointee(options)), changed: Arc::default() }
    }
}

impl LiveOptions {
    /// The current options.
    #[must_use]
    pub fn now(&self) -> Arc<Options> {
        self.now.load_full()
    }

    /// The current options for a moment: cheaper, but not to be kept while a session waits, and
    /// only a few at a time.
    #[inline]
    pub(crate) fn peek(&self) -> Guard<Arc<Options>> {
        self.now.load()
    }

    /// Replaces the options. What the server says of its commands stays.
    pub(crate) fn set(&self, mut options: Options) {
        if let Some(server) = self.peek().stateless_commands.server() {
            options.stateless_commands = options.stateless_commands.with_server(server);
        }
        self.now.store(Arc::new(options));
        self.changed.notify_waiters();
    }

    /// Resolves at every change after this call, whether or not the future has been polled.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }
}
