//! Replays the state of a session on a connection to another server, and checks the replies.
//!
//! The requests are not those of the client, but the fewest that lead to the same state, in an
//! order in which each may depend on the previous ones: authentication, protocol, names, switches,
//! database. They pass through a new [`Ledger`], which matches the replies by the usual rules and
//! records what was accepted. At the end, the recorded states of both ledgers must be equal; then
//! the new ledger continues the session.
//!
//! The requests always include one `PING`, because neither an accepted connection nor `+OK` proves
//! that a server is working: a server that loads its data answers `HELLO`, `SELECT` and
//! `SUBSCRIBE`, and one that runs a script answers `AUTH` and `HELLO`. The `PING` precedes the
//! subscriptions, after which RESP2 has another reply to it. Every reply proves that the server
//! works, `-NOAUTH` and `-NOPERM` included, except those that say that it cannot serve now. If the
//! former server has served the client, `-NOAUTH` is a refusal: it would be the reply to everything
//! from then on.
//!
//! A client may have set what its user may not set: before it authenticated, or as a part of
//! `HELLO`, which needs no permission for a name. The name is therefore set by `HELLO` where the
//! session speaks RESP3 or did so, too. A request that sets state and is denied is no failure in
//! itself; at the end it shows what the connection lacks. If that is more than a name, the session
//! is replayed on another connection [in the order](Replay::before_authentication) in which a
//! client could have done it: with the credentials of the user before, if it had another one.

#[cfg(test)]
mod resubscription_tests;
#[cfg(test)]
mod state_tests;
#[cfg(test)]
mod used_connection_tests;

use std::fmt;

use memchr::memmem;
use zeroize::Zeroizing;

use crate::commands::class::{Class, ClassGroup};
use crate::ledger::Ledger;
use crate::ledger::client_state::SharedState;
use crate::ledger::replay_state::{AuthMethod, ReplayState, SUBSCRIPTION_KINDS, Text, part};
use crate::ledger::session_state::{Direction, ReplyOutcome, SessionState};
use crate::scan::limits::Limits;
use crate::scan::message_kind::{self, Hint};

/// Why a session cannot continue on that connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayError {
    /// The server is not ready, or is not the master. Another attempt, or another server, may
    /// succeed.
    NotReady(Hint),
    /// The server accepts no connections now, or is running a script. Another attempt may succeed.
    Unavailable,
    /// The server refused a request that the former server had accepted.
    Refused,
    /// The replies are not understood.
    Unexpected,
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotReady(_) => "the new master is not ready to serve a carried session",
            Self::Unavailable => "the new master accepts no connections or is running a script",
            Self::Refused => {
                "the new master refused a part of the session state that the old one had accepted"
            }
            Self::Unexpected => "the new master sent unexpected replies to the session state",
        })
    }
}

/// The replay of the state of one session.
#[derive(Default)]
pub struct Replay {
    requests: Zeroizing<Vec<u8>>,
    ledger: Ledger,
    /// Number of requests after the `PING`.
    after_ping: u64,
    /// If the session is subscribed: messages received before all subscriptions are confirmed.
    messages: Option<Messages>,
    /// Whether the session was on this server before, and if so, whether it runs a script now.
    same_server: Option<bool>,
    /// The former server has served the client.
    is_admitted: bool,
    /// The server refused the `PING` of a client that has not authenticated.
    unauthenticated: bool,
    /// The error with which the server refused a request.
    refusal: Vec<u8>,
    /// The server denied the user a request that sets state.
    is_denied: bool,
    /// The number of replies missing before that to the credentials of a former user, which may
    /// not be valid any more; zero if there are none.
    former: u64,
}

impl fmt::Debug for Replay {
    /// Omits the requests, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").field("bytes", &self.requests.len()).finish_non_exhaustive()
    }
}

impl Replay {
    /// The replay of the session of `ledger`; `None` if it [cannot be
    /// carried](Ledger::can_be_carried).
    #[must_use]
    pub fn of(ledger: &Ledger) -> Option<Self> {
        if !ledger.can_be_carried() {
            return None;
        }
        let messages = (ledger.session_state() == SessionState::Subscribed).then(Messages::default);
        let is_admitted = ledger.is_admitted();
        Some(Self { messages, is_admitted, ..Self::with(ledger, true, false) })
    }

    /// The replay of the state of a session that [may share](Ledger::shared_state) connections, on
    /// another connection to the same server; `None` if it may not. What pins it to that server
    /// remains valid. Without `names`, which no other client is to see, of client and library.
    #[must_use]
    pub fn of_shared(ledger: &Ledger, names: bool) -> Option<Self> {
        ledger.shared_state().map(|_| Self::with(ledger, names, false))
    }

