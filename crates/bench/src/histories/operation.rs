//! Operations of a history, and what each one does to its object. Pure.
//!
//! An object is one key, or two keys that are written together. Every value is written once, so an
//! effect can be traced to its operation.

use std::fmt;

/// Microseconds since the start of the run.
pub(super) type Micros = u64;

/// The type of an object, which is also a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// A string: SET, GET, compare-and-set.
    Register,
    Counter,
    /// Two lists that only grow, together in transactions or one at a time.
    Lists,
    Set,
    /// Two lists: waiting elements, and those that were taken and not acknowledged yet.
    Queue,
}

pub(super) const KINDS: [Kind; 5] =
    [Kind::Register, Kind::Counter, Kind::Lists, Kind::Set, Kind::Queue];

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::Counter => "counter",
            Self::Lists => "lists",
            Self::Set => "set",
            Self::Queue => "queue",
        }
    }
}

/// One object of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Object {
    pub(super) epoch: u64,
    pub(super) kind: Kind,
    pub(super) number: u64,
}

impl Object {
    /// Its key, or the first or second of its keys.
    pub(super) fn key(&self, list: usize) -> String {
        let Self { epoch, kind, number } = self;
        format!("{}:{epoch}:{number}:{list}", kind.name())
    }

    /// The value as it is written: it names the object.
    pub(super) fn text(&self, value: u64) -> String {
        format!("{}={value}", self.key(0))
    }

    /// The value of a text, if it was written to this object.
    pub(super) fn value(&self, text: &str) -> Option<u64> {
        text.strip_prefix(&self.key(0))?.strip_prefix('=')?.parse().ok()
    }
}

/// What an operation asks for. Value 0 stands for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Action {
    Get,
    Set(u64),
    /// SET with GET: returns the value before.
    Swap(u64),
    Cas {
        expected: u64,
        new: u64,
    },
    Increment,
    Append {
        list: usize,
        value: u64,
    },
    /// A transaction with an append to each list.
    AppendBoth(u64),
    Range(usize),
    /// A transaction that reads both lists.
    RangeBoth,
    Add(u64),
    Remove(u64),
    Members,
    /// LMOVE or BLMOVE from the first list to the end of the second.
    Take,
    /// Removes a taken element from the second list.
    Acknowledge(u64),
}

/// What the client got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The connection ended, or the reply leaves it open: it ran once, later, or never.
    Unknown,
    /// An error that says that it was not executed.
    Refused(String),
    Done,
    Number(u64),
    /// 0 for none.
    Value(u64),
    Lists(Vec<Vec<u64>>),
    /// A reply that belongs to no such operation.
    Wrong(String),
}

/// One operation of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) client: usize,
    pub(super) proxy: usize,
    pub(super) object: Object,
    pub(super) action: Action,
    /// How it was sent, where there are several ways.
    pub(super) way: &'static str,
    pub(super) outcome: Outcome,
    pub(super) invoked: Micros,
    /// When the reply arrived, or the connection ended.
    pub(super) ended: Micros,
}

impl Operation {
    pub(super) fn is_unknown(&self) -> bool {
        self.outcome == Outcome::Unknown
    }

    pub(super) fn is_refused(&self) -> bool {
        matches!(self.outcome, Outcome::Refused(_))
    }

    /// Whether it left its object as it was.
    pub(super) fn changes_nothing(&self) -> bool {
        match self.action {
            Action::Get | Action::Range(_) | Action::RangeBoth | Action::Members => true,
            Action::Take => self.outcome == Outcome::Value(0),
            _ => self.outcome == Outcome::Number(0),
        }
    }

    /// The value that it writes, takes or removes.
    pub(super) fn value(&self) -> Option<u64> {
        match self.action {
            Action::Set(value)
            | Action::Swap(value)
            | Action::Cas { new: value, .. }
            | Action::Append { value, .. }
            | Action::AppendBoth(value)
            | Action::Add(value)
            | Action::Remove(value)
            | Action::Acknowledge(value) => Some(value),
            _ => None,
        }
    }

    /// The values that its reply names.
    pub(super) fn named(&self) -> Vec<u64> {
        match &self.outcome {
            Outcome::Value(value) => vec![*value],
            Outcome::Lists(lists) => lists.concat(),
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |list: &usize| if *list == 0 { "a" } else { "b" };
        match &self.action {
            Action::Get => write!(f, "GET"),
            Action::Set(value) => write!(f, "SET {value}"),
            Action::Swap(value) => write!(f, "SET {value} GET"),
            Action::Cas { expected, new } => write!(f, "compare {expected}, set {new}"),
            Action::Increment => write!(f, "INCR"),
            Action::Append { list, value } => write!(f, "RPUSH {} {value}", name(list)),
            Action::AppendBoth(value) => write!(f, "MULTI RPUSH a {value}, RPUSH b {value}"),
            Action::Range(list) => write!(f, "LRANGE {}", name(list)),
            Action::RangeBoth => write!(f, "MULTI LRANGE a, LRANGE b"),
            Action::Add(value) => write!(f, "SADD {value}"),
            Action::Remove(value) => write!(f, "SREM {value}"),
            Action::Members => write!(f, "SMEMBERS"),
            Action::Take => write!(f, "LMOVE a b"),
            Action::Acknowledge(value) => write!(f, "LREM b {value}"),
        }?;
        if !self.way.is_empty() {
            write!(f, " ({})", self.way)?;
        }
        match &self.outcome {
            Outcome::Unknown => write!(f, " -> no reply"),
            Outcome::Refused(message) => write!(f, " -> refused: {message}"),
            Outcome::Done => write!(f, " -> OK"),
            Outcome::Number(number) => write!(f, " -> {number}"),
            Outcome::Value(0) => write!(f, " -> nothing"),
            Outcome::Value(value) => write!(f, " -> {value}"),
            Outcome::Lists(lists) => {
                let texts: Vec<String> = lists.iter().map(|it| short(it)).collect();
                write!(f, " -> {}", texts.join(" "))
            }
            Outcome::Wrong(text) => write!(f, " -> a reply of another request: {text}"),
        }
    }
}

/// A list whose beginning is left out if it is long.
fn short(list: &[u64]) -> String {
    const SHOWN: usize = 12;
    let skipped = list.len().saturating_sub(SHOWN);
    let texts: Vec<String> = list.iter().skip(skipped).map(ToString::to_string).collect();
    let dots = if skipped > 0 { format!("({skipped} before) ") } else { String::new() };
    format!("[{dots}{}]", texts.join(" "))
}

/// The content of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct State {
    pub(super) number: u64,
    pub(super) lists: [Vec<u64>; 2],
}

