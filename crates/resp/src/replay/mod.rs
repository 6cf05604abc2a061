//! The state of a session, said again to another server, and its answers checked.
//!
//! The requests are not those that the client once sent, but the shortest that lead to the same
//! state, in the order in which each may need the one before it: who it is, the protocol, its
//! names, its switches, its database. They go through a fresh [`Ledger`], so their answers are told
//! apart by the same rule as any others, and that ledger records what was accepted. In the end both
//! memories must be equal: only then is the session what it was, and the fresh ledger goes on with
//! it.
//!
//! One `PING` is always among them, because an accepted connection proves nothing, and neither does
//! `+OK`: a server that loads its data answers `HELLO`, `SELECT` and `SUBSCRIBE`, one that runs a
//! script answers `AUTH` and `HELLO`. It stands before the subscriptions, after which RESP2 would
//! answer it differently. Every reply to it proves the server, `-NOAUTH` and `-NOPERM` included,
//! except those that say that the server cannot serve at present.
//!
//! Deliberately absent: sending, and what to do with a refusal.

pub(crate) mod channel_names;
pub(crate) mod recorder;
pub(crate) mod state;

#[cfg(test)]
mod resubscription_tests;
#[cfg(test)]
mod state_tests;

use std::fmt;

use zeroize::Zeroizing;

use crate::ledger::Ledger;
use crate::ledger::session_state::{Direction, Hint, ReplyOutcome, SessionState};
use crate::replay::channel_names::SUBSCRIPTION_KINDS;
use crate::replay::state::{AuthMethod, ReplayState, Text, part};
use crate::scan::message_kind;

/// Why a session cannot go on over that connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayError {
    /// The server is not able to yet, or it is not the master: another attempt, or another server,
    /// may be.
    NotReady(Hint),
    /// The server takes no connections at present, or executes nothing but a script: another
    /// attempt may succeed.
    Unavailable,
    /// It does not accept what the other server had accepted.
    Refused,
    /// Its answers cannot be understood.
    Unexpected,
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotReady(_) => "the new master is not ready to take over a session",
            Self::Unavailable => "the new master takes no connections or runs a script",
            Self::Refused => "the new master refuses what the old one had accepted of a session",
            Self::Unexpected => "the new master's answers to a session's state make no sense",
        })
    }
}

/// A session's state on its way to another server.
pub struct Replay {
    requests: Zeroizing<Vec<u8>>,
    ledger: Ledger,
    /// How many requests follow the `PING`.
    after_ping: u64,
    /// If the session is subscribed: the messages that come before all is confirmed.
    messages: Option<Messages>,
}

impl fmt::Debug for Replay {
    /// Without the requests: one of them may be a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").field("bytes", &self.requests.len()).finish_non_exhaustive()
    }
}

impl Replay {
    /// The replay of the session that `ledger` has followed; `None` if that [cannot be
    /// carried](Ledger::can_be_carried).
    #[must_use]
    pub fn of(ledger: &Ledger) -> Option<Self> {
        if !ledger.can_be_carried() {
            return None;
        }
        let (requests, after_ping) = requests(ledger.replay_state()?);
        let mut fresh = ledger.successor();
        fresh.request(&requests);
        let messages = (ledger.session_state() == SessionState::Subscribed).then(Messages::default);
        Some(Self { requests, ledger: fresh, after_ping, messages })
    }

    /// What has to be sent, all of it.
    #[must_use]
    pub fn requests(&self) -> &[u8] {
        &self.requests
    }

    /// Whether every answer has come.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.ledger.owed() == 0 && self.ledger.at_boundary(Direction::Reply)
    }

    /// Takes `bytes` that the server sends, and returns how many belong to the answers: the rest
    /// follows the last of them.
    ///
    /// # Errors
    ///
    /// The first answer that is not the one hoped for.
    pub fn answer(&mut self, bytes: &[u8]) -> Result<usize, ReplayError> {
        let mut taken = 0;
        while !self.is_answered() {
            let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) else { break };
            let owed = self.ledger.owed();
            let (piece, _) = self.ledger.reply_split(rest);
            taken += piece.len();
            if let Some(messages) = &mut self.messages {
                let ended = self.ledger.at_boundary(Direction::Reply);
                messages.take(
                    piece,
                    ended,
                    self.ledger.owed() == owed && self.ledger.last_is_message(),
                );
            }
            if let Some(hint) = self.ledger.take_hint() {
                return Err(ReplayError::NotReady(hint));
            }
            if self.ledger.owed() == owed {
                // A push, a piece, or no RESP, of which an opaque ledger is at no boundary for
                // ever.
                if self.ledger.is_opaque() {
                    return Err(ReplayError::Unexpected);
                }
                continue;
            }
            self.judge(owed)?;
        }
        Ok(taken)
    }

    /// Judges the answer that has just ended, before which `owed` were missing.
    fn judge(&self, owed: u64) -> Result<(), ReplayError> {
        let (kind, line) = self.ledger.last_line();
        // The first answer may be one that nobody asked for: a server at its `maxclients` writes it
        // and closes.
        if kind == b'-' && message_kind::is_unavailable(line) {
            return Err(ReplayError::Unavailable);
        }
        if owed == self.after_ping + 1 {
            return if matches!(kind, b'+' | b'-') { Ok(()) } else { Err(ReplayError::Unexpected) };
        }
        match self.ledger.last_answer() {
            Some((_, ReplyOutcome::Done)) => Ok(()),
            Some((_, ReplyOutcome::Error)) => Err(ReplayError::Refused),
            _ => Err(ReplayError::Unexpected),
        }
    }

    /// Takes what the server has sent behind the last answer. That can only be messages of what was
    /// subscribed to, perhaps a piece of one.
    ///
    /// # Errors
    ///
    /// It is something that nobody has asked for.
    pub fn follow(&mut self, bytes: &[u8]) -> Result<(), ReplayError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let Some(messages) = &mut self.messages else { return Err(ReplayError::Unexpected) };
        self.ledger.reply(bytes);
        messages.buffered.extend_from_slice(bytes);
        if self.ledger.is_opaque() { Err(ReplayError::Unexpected) } else { Ok(()) }
    }

    /// The ledger that goes on with the session that `before` has followed, and the messages that
    /// have come for it meanwhile.
    ///
    /// # Errors
    ///
    /// The two are not the same, or not every answer has come.
    pub fn finish(mut self, before: &Ledger) -> Result<(Ledger, Vec<u8>), ReplayError> {
        if self.ledger.owed() > 0
            || self.ledger.is_opaque()
            || self.ledger.replay_state() != before.replay_state()
        {
            return Err(ReplayError::Unexpected);
        }
        self.ledger.was_carried(before);
        // What was said here the client has not said.
        self.ledger.take_counts();
        Ok((self.ledger, self.messages.map(|it| it.buffered).unwrap_or_default()))
    }
}

