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
//! Deliberately absent: buffers. The caller keeps the bytes that were not taken.

use std::collections::VecDeque;

use resp::{Frames, Limits};

/// A client of a shared connection. The number is never used again, so that a late reply finds no
/// later client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member(pub u64);

/// Bounds of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamLimits {
    /// Maximum number of requests in flight.
    pub requests: u32,
    /// Maximum bytes of requests in flight. A server closes a connection of which it has buffered
    /// more than `client-query-buffer-limit`, at least 1 MiB, while its clients are paused.
    pub bytes: u32,
}

impl Default for UpstreamLimits {
    fn default() -> Self {
        Self { requests: 16 * 1024, bytes: 512 * 1024 }
    }
}

/// Why a connection must be closed: the server and this ledger disagree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Desync {
    /// A reply arrived while none was awaited. A server at its `maxclients` sends an error unasked.
    Unasked,
    /// A frame of a type that the connection's protocol version does not have, or bytes that are
    /// not RESP.
    NotResp,
    /// A message or confirmation of a subscription, which no shared request asks for.
    Subscribed,
    /// A reply that says that the connection is in another state than its clients have in common:
    /// `+QUEUED` within a transaction, `-NOAUTH` after authentication.
    OtherState,
    /// The server refused the framing of a request, and closes the connection.
    ProtocolError,
    /// More replies were taken than requests sent. Never in normal operation.
    Broken,
}

impl Desync {
    /// The description for the log.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Unasked => "reply without a request",
            Self::NotResp => "reply of an impossible type",
            Self::Subscribed => "message of a subscription on a shared connection",
            Self::OtherState => "the connection lost the state that its clients share",
            Self::ProtocolError => "the server refused the framing of a request",
            Self::Broken => "the ledger of a shared connection lost count",
        }
    }
}

/// Bytes of one or several replies to one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// The client; `None` if it has left, and the bytes are dropped.
    pub to: Option<Member>,
    /// The number of replies that end in these bytes. The last one ends at their end, if any does.
    pub ended: u32,
    /// Whether the reply is `-NOAUTH`, on a connection that is not authenticated.
    pub not_authenticated: bool,
}

/// Consecutive requests of one client.
#[derive(Debug, Clone, Copy)]
struct Run {
    member: Option<Member>,
    requests: u32,
    bytes: u32,
    /// Their replies may be any value.
    script: bool,
}

/// The first bytes of an error or status that decide whether it is delivered.
const DECIDING: usize = 24;

/// The requests in flight on one connection.
#[derive(Debug)]
pub struct UpstreamLedger {
    frames: Frames,
    runs: VecDeque<Run>,
    limits: UpstreamLimits,
    requests: u32,
    bytes: u32,
    answered: u64,
    pushes: u64,
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
    pub fn new(resp3: bool, authenticated: bool, limits: UpstreamLimits) -> Self {
        Self {
            frames: Frames::new(Limits::default()),
            runs: VecDeque::new(),
            limits,
            requests: 0,
            bytes: 0,
            answered: 0,
            pushes: 0,
            resp3,
            authenticated,
            in_push: false,
            closed: None,
        }
    }

    /// The requests and bytes that may be sent now.
    #[must_use]
    pub fn room(&self) -> (u32, u32) {
        if self.closed.is_some() {
            return (0, 0);
        }
        (
            self.limits.requests.saturating_sub(self.requests),
            self.limits.bytes.saturating_sub(self.bytes),
        )
    }

