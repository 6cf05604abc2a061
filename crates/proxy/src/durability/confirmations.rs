//! Which replies of one connection are kept back until replicas have the writes that they answer.
//!
//! After each run of requests that may write, the server is sent one `WAIT`, which covers every
//! write before it. The reply to such a request, and everything that follows it, is held until the
//! answer to `WAIT` arrives. Replies to reads pass at once unless they stand behind a held one,
//! because their order is kept.
//!
//! A `WAIT` follows the last write among the bytes of one write, so that the reads behind it are
//! not held. Another one follows the last write before a command that may block, for as long as
//! that takes, and before one after which the server takes no `WAIT`. It is only sent between
//! requests, and not within a transaction, whose `EXEC` is the write. If a reply to a write turns
//! up that no `WAIT` follows (the transaction was not opened), a `WAIT` is sent as soon as the
//! client is between two requests.
//!
//! A new master has no replicas yet: those of the former one connect within seconds. So for a while
//! after a failover the server waits longer for them, as clients do for a master.
//!
//! The ledger of the session counts what its client sends and receives, and sees neither `WAIT` nor
//! its answer. This type has a ledger of its own, which follows the connection.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use resp::{Class, Direction, Ledger, NAME_WITHIN, ServerCommands, SessionState, may_write};

use crate::options::{Durability, OnTimeout};

/// Maximum bytes of replies that are held. A connection that exceeds it is closed: the outcome of
/// its writes is unknown.
const MAX_HELD: usize = 32 * 1024 * 1024;

/// Maximum number of alternations between reads and writes in flight: 8 MiB.
const MAX_RUNS: usize = 1 << 20;

/// With this many answers awaited, nothing more is sent behind a blocking command.
const MANY_WAITS: usize = 1024;

/// The longest answer to `WAIT`: an error.
const MAX_ANSWER: usize = 1024;

/// Sent before `WAIT` if a blocking command is among the writes, because `WAIT` does not cover what
/// a blocked client was given: it waits for the offset of the connection, which servers up to 7.0
/// note when a command *begins*, and those since 7.2 only when a command itself was replicated. The
/// first of these commands moves that offset for the former, the second for the latter. Its message
/// is replicated and reaches no subscriber: patterns do not match the channels of `SPUBLISH`.
const AFTER_BLOCKING: &[u8] = b"*3\r\n$4\r\nWAIT\r\n$1\r\n0\r\n$1\r\n1\r\n\
    *3\r\n$8\r\nSPUBLISH\r\n$20\r\npointsman:durability\r\n$1\r\n1\r\n";

/// How servers up to 7.0 refuse `SPUBLISH`, which they do not need. Later ones quote the name of an
/// unknown command in another way, and name the user that lacks a permission.
const NOT_NEEDED: [&[u8]; 2] =
    [b"-ERR unknown command `", b"-NOPERM this user has no permissions "];

/// The reply to a request that is queued in a transaction.
const QUEUED: &[u8] = b"+QUEUED\r\n";

/// The reply in place of one whose write is not confirmed. The server's error, if there is one, and
/// the end of the line follow.
const NOT_CONFIRMED: &[u8] =
    b"-NOREPLICAS The write is not confirmed by enough replicas, its outcome is unknown";

/// The requests that are sent after writes: [`AFTER_BLOCKING`] and the one that is always sent.
fn requests(rule: Durability, timeout: Duration) -> Box<[u8]> {
    // Zero would wait for ever.
    let words = ["WAIT".into(), rule.replicas.to_string(), timeout.as_millis().max(1).to_string()];
    let words = words.map(|word| format!("${}\r\n{word}\r\n", word.len())).concat();
    let request = format!("*3\r\n{words}");
    [AFTER_BLOCKING, request.as_bytes()].concat().into()
}

