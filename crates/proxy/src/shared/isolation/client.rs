//! A model client and its session: what it has written, what the proxy did with each byte, and what
//! it must receive.

use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::io::stream::ByteStream;
use crate::shared::isolation::server::{parse, reply, request};
use crate::shared::{Connection, Member, Offer};

/// Where the requests of a session go.
#[derive(Debug)]
pub(super) enum Upstream {
    /// To a shared connection.
    Shared(Member),
    /// To its own connection, whose server answers at once.
    Own,
}

/// What a session asks for.
#[derive(Debug)]
pub(super) enum Need {
    Nothing,
    /// A shared connection.
    Join,
    /// A connection of its own.
    Promote,
    /// Another connection instead of this one, which is silent.
    Replace(Rc<Connection>),
}

/// A client and its session.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) upstream: Upstream,
    number: usize,
    /// Requests that it has written. Continued by the next client in its place, so that no two
    /// requests are equal.
    written: u32,
    /// Those of earlier clients in its place.
    earlier: u32,
    pub(super) in_transaction: bool,
    /// Bytes that it has written and the session has not passed on.
    unread: Vec<u8>,
    /// Bytes that the session has passed on, in their order.
    passed: Vec<u8>,
    /// Those of them that have left for a server, by the session's ledger.
    recorded: Vec<u8>,
    /// Those that a server has executed.
    executed: Vec<u8>,
    expected: Vec<u8>,
    /// For each request that is answered, where its reply ends in `expected`.
    reply_ends: Vec<usize>,
    received: Vec<u8>,
}

impl Client {
    pub(super) fn new(number: usize, written: u32) -> Self {
        Self {
            upstream: Upstream::Shared(Member::new()),
            number,
            written,
            earlier: written,
            in_transaction: false,
            unread: Vec::new(),
            passed: Vec::new(),
            recorded: Vec::new(),
            executed: Vec::new(),
            expected: Vec::new(),
            reply_ends: Vec::new(),
            received: Vec::new(),
        }
    }

    /// Another client in the same place.
    pub(super) fn successor(&self) -> Self {
        Self::new(self.number, self.written)
    }

    /// It writes a request. A transaction ends before the next one begins, so that every reply
    /// depends on its request alone.
    pub(super) fn write(&mut self, kind: u8) {
        self.written += 1;
        let mut next = request(kind, self.number, self.written);
        if let Some(begins) = next.transaction {
            if begins == self.in_transaction {
                next = request(if begins { 230 } else { 210 }, self.number, self.written);
            }
            self.in_transaction = !self.in_transaction;
        }
        self.unread.extend(next.bytes);
        if !next.reply.is_empty() {
            self.expected.extend(next.reply);
            self.reply_ends.push(self.expected.len());
        }
    }

    /// Whether the request with that token is its own, not that of an earlier client.
    pub(super) fn has_written(&self, token: &str) -> bool {
        let number = token.rsplit("request").next().and_then(|it| it.parse::<u32>().ok());
        number.is_some_and(|number| number > self.earlier)
    }

    /// Its session passes on up to `most` bytes.
    pub(super) fn pass(&mut self, most: usize) {
        let most = most.min(self.unread.len());
        match &mut self.upstream {
            Upstream::Shared(member) if most > 0 => {
                let mut cx = Context::from_waker(Waker::noop());
                if let Poll::Ready(Ok(len)) = member.poll_write(&mut cx, &self.unread[..most]) {
                    self.passed.extend(self.unread.drain(..len));
                }
            }
            Upstream::Shared(_) => {}
            Upstream::Own => {
                self.passed.extend(self.unread.drain(..most));
                self.forward();
            }
        }
    }

    /// Records what has left, as a session does before it decides anything, and says what it needs.
    pub(super) fn advance(&mut self) -> Need {
        let Upstream::Shared(member) = &mut self.upstream else { return Need::Nothing };
        member.record_sent(|bytes| self.recorded.extend_from_slice(bytes));
        assert!(self.recorded.starts_with(&self.executed), "executed what has not been recorded");
        match member.offer() {
            Offer::Join => Need::Join,
            Offer::Nothing if member.promotion().is_some() && !member.has_unread() => Need::Promote,
            Offer::Nothing => Need::Nothing,
            Offer::Silent(connection) => Need::Replace(connection),
        }
    }

