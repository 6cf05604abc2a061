//! Clients with two connections: publish and subscribe, and blocking pops. And readers with SCAN,
//! and short connections.
//!
//! A message, an element or a key must be one that was written, in order and at most once. That
//! nothing is missing is required only while no fault was in progress: publish and subscribe has no
//! memory, and a popped element whose reply was lost is gone.

use std::cell::Cell;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use harness::{Value, encode, pause};

use super::client::{excerpt, number};
use super::conn::Conn;
use super::model::payload;
use super::schedule::Rng;
use super::shared::{Phase, Shared};

const THINK: Duration = Duration::from_millis(15);
const KEYS: u64 = 150;

/// What a client does besides chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Subscriber,
    Popper,
    Scanner,
    Churner,
}

pub(super) const ROLES: [Role; 5] =
    [Role::Subscriber, Role::Popper, Role::Scanner, Role::Churner, Role::Churner];

pub(super) struct Pair<'a> {
    pub(super) shared: &'a Shared,
    pub(super) id: usize,
    pub(super) role: Role,
    pub(super) seed: u64,
    /// The phase in which the latest request began.
    pub(super) phase: Cell<Phase>,
}

impl Pair<'_> {
    fn who(&self) -> String {
        format!("client {} ({:?})", self.id, self.role)
    }

    pub(super) fn run(self) {
        let mut rng = Rng::new(self.seed ^ u64::try_from(self.id).unwrap_or(0));
        let mut turn = 0;
        while !self.shared.stopped() {
            self.shared.rest(self.id, || ());
            self.phase.set(self.shared.phase());
            let dial = || Conn::dial(self.shared, &self.who());
            let (one, other) = (dial(), dial());
            let (Some(mut one), Some(mut other)) = (one, other) else { continue };
            turn += 1;
            let key = format!("soak:{}:{turn}", self.id);
            if let Err(end) = self.converse(&mut one, &mut other, &key, &mut rng) {
                self.shared.broken(&self.who(), self.phase.get(), &end);
            }
        }
    }

    /// Works until an error reply or the end of a connection.
    fn converse(
        &self,
        one: &mut Conn<'_>,
        other: &mut Conn<'_>,
        key: &str,
        rng: &mut Rng,
    ) -> io::Result<()> {
        if !self.prepare(one, key)? {
            return Ok(());
        }
        for index in 1.. {
            if self.shared.stopped() {
                return Ok(());
            }
            self.shared.rest(self.id, || {
                one.publish();
                other.publish();
            });
            let (round, phase) = (self.shared.round(), self.shared.phase());
            self.phase.set(phase);
            let good = match self.role {
                Role::Subscriber => self.message(one, other, key, index, phase)?,
                Role::Popper => self.pop(one, other, key, index, phase)?,
                Role::Scanner => self.scan(one, key, phase)?,
                Role::Churner => self.visit(one, key, index, phase)?,
            };
            if !good {
                pause(THINK * 4);
                return Ok(());
            }
            self.shared.verified(self.id, round);
            if self.role == Role::Churner && rng.below(4) == 0 {
                if rng.below(3) == 0 {
                    one.set_linger0()?;
                }
                return Ok(());
            }
            pause(THINK);
        }
        Ok(())
    }

    fn prepare(&self, one: &mut Conn<'_>, key: &str) -> io::Result<bool> {
        let phase = self.shared.phase();
        let reply = match self.role {
            Role::Subscriber => one.cmd(&["SUBSCRIBE", key])?,
            Role::Scanner => {
                let mut args = vec!["MSET".to_owned()];
                for index in 0..KEYS {
                    args.extend([format!("{key}:{index}"), index.to_string()]);
                }
                one.cmd(&args)?
            }
            Role::Popper | Role::Churner => one.cmd(&["PING"])?,
        };
        Ok(self.accepted(phase, &reply))
    }

    fn accepted(&self, phase: Phase, reply: &Value) -> bool {
        self.shared.replies.fetch_add(1, Ordering::Relaxed);
        if let Some(message) = reply.error() {
            self.shared.refused(&self.who(), phase, message);
        }
        !reply.is_error()
    }

    fn wrong(&self, what: &str, reply: &Value) -> bool {
        self.shared.finding(&format!("{}: {what}: {}", self.who(), excerpt(reply)));
        false
    }

    /// What may be missing after a failover, but not without a fault.
    fn missing(&self, phase: Phase, what: &str, reply: &Value) -> bool {
        self.shared.unexplained(phase, &format!("{}: {what}: {}", self.who(), excerpt(reply)));
        false
    }

    /// Publishes one message and receives it.
    fn message(
        &self,
        one: &mut Conn<'_>,
        other: &mut Conn<'_>,
        key: &str,
        index: u64,
        phase: Phase,
    ) -> io::Result<bool> {
        let value = payload(key, index);
        let reply = other.cmd(&["PUBLISH", key, &value])?;
        if !self.accepted(phase, &reply) {
            return Ok(false);
        }
        match number(&reply) {
            Some(1) => {}
            // The subscription was closed with its server, and its end has not been read yet.
            Some(0) => return Ok(self.missing(phase, "PUBLISH reached no subscriber", &reply)),
            _ => return Ok(self.wrong("PUBLISH reached another number of subscribers", &reply)),
        }
        // A message can be lost with its master, so that waiting for it must end.
        one.set_timeout(Duration::from_secs(if self.shared.calm_since(phase) { 30 } else { 5 }))?;
        let message = one.read_value()?;
        self.shared.replies.fetch_add(1, Ordering::Relaxed);
        let parts: Vec<_> = message.items().iter().map(Value::text).collect();
        Ok(parts == [Some("message"), Some(key), Some(&value)]
            || self.wrong("another message than the one published", &message))
    }

    /// Waits for an element with BLPOP, then pushes it.
    fn pop(
        &self,
        one: &mut Conn<'_>,
        other: &mut Conn<'_>,
        key: &str,
        index: u64,
        phase: Phase,
    ) -> io::Result<bool> {
        let value = payload(key, index);
        one.send(&encode(&["BLPOP", key, "5"]))?;
        let pushed = other.cmd(&["RPUSH", key, &value])?;
        let popped = one.read_value()?;
        if !self.accepted(phase, &pushed) || !self.accepted(phase, &popped) {
            return Ok(false);
        }
        if popped == Value::Nil {
            return Ok(self.missing(phase, "BLPOP returned nothing", &popped));
        }
        let parts: Vec<_> = popped.items().iter().map(Value::text).collect();
        Ok(parts == [Some(key), Some(&value)]
            || self.wrong("BLPOP returned another element than the one pushed", &popped))
    }

    /// Iterates over the whole database and looks for this client's keys.
    fn scan(&self, one: &mut Conn<'_>, key: &str, phase: Phase) -> io::Result<bool> {
        let pattern = format!("{key}:*");
        let (mut cursor, mut seen) = ("0".to_owned(), std::collections::BTreeSet::new());
        loop {
            let reply = one.cmd(&["SCAN", &cursor, "MATCH", &pattern, "COUNT", "500"])?;
            if !self.accepted(phase, &reply) {
                return Ok(false);
            }
            let [next, keys] = reply.items() else {
                return Ok(self.wrong("not a reply to SCAN", &reply));
            };
            for found in keys.items() {
                let index = found.text().and_then(|it| it.strip_prefix(key)?.strip_prefix(':'));
                match index.and_then(|it| it.parse::<u64>().ok()) {
                    Some(index) if index < KEYS => seen.insert(index),
                    _ => return Ok(self.wrong("SCAN returned a foreign key", found)),
                };
            }
            cursor = next.text().unwrap_or_default().to_owned();
            if cursor == "0" {
                break;
            }
        }
        // A cursor means something else on another server, so that keys may be missing after a
        // change of master.
        let complete = u64::try_from(seen.len()).is_ok_and(|count| count == KEYS);
        let count = Value::Int(seen.len().try_into().unwrap_or(0));
        Ok(complete || self.missing(phase, "keys missing from SCAN", &count))
    }

    fn visit(&self, one: &mut Conn<'_>, key: &str, index: u64, phase: Phase) -> io::Result<bool> {
        let value = payload(key, index);
        let replies = one.pipeline(&[
            vec!["SET", key, &value, "EX", "60"],
            vec!["GET", key],
            vec!["STRLEN", key],
            vec!["DEL", key],
        ])?;
        // Not `all`, which would stop counting at the first error reply.
        let accepted = replies.iter().filter(|reply| self.accepted(phase, reply)).count();
        if accepted < replies.len() {
            return Ok(false);
        }
        let expected = [
            Value::Simple("OK".to_owned()),
            Value::Bulk(value.clone().into_bytes()),
            Value::Int(value.len().try_into().unwrap_or(0)),
            Value::Int(1),
        ];
        // After a change of master in the middle, the key is missing.
        let absent = [Value::Nil, Value::Nil, Value::Int(0), Value::Int(0)];
        let possible = |(at, reply): (usize, &Value)| {
            expected.get(at) == Some(reply) || (at > 0 && absent.get(at) == Some(reply))
        };
        let all = Value::Array(replies.clone());
        if replies.len() != expected.len() || !replies.iter().enumerate().all(possible) {
            return Ok(self.wrong("wrong replies to a pipeline", &all));
        }
        Ok(replies == expected || self.missing(phase, "a key that was just set is gone", &all))
    }
}