/// The answer to the second command of [`AFTER_BLOCKING`], if it means that nothing was replicated
/// although the server needs it.
fn refusal(answer: &[u8]) -> Option<Box<[u8]>> {
    let is_refused =
        answer.starts_with(b"-") && !NOT_NEEDED.iter().any(|it| answer.starts_with(it));
    is_refused.then(|| answer.into())
}

/// Why a connection has to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A write was not confirmed in time, and the connection is to be closed then.
    NotConfirmed,
    /// It is not known which reply belongs to which request.
    Untracked,
    /// Too many bytes are held.
    TooMuchHeld,
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        let why = match fault {
            Fault::NotConfirmed => "a write was not confirmed by enough replicas",
            Fault::Untracked => "writes cannot be confirmed without knowing which reply is whose",
            Fault::TooMuchHeld => "too many bytes of replies stand behind an unconfirmed write",
        };
        // No socket returns this kind, and the session ends as `not_confirmed`.
        Self::new(io::ErrorKind::Unsupported, why)
    }
}

/// Whether a `WAIT` has to be sent before a request of this class: what follows it may wait for
/// long, or is not executed.
fn takes_no_wait(class: Class) -> bool {
    use Class::{Blocking, Monitor, PSubscribe, Quit, SSubscribe, Subscribe, Wait};
    matches!(class, Blocking | Monitor | PSubscribe | Quit | SSubscribe | Subscribe | Wait)
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Reads,
    MayWrite,
    /// It is queued in a transaction, if that was opened.
    Queues,
}

/// Consecutive requests of one kind that are not answered yet.
#[derive(Debug)]
struct Run {
    effect: Effect,
    /// The server may let their client wait.
    blocks: bool,
    /// A request that gets no reply if the server accepted it, or the `CLIENT REPLY` before it,
    /// comes before this one, which is the only one of its run.
    after_unanswered: bool,
    requests: u32,
}

/// A write that a `WAIT` is to follow.
#[derive(Debug, Clone, Copy)]
struct LastWrite {
    /// Where it ends among the bytes of the connection.
    end: u64,
    /// The number of replies up to its own.
    after: u64,
    /// A blocking command is among the writes since the last `WAIT`.
    after_blocking: bool,
}

/// A complete reply that is held.
#[derive(Debug, Clone, Copy)]
struct HeldReply {
    len: usize,
    /// It says that a write was done.
    answers_write: bool,
}

/// An answer that is awaited.
#[derive(Debug)]
struct Wait {
    /// The number of replies that come before it.
    after: u64,
    asked: Asked,
}

/// What the server was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// The first command of [`AFTER_BLOCKING`]. Its answer does not matter.
    Begin,
    /// The second one. If it is refused, `WAIT` says nothing about what a blocked client was given.
    Replicate,
    /// How many replicas have the writes.
    Confirm,
}

/// The state of one connection. The caller passes the bytes of both directions, and sends `WAIT`
/// where it is told to.
#[derive(Debug)]
pub(crate) struct Confirmations {
    rule: Durability,
    /// What is sent after writes, and what is sent while replicas may still have to connect.
    requests: [Box<[u8]>; 2],
    /// Replicas may still have to connect.
    pub(super) is_patient: bool,
    /// The next `WAIT` follows a blocking command.
    after_blocking: bool,
    commands: ServerCommands,
    ledger: Ledger,
    /// The beginning of the incomplete request, until its effect is known.
    beginning: Vec<u8>,
    /// Whether the incomplete request may write, once that is known.
    may_write: Option<bool>,
    /// Bytes that were written, and those that were examined and are not written yet.
    sent: u64,
    examined: usize,
    /// The writes among the latter that a `WAIT` follows.
    unconfirmed: VecDeque<LastWrite>,
    in_flight: VecDeque<Run>,
    /// The requests after those in flight get no reply, unless the server refused `CLIENT REPLY`.
    is_unanswered: bool,
    /// The runs in flight after such requests.
    after_unanswered: u32,
    /// Requests in flight that do not only read.
    writes: u32,
    /// Replies so far.
    answered: u64,
    waits: VecDeque<Wait>,
    /// The error that the server gave instead of replicating the message before the next answer.
    refused: Option<Box<[u8]>>,
    pub(super) held: Vec<u8>,
    replies: VecDeque<HeldReply>,
    /// The held part of the incomplete reply; what it answers.
    partial: Option<HeldReply>,
    /// The beginning of an answer, or of a reply, of which more is needed to examine it.
    undecided: Vec<u8>,
    /// Writes whose replies were replaced since they were last taken.
    not_confirmed: u32,
}