impl State {
    pub(super) fn show(&self, kind: Kind) -> String {
        let [first, second] = &self.lists;
        match kind {
            Kind::Register | Kind::Counter => self.number.to_string(),
            Kind::Set => short(first),
            Kind::Lists | Kind::Queue => format!("{} {}", short(first), short(second)),
        }
    }

    pub(super) fn values(&self) -> Vec<u64> {
        let [first, second] = &self.lists;
        [first.as_slice(), second, &[self.number]].concat()
    }

    /// The state after an operation, if its outcome is possible here.
    pub(super) fn after(&self, operation: &Operation) -> Option<Self> {
        let Operation { action, outcome, .. } = operation;
        let mut next = self.clone();
        let right = match *action {
            Action::Get => Outcome::Value(self.number),
            Action::Range(list) => Outcome::Lists(vec![self.lists.get(list)?.clone()]),
            Action::RangeBoth => Outcome::Lists(self.lists.to_vec()),
            Action::Members => Outcome::Lists(vec![self.lists[0].clone()]),
            Action::Set(value) => {
                next.number = value;
                Outcome::Done
            }
            Action::Swap(value) => {
                next.number = value;
                Outcome::Value(self.number)
            }
            Action::Cas { expected, new } if self.number == expected => {
                next.number = new;
                Outcome::Number(1)
            }
            Action::Cas { .. } => Outcome::Number(0),
            Action::Increment => {
                next.number += 1;
                Outcome::Number(next.number)
            }
            Action::Append { list, value } => {
                let list = next.lists.get_mut(list)?;
                list.push(value);
                Outcome::Number(list.len() as u64)
            }
            Action::AppendBoth(value) => {
                next.lists.iter_mut().for_each(|list| list.push(value));
                Outcome::Lists(next.lists.iter().map(|list| vec![list.len() as u64]).collect())
            }
            Action::Add(value) => Outcome::Number(add(&mut next.lists[0], value)),
            Action::Remove(value) => Outcome::Number(remove(&mut next.lists[0], value)),
            Action::Acknowledge(value) => Outcome::Number(remove(&mut next.lists[1], value)),
            Action::Take if self.lists[0].is_empty() => Outcome::Value(0),
            Action::Take => {
                let value = next.lists[0].remove(0);
                next.lists[1].push(value);
                Outcome::Value(value)
            }
        };
        (right == *outcome || operation.is_unknown()).then_some(next)
    }

    /// Whether an operation cannot get its outcome any more, whatever is executed before it.
    pub(super) fn is_beyond(&self, kind: Kind, operation: &Operation) -> bool {
        let grown = |list: usize, length: u64| {
            self.lists.get(list).is_some_and(|it| it.len() as u64 >= length)
        };
        let differs = |list: usize, seen: &[u64]| {
            self.lists.get(list).is_some_and(|it| !seen.starts_with(it))
        };
        match (kind, operation.action, &operation.outcome) {
            (Kind::Counter, Action::Increment, Outcome::Number(to)) => self.number >= *to,
            (Kind::Counter, Action::Get, Outcome::Value(to)) => self.number > *to,
            (Kind::Lists, Action::Append { list, .. }, Outcome::Number(to)) => grown(list, *to),
            (Kind::Lists, Action::AppendBoth(_), Outcome::Lists(to)) => {
                to.iter().flatten().enumerate().any(|(list, to)| grown(list, *to))
            }
            (Kind::Lists, Action::Range(list), Outcome::Lists(seen)) => {
                seen.first().is_none_or(|seen| differs(list, seen))
            }
            (Kind::Lists, Action::RangeBoth, Outcome::Lists(seen)) => {
                seen.iter().enumerate().any(|(list, seen)| differs(list, seen))
            }
            _ => false,
        }
    }
}

/// How many elements were added. The list is sorted.
fn add(list: &mut Vec<u64>, value: u64) -> u64 {
    match list.binary_search(&value) {
        Ok(_) => 0,
        Err(at) => {
            list.insert(at, value);
            1
        }
    }
}

fn remove(list: &mut Vec<u64>, value: u64) -> u64 {
    let Some(at) = list.iter().position(|it| *it == value) else { return 0 };
    list.remove(at);
    1
}
