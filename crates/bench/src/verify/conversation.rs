//! A conversation: what several clients do, one after the other, as a script that people can read.

use std::fmt;

use super::exceptions::Treatment;

/// A request, or some other bytes that a client sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) wire: Wire,
    /// Replies that a client gets for it, without messages that it did not ask for.
    pub(super) replies: usize,
    pub(super) treatment: Treatment,
}

/// The bytes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wire {
    /// An array of strings.
    Words(Vec<Vec<u8>>),
    /// As they are: an inline request, a part of a request, or no request at all.
    Raw(Vec<u8>),
}

/// Stands for the number of a client's connection in a word, before the number of the client. Both
/// sides have numbers of their own, which `CLIENT ID` has told.
pub(super) const ID_OF: &[u8] = b"@id-of-";

impl Request {
    /// The request with the numbers of connections in place.
    pub(super) fn with_ids(&self, ids: &[String]) -> Self {
        let Wire::Words(words) = &self.wire else { return self.clone() };
        let replaced = |word: &Vec<u8>| {
            let client = word.strip_prefix(ID_OF).and_then(|it| std::str::from_utf8(it).ok());
            let id = client.and_then(|it| ids.get(it.parse::<usize>().ok()?));
            id.map_or_else(|| word.clone(), |id| id.clone().into_bytes())
        };
        Self { wire: Wire::Words(words.iter().map(replaced).collect()), ..self.clone() }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        match &self.wire {
            Wire::Words(words) => harness::encode(words),
            Wire::Raw(bytes) => bytes.clone(),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.wire {
            Wire::Raw(bytes) => write!(f, "raw \"{}\"", abridged(bytes)),
            Wire::Words(words) => {
                let quoted = |word: &Vec<u8>| {
                    let is_plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b'"';
                    if !word.is_empty() && word.iter().all(is_plain) {
                        abridged(word)
                    } else {
                        format!("\"{}\"", abridged(word))
                    }
                };
                f.write_str(&words.iter().map(quoted).collect::<Vec<_>>().join(" "))
            }
        }
    }
}

fn abridged(bytes: &[u8]) -> String {
    const MOST: usize = 200;
    let text = |part: &[u8]| part.escape_ascii().to_string();
    match bytes.get(..MOST) {
        Some(start) if bytes.len() > MOST => format!("{}…({} bytes)", text(start), bytes.len()),
        _ => text(bytes),
    }
}

/// What is waited for after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// All replies to what was sent.
    Replies,
    /// Nothing: the client does not read.
    Nothing,
    /// Until the server has blocked the client.
    Blocked,
}

/// What happens in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// The client sends requests in one write, or split after these numbers of bytes.
    Send { requests: Vec<Request>, cuts: Vec<usize>, wait: Wait },
    /// The replies to a request that blocked the client are awaited.
    Await,
    /// The client closes its connection, with RST or FIN, and uses a new one from then on.
    Leave { reset: bool },
    /// An operator's request, at all servers.
    Operator(Vec<Vec<u8>>),
    /// Time passes, in milliseconds.
    Pause(u64),
    /// A planned failover of the servers behind Pointsman.
    Failover,
}

/// One step of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) client: usize,
    pub(super) action: Action,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let client = self.client;
        match &self.action {
            Action::Send { requests, cuts, wait } => {
                let texts: Vec<String> = requests.iter().map(ToString::to_string).collect();
                write!(f, "client {client}: {}", texts.join(" ; "))?;
                if !cuts.is_empty() {
                    write!(f, "  # split after {cuts:?} bytes")?;
                }
                if *wait == Wait::Blocked {
                    f.write_str("  # blocks")?;
                }
                Ok(())
            }
            Action::Await => write!(f, "client {client}: awaits its reply"),
            Action::Leave { reset } => {
                write!(f, "client {client}: closes with {}", if *reset { "RST" } else { "FIN" })
            }
            Action::Operator(words) => {
                let words: Vec<_> = words.iter().map(|it| it.escape_ascii().to_string()).collect();
                write!(f, "operator: {}", words.join(" "))
            }
            Action::Pause(time) => write!(f, "pause of {time} ms"),
            Action::Failover => f.write_str("planned failover"),
        }
    }
}

/// What all clients do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Conversation {
    pub(super) steps: Vec<Step>,
}

impl fmt::Display for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps
            .iter()
            .enumerate()
            .try_for_each(|(at, step)| writeln!(f, "{:>4}  {step}", at + 1))
    }
}
