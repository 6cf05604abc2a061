//! The checking clients: each compares every reply with its model.
//!
//! A client owns its keys, so that its model is exact. After lost writes, or an end of a connection
//! with requests in flight, it measures the difference once and continues with a new key, so that a
//! late effect of the past cannot be mistaken for a fault of the present.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use harness::{Value, encode, pause};

use super::conn::Conn;
use super::judge::Acknowledged;
use super::model::{Chain, Verdict, payload, position_of};
use super::schedule::Rng;
use super::shared::{Phase, Shared};

/// The pause between two requests of a client.
const THINK: Duration = Duration::from_millis(4);
/// A key is replaced after this many positions, which bounds memory and the cost of an audit.
const LONGEST: u64 = 400;
const PIPELINE: u64 = 24;

/// The data type of a client's chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Counter,
    List,
    /// A hash, written by transactions.
    Hash,
    /// A counter, incremented by pipelines with ECHO between.
    Pipeline,
}

pub(super) const KINDS: [Kind; 5] =
    [Kind::Text, Kind::Counter, Kind::List, Kind::Hash, Kind::Pipeline];

/// A client with a chain.
pub(super) struct Chained<'a> {
    shared: &'a Shared,
    id: usize,
    kind: Kind,
    generation: u64,
    chain: Chain,
    rng: Rng,
    /// When the writes in flight were sent.
    sent: Instant,
    /// The last acknowledged write.
    last: Option<Acknowledged>,
    /// Error replies since the last pause; a refused client waits before it asks again.
    refused: bool,
}

impl<'a> Chained<'a> {
    pub(super) fn new(shared: &'a Shared, id: usize, kind: Kind, seed: u64) -> Self {
        let rng = Rng::new(seed ^ u64::try_from(id).unwrap_or(0));
        let chain = Chain::default();
        Self {
            shared,
            id,
            kind,
            generation: 0,
            chain,
            rng,
            sent: Instant::now(),
            last: None,
            refused: false,
        }
    }

    fn key(&self) -> String {
        format!("soak:{}:{}", self.id, self.generation)
    }

    fn who(&self) -> String {
        format!("client {} ({:?}, {})", self.id, self.kind, self.key())
    }

    /// Runs until the soak ends.
    pub(super) fn run(mut self) {
        let mut seen = 0;
        while !self.shared.stopped() {
            let mut phase;
            self.shared.rest(self.id, || ());
            let Some(mut client) = Conn::dial(self.shared, &self.who()) else { continue };
            let mut audit = true;
            let end = loop {
                self.shared.rest(self.id, || client.publish());
                let round = self.shared.round();
                phase = self.shared.phase();
                if self.shared.stopped() {
                    return;
                }
                let done = if audit || round != seen {
                    self.audit(&mut client, phase).map(|done| {
                        audit = !done;
                        if done {
                            seen = round;
                            self.shared.verified(self.id, round);
                        }
                    })
                } else {
                    self.step(&mut client, phase)
                };
                if let Err(end) = done {
                    break end;
                }
                pause(if std::mem::take(&mut self.refused) { THINK * 10 } else { THINK });
            };
            self.shared.broken(&self.who(), phase, &end);
        }
    }

    /// Compares the whole value with the model. False if the server refused to answer.
    fn audit(&mut self, client: &mut Conn<'_>, phase: Phase) -> io::Result<bool> {
        let key = self.key();
        let reply = match self.kind {
            Kind::Text | Kind::Counter | Kind::Pipeline => client.cmd(&["GET", &key])?,
            Kind::List => client.cmd(&["LRANGE", &key, "0", "-1"])?,
            Kind::Hash => client.cmd(&["HGETALL", &key])?,
        };
        self.shared.replies.fetch_add(1, Ordering::Relaxed);
        if let Some(message) = reply.error() {
            self.refuse(phase, message);
            return Ok(false);
        }
        self.shared.audits.fetch_add(1, Ordering::Relaxed);
        match position(self.kind, &key, &reply) {
            Some(position) => {
                let verdict = self.chain.read(position);
                if verdict != Verdict::Right || !self.chain.settled() {
                    self.judge(verdict);
                    self.renew();
                }
            }
            None => {
                let text = excerpt(&reply);
                self.shared.finding(&format!("{}: not a value that it wrote: {text}", self.who()));
                self.renew();
            }
        }
        if self.chain.acknowledged() > LONGEST {
            // The value was just found complete. Whether it is deleted is known only if a reply
            // arrives, so the key is given up before.
            self.renew();
            client.cmd(&["DEL", &key])?;
        }
        Ok(true)
    }

