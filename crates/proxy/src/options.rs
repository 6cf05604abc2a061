//! What an operator may set about the sessions of one service, with defaults that follow from how
//! Redis clients behave.

use std::sync::Arc;
use std::time::Duration;

use resp::StatelessCommands;

use crate::session::access_log::AccessLog;

/// What becomes of a session when its target is not the master any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sessions {
    /// It goes on with the new one if it is quiet and its state can be had again there; otherwise
    /// it is closed.
    #[default]
    Carry,
    /// It is closed.
    Close,
}

/// What becomes of a session that is subscribed when its target is not the master any more, if
/// [`Sessions::Carry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Subscriptions {
    /// It is closed, so that its client knows that it has missed messages.
    #[default]
    Close,
    /// It subscribes again with the new one. Messages published in between are lost without a word.
    Replay,
}

/// Whether bodies of large values go through a pipe of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Splice {
    /// Where the system does it.
    On,
    /// Never.
    Off,
}

/// The settings of one service's sessions. A zero duration turns off what it is about, where that
/// is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How long one attempt to open a connection to the target may take. A refused or failed
    /// attempt is repeated for as long as a client may be held.
    pub connect_timeout: Duration,
    /// How long a session waits at the gate while there is no target. Keep it below the clients'
    /// own timeouts.
    pub hold_timeout: Duration,
    /// The most sessions that may wait at the gate at a time; one beyond it is closed at once.
    pub max_held: usize,
    /// Closes a client that has sent nothing for this long and is owed nothing; zero for never.
    /// Blocked and subscribed sessions and those in a transaction are silent by nature and are left
    /// alone. A part of a request is no activity, the arrival of its bytes is.
    pub client_idle_timeout: Duration,
    /// Closes a client that has sent nothing at all this long after its connection to the target
    /// was there; zero for never. Time in which the client was held does not count. Until its first
    /// request is whole, one that sends nothing more for this long is closed as well.
    pub first_byte_timeout: Duration,
    /// How long the second direction may stay open after the first has ended. Linux's connection
    /// tracking forgets half-closed connections after 60 s (`nf_conntrack_tcp_timeout_close_wait`),
    /// so keep it below.
    pub half_close_timeout: Duration,
    /// How long a session waits for a replica that was put out because it answers nobody; zero for
    /// ever.
    pub silent_timeout: Duration,
    /// What becomes of sessions when the points move.
    pub sessions: Sessions,
    /// What becomes of subscribed sessions when the master is replaced. Holds for sessions that
    /// begin after a change.
    pub subscriptions: Subscriptions,
    /// Commands that count as leaving no state on their connection, besides those of the built-in
    /// table. Holds for sessions that begin after a change.
    pub stateless_commands: StatelessCommands,
    /// The most client connections of this service at a time.
    pub max_connections: usize,
    /// The most of them from one source at a time, which is an IPv4 address or the first 64 bits of
    /// an IPv6 one; zero for no such limit.
    pub max_connections_per_source: usize,
    /// Idle time before TCP asks whether the peer is still there, on both sides; zero turns the
    /// asking off.
    pub keepalive: Duration,
    /// How long sent bytes may stay unacknowledged before the connection is given up, on both
    /// sides; zero for the kernel's own rule of about a quarter of an hour. It also ends a peer
    /// that has not read anything for this long while bytes wait for it.
    pub user_timeout: Duration,
    /// Whether clients that ask for it are sent pushes about maintenance, and their handshake is
    /// answered if the server does not know it.
    pub maintenance_push: bool,
    /// Where a client that wants an address is told to move in a drain, as host:port; without it
    /// such a client is not told.
    pub moving_to: Option<Arc<str>>,
    /// Whether bodies of large values go through a pipe of the kernel. Holds for connections opened
    /// after a change.
    pub splice: Splice,
    /// Which sessions are told of at their end, and how.
    pub lines: AccessLog,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            hold_timeout: Duration::from_secs(10),
            max_held: 10_000,
            client_idle_timeout: Duration::ZERO,
            first_byte_timeout: Duration::ZERO,
            half_close_timeout: Duration::from_secs(30),
            silent_timeout: Duration::from_secs(10),
            sessions: Sessions::default(),
            subscriptions: Subscriptions::default(),
            stateless_commands: StatelessCommands::default(),
            max_connections: 10_000,
            max_connections_per_source: 0,
            keepalive: Duration::from_secs(60),
            user_timeout: Duration::from_secs(30),
            maintenance_push: true,
            moving_to: None,
            splice: Splice::On,
            lines: AccessLog::default(),
        }
    }
}
