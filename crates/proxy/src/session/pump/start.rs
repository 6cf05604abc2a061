//! The initial state of a pump: nothing, requests that arrived before the connection was open, or
//! the state that a session brings from another target.

use std::time::Duration;

use resp::{Ledger, Limits};

use crate::options::{Options, Sessions, Subscriptions, UpstreamMode};
use crate::session::carry::replay::Replayed;

/// Maximum bytes of text remembered of a session's state. A password may be a signed token of a few
/// kilobytes.
const STATE_BYTES: u16 = 8 * 1024;

/// Maximum bytes of names of channels and patterns remembered of a session. A gateway that
/// subscribes to five thousand channels on behalf of its own clients needs that.
const SUBSCRIPTION_BYTES: u32 = 512 * 1024;

/// The initial state of a pump.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// Read from the client already, and not forwarded.
    pub(crate) early: Vec<u8>,
    /// The replayed state, if the session was carried.
    pub(crate) replayed: Option<Box<Replayed>>,
    /// If the service shares connections, and this session has one of its own: the time after
    /// which it returns.
    pub(crate) returns_after: Option<Duration>,
}

impl Start {
    /// On another connection, with the state of the former one.
    pub(crate) fn resumed(early: Vec<u8>, replayed: Box<Replayed>) -> Self {
        Self { early, replayed: Some(replayed), returns_after: None }
    }
}

impl From<Vec<u8>> for Start {
    fn from(early: Vec<u8>) -> Self {
        Self { early, ..Self::default() }
    }
}

/// The state of a new session: a ledger that records what a carry would need, if sessions are
/// carried.
pub(super) fn fresh(options: &Options) -> Replayed {
    let records =
        options.sessions == Sessions::Carry || options.upstream != UpstreamMode::Dedicated;
    let memory = if records { STATE_BYTES } else { 0 };
    let names = if options.subscriptions == Subscriptions::Replay { SUBSCRIPTION_BYTES } else { 0 };
    let ledger = Ledger::new(&Limits { memory, names, ..Limits::default() });
    let ledger = ledger
        .with_stateless(options.stateless_commands.clone())
        .with_refusals(options.refusals.clone());
    ledger.into()
}