    fn renew(&mut self) {
        self.generation += 1;
        self.chain = Chain::default();
    }

    fn judge(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Right => {}
            Verdict::Lost(count) => self.shared.lost(&self.who(), count, self.last),
            Verdict::Duplicated(count) => {
                self.shared
                    .finding(&format!("{}: {count} writes ran that were not sent", self.who()));
            }
        }
    }

    /// A write is about to be sent.
    fn sending(&mut self) {
        self.chain.sent();
        self.sent = Instant::now();
    }

    fn refuse(&mut self, phase: Phase, message: &str) {
        self.refused = true;
        self.shared.refused(&self.who(), phase, message);
    }

    fn step(&mut self, client: &mut Conn<'_>, phase: Phase) -> io::Result<()> {
        if self.chain.acknowledged() > LONGEST || self.rng.below(20) == 0 {
            return self.audit(client, phase).map(drop);
        }
        match self.kind {
            Kind::Pipeline => self.pipeline(client, phase),
            Kind::Hash => self.transaction(client, phase),
            Kind::Text | Kind::Counter | Kind::List => self.single(client, phase),
        }
    }

    fn single(&mut self, client: &mut Conn<'_>, phase: Phase) -> io::Result<()> {
        let (key, next) = (self.key(), self.chain.next());
        let value = payload(&key, next);
        let args: Vec<&str> = match self.kind {
            Kind::Text => vec!["SET", &key, &value, "GET"],
            Kind::List => vec!["RPUSH", &key, &value],
            _ => vec!["INCR", &key],
        };
        self.sending();
        let reply = client.cmd(&args)?;
        let position = match (self.kind, &reply) {
            (Kind::Text, Value::Nil) => Some(1),
            (Kind::Text, Value::Bulk(_)) => {
                reply.text().and_then(|text| position_of(&key, text)).map(|old| old + 1)
            }
            _ => number(&reply),
        };
        self.take(phase, &reply, position);
        Ok(())
    }

    fn transaction(&mut self, client: &mut Conn<'_>, phase: Phase) -> io::Result<()> {
        let (key, next) = (self.key(), self.chain.next());
        let (field, value) = (format!("f{next}"), payload(&key, next));
        let mut wire = encode(&["MULTI"]);
        wire.extend(encode(&["HSET", &key, &field, &value]));
        wire.extend(encode(&["HINCRBY", &key, "position", "1"]));
        wire.extend(encode(&["EXEC"]));
        self.sending();
        client.send(&wire)?;
        let early: Vec<Value> =
            (0..3).map(|_| client.read_value()).collect::<io::Result<Vec<_>>>()?;
        let last = client.read_value()?;
        let right = early.iter().map(Value::text).eq([Some("OK"), Some("QUEUED"), Some("QUEUED")]);
        if !right && !last.is_error() {
            self.shared.finding(&format!("{}: MULTI was answered by {early:?}", self.who()));
        }
        // The field is new, except after a loss, when an old field of that name is overwritten.
        let position = last.items().get(1).and_then(number);
        self.take(phase, &last, position);
        Ok(())
    }

    fn pipeline(&mut self, client: &mut Conn<'_>, phase: Phase) -> io::Result<()> {
        let key = self.key();
        let mut wire = Vec::new();
        let marks: Vec<String> =
            (0..PIPELINE).map(|it| format!("{key}|{}|{it}", self.rng.next())).collect();
        for mark in &marks {
            wire.extend(encode(&["INCR", &key]));
            wire.extend(encode(&["ECHO", mark]));
            self.sending();
        }
        client.send(&wire)?;
        let generation = self.generation;
        for mark in &marks {
            let reply = client.read_value()?;
            if generation == self.generation {
                self.take(phase, &reply, number(&reply));
            }
            let echo = client.read_value()?;
            self.shared.replies.fetch_add(1, Ordering::Relaxed);
            if let Some(message) = echo.error() {
                self.refuse(phase, message);
            } else if echo.text() != Some(mark) {
                let text = excerpt(&echo);
                self.shared.finding(&format!("{}: ECHO {mark} was answered {text}", self.who()));
            }
        }
        Ok(())
    }

    /// Compares the reply to the oldest write in flight.
    fn take(&mut self, phase: Phase, reply: &Value, position: Option<u64>) {
        self.shared.replies.fetch_add(1, Ordering::Relaxed);
        if let Some(message) = reply.error() {
            self.chain.refused();
            self.refuse(phase, message);
            return;
        }
        let Some(position) = position else {
            let text = excerpt(reply);
            self.shared.finding(&format!("{}: a reply of another request: {text}", self.who()));
            self.renew();
            return;
        };
        let verdict = self.chain.replied(position);
        if verdict != Verdict::Right {
            self.judge(verdict);
            self.renew();
        }
        self.last = Some(Acknowledged { sent: self.sent, at: Instant::now() });
    }
}