    /// The replay of a new session, which has no state.
    #[must_use]
    pub fn of_new() -> Self {
        Self::with(&Ledger::new(&Limits { memory: 1, ..Limits::default() }), false, false)
    }

    /// The replay of what is recorded of the session of `before`; see [`requests`].
    fn with(before: &Ledger, names: bool, early: bool) -> Self {
        let (requests, after_ping) = requests(before.recorded_state(), names, early);
        let mut ledger = before.successor();
        ledger.request(&requests);
        Self { requests, ledger, after_ping, ..Self::default() }
    }

    /// The replay of the session of `ledger` on another connection, where its state is set before
    /// it authenticates, or as the user before, and again after that; `None` if the order makes no
    /// difference, or if the server denied nothing that `ledger` has.
    #[must_use]
    pub fn before_authentication(&self, ledger: &Ledger) -> Option<Self> {
        let state = ledger.recorded_state();
        if state.auth == AuthMethod::None || !self.is_denied || !self.lacks(ledger, false) {
            return None;
        }
        let replay = Self::with(ledger, true, true);
        let messages = self.messages.is_some().then(Messages::default);
        let same_server = self.same_server.map(|_| false);
        let former = if state.former_auth == AuthMethod::None { 0 } else { replay.ledger.owed() };
        Some(Self { messages, same_server, former, ..replay })
    }

    /// Whether the server denied a name of client or library that the session of `before` has.
    #[must_use]
    pub fn lacks_names(&self, before: &Ledger) -> bool {
        self.is_denied && self.lacks(before, true)
    }

    /// Whether the connection lacks a part of the state of `before`, `names` included.
    fn lacks(&self, before: &Ledger, names: bool) -> bool {
        !self.ledger.recorded_state().is_like(before.recorded_state(), names)
    }

    /// Takes the connection back to the start first, because it is not a new one. The server
    /// decides at `RESET`, as it does for a new connection, whether a client without credentials
    /// is authenticated.
    #[must_use]
    pub fn on_used_connection(mut self) -> Self {
        let mut requests = Zeroizing::new(Vec::with_capacity(RESET.len() + self.requests.len()));
        requests.extend_from_slice(RESET);
        requests.extend_from_slice(&self.requests);
        self.ledger = self.ledger.successor();
        self.ledger.request(&requests);
        self.requests = requests;
        self
    }

    /// Whether the server has refused a request because nobody has authenticated on the connection.
    #[must_use]
    pub fn is_unauthenticated(&self) -> bool {
        self.unauthenticated
    }

    /// Accepts that the server runs a script: it is the one that the session was on, and the client
    /// may be about to end the script. Names are then not set.
    #[must_use]
    pub fn on_same_server(mut self) -> Self {
        self.same_server = Some(false);
        self
    }

    /// Whether the server ran a script and the session was on it before.
    #[must_use]
    pub fn met_script(&self) -> bool {
        self.same_server == Some(true)
    }

    /// Whether the connection has the user and the protocol version of the session of `before`,
    /// whatever else it lacks: what the client may not do, it may not do there.
    #[must_use]
    pub fn has_user_of(&self, before: &Ledger) -> bool {
        self.is_answered()
            && self.ledger.shared_state().zip(before.shared_state()).is_some_and(|(here, there)| {
                here.credentials == there.credentials && here.resp3 == there.resp3
            })
    }

    /// Whether the connection has the state of the session of `before`, apart from names.
    #[must_use]
    pub fn has_shared_state_of(&self, before: &Ledger) -> bool {
        self.is_answered() && self.ledger.shared_state() == before.shared_state()
    }

