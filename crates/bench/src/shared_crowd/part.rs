//! A part of the crowd, in a process of its own: a process may often have 20,000 descriptors only.
//!
//! The part is this program with a hidden option. It prints a line when its clients are connected,
//! reads the numbers of phases, a line each, and at the end of its input prints what it has seen,
//! as JSON. So it ends with the process that has started it.

use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde_json::{Value, json};

use super::PHASES;
use super::crowd::{Crowd, Seen, Stage};

/// Which clients a part has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartOfCrowd {
    /// The number of the first client.
    pub(super) first: usize,
    pub(super) count: usize,
    /// Requests per second of all of its clients.
    pub(super) rate: u32,
    /// Where they connect to, in turns.
    pub(super) to: Vec<SocketAddr>,
}

impl std::fmt::Display for PartOfCrowd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let to: Vec<String> = self.to.iter().map(SocketAddr::to_string).collect();
        write!(f, "{},{},{},{}", self.first, self.count, self.rate, to.join(","))
    }
}

impl FromStr for PartOfCrowd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let mut number = || words.next().and_then(|word| word.parse::<u32>().ok());
        let (Some(first), Some(count), Some(rate @ 1..)) = (number(), number(), number()) else {
            return Err("three numbers are missing".to_owned());
        };
        let to: Result<Vec<SocketAddr>, _> = words.map(str::parse).collect();
        let to = to.map_err(|error| error.to_string())?;
        Ok(Self { first: first as usize, count: count as usize, rate, to })
    }
}

/// A running part.
pub(super) struct Part {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Part {
    /// Starts it, without waiting for its clients.
    pub(super) fn start(part: &PartOfCrowd) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bench", "shared-crowd", "--part", &part.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, output: BufReader::new(output) })
    }

    /// Waits until its clients are connected.
    pub(super) fn connected(&mut self) -> Result<(), String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(_) if line == CONNECTED => Ok(()),
            _ => Err("a part of the crowd could not connect, see above".to_owned()),
        }
    }

    /// Lets it count for this phase from now on.
    pub(super) fn enter(&mut self, phase: usize) -> Result<(), String> {
        let input = self.child.stdin.as_mut().ok_or("a part of the crowd has no input")?;
        writeln!(input, "{phase}").map_err(|error| format!("a part of the crowd: {error}"))
    }

    /// Ends it, and returns what it has seen in each phase.
    pub(super) fn end(mut self) -> Result<Vec<Seen>, String> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        let read = self.output.read_to_string(&mut text);
        let ended = self.child.wait();
        read.and(ended).map_err(|error| format!("a part of the crowd: {error}"))?;
        let seen: Option<Vec<Seen>> = serde_json::from_str(&text)
            .ok()
            .and_then(|all: Vec<Value>| all.iter().map(from_json).collect());
        seen.ok_or_else(|| "a part of the crowd has failed, see above".to_owned())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // It ends at the end of its input; this is for a part that is stuck.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// What a part prints first.
const CONNECTED: &str = "connected\n";

/// Is a part, to the end of the input.
///
/// # Errors
/// A message for people, if a client cannot connect.
pub(super) fn run(part: &PartOfCrowd) -> Result<(), String> {
    let words = |error: io::Error| format!("the crowd: {error}");
    let mut crowd = Crowd::gather(part.first, part.count, &part.to).map_err(words)?;
    print!("{CONNECTED}");
    io::stdout().flush().map_err(words)?;
    let stage = Stage {
        // Nothing counts before the first phase.
        phase: AtomicUsize::new(usize::MAX),
        over: AtomicBool::new(false),
        seen: Mutex::new(vec![Seen::default(); PHASES.len()]),
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for line in io::stdin().lines().map_while(Result::ok) {
                if let Ok(phase) = line.parse() {
                    stage.phase.store(phase, Ordering::Relaxed);
                }
            }
            stage.over.store(true, Ordering::Relaxed);
        });
        crowd.run(part.rate, &stage).map_err(words)
    })?;
    let seen = stage.seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{}", Value::from_iter(seen.iter().map(to_json)));
    Ok(())
}

fn to_json(seen: &Seen) -> Value {
    let Seen { latencies, wrong, lost, refused, closed, behind, texts } = seen;
    json!({
        "latencies": latencies, "wrong": wrong, "lost": lost, "refused": refused,
        "closed": closed, "behind": behind, "texts": texts,
    })
}

fn from_json(value: &Value) -> Option<Seen> {
    let number = |name: &str| value.get(name)?.as_u64();
    let latencies = value.get("latencies")?.as_array()?.iter();
    let texts = value.get("texts")?.as_object()?.iter();
    Some(Seen {
        latencies: latencies
            .map(|it| it.as_u64().and_then(|it| it.try_into().ok()))
            .collect::<Option<_>>()?,
        wrong: number("wrong")?,
        lost: number("lost")?,
        refused: number("refused")?,
        closed: number("closed")?,
        behind: number("behind")?,
        texts: texts
            .map(|(text, count)| Some((text.clone(), count.as_u64()?)))
            .collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let to = vec!["127.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap()];
        let part = PartOfCrowd { first: 10_000, count: 7, rate: 500, to };
        assert_eq!(part.to_string().parse(), Ok(part.clone()));
        for wrong in ["", "1,2", "1,2,0,127.0.0.1:1", "1,2,3,nowhere"] {
            assert!(wrong.parse::<PartOfCrowd>().is_err(), "{wrong}");
        }
        let texts = [("client 1: \"x\"".to_owned(), 2)].into();
        let (latencies, wrong, lost) = (vec![1, u32::MAX], 1, 2);
        let seen = Seen { latencies, wrong, lost, refused: 3, closed: 4, behind: 5, texts };
        assert_eq!(from_json(&to_json(&seen)), Some(seen));
        assert_eq!(from_json(&json!({"latencies": []})), None);
    }

    #[test]
    fn adds_what_parts_have_seen() {
        let seen = |latency: u32, count: u64| Seen {
            latencies: vec![latency],
            wrong: count,
            texts: [("x".to_owned(), count)].into(),
            ..Seen::default()
        };
        let mut both = seen(1, 2);
        both.add(seen(3, 4));
        assert_eq!((both.latencies, both.wrong), (vec![1, 3], 6));
        assert_eq!(both.texts, [("x".to_owned(), 6)].into());
    }
}