impl Confirmations {
    /// Follows a connection on which nothing is in flight. `ledger` has its state; `patience` is
    /// how long the server waits while replicas may still have to connect; `commands` are those
    /// that the server has beyond the built-in table.
    pub(crate) fn new(
        rule: Durability,
        patience: Duration,
        commands: ServerCommands,
        ledger: Ledger,
    ) -> Self {
        Self {
            requests: [rule.timeout, patience.max(rule.timeout)].map(|it| requests(rule, it)),
            is_patient: true,
            after_blocking: false,
            rule,
            commands,
            ledger,
            beginning: Vec::new(),
            may_write: None,
            sent: 0,
            examined: 0,
            unconfirmed: VecDeque::new(),
            in_flight: VecDeque::new(),
            is_unanswered: false,
            after_unanswered: 0,
            writes: 0,
            answered: 0,
            waits: VecDeque::new(),
            refused: None,
            held: Vec::new(),
            replies: VecDeque::new(),
            partial: None,
            undecided: Vec::new(),
            not_confirmed: 0,
        }
    }

    /// The bytes of the next `WAIT`.
    pub(crate) fn request(&self) -> &[u8] {
        let skipped = if self.after_blocking { 0 } else { AFTER_BLOCKING.len() };
        let [usual, patient] = &self.requests;
        let requests = if self.is_patient { patient } else { usual };
        requests.get(skipped..).unwrap_or_default()
    }

    /// Replicas have had the time to connect. No `WAIT` may be half written.
    pub(crate) fn end_patience(&mut self) {
        // One that was examined is sent as it was.
        self.is_patient &= !self.unconfirmed.is_empty();
    }

    /// How many of `bytes`, which are the next ones that the client has sent, may be written at
    /// once, and whether a `WAIT` follows them.
    pub(crate) fn next_write(&mut self, bytes: &[u8]) -> Result<(usize, bool), Fault> {
        if self.examined == 0 {
            self.examine(bytes)?;
        }
        if let Some(write) = self.unconfirmed.front() {
            self.after_blocking = write.after_blocking;
        }
        let most = self.before_wait().min(bytes.len());
        Ok((most, !self.unconfirmed.is_empty() && self.before_wait() == most))
    }

    /// How many of the examined bytes come before the next `WAIT`.
    fn before_wait(&self) -> usize {
        let end = |write: &LastWrite| usize::try_from(write.end - self.sent).unwrap_or(usize::MAX);
        self.unconfirmed.front().map_or(self.examined, end)
    }

    /// Records that this many bytes were written. Returns whether a `WAIT` has to follow them.
    pub(crate) fn written(&mut self, bytes: usize) -> bool {
        self.examined = self.examined.saturating_sub(bytes);
        self.sent += bytes as u64;
        let is_due = self.unconfirmed.front().is_some_and(|write| write.end <= self.sent);
        if is_due {
            self.unconfirmed.pop_front();
        }
        is_due
    }

    /// How many of `begun` bytes of a write that waits are the client's.
    pub(crate) fn clamp(&self, begun: usize) -> usize {
        begun.min(self.before_wait())
    }

    /// Whether a `WAIT` has to be sent although nothing is written. It is expected from then on.
    pub(crate) fn takes_wait(&mut self) -> bool {
        let is_needed = self.waits.is_empty()
            && self.is_holding()
            && self.examined == 0
            && !self.ledger.may_queue()
            && self.ledger.answers_all()
            && self.ledger.at_boundary(Direction::Request);
        if is_needed {
            // What it follows is not known any more.
            self.after_blocking = true;
            self.expect_answer(self.answered + self.ledger.owed(), true);
        }
        is_needed
    }

