//! The clients: each performs random operations on the objects of one kind and records them.
//!
//! The clients of one kind use one object at a time, through all proxies. A client sends its next
//! operation when the former one has its reply; after the end of a connection it opens another one,
//! and the operation in flight has an unknown outcome.

use std::io;
use std::time::Duration;

use fastrand::Rng;
use harness::{Client, Value, encode, pause};

use super::operation::{Action, KINDS, Kind, Micros, Object, Operation, Outcome};
use super::world::World;

/// Clients of each kind.
pub(super) const EACH: usize = 4;
pub(super) const CLIENTS: usize = KINDS.len() * EACH;
/// Pauses between operations, in milliseconds.
const THINK: u64 = 50;
const AFTER_A_REFUSAL: Duration = Duration::from_millis(30);

const SCRIPT: &str = "if (redis.call('GET', KEYS[1]) or '') == ARGV[1] then \
                      redis.call('SET', KEYS[1], ARGV[2]) return 1 end return 0";

/// Errors that say that a request was not executed.
const REFUSALS: [&str; 11] = [
    "LOADING",
    "MASTERDOWN",
    "READONLY",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "BUSY",
    "EXECABORT",
    "UNBLOCKED",
    "MISCONF",
    "NOAUTH",
    "ERR max number of clients",
];

pub(super) struct Worker<'a> {
    world: &'a World,
    id: usize,
    kind: Kind,
    proxy: usize,
    rng: Rng,
    connection: Option<Client>,
    /// The value of a register that was seen last, or an element that was taken or added.
    known: Option<(Object, u64)>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(world: &'a World, id: usize, seed: u64) -> Self {
        let kind = KINDS.get(id / EACH).copied().unwrap_or(Kind::Register);
        let proxy = id % world.addresses.len().max(1);
        let rng = Rng::with_seed(seed.wrapping_mul(1_000).wrapping_add(id as u64));
        Self { world, id, kind, proxy, rng, connection: None, known: None }
    }

    /// Works until the run ends.
    pub(super) fn run(mut self) {
        while !self.world.stopped() {
            let epoch = self.world.arrive(self.id);
            if self.connection.is_none() {
                match self.world.connect(self.proxy) {
                    Ok(client) => self.connection = Some(client),
                    Err(error) => {
                        self.end(&format!("cannot connect: {error}"));
                        pause(AFTER_A_REFUSAL);
                    }
                }
                // The epoch may have ended meanwhile.
                continue;
            }
            self.operate(epoch);
            pause(Duration::from_millis(self.rng.u64(..THINK)));
        }
    }

    fn end(&mut self, why: &str) {
        self.connection = None;
        self.world.ended(format!("client {} of proxy {}: {why}", self.id, self.proxy));
    }

    /// One operation, or a read and a compare-and-set.
    fn operate(&mut self, epoch: u64) {
        let (action, way, object) = self.choose(epoch);
        let done = match (action, way) {
            (Action::Cas { new, .. }, "WATCH") => self.watch(object, new),
            _ => self.perform(object, action, way).map(drop),
        };
        if let Err(error) = done {
            self.end(&error.to_string());
        }
    }

    fn choose(&mut self, epoch: u64) -> (Action, &'static str, Object) {
        let object = self.world.object(self.kind, epoch);
        let known = self.known.filter(|(of, _)| of.epoch == epoch);
        let (value, dice) = (self.world.value(), self.rng.u8(..100));
        let plain = |action| (action, "", object);
        match self.kind {
            Kind::Register => match dice {
                0..30 => plain(Action::Get),
                30..50 => plain(Action::Set(value)),
                50..65 => plain(Action::Swap(value)),
                65..82 => {
                    let expected = known.filter(|(of, _)| *of == object).map_or(0, |it| it.1);
                    (Action::Cas { expected, new: value }, "script", object)
                }
                _ => (Action::Cas { expected: 0, new: value }, "WATCH", object),
            },
            Kind::Counter if dice < 60 => plain(Action::Increment),
            Kind::Counter => plain(Action::Get),
            Kind::Lists => match dice {
                0..18 => plain(Action::Append { list: 0, value }),
                18..36 => plain(Action::Append { list: 1, value }),
                36..60 => plain(Action::AppendBoth(value)),
                60..80 => plain(Action::Range(usize::from(dice % 2))),
                _ => plain(Action::RangeBoth),
            },
            Kind::Set => match (dice, known) {
                (0..20, Some((of, value))) => {
                    self.known = None;
                    (Action::Remove(value), "", of)
                }
                (0..65, _) => plain(Action::Add(value)),
                _ => plain(Action::Members),
            },
            Kind::Queue => match (self.id % 2, known) {
                (0, _) if dice < 85 => plain(Action::Append { list: 0, value }),
                (1, Some((of, value))) => {
                    self.known = None;
                    (Action::Acknowledge(value), "", of)
                }
                (1, _) if dice < 45 => plain(Action::Take),
                (1, _) if dice < 90 => (Action::Take, "BLMOVE", object),
                _ => plain(Action::RangeBoth),
            },
        }
    }

    /// Sends an operation and records it.
    fn perform(
        &mut self,
        object: Object,
        action: Action,
        way: &'static str,
    ) -> io::Result<Outcome> {
        let Some(client) = self.connection.as_mut() else { return Ok(Outcome::Unknown) };
        let invoked = self.world.timeline.now();
        let result = send(client, object, action, way);
        let outcome = match &result {
            Ok(outcome) => outcome.clone(),
            Err(_) => Outcome::Unknown,
        };
        self.learn(object, action, &outcome);
        self.record(object, action, way, outcome, invoked);
        if matches!(result, Ok(Outcome::Refused(_) | Outcome::Unknown)) {
            pause(AFTER_A_REFUSAL);
        }
        result
    }

    fn record(
        &self,
        object: Object,
        action: Action,
        way: &'static str,
        outcome: Outcome,
        invoked: Micros,
    ) {
        let ended = self.world.timeline.now();
        self.world.record(Operation {
            client: self.id,
            proxy: self.proxy,
            object,
            action,
            way,
            outcome,
            invoked,
            ended,
        });
    }

    fn learn(&mut self, object: Object, action: Action, outcome: &Outcome) {
        let value = match (self.kind, action, outcome) {
            (Kind::Register, Action::Get, Outcome::Value(value)) => *value,
            (Kind::Register, Action::Set(value) | Action::Swap(value), _) => value,
            (Kind::Set, Action::Add(value), Outcome::Number(1)) => value,
            (Kind::Queue, Action::Take, Outcome::Value(value)) if *value > 0 => *value,
            _ => return,
        };
        self.known = Some((object, value));
    }

    /// Compare-and-set by WATCH: the value that is read must be there until EXEC.
    fn watch(&mut self, object: Object, new: u64) -> io::Result<()> {
        let key = object.key(0);
        let Some(client) = self.connection.as_mut() else { return Ok(()) };
        if let Some(refusal) = error(&client.cmd(&["WATCH", &key])?) {
            pause(AFTER_A_REFUSAL);
            // Nothing was asked of the object yet.
            return if matches!(refusal, Outcome::Refused(_)) {
                Ok(())
            } else {
                Err(io::Error::other("WATCH was refused"))
            };
        }
        let Outcome::Value(expected) = self.perform(object, Action::Get, "after WATCH")? else {
            return Err(io::Error::other("given up: no value after WATCH"));
        };
        let set = vec!["SET".to_owned(), key, object.text(new)];
        let action = Action::Cas { expected, new };
        let invoked = self.world.timeline.now();
        let result = match self.connection.as_mut() {
            Some(client) => transaction(client, &[set]),
            None => return Ok(()),
        };
        let outcome = match &result {
            Err(_) => Outcome::Unknown,
            Ok(Value::Array(items)) if items.first().is_some_and(Value::is_ok) => {
                Outcome::Number(1)
            }
            // Another client wrote, or the key is another master's.
            Ok(Value::Nil) => Outcome::Refused("EXEC: nil".to_owned()),
            Ok(other) => error(other).unwrap_or_else(|| Outcome::Wrong(other.to_string())),
        };
        self.record(object, action, "WATCH", outcome, invoked);
        result.map(drop)
    }
}

