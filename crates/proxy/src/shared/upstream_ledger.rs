//! The ledger of one shared connection: which client each reply belongs to.
//!
//! Redis answers the requests of a connection in their order, one reply each, and only requests of
//! which this is true are shared. So the requests in flight are a queue of runs, each with a client
//! and a number, and the replies are read off it.
//!
//! A reply that cannot be the answer to the oldest request proves that the two ends disagree, and
//! then every later reply may be another client's. The connection is closed: its requests in flight
//! end without a reply, and no other request does. A reply is never delivered before it has been
//! checked, as far as it can be: the first bytes of an error or status are awaited.
//!
//! A server that leaves out a reply, or sends two, of the expected type is not detected until its
//! count differs. No Redis server does that; a request that would cause it is not shared.
//!
//! It has no buffers: the caller keeps the bytes that were not taken.

use std::collections::VecDeque;

use resp::{Frames, Limits};

use crate::labelled::labelled;

/// A client of a shared connection. The number is never used again, so that a late reply finds no
/// later client.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(pub u64);

/// A number of requests, and their bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Requests.
    pub requests: u32,
    /// Bytes.
    pub bytes: u32,
}

impl Load {
    /// The most that is in flight on one connection. A server closes a connection of which it has
    /// buffered more than `client-query-buffer-limit`, at least 1 MiB, while its clients are
    /// paused.
    pub const MOST: Self = Self { requests: 16 * 1024, bytes: 512 * 1024 };

    /// What is left of it after `taken`.
    #[must_use]
    pub fn less(self, taken: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(taken.requests),
            bytes: self.bytes.saturating_sub(taken.bytes),
        }
    }
}

labelled! {
    /// Why a connection must be closed: the server and this ledger disagree.
    pub enum Desync {
        /// A reply arrived while none was awaited. A server at its `maxclients` sends an error
        /// unasked.
        Unasked = "reply without a request",
        /// A frame of a type that the connection's protocol version does not have, or bytes that
        /// are not RESP.
        NotResp = "reply of an impossible type",
        /// A message or confirmation of a subscription, which no shared request asks for.
        Subscribed = "message of a subscription on a shared connection",
        /// A reply that says that the connection is in another state than its clients have in
        /// common: `+QUEUED` within a transaction, `-NOAUTH` after authentication.
        OtherState = "the connection lost the state that its clients share",
        /// The server refused the framing of a request, and closes the connection.
        ProtocolError = "the server refused the framing of a request",
        /// More replies were taken than requests sent. Never in normal operation.
        Broken = "the ledger of a shared connection lost count",
    }
}

/// Bytes of one or several replies to one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// The client; `None` if it has left, and the bytes are dropped.
    pub to: Option<MemberId>,
    /// The number of replies that end in these bytes. The last one ends at their end, if any does.
    pub ended: u32,
    /// Whether the reply is `-NOAUTH`, on a connection that is not authenticated.
    pub not_authenticated: bool,
}

/// Consecutive requests of one client.
#[derive(Debug, Clone, Copy)]
struct Run {
    member: Option<MemberId>,
    requests: u32,
    bytes: u32,
    /// Their replies may be any value.
    script: bool,
}

/// The first bytes of an error or status that decide whether it is delivered.
pub(crate) const DECIDING: usize = 24;

/// The requests in flight on one connection.
#[derive(Debug)]
pub struct UpstreamLedger {
    frames: Frames,
    runs: VecDeque<Run>,
    limits: Load,
    in_flight: Load,
    resp3: bool,
    authenticated: bool,
    /// The incomplete frame is a push message.
    in_push: bool,
    closed: Option<Desync>,
}

impl UpstreamLedger {
    /// A connection whose setup has been answered: of that protocol version, and `authenticated` if
    /// its clients sent a secret.
    #[must_use]
    pub fn new(resp3: bool, authenticated: bool, limits: Load) -> Self {
        Self {
            frames: Frames::new(Limits::default()),
            runs: VecDeque::new(),
            limits,
            in_flight: Load::default(),
            resp3,
            authenticated,
            in_push: false,
            closed: None,
        }
    }

    /// The requests and bytes that may be sent now.
    #[must_use]
    pub fn room(&self) -> Load {
        match self.closed {
            Some(_) => Load::default(),
            None => self.limits.less(self.in_flight),
        }
    }