    /// Whether bytes were examined that are not written yet. They have to be the next ones.
    pub(crate) fn has_examined(&self) -> bool {
        self.examined > 0
    }

    /// Whether all that was examined is written, and an answer to `WAIT` is awaited. The server
    /// begins nothing before that, so what clients send meanwhile is gathered, and confirmed by one
    /// `WAIT`. While a blocking command may let its client wait, little is gathered: the end of the
    /// client may follow.
    pub(crate) fn gathers(&self) -> bool {
        let gathers = self.blocked_on().is_none() || self.waits.len() > MANY_WAITS;
        self.examined == 0 && !self.waits.is_empty() && gathers
    }

    /// Whether the server owes an answer to `WAIT`, or a reply is held.
    pub(crate) fn is_awaiting(&self) -> bool {
        !self.waits.is_empty() || self.is_holding()
    }

    /// How many replies came before that to the oldest request, if that request may let its client
    /// wait and nothing is held.
    pub(crate) fn blocked_on(&self) -> Option<u64> {
        let blocks = !self.is_holding() && self.in_flight.front().is_some_and(|run| run.blocks);
        blocks.then_some(self.answered)
    }

    /// Writes whose replies were replaced since the last call.
    pub(crate) fn take_not_confirmed(&mut self) -> u32 {
        std::mem::take(&mut self.not_confirmed)
    }

    fn is_holding(&self) -> bool {
        !self.replies.is_empty() || self.partial.is_some()
    }

    fn expect_answer(&mut self, after: u64, after_blocking: bool) {
        let asked = [Asked::Begin, Asked::Replicate, Asked::Confirm];
        let skipped = if after_blocking { 0 } else { 2 };
        self.waits.extend(asked.into_iter().skip(skipped).map(|asked| Wait { after, asked }));
    }

    fn examine(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let (mut rest, mut last_write) = (bytes, None);
        while !rest.is_empty() {
            self.find_effect(rest);
            let owed = self.ledger.owed();
            let taken = self.ledger.request_one(rest);
            rest = rest.get(taken..).unwrap_or_default();
            if self.ledger.session_state() == SessionState::Opaque {
                return Err(Fault::Untracked);
            }
            if !self.ledger.at_boundary(Direction::Request) {
                continue;
            }
            if self.ledger.last_is_unmarked() {
                return Err(Fault::Untracked);
            }
            let may_write = self.may_write.take().unwrap_or(true);
            self.beginning.clear();
            let effect = match may_write {
                true if self.ledger.may_queue() => Effect::Queues,
                true => Effect::MayWrite,
                false => Effect::Reads,
            };
            let class = self.ledger.last_request();
            if class.is_some_and(takes_no_wait) {
                self.confirm(last_write.take());
            }
            // A request that is not answered has no reply to hold.
            if self.ledger.owed() == owed {
                self.is_unanswered |= class.is_some();
            } else {
                let blocks = matches!(class, Some(Class::Blocking | Class::Wait))
                    && !self.ledger.may_queue();
                self.count(effect, blocks);
                if effect == Effect::MayWrite {
                    let before = last_write.is_some_and(|it: LastWrite| it.after_blocking);
                    let end = self.sent + (bytes.len() - rest.len()) as u64;
                    let after = self.answered + self.ledger.owed();
                    last_write = Some(LastWrite { end, after, after_blocking: before || blocks });
                }
            }
        }
        if self.in_flight.len() > MAX_RUNS {
            return Err(Fault::TooMuchHeld);
        }
        self.examined = bytes.len();
        self.confirm(last_write);
        Ok(())
    }