/// Sends an operation and reads its outcome.
pub(super) fn send(
    client: &mut Client,
    object: Object,
    action: Action,
    way: &'static str,
) -> io::Result<Outcome> {
    let words = |all: &[&str]| -> Vec<String> { all.iter().map(ToString::to_string).collect() };
    let (key, other) = (object.key(0), object.key(1));
    let list = |list: usize| if list == 0 { &key } else { &other };
    let range = |list: &str| words(&["LRANGE", list, "0", "-1"]);
    let append = |list: &str, value| words(&["RPUSH", list, &object.text(value)]);
    let request = match action {
        Action::Get => words(&["GET", &key]),
        Action::Set(value) => words(&["SET", &key, &object.text(value)]),
        Action::Swap(value) => words(&["SET", &key, &object.text(value), "GET"]),
        Action::Cas { expected, new } => {
            let before = if expected == 0 { String::new() } else { object.text(expected) };
            words(&["EVAL", SCRIPT, "1", &key, &before, &object.text(new)])
        }
        Action::Increment => words(&["INCR", &key]),
        Action::Append { list: at, value } => append(list(at), value),
        Action::AppendBoth(value) => {
            let all = [append(&key, value), append(&other, value)];
            return transaction(client, &all).map(|reply| read(object, action, &reply));
        }
        Action::Range(at) => range(list(at)),
        Action::RangeBoth => {
            let all = [range(&key), range(&other)];
            return transaction(client, &all).map(|reply| read(object, action, &reply));
        }
        Action::Add(value) => words(&["SADD", &key, &object.text(value)]),
        Action::Remove(value) => words(&["SREM", &key, &object.text(value)]),
        Action::Members => words(&["SMEMBERS", &key]),
        Action::Take if way == "BLMOVE" => words(&["BLMOVE", &key, &other, "LEFT", "RIGHT", "0.2"]),
        Action::Take => words(&["LMOVE", &key, &other, "LEFT", "RIGHT"]),
        Action::Acknowledge(value) => words(&["LREM", &other, "1", &object.text(value)]),
    };
    client.cmd(&request).map(|reply| read(object, action, &reply))
}

