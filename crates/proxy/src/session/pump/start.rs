//! What a pump begins with: nothing, requests that came too early, or all that a session brings
//! from another target.
//!
//! Deliberately absent: the connection itself.

use resp::{Ledger, Limits};

use crate::options::{Options, Sessions, Subscriptions};
use crate::session::resume::Followed;

/// Most bytes of text that are remembered of a session's state. A password may be a signed token of
/// a few kilobytes.
const MEMORY: u16 = 8 * 1024;

/// Most bytes of names of channels and patterns that are remembered of a session. A gateway that
/// listens to five thousand channels on behalf of its own clients has that.
const NAMES: u32 = 512 * 1024;

/// What a pump begins with.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// Read from the client already, and not forwarded.
    pub(crate) early: Vec<u8>,
    /// What goes on with it, if it was carried over.
    pub(crate) followed: Option<Box<Followed>>,
}

impl From<Vec<u8>> for Start {
    fn from(early: Vec<u8>) -> Self {
        Self { early, followed: None }
    }
}

/// What goes on with a session that begins: a ledger that remembers, if somebody will want to know.
pub(super) fn fresh(options: &Options) -> Followed {
    let memory = if options.sessions == Sessions::Carry { MEMORY } else { 0 };
    let names = if options.subscriptions == Subscriptions::Replay { NAMES } else { 0 };
    let ledger = Ledger::new(&Limits { memory, names, ..Limits::default() });
    Followed {
        ledger: ledger.with_stateless(options.stateless_commands.clone()),
        messages: Vec::new(),
    }
}