    /// A `WAIT` follows this write.
    fn confirm(&mut self, write: Option<LastWrite>) {
        if let Some(write) = write {
            self.unconfirmed.push_back(write);
            self.expect_answer(write.after, write.after_blocking);
        }
    }

    /// Finds out whether the request that is next in `rest`, or continues there, may write.
    fn find_effect(&mut self, rest: &[u8]) {
        if self.may_write.is_some() {
            return;
        }
        if self.beginning.is_empty() {
            self.may_write = may_write(rest, &self.commands);
        }
        if self.may_write.is_none() {
            let room = NAME_WITHIN.saturating_sub(self.beginning.len()).min(rest.len());
            self.beginning.extend_from_slice(rest.get(..room).unwrap_or_default());
            self.may_write = may_write(&self.beginning, &self.commands);
        }
    }

    fn count(&mut self, effect: Effect, blocks: bool) {
        self.writes += u32::from(effect != Effect::Reads);
        let after_unanswered = std::mem::take(&mut self.is_unanswered);
        let is_alike =
            |run: &&mut Run| (run.effect, run.blocks) == (effect, blocks) && !run.after_unanswered;
        match self.in_flight.back_mut().filter(is_alike) {
            Some(run) if !after_unanswered => run.requests += 1,
            _ => {
                self.after_unanswered += u32::from(after_unanswered);
                self.in_flight.push_back(Run { effect, blocks, after_unanswered, requests: 1 });
            }
        }
    }

    /// The oldest request is answered.
    fn answer(&mut self) {
        self.answered += 1;
        let Some(run) = self.in_flight.front_mut() else { return };
        self.writes = self.writes.saturating_sub(u32::from(run.effect != Effect::Reads));
        run.requests -= 1;
        if run.requests == 0 {
            self.after_unanswered -= u32::from(run.after_unanswered);
            self.in_flight.pop_front();
        }
    }

    /// Whether all that arrives passes as it is. To be [passed](Self::pass), then.
    pub(crate) fn is_idle(&self) -> bool {
        self.writes == 0
            && !self.is_unanswered
            && self.after_unanswered == 0
            && self.waits.is_empty()
            && !self.is_holding()
            && self.undecided.is_empty()
    }

    /// These bytes from the server pass as they are.
    pub(crate) fn pass(&mut self, bytes: &[u8]) {
        let owed = self.ledger.owed();
        self.ledger.reply(bytes);
        for _ in self.ledger.owed()..owed {
            self.answer();
        }
    }

    /// Takes bytes from the server, and adds those to `out` that its client may have now.
    pub(crate) fn receive(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        if self.undecided.is_empty() {
            return self.take(bytes, out);
        }
        let mut joined = std::mem::take(&mut self.undecided);
        joined.extend_from_slice(bytes);
        self.take(&joined, out)
    }

    fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        let mut rest = bytes;
        while let Some(first) = rest.first() {
            let begins = self.ledger.at_boundary(Direction::Reply);
            let awaits_answer = self.waits.front().is_some_and(|it| it.after == self.answered);
            // Anything else is a push, or a message of a subscription.
            if begins && matches!(first, b':' | b'-') && awaits_answer {
                let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                    return self.await_more(rest);
                };
                let (answer, after) = rest.split_at_checked(end + 1).ok_or(Fault::Untracked)?;
                rest = after;
                match self.waits.pop_front().map(|it| it.asked) {
                    Some(Asked::Confirm) => self.decide(answer, out)?,
                    Some(Asked::Replicate) => self.refused = refusal(answer),
                    _ => {}
                }
                continue;
            }
            if begins && self.may_refuse_silence(*first) {
                return Err(Fault::Untracked);
            }
            if begins {
                match self.holds(rest) {
                    Some(reply) => self.partial = reply,
                    None => return self.await_more(rest),
                }
            }
            let owed = self.ledger.owed();
            let (piece, after) = self.ledger.reply_split(rest);
            rest = after;
            if let Some(reply) = &mut self.partial {
                reply.len += piece.len();
                self.held.extend_from_slice(piece);
            } else {
                out.extend_from_slice(piece);
            }
            if self.ledger.at_boundary(Direction::Reply)
                && let Some(mut reply) = self.partial.take()
            {
                // A message of a subscription looks like a reply.
                reply.answers_write &= self.ledger.owed() < owed;
                self.replies.push_back(reply);
            }
            let is_needed = self.is_holding() || self.writes > 0 || !self.waits.is_empty();
            if is_needed && self.ledger.session_state() == SessionState::Opaque {
                return Err(Fault::Untracked);
            }
            for _ in self.ledger.owed()..owed {
                self.answer();
            }
        }
        if self.held.len() > MAX_HELD { Err(Fault::TooMuchHeld) } else { Ok(()) }
    }

    /// Whether a frame that begins so may mean that `CLIENT REPLY` was refused, which the ledger
    /// takes to be accepted. An error cannot be told from one that answers the next request.
    fn may_refuse_silence(&self, first: u8) -> bool {
        match self.in_flight.front() {
            Some(run) => run.after_unanswered && first == b'-',
            None => self.is_unanswered && !matches!(first, b'>' | b'*'),
        }
    }

    fn await_more(&mut self, rest: &[u8]) -> Result<(), Fault> {
        if rest.len() > MAX_ANSWER {
            return Err(Fault::Untracked);
        }
        self.undecided = rest.to_vec();
        Ok(())
    }

    /// Whether the frame that begins here is held, and what it answers then. The outer `None` if
    /// more bytes are needed.
    fn holds(&self, frame: &[u8]) -> Option<Option<HeldReply>> {
        let effect = self.in_flight.front().map_or(Effect::Reads, |run| run.effect);
        let answers_write = match (frame, effect) {
            // A push, or an error: nothing was written.
            ([b'>' | b'-', ..], _) | (_, Effect::Reads) => false,
            (_, Effect::MayWrite) => true,
            (_, Effect::Queues) if self.ledger.session_state() != SessionState::Transaction => true,
            (_, Effect::Queues) if frame.len() < QUEUED.len() && QUEUED.starts_with(frame) => {
                return None;
            }
            (_, Effect::Queues) => !frame.starts_with(QUEUED),
        };
        let is_held = answers_write || self.is_holding();
        Some(is_held.then_some(HeldReply { len: 0, answers_write }))
    }

    /// The answer to the oldest `WAIT`: the number of replicas that have all that came before it,
    /// or an error.
    fn decide(&mut self, answer: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        let refused = self.refused.take();
        let answer = refused.as_deref().unwrap_or(answer);
        let number = answer.strip_prefix(b":").and_then(|it| it.strip_suffix(b"\r\n"));
        let number = number.and_then(|it| std::str::from_utf8(it).ok()?.parse::<u64>().ok());
        let is_confirmed = number.is_some_and(|number| number >= u64::from(self.rule.replicas));
        let held = std::mem::take(&mut self.held);
        let replies = std::mem::take(&mut self.replies);
        if is_confirmed {
            out.extend_from_slice(&held);
            return Ok(());
        }
        let writes = replies.iter().filter(|it| it.answers_write).count();
        self.not_confirmed += u32::try_from(writes).unwrap_or(u32::MAX);
        if writes > 0 && self.rule.on_timeout == OnTimeout::Close {
            return Err(Fault::NotConfirmed);
        }
        let error = answer.strip_prefix(b"-");
        let not_confirmed = match error {
            Some(error) => [NOT_CONFIRMED, b": ", error].concat(),
            None => [NOT_CONFIRMED, b"\r\n"].concat(),
        };
        let mut rest = &held[..];
        for HeldReply { len, answers_write } in replies {
            let (reply, after) = rest.split_at_checked(len).ok_or(Fault::Untracked)?;
            out.extend_from_slice(if answers_write { &not_confirmed } else { reply });
            rest = after;
        }
        Ok(())
    }
}