/// The reply to EXEC, or the first error if the transaction was refused.
fn transaction(client: &mut Client, requests: &[Vec<String>]) -> io::Result<Value> {
    let mut wire = encode(&["MULTI"]);
    requests.iter().for_each(|it| wire.extend(encode(it)));
    wire.extend(encode(&["EXEC"]));
    client.send(&wire)?;
    let mut early = Vec::new();
    for _ in 0..=requests.len() {
        early.push(client.read_value()?);
    }
    let last = client.read_value()?;
    let queued = |it: &Value| it.text() == Some("QUEUED");
    let is_right = early.first().is_some_and(Value::is_ok) && early.iter().skip(1).all(queued);
    if is_right || last.is_error() {
        return Ok(last);
    }
    Ok(Value::Simple(format!("MULTI was answered by {early:?}")))
}

/// What an error reply says about its request.
fn error(reply: &Value) -> Option<Outcome> {
    let message = reply.error()?;
    let is_refusal = REFUSALS.iter().any(|it| message.starts_with(it));
    Some(if is_refusal { Outcome::Refused(message.to_owned()) } else { Outcome::Unknown })
}

/// The outcome that a reply stands for.
fn read(object: Object, action: Action, reply: &Value) -> Outcome {
    if let Some(outcome) = error(reply) {
        return outcome;
    }
    let value = |it: &Value| object.value(it.text()?);
    let one = |it: &Value| if *it == Value::Nil { Some(0) } else { value(it) };
    let number = |it: &Value| match it {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    let list = |it: &Value| match it {
        Value::Array(items) => items.iter().map(value).collect::<Option<Vec<u64>>>(),
        _ => None,
    };
    let outcome = match action {
        Action::Set(_) => reply.is_ok().then_some(Outcome::Done),
        Action::Get if object.kind == Kind::Counter => match reply {
            Value::Nil => Some(Outcome::Value(0)),
            _ => reply.text().and_then(|it| it.parse().ok()).map(Outcome::Value),
        },
        Action::Get | Action::Swap(_) | Action::Take => one(reply).map(Outcome::Value),
        Action::Range(_) => list(reply).map(|it| Outcome::Lists(vec![it])),
        Action::Members => list(reply).map(|mut it| {
            it.sort_unstable();
            Outcome::Lists(vec![it])
        }),
        Action::RangeBoth => {
            let lists = reply.items().iter().map(list).collect::<Option<Vec<_>>>();
            lists.filter(|it| it.len() == 2).map(Outcome::Lists)
        }
        Action::AppendBoth(_) => {
            let lengths = reply.items().iter().map(|it| Some(vec![number(it)?]));
            let lengths = lengths.collect::<Option<Vec<_>>>();
            lengths.filter(|it| it.len() == 2).map(Outcome::Lists)
        }
        _ => number(reply).map(Outcome::Number),
    };
    outcome.unwrap_or_else(|| Outcome::Wrong(reply.to_string().chars().take(200).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_replies_of_other_requests() {
        let object = Object { epoch: 1, kind: Kind::Lists, number: 2 };
        let bulk = |text: &str| Value::Bulk(text.as_bytes().to_vec());
        let own = Value::Array(vec![bulk(&object.text(7))]);
        assert_eq!(read(object, Action::Range(0), &own), Outcome::Lists(vec![vec![7]]));
        let other = Object { number: 3, ..object };
        for wrong in [Value::Array(vec![bulk(&other.text(7))]), Value::Int(1), bulk("x")] {
            assert!(matches!(read(object, Action::Range(0), &wrong), Outcome::Wrong(_)));
        }
        let half = Value::Array(vec![Value::Int(1)]);
        assert!(matches!(read(object, Action::AppendBoth(1), &half), Outcome::Wrong(_)));
    }

    #[test]
    fn knows_which_errors_exclude_execution() {
        let object = Object { epoch: 1, kind: Kind::Counter, number: 2 };
        let outcome = |text: &str| read(object, Action::Increment, &Value::Error(text.to_owned()));
        assert!(matches!(outcome("LOADING no master"), Outcome::Refused(_)));
        assert_eq!(outcome("NOREPLICAS not confirmed"), Outcome::Unknown);
        assert_eq!(outcome("ERR something"), Outcome::Unknown);
    }
}