    /// The number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.requests
    }

    /// The number of replies so far. It grows while the server works.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// The number of push messages that were dropped.
    #[must_use]
    pub fn pushes(&self) -> u64 {
        self.pushes
    }

    /// Records requests of `member` that are about to be sent, in the order in which they are.
    /// `script`: their replies may be any value. False if they exceed the room; then they must not
    /// be sent.
    #[must_use]
    pub fn send(&mut self, member: Member, requests: u32, bytes: u32, script: bool) -> bool {
        let (most_requests, most_bytes) = self.room();
        if requests > most_requests || bytes > most_bytes {
            return false;
        }
        if requests == 0 {
            return true;
        }
        self.requests += requests;
        self.bytes += bytes;
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
    pub fn leave(&mut self, member: Member) {
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

    /// The connection is closed. Returns the clients with requests in flight, each once, in order.
    #[must_use]
    pub fn close(self) -> Vec<Member> {
        let mut members: Vec<Member> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        members.extend(self.runs.iter().filter_map(|run| run.member).filter(|it| seen.insert(*it)));
        members
    }

    fn take_piece<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Piece<'a>>, Desync> {
        loop {
            let Some(&first) = input.first() else { return Ok(None) };
            let mut not_authenticated = false;
            if self.frames.at_boundary() {
                if first == b'>' {
                    self.begin_push()?;
                } else {
                    let run = *self.runs.front().ok_or(Desync::Unasked)?;
                    if let Some(piece) = self.take_run(input, run)? {
                        return Ok(Some(piece));
                    }
                    match self.check_start(first, input, run.script)? {
                        Start::Undecided => return Ok(None),
                        Start::Plain => {}
                        Start::NotAuthenticated => not_authenticated = true,
                    }
                }
            }
            let ended = self.frames.end(input).map_err(|_| Desync::NotResp)?;
            let (bytes, rest) =
                input.split_at_checked(ended.unwrap_or(input.len())).ok_or(Desync::Broken)?;
            *input = rest;
            if self.in_push {
                self.continue_push(ended.is_some())?;
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
        self.requests = self.requests.checked_sub(ended).ok_or(Desync::Broken)?;
        self.answered += u64::from(ended);
        if run.requests == 0 {
            self.bytes = self.bytes.checked_sub(run.bytes).ok_or(Desync::Broken)?;
            self.runs.pop_front();
        }
        Ok(())
    }

    fn begin_push(&mut self) -> Result<(), Desync> {
        if !self.resp3 {
            return Err(Desync::NotResp);
        }
        self.in_push = true;
        Ok(())
    }

    fn continue_push(&mut self, ended: bool) -> Result<(), Desync> {
        if !ended {
            return Ok(());
        }
        self.in_push = false;
        self.pushes += 1;
        if self.frames.is_of_subscription() { Err(Desync::Subscribed) } else { Ok(()) }
    }

    /// Checks the beginning of a reply.
    fn check_start(&self, first: u8, input: &[u8], script: bool) -> Result<Start, Desync> {
        match first {
            b'+' | b'-' => {}
            b':' | b'$' | b'*' => return Ok(Start::Plain),
            b'%' | b'~' | b'_' | b'#' | b',' | b'(' | b'=' | b'!' | b'|' if self.resp3 => {
                return Ok(Start::Plain);
            }
            _ => return Err(Desync::NotResp),
        }
        let line = match input.iter().position(|byte| *byte == b'\n') {
            Some(end) => input.get(..end).unwrap_or_default(),
            None if input.len() < DECIDING => return Ok(Start::Undecided),
            None => input,
        };
        if script {
            return Ok(Start::Plain);
        }
        if line == b"+QUEUED\r" || line == b"+RESET\r" {
            return Err(Desync::OtherState);
        }
        if line.starts_with(b"-ERR Protocol error") {
            return Err(Desync::ProtocolError);
        }
        match line.starts_with(b"-NOAUTH") {
            true if self.authenticated => Err(Desync::OtherState),
            true => Ok(Start::NotAuthenticated),
            false => Ok(Start::Plain),
        }
    }
}

/// What the beginning of a reply says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// More bytes are needed.
    Undecided,
    Plain,
    NotAuthenticated,
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Member = Member(1);
    const B: Member = Member(2);

    fn ledger() -> UpstreamLedger {
        UpstreamLedger::new(true, true, UpstreamLimits::default())
    }

    fn all<'a>(ledger: &mut UpstreamLedger, mut input: &'a [u8]) -> Vec<(&'a [u8], u64, u32)> {
        let mut found = Vec::new();
        while let Some(piece) = ledger.take(&mut input).expect("in step") {
            found.push((piece.bytes, piece.to.map_or(0, |it| it.0), piece.ended));
        }
        assert!(input.len() < DECIDING);
        found
    }

    #[test]
    fn delivers_replies_in_the_order_of_requests() {
        let mut it = ledger();
        assert!(it.send(A, 2, 40, false) && it.send(B, 1, 20, false) && it.send(A, 1, 20, false));
        let found = all(&mut it, b"$1\r\nx\r\n:7\r\n+OK\r\n*1\r\n:1\r\n");
        let expected: [(&[u8], u64, u32); 3] =
            [(b"$1\r\nx\r\n:7\r\n", 1, 2), (b"+OK\r\n", 2, 1), (b"*1\r\n:1\r\n", 1, 1)];
        assert_eq!(found, expected);
        assert_eq!((it.in_flight(), it.room(), it.answered()), (0, (16 * 1024, 512 * 1024), 4));
    }

    #[test]
    fn streams_a_large_reply_in_pieces() {
        let mut it = ledger();
        assert!(it.send(A, 1, 20, false) && it.send(B, 1, 20, false));
        assert_eq!(all(&mut it, b"$1000\r\nxx"), [(&b"$1000\r\nxx"[..], 1, 0)]);
        assert_eq!(all(&mut it, &[b'x'; 998]), [(&[b'x'; 998][..], 1, 0)]);
        let expected: [(&[u8], u64, u32); 2] = [(b"\r\n", 1, 1), (b"_\r\n", 2, 1)];
        assert_eq!(all(&mut it, b"\r\n_\r\n"), expected);
    }

    #[test]
    fn drops_replies_to_clients_that_left() {
        let mut it = ledger();
        assert!(it.send(A, 1, 20, false) && it.send(B, 1, 20, false));
        assert_eq!(all(&mut it, b"$9\r\nsec"), [(&b"$9\r\nsec"[..], 1, 0)]);
        it.leave(A);
        let expected: [(&[u8], u64, u32); 2] = [(b"retxxx\r\n", 0, 1), (b":1\r\n", 2, 1)];
        assert_eq!(all(&mut it, b"retxxx\r\n:1\r\n"), expected);
        assert!(it.send(B, 1, 20, false));
        it.leave(B);
        assert!(it.close().is_empty());
    }

    #[test]
    fn ends_exactly_the_clients_with_requests_in_flight() {
        let mut it = ledger();
        for member in [A, B, A, Member(3)] {
            assert!(it.send(member, 1, 20, false));
        }
        all(&mut it, b":1\r\n:1\r\n");
        assert_eq!(it.close(), [A, Member(3)]);
    }

    #[test]
    fn detects_every_kind_of_disagreement() {
        let cases: [(&[u8], u32, Desync); 11] = [
            (b"-ERR max number of clients reached\r\n", 0, Desync::Unasked),
            (b":1\r\n", 0, Desync::Unasked),
            (b"+QUEUED\r\n", 1, Desync::OtherState),
            (b"+RESET\r\n", 1, Desync::OtherState),
            (b"-NOAUTH Authentication required.\r\n", 1, Desync::OtherState),
            (b"-ERR Protocol error: invalid bulk length\r\n", 1, Desync::ProtocolError),
            (b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", 1, Desync::Subscribed),
            (b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", 0, Desync::Subscribed),
            (b"HTTP/1.1 200 OK\r\n", 1, Desync::NotResp),
            (b"*-7\r\n", 1, Desync::NotResp),
            (b"\r\n", 1, Desync::NotResp),
        ];
        for (wire, requests, expected) in cases {
            // Whole, and byte by byte: nothing is delivered before it is checked.
            for size in [wire.len(), 1] {
                let mut it = ledger();
                assert!(it.send(A, requests, 20, false));
                assert_eq!(desync(&mut it, wire, size), Some(expected), "{}", wire.escape_ascii());
                assert_eq!(it.take(&mut &b":1\r\n"[..]), Err(expected), "closed for good");
                assert_eq!((it.send(B, 1, 1, false), it.room()), (false, (0, 0)));
            }
        }
    }

    /// Feeds pieces of that size; returns the disagreement. No line may have been delivered.
    fn desync(it: &mut UpstreamLedger, wire: &[u8], size: usize) -> Option<Desync> {
        let (mut kept, mut delivered) = (Vec::new(), Vec::new());
        for piece in wire.chunks(size) {
            kept.extend_from_slice(piece);
            let mut input = &kept[..];
            loop {
                match it.take(&mut input) {
                    Err(desync) => return Some(desync),
                    Ok(None) => break,
                    Ok(Some(piece)) => delivered.extend_from_slice(piece.bytes),
                }
            }
            assert!(!delivered.first().is_some_and(|first| b"+-".contains(first)));
            kept = input.to_vec();
        }
        None
    }

    #[test]
    fn knows_no_type_of_resp3_in_resp2() {
        for wire in
            [&b"_\r\n"[..], b"%0\r\n", b"#t\r\n", b",1\r\n", b">1\r\n+x\r\n", b"|0\r\n+x\r\n"]
        {
            let mut it = UpstreamLedger::new(false, true, UpstreamLimits::default());
            assert!(it.send(A, 1, 20, false));
            assert_eq!(desync(&mut it, wire, wire.len()), Some(Desync::NotResp));
        }
    }

    #[test]
    fn accepts_any_reply_of_a_script() {
        let mut it = ledger();
        assert!(it.send(A, 2, 40, true));
        let wire = b"+QUEUED\r\n-NOAUTH made up\r\n";
        assert_eq!(all(&mut it, wire).len(), 2);
    }

    #[test]
    fn reports_a_client_that_is_not_authenticated() {
        let mut it = UpstreamLedger::new(false, false, UpstreamLimits::default());
        assert!(it.send(A, 1, 20, false));
        let mut input = &b"-NOAUTH Authentication required.\r\n"[..];
        let piece = it.take(&mut input).unwrap().unwrap();
        assert!(piece.not_authenticated && piece.to == Some(A) && piece.ended == 1);
    }

    #[test]
    fn drops_push_messages_between_replies() {
        let mut it = ledger();
        assert!(it.send(A, 1, 20, false));
        let wire = b">2\r\n+server\r\n:1\r\n:5\r\n>1\r\n+later\r\n";
        assert_eq!(all(&mut it, wire), [(&b":5\r\n"[..], 1, 1)]);
        assert_eq!(it.pushes(), 2);
    }

    #[test]
    fn bounds_requests_and_bytes_in_flight() {
        let limits = UpstreamLimits { requests: 3, bytes: 100 };
        let mut it = UpstreamLedger::new(true, true, limits);
        assert!(it.send(A, 2, 60, false) && !it.send(B, 2, 10, false) && !it.send(B, 1, 41, false));
        assert!(it.send(B, 1, 40, false) && !it.send(A, 1, 0, false));
        assert_eq!(it.room(), (0, 0));
        all(&mut it, b":1\r\n");
        assert_eq!(it.room(), (1, 0), "the bytes of a run count until it has ended");
        all(&mut it, b":1\r\n");
        assert_eq!(it.room(), (2, 60));
        // A client that always has something in flight frees its bytes all the same.
        for _ in 0..1000 {
            assert!(it.send(A, 1, 30, false), "{:?}", it.room());
            all(&mut it, b":1\r\n");
        }
    }
}