    pub(super) fn join(&mut self, connection: &Rc<Connection>) {
        if let Upstream::Shared(member) = &mut self.upstream {
            member.join(connection);
        }
    }

    /// It gets its own connection. Exactly what has not left goes there.
    pub(super) fn promote(&mut self) {
        assert_eq!(self.replies_due(), 0, "promoted with requests in flight");
        let Upstream::Shared(member) = &mut self.upstream else { return };
        let unsent = member.take_unsent();
        let all = [&self.recorded[..], &unsent].concat();
        // Empty requests are left out.
        assert!(strip_empty(&self.passed) == strip_empty(&all), "bytes lost or repeated");
        self.passed = all;
        self.upstream = Upstream::Own;
        self.forward();
    }

    /// Its session rests and wakes, if it may. Whether it does.
    pub(super) fn rest_and_wake(&mut self) -> bool {
        let Upstream::Shared(member) = &mut self.upstream else { return false };
        let resting = member.rest();
        let rests = resting.is_some();
        if let Some(resting) = resting {
            self.upstream = Upstream::Shared(resting.wake());
        }
        rests
    }

    /// It shares again, if it may. Whether it does.
    pub(super) fn return_if_clean(&mut self) -> bool {
        let clean = self.passed.len() == self.recorded.len() && self.unread.is_empty();
        let returns = matches!(self.upstream, Upstream::Own) && clean && !self.in_transaction;
        if returns {
            self.upstream = Upstream::Shared(Member::new());
        }
        returns
    }

    /// Its own server executes what has been passed on.
    fn forward(&mut self) {
        while let Some((words, len)) = parse(&self.passed[self.recorded.len()..]) {
            let from = self.recorded.len();
            self.recorded.extend_from_slice(&self.passed[from..from + len]);
            self.received.extend(reply(&words));
        }
        self.executed.clone_from(&self.recorded);
    }

    /// A shared server has executed this request of it.
    pub(super) fn note_executed(&mut self, request: &[u8]) {
        self.executed.extend_from_slice(request);
    }

    /// It reads up to `most` bytes of replies. False if the session has failed.
    pub(super) fn read(&mut self, most: usize) -> bool {
        let Upstream::Shared(member) = &mut self.upstream else { return true };
        let (mut buffer, mut left) = ([0; 4096], most);
        let mut cx = Context::from_waker(Waker::noop());
        while left > 0 {
            let size = left.min(buffer.len());
            match member.poll_read(&mut cx, &mut buffer[..size]) {
                Poll::Pending => break,
                Poll::Ready(Err(_)) => return false,
                Poll::Ready(Ok(len)) => {
                    assert!(len > 0, "an end although the client has not ended");
                    self.received.extend_from_slice(&buffer[..len]);
                    left -= len;
                }
            }
        }
        true
    }

    /// The number of requests that have left and whose replies have not been received.
    pub(super) fn replies_due(&self) -> usize {
        let (mut sent, mut at) = (0, 0);
        while let Some((words, len)) = parse(&self.recorded[at..]) {
            sent += usize::from(!words.is_empty());
            at += len;
        }
        let whole = self.reply_ends.partition_point(|end| *end <= self.received.len());
        sent - whole
    }

    /// Whether it has sent everything and received every reply.
    pub(super) fn has_all_replies(&self) -> bool {
        self.received.len() == self.expected.len() && self.unread.is_empty()
    }

    /// What it has received so far is what it must receive.
    pub(super) fn check(&self) {
        let start = self.expected.get(..self.received.len());
        assert!(
            start == Some(&self.received),
            "client {} received {}",
            self.number,
            self.received[self.received.len().saturating_sub(200)..].escape_ascii()
        );
    }
}

/// Without requests that have no words.
fn strip_empty(bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    let mut rest = bytes;
    while let Some((words, len)) = parse(rest) {
        if !words.is_empty() {
            all.extend_from_slice(&rest[..len]);
        }
        rest = &rest[len..];
    }
    all.extend_from_slice(rest);
    all
}