    /// The state of the connection, as far as its clients share it.
    #[must_use]
    pub fn shared_state(&self) -> Option<SharedState<'_>> {
        self.ledger.shared_state()
    }

    /// Whether the connection has the state that its clients share: all of it was accepted.
    #[must_use]
    pub fn has_shared_state(&self) -> bool {
        self.is_answered() && !self.is_denied && self.ledger.shared_state().is_some()
    }

    /// The bytes to send.
    #[must_use]
    pub fn requests(&self) -> &[u8] {
        &self.requests
    }

    /// Whether all replies have arrived.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.ledger.owed() == 0 && self.ledger.at_boundary(Direction::Reply)
    }

    /// Checks `bytes` from the server. Returns how many of them belong to the replies; the rest
    /// follows the last reply.
    ///
    /// # Errors
    ///
    /// The first reply that is not the expected one.
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
                // A push message, an incomplete frame, or bytes that are not RESP, after which the
                // ledger is never at a boundary.
                if self.ledger.is_opaque() {
                    return Err(ReplayError::Unexpected);
                }
                continue;
            }
            if let Err(error) = self.check_reply(owed) {
                self.refusal = piece.to_vec();
                return Err(error);
            }
            if self.is_denied && self.refusal.is_empty() {
                self.refusal = piece.to_vec();
            }
        }
        Ok(taken)
    }

    /// The server's words after [`ReplayError::Refused`] or a denial, as far as they arrived at
    /// once. Without the arguments that an error about an unknown command repeats: one may be a
    /// password.
    #[must_use]
    pub fn refusal(&self) -> &[u8] {
        let words = self.refusal.strip_prefix(b"-").unwrap_or_default();
        let ends = [&b"\r"[..], b", with args beginning with"];
        let end = ends.iter().filter_map(|end| memmem::find(words, end)).min();
        words.get(..end.unwrap_or(words.len())).unwrap_or_default()
    }

    /// Checks the reply that has just ended, before which `owed` replies were missing.
    fn check_reply(&mut self, owed: u64) -> Result<(), ReplayError> {
        let (kind, line) = self.ledger.last_line();
        // The first reply may be to no request: a server at its `maxclients` sends an error and
        // closes the connection.
        if kind == b'-' && message_kind::is_unavailable(line) {
            if self.same_server.is_some() && message_kind::is_busy(line) {
                self.same_server = Some(true);
                return Ok(());
            }
            return Err(ReplayError::Unavailable);
        }
        if owed == self.after_ping + 1 {
            self.unauthenticated = kind == b'-' && line.starts_with(b"NOAUTH");
            return match kind {
                b'-' if self.unauthenticated && self.is_admitted => Err(ReplayError::Refused),
                b'+' | b'-' => Ok(()),
                _ => Err(ReplayError::Unexpected),
            };
        }
        match self.ledger.last_answer() {
            Some((_, ReplyOutcome::Done)) => Ok(()),
            Some((class, ReplyOutcome::Error)) if sets_state(class) && is_denial(line) => {
                self.is_denied = true;
                Ok(())
            }
            Some((_, ReplyOutcome::Error)) if owed == self.former => {
                self.is_denied = true;
                Ok(())
            }
            Some((_, ReplyOutcome::Error)) => Err(ReplayError::Refused),
            _ => Err(ReplayError::Unexpected),
        }
    }

    /// Takes bytes that the server sent after the last reply. They can only be messages of
    /// subscriptions, the last one possibly incomplete.
    ///
    /// # Errors
    ///
    /// If they are anything else.
    pub fn follow(&mut self, bytes: &[u8]) -> Result<(), ReplayError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let Some(messages) = &mut self.messages else { return Err(ReplayError::Unexpected) };
        self.ledger.reply(bytes);
        messages.buffered.extend_from_slice(bytes);
        if self.ledger.is_opaque() { Err(ReplayError::Unexpected) } else { Ok(()) }
    }

    /// The ledger that continues the session of `before`, and the messages that have arrived for
    /// the client.
    ///
    /// # Errors
    ///
    /// If the two states differ, or if replies are missing.
    pub fn finish(mut self, before: &Ledger) -> Result<(Ledger, Vec<u8>), ReplayError> {
        let is_same = if self.is_denied {
            self.ledger.replay_state().is_some() && !self.lacks(before, false)
        } else {
            self.ledger.replay_state() == before.replay_state()
        };
        if self.ledger.owed() > 0 || self.ledger.is_opaque() || !is_same {
            return Err(ReplayError::Unexpected);
        }
        self.ledger.was_carried(before);
        // These requests are not those of the client.
        self.ledger.take_counts();
        Ok((self.ledger, self.messages.map(|it| it.buffered).unwrap_or_default()))
    }
}

/// Maximum bytes of messages that are buffered until all subscriptions are confirmed.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;

/// Messages that arrive before all subscriptions are confirmed. Messages that exceed the buffer are
/// dropped, like those that were published while the session was not subscribed.
#[derive(Debug, Default)]
struct Messages {
    buffered: Vec<u8>,
    /// The position at which the current frame begins.
    frame_start: usize,
    /// The current frame did not fit.
    dropped: bool,
}