    /// The number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.requests
    }

    /// Records requests of `member` that are about to be sent, in the order in which they are.
    /// `script`: their replies may be any value. False if they exceed the room; then they must not
    /// be sent.
    #[must_use]
    pub fn send(&mut self, member: MemberId, requests: u32, bytes: u32, script: bool) -> bool {
        let room = self.room();
        if requests > room.requests || bytes > room.bytes {
            return false;
        }
        if requests == 0 {
            return true;
        }
        self.in_flight.requests += requests;
        self.in_flight.bytes += bytes;
        let merges = self.runs.len() > 1;
        match self.runs.back_mut() {
            // The oldest run is never extended: its bytes count until it ends.
            Some(run) if merges && run.member == Some(member) && run.script == script => {
                run.requests += requests;
                run.bytes += bytes;
            }
            _ => self.runs.push_back(Run { member: Some(member), requests, bytes, script }),
        }
        true
    }

    /// A client has left. Its replies will be dropped, not delivered to another client.
    pub fn leave(&mut self, member: MemberId) {
        for run in self.runs.iter_mut().filter(|run| run.member == Some(member)) {
            run.member = None;
        }
    }

    /// Takes the next bytes of replies from the beginning of `input`. `None` if more bytes are
    /// needed; what remains of `input` then precedes them, at most a few bytes.
    ///
    /// # Errors
    ///
    /// Why the connection must be closed; also for all further calls.
    pub fn take<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Piece<'a>>, Desync> {
        if let Some(desync) = self.closed {
            return Err(desync);
        }
        let result = self.take_piece(input);
        if let Err(desync) = result {
            self.closed = Some(desync);
        }
        result
    }

    fn take_piece<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Piece<'a>>, Desync> {
        loop {
            let Some(&first) = input.first() else { return Ok(None) };
            let mut not_authenticated = false;
            if self.frames.at_boundary() {
                if first == b'>' {
                    if !self.resp3 {
                        return Err(Desync::NotResp);
                    }
                    self.in_push = true;
                } else {
                    let run = *self.runs.front().ok_or(Desync::Unasked)?;
                    if let Some(piece) = self.take_run(input, run)? {
                        return Ok(Some(piece));
                    }
                    match self.is_refused(first, input, run.script)? {
                        Some(is_refused) => not_authenticated = is_refused,
                        None => return Ok(None),
                    }
                }
            }
            let ended = self.frames.end(input).map_err(|_| Desync::NotResp)?;
            let (bytes, rest) =
                input.split_at_checked(ended.unwrap_or(input.len())).ok_or(Desync::Broken)?;
            *input = rest;
            if self.in_push {
                self.in_push = ended.is_none();
                if ended.is_some() && self.frames.is_of_subscription() {
                    return Err(Desync::Subscribed);
                }
                continue;
            }
            let to = self.runs.front().ok_or(Desync::Broken)?.member;
            let ended = u32::from(ended.is_some());
            self.answer(ended)?;
            return Ok(Some(Piece { bytes, to, ended, not_authenticated }));
        }
    }

    /// Takes short replies to the oldest run, many at once.
    #[inline]
    fn take_run<'a>(
        &mut self,
        input: &mut &'a [u8],
        run: Run,
    ) -> Result<Option<Piece<'a>>, Desync> {
        let (ended, len) = self.frames.run(input, run.requests);
        if ended == 0 {
            return Ok(None);
        }
        let (bytes, rest) = input.split_at_checked(len).ok_or(Desync::Broken)?;
        *input = rest;
        self.answer(ended)?;
        Ok(Some(Piece { bytes, to: run.member, ended, not_authenticated: false }))
    }

    /// So many replies to the oldest run have ended.
    #[inline]
    fn answer(&mut self, ended: u32) -> Result<(), Desync> {
        let run = self.runs.front_mut().ok_or(Desync::Broken)?;
        run.requests = run.requests.checked_sub(ended).ok_or(Desync::Broken)?;
        let Load { requests, bytes } = &mut self.in_flight;
        *requests = requests.checked_sub(ended).ok_or(Desync::Broken)?;
        if run.requests == 0 {
            *bytes = bytes.checked_sub(run.bytes).ok_or(Desync::Broken)?;
            self.runs.pop_front();
        }
        Ok(())
    }

    /// Checks the beginning of a reply. Whether it is `-NOAUTH`, on a connection that is not
    /// authenticated; `None` if more bytes are needed.
    fn is_refused(&self, first: u8, input: &[u8], script: bool) -> Result<Option<bool>, Desync> {
        match first {
            b'+' | b'-' => {}
            b':' | b'$' | b'*' => return Ok(Some(false)),
            b'%' | b'~' | b'_' | b'#' | b',' | b'(' | b'=' | b'!' | b'|' if self.resp3 => {
                return Ok(Some(false));
            }
            _ => return Err(Desync::NotResp),
        }
        let line = match input.iter().position(|byte| *byte == b'\n') {
            Some(end) => input.get(..end).unwrap_or_default(),
            None if input.len() < DECIDING => return Ok(None),
            None => input,
        };
        if script {
            return Ok(Some(false));
        }
        if line == b"+QUEUED\r" || line == b"+RESET\r" {
            return Err(Desync::OtherState);
        }
        if line.starts_with(b"-ERR Protocol error") {
            return Err(Desync::ProtocolError);
        }
        match line.starts_with(b"-NOAUTH") {
            true if self.authenticated => Err(Desync::OtherState),
            true => Ok(Some(true)),
            false => Ok(Some(false)),
        }
    }
}