pub(super) fn number(reply: &Value) -> Option<u64> {
    if let Value::Int(number) = reply { u64::try_from(*number).ok() } else { None }
}

/// The position that a whole value shows, if every part of it is right.
fn position(kind: Kind, key: &str, reply: &Value) -> Option<u64> {
    match (kind, reply) {
        (Kind::Text | Kind::Counter | Kind::Pipeline, Value::Nil) => Some(0),
        (Kind::Text, _) => position_of(key, reply.text()?),
        (Kind::Counter | Kind::Pipeline, _) => reply.text()?.parse().ok(),
        (Kind::List, Value::Array(items)) => {
            let right = |(item, index)| item == &Value::Bulk(payload(key, index).into_bytes());
            items.iter().zip(1..).all(right).then_some(u64::try_from(items.len()).ok()?)
        }
        (Kind::Hash, Value::Array(items)) if items.is_empty() => Some(0),
        (Kind::Hash, Value::Array(items)) => {
            let position = reply.field("position")?.text()?.parse().ok()?;
            let right = |index| {
                reply.field(&format!("f{index}")).and_then(Value::text)
                    == Some(payload(key, index).as_str())
            };
            let complete = u64::try_from(items.len()).ok()? == 2 * (position + 1);
            (complete && (1..=position).all(right)).then_some(position)
        }
        _ => None,
    }
}

pub(super) fn excerpt(reply: &Value) -> String {
    reply.to_string().chars().take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::Bulk(text.as_bytes().to_vec())
    }

    #[test]
    fn finds_position_of_complete_values_only() {
        let list = Value::Array((1..=3).map(|it| bulk(&payload("k", it))).collect());
        assert_eq!(position(Kind::List, "k", &list), Some(3));
        let gap = Value::Array([1, 3].iter().map(|it| bulk(&payload("k", *it))).collect());
        assert_eq!(position(Kind::List, "k", &gap), None);
        let value = payload("k", 1);
        let hash = [bulk("f1"), bulk(&value), bulk("position"), bulk("1")];
        assert_eq!(position(Kind::Hash, "k", &Value::Array(hash.to_vec())), Some(1));
        assert_eq!(position(Kind::Hash, "k", &Value::Array(hash[..2].to_vec())), None);
    }
}