/// Most bytes of messages that are kept until all is confirmed.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;

/// Messages that come before all subscriptions are confirmed. Those for which there is no room go
/// the way of all that were published while nobody was subscribed.
#[derive(Debug, Default)]
struct Messages {
    buffered: Vec<u8>,
    /// Where the frame under way begins.
    begun: usize,
    /// The frame under way did not fit.
    lost: bool,
}

impl Messages {
    /// The next piece of a frame came; if it `ended`, it is a `message` or not.
    fn take(&mut self, piece: &[u8], ended: bool, message: bool) {
        self.lost |= self.buffered.len() + piece.len() > MAX_MESSAGE_BYTES;
        if !self.lost {
            self.buffered.extend_from_slice(piece);
        }
        if self.lost || (ended && !message) {
            self.buffered.truncate(self.begun);
        }
        if ended {
            self.begun = self.buffered.len();
            self.lost = false;
        }
    }
}

/// The requests that lead a fresh connection to the state in `memory`, and how many of them follow
/// the `PING`.
fn requests(state: Option<&ReplayState>) -> (Zeroizing<Vec<u8>>, u64) {
    let Some(state) = state else { return (encode(&[vec![b"PING"]]), 0) };
    let db = state.db.to_string();
    let mut all = identity(state);
    if state.db != 0 {
        all.push(vec![b"SELECT", db.as_bytes()]);
    }
    all.push(vec![b"PING"]);
    let before = all.len();
    // Last, because in RESP2 a subscribed connection may say nothing else any more.
    for (kind, command) in SUBSCRIPTION_KINDS {
        let mut names = state.names().of(kind).peekable();
        if names.peek().is_some() {
            all.push(std::iter::once(command).chain(names).collect());
        }
    }
    (encode(&all), (all.len() - before) as u64)
}

/// Who the session is, its protocol, its names and its switches.
fn identity(state: &ReplayState) -> Vec<Vec<&[u8]>> {
    let text = |text| state.text(text);
    let name = text(Text::Name);
    let mut all: Vec<Vec<&[u8]>> = Vec::new();
    match state.auth {
        AuthMethod::None => {}
        AuthMethod::Password => all.push(vec![b"AUTH", text(Text::Password)]),
        AuthMethod::User => all.push(vec![b"AUTH", text(Text::User), text(Text::Password)]),
    }
    if state.resp3 {
        all.push(vec![b"HELLO", b"3"]);
    }
    if !name.is_empty() {
        all.push(vec![b"CLIENT", b"SETNAME", name]);
    }
    for (which, value) in
        [(&b"LIB-NAME"[..], text(Text::LibName)), (b"LIB-VER", text(Text::LibVersion))]
    {
        if !value.is_empty() {
            all.push(vec![b"CLIENT", b"SETINFO", which, value]);
        }
    }
    for (part, switch) in [(part::NO_EVICT, &b"NO-EVICT"[..]), (part::NO_TOUCH, b"NO-TOUCH")] {
        if state.is_on(part) {
            all.push(vec![b"CLIENT", switch, b"ON"]);
        }
    }
    if state.is_on(part::READ_ONLY) {
        all.push(vec![b"READONLY"]);
    }
    all
}

/// The requests on the wire, in a buffer that has the right size from the start: one that grows
/// leaves copies behind.
fn encode(requests: &[Vec<&[u8]>]) -> Zeroizing<Vec<u8>> {
    // A header is `*` or `$`, at most ten digits and a line end, and behind a word stands another
    // line end.
    let size = |words: &Vec<&[u8]>| 13 + words.iter().map(|word| 15 + word.len()).sum::<usize>();
    let mut bytes = Zeroizing::new(Vec::with_capacity(requests.iter().map(size).sum()));
    for words in requests {
        bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
    }
    bytes
}