impl Messages {
    /// Adds the next piece of a frame. If the frame has `ended`, `message` is whether it is a
    /// message.
    fn take(&mut self, piece: &[u8], ended: bool, message: bool) {
        self.dropped |= self.buffered.len() + piece.len() > MAX_MESSAGE_BYTES;
        if !self.dropped {
            self.buffered.extend_from_slice(piece);
        }
        if self.dropped || (ended && !message) {
            self.buffered.truncate(self.frame_start);
        }
        if ended {
            self.frame_start = self.buffered.len();
            self.dropped = false;
        }
    }
}

/// The request that takes a connection back to the start.
pub const RESET: &[u8] = b"*1\r\n$5\r\nRESET\r\n";

/// Whether a request of that class sets a part of the state which the session may do without until
/// all requests are answered.
fn sets_state(class: Class) -> bool {
    class.group() == ClassGroup::Replayable && !matches!(class, Class::Auth | Class::Hello)
}

/// Whether the user lacks the permission, or has not authenticated.
fn is_denial(line: &[u8]) -> bool {
    line.starts_with(b"NOPERM") || line.starts_with(b"NOAUTH")
}

/// The requests that set `state` on a new connection, and the number of requests after the `PING`.
/// `early`: what can be set before authenticating, or as the user before, is set there as well.
fn requests(state: &ReplayState, names: bool, early: bool) -> (Zeroizing<Vec<u8>>, u64) {
    let db = state.db.to_string();
    let mut settings = switches(state, names);
    if state.db != 0 {
        settings.push(vec![b"SELECT", db.as_bytes()]);
    }
    let mut all = Vec::new();
    if early {
        let name = state.text(Text::Name);
        let (user, password) = (state.text(Text::FormerUser), state.text(Text::FormerPassword));
        all.extend(login(state.former_auth, user, password));
        // Names that `HELLO` sets are set there once more.
        if has_hello(state, names) && !name.is_empty() {
            all.push(vec![&b"CLIENT"[..], b"SETNAME", name]);
        }
        all.extend(settings.iter().cloned());
    }
    all.append(&mut authentication(state, names));
    all.append(&mut settings);
    all.push(vec![b"PING"]);
    let before = all.len();
    // Last, because in RESP2 a subscribed connection accepts no other commands.
    for (kind, command) in SUBSCRIPTION_KINDS {
        let mut names = state.names().of(kind).peekable();
        if names.peek().is_some() {
            all.push(std::iter::once(command).chain(names).collect());
        }
    }
    (encode(&all), (all.len() - before) as u64)
}

/// The requests for authentication and protocol, and for the name with `HELLO`.
fn authentication(state: &ReplayState, names: bool) -> Vec<Vec<&[u8]>> {
    let (user, password) = (state.text(Text::User), state.text(Text::Password));
    let mut all: Vec<Vec<&[u8]>> = login(state.auth, user, password).into_iter().collect();
    if has_hello(state, names) {
        let mut hello: Vec<&[u8]> = vec![b"HELLO", if state.resp3 { b"3" } else { b"2" }];
        let name = state.text(Text::Name);
        if names && !name.is_empty() {
            hello.extend([b"SETNAME", name]);
        }
        all.push(hello);
    }
    all
}

/// The request for authentication.
fn login<'a>(method: AuthMethod, user: &'a [u8], password: &'a [u8]) -> Option<Vec<&'a [u8]>> {
    match method {
        AuthMethod::None => None,
        AuthMethod::Password => Some(vec![b"AUTH", password]),
        AuthMethod::User => Some(vec![b"AUTH", user, password]),
    }
}

/// Whether the state needs `HELLO`: for its protocol version, or for a name that was set so.
fn has_hello(state: &ReplayState, names: bool) -> bool {
    let is_named = names && state.is_named_by_hello && !state.text(Text::Name).is_empty();
    state.resp3 || is_named
}

/// The requests for names, without that which `HELLO` sets, and for switches.
fn switches(state: &ReplayState, names: bool) -> Vec<Vec<&[u8]>> {
    let text = |text| if names { state.text(text) } else { &[] };
    let mut all: Vec<Vec<&[u8]>> = Vec::new();
    let name = text(Text::Name);
    if !name.is_empty() && !has_hello(state, names) {
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

/// Encodes the requests in a buffer that is allocated with the final size: a buffer that grows
/// leaves copies in freed memory.
fn encode(requests: &[Vec<&[u8]>]) -> Zeroizing<Vec<u8>> {
    // A header is `*` or `$`, at most ten digits and a line end. A line end follows each word.
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
