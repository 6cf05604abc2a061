//! Test support: dialogues written by hand, and a model of a Redis server for generated ones.
//!
//! The model shares no code with the ledger and works in the opposite direction: it knows the state
//! and produces the bytes. It declines commands that the ledger does not track by design (see the
//! tests of the rules): [`ModelServer::execute`] returns `None`.

use std::collections::BTreeSet;

use crate::{Ledger, Limits, SessionState};

/// A dialogue between a client and a server. `c` takes the words that the client sends; `s` the
/// frames that the server sends, with `/` for `\r\n`.
pub(crate) struct Dialogue(pub(crate) Ledger);

impl Dialogue {
    pub(crate) fn new() -> Self {
        Self(Ledger::new(&Limits::default()))
    }

    pub(crate) fn c(&mut self, words: &str) -> &mut Self {
        let words: Vec<&str> = words.split(' ').collect();
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.request(bytes.as_bytes());
        self
    }

    pub(crate) fn s(&mut self, frames: &str) -> &mut Self {
        self.0.reply(frames.replace('/', "\r\n").as_bytes());
        self
    }

    #[track_caller]
    pub(crate) fn is(&mut self, session_state: SessionState, owed: u64) -> &mut Self {
        assert_eq!((self.0.session_state(), self.0.owed()), (session_state, owed));
        self
    }
}

/// One frame from the server.
pub(crate) struct ServerFrame {
    pub(crate) bytes: Vec<u8>,
    /// Whether this frame completes the reply to a request.
    pub(crate) answers: bool,
}

/// A command of a conversation; numbers choose among the variants.
#[derive(Debug, Clone)]
pub(crate) struct ModelCommand {
    pub(crate) what: usize,
    pub(crate) detail: usize,
    /// Refused by ACL rules.
    pub(crate) refused: bool,
    pub(crate) inline: bool,
    /// Whether a message without a request follows.
    pub(crate) messages: bool,
}

#[derive(Debug, Default)]
pub(crate) struct ModelServer {
    resp3: bool,
    sets: [BTreeSet<usize>; 3],
    multi: Option<Transaction>,
    /// `MULTI` was sent, whether or not it was accepted.
    multi_sent: bool,
    watching: bool,
    asking: bool,
    tracking: bool,
    off: bool,
    skip: bool,
    unconfirmed: bool,
}

#[derive(Debug, Default)]
struct Transaction {
    queued: usize,
    dirty: bool,
}

const WORDS: &[&str] = &[
    "GET k",
    "SET k v",
    "PING",
    "BLPOP q 0",
    "WAIT 1 1",
    "SELECT 2",
    "CLIENT SETNAME me",
    "EVAL script 0",
    "CLIENT ID",
    "MULTI",
    "EXEC",
    "DISCARD",
    "WATCH k",
    "UNWATCH",
    "ASKING",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
    "PSUBSCRIBE",
    "PUNSUBSCRIBE",
    "SSUBSCRIBE",
    "SUNSUBSCRIBE",
    "HELLO",
    "RESET",
    "CLIENT REPLY ON",
    "CLIENT REPLY OFF",
    "CLIENT REPLY SKIP",
    "CLIENT TRACKING ON",
    "client tracking off",
    "",
];
pub(crate) const COMMANDS: usize = WORDS.len();

const REPLIES: &[&str] = &[
    "+OK/",
    ":3/",
    "$3/abc/",
    "$-1/",
    "-ERR wrong/",
    "*2/*2/$1/a/$1/b/*0/",
    "*-1/",
    "$6/a//b/",
    "*1/*1/*1/*1/*1/*1/*1/:1/",
    "*3/$4/mess/$1/a/:1/",
    "-READONLY You can't write/",
];
const REPLIES3: &[&str] = &[
    "_/",
    "%1/+a/#t/",
    "~2/,1.5/(123/",
    "|1/+ttl/:9/$1/x/",
    "*3/$7/message/$1/a/$1/b/",
    "=5/txt:x/",
    "$?/;2/ab/;0/",
];

fn frame(text: &str) -> Vec<u8> {
    text.replace('/', "\r\n").into_bytes()
}

fn reply(text: &str) -> Vec<ServerFrame> {
    vec![ServerFrame { bytes: frame(text), answers: true }]
}

impl ModelServer {
    /// Executes a command. Returns the bytes of the request, whether it gets a reply, and the
    /// frames from the server; `None` if the ledger cannot track the command in this state by
    /// design.
    pub(crate) fn execute(
        &mut self,
        say: &ModelCommand,
    ) -> Option<(Vec<u8>, bool, Vec<ServerFrame>)> {
        let mut words: Vec<String> =
            WORDS[say.what].split_whitespace().map(str::to_owned).collect();
        let name = words.first().map(|word| word.to_uppercase()).unwrap_or_default();
        if name.ends_with("SUBSCRIBE") {
            words.extend((0..say.detail % 4).map(|i| format!("c{}", (say.detail + i) % 5)));
        } else if name == "HELLO" {
            words.push((2 + say.detail % 2).to_string());
        }
        let request = encode(&words, say.inline);
        if name.is_empty() {
            return (!self.skip).then_some((request, false, Vec::new()));
        }
        let frames = if name == "CLIENT" && words[1] == "REPLY" {
            self.reply_mode(&words[2], say)
        } else {
            self.run(&name, &words, say)
        }?;
        self.multi_sent = match name.as_str() {
            "MULTI" => true,
            "EXEC" | "DISCARD" | "RESET" => false,
            _ => self.multi_sent,
        };
        let answered = !frames.is_empty();
        self.unconfirmed = !answered;
        self.asking = self.asking && name == "ASKING";
        let mut frames = frames;
        if say.messages {
            frames.extend(self.messages());
        }
        Some((request, answered, frames))
    }

    fn subscriptions(&self) -> usize {
        self.sets.iter().map(BTreeSet::len).sum()
    }

    fn restricted(&self) -> bool {
        !self.resp3 && self.subscriptions() > 0
    }

    fn messages(&self) -> Option<ServerFrame> {
        let text = match (self.resp3, self.subscriptions() > 0) {
            (true, _) => ">2/$10/invalidate/*1/$1/k/",
            (false, true) => "*3/$7/message/$1/a/$3/abc/",
            (false, false) => return None,
        };
        Some(ServerFrame { bytes: frame(text), answers: false })
    }

    fn reply_mode(&mut self, mode: &str, say: &ModelCommand) -> Option<Vec<ServerFrame>> {
        let may_queue = self.multi_sent || self.multi.is_some();
        if may_queue || self.restricted() || say.refused {
            return None;
        }
        match mode {
            "ON" => (self.off, self.skip) = (false, false),
            "OFF" => (self.off, self.skip) = (true, false),
            _ => self.skip = !self.off,
        }
        Some(if mode == "ON" { reply("+OK/") } else { Vec::new() })
    }

    fn run(
        &mut self,
        name: &str,
        words: &[String],
        say: &ModelCommand,
    ) -> Option<Vec<ServerFrame>> {
        let plain =
            say.what <= 8 && name != "SELECT" && !words.iter().any(|word| word == "SETNAME");
        if self.off || self.skip {
            if name == "RESET" && self.off && !say.refused {
                *self = Self::default();
                return Some(reply("+RESET/"));
            }
            self.skip = self.skip && !plain;
            return plain.then(Vec::new);
        }
        if say.refused {
            if let Some(transaction) = &mut self.multi {
                transaction.dirty = true;
                if name == "EXEC" {
                    (self.multi, self.watching) = (None, false);
                    return Some(reply("-EXECABORT Transaction discarded because of: NOPERM/"));
                }
            }
            return Some(reply("-NOPERM no/"));
        }
        if name == "RESET" {
            *self = Self::default();
            return Some(reply("+RESET/"));
        }
        if self.restricted() && !name.ends_with("SUBSCRIBE") {
            return Some(reply(if name == "PING" {
                "*2/$4/pong/$0//"
            } else {
                "-ERR Can't execute here/"
            }));
        }
        if self.multi.is_some() { self.run_queued(name) } else { self.run_now(name, words, say) }
    }

    fn run_queued(&mut self, name: &str) -> Option<Vec<ServerFrame>> {
        let transaction = self.multi.as_mut()?;
        match name {
            "EXEC" => {
                let answer = match (transaction.dirty, transaction.queued) {
                    (true, _) => "-EXECABORT Transaction discarded/".to_owned(),
                    (false, 1) if self.resp3 => "_/".to_owned(),
                    (false, 1) => "*-1/".to_owned(),
                    (false, queued) => format!("*{queued}/{}", "*1/-READONLY x/".repeat(queued)),
                };
                (self.multi, self.watching) = (None, false);
                Some(reply(&answer))
            }
            "DISCARD" => {
                (self.multi, self.watching) = (None, false);
                Some(reply("+OK/"))
            }
            "MULTI" | "WATCH" => Some(reply("-ERR not inside MULTI/")),
            "HELLO" => None,
            _ if name.ends_with("SUBSCRIBE") => None,
            "CLIENT" => None,
            _ => {
                transaction.queued += 1;
                Some(reply("+QUEUED/"))
            }
        }
    }

    fn run_now(
        &mut self,
        name: &str,
        words: &[String],
        say: &ModelCommand,
    ) -> Option<Vec<ServerFrame>> {
        let (sub, unsub) = (name.ends_with("SUBSCRIBE"), name.ends_with("UNSUBSCRIBE"));
        Some(match name {
            _ if sub && !unsub && words.len() == 1 => reply("-ERR wrong number of arguments/"),
            _ if sub => self.subscribe(&name.to_lowercase(), &words[1..], unsub),
            "MULTI" => {
                self.multi = Some(Transaction::default());
                reply("+OK/")
            }
            "EXEC" | "DISCARD" => reply("-ERR without MULTI/"),
            "WATCH" | "UNWATCH" => {
                self.watching = name == "WATCH";
                reply("+OK/")
            }
            "ASKING" => {
                self.asking = true;
                reply("+OK/")
            }
            "HELLO" => {
                self.resp3 = words[1] == "3";
                reply(if self.resp3 {
                    "%2/$6/server/$5/redis/$5/proto/:3/"
                } else {
                    "*4/$6/server/$5/redis/$5/proto/:2/"
                })
            }
            "CLIENT" if words[1].eq_ignore_ascii_case("TRACKING") => {
                self.tracking = words[2] == "ON";
                reply("+OK/")
            }
            _ => {
                let choice = say.detail % (REPLIES.len() + REPLIES3.len());
                reply(match REPLIES3.get(choice) {
                    Some(reply) if self.resp3 => reply,
                    _ => REPLIES[choice % REPLIES.len()],
                })
            }
        })
    }

    fn subscribe(&mut self, name: &str, channels: &[String], unsub: bool) -> Vec<ServerFrame> {
        let which = match name.as_bytes()[0] {
            b'p' => 1,
            b's' if name != "subscribe" => 2,
            _ => 0,
        };
        let mut channels: Vec<Option<usize>> =
            channels.iter().map(|name| name[1..].parse().ok()).collect();
        if channels.is_empty() {
            channels = self.sets[which].iter().copied().map(Some).collect();
        }
        if channels.is_empty() {
            channels.push(None);
        }
        let last = channels.len() - 1;
        let mut frames = Vec::new();
        for (i, channel) in channels.into_iter().enumerate() {
            let channel = channel.map_or_else(
                || "$-1/".to_owned(),
                |channel| {
                    if unsub {
                        self.sets[which].remove(&channel)
                    } else {
                        self.sets[which].insert(channel)
                    };
                    format!("$2/c{channel}/")
                },
            );
            let count = if which == 2 {
                self.sets[2].len()
            } else {
                self.sets[0].len() + self.sets[1].len()
            };
            let kind = if self.resp3 { '>' } else { '*' };
            let text = format!("{kind}3/${}/{name}/{channel}:{count}/", name.len());
            frames.push(ServerFrame { bytes: frame(&text), answers: i == last });
            if i != last {
                // A message may arrive between two confirmations.
                frames.extend(self.messages());
            }
        }
        frames
    }

    /// The state of the session when all requests are answered.
    pub(crate) fn session_state(&self) -> SessionState {
        if self.multi.is_some() {
            SessionState::Transaction
        } else if self.subscriptions() > 0 {
            SessionState::Subscribed
        } else if self.watching
            || self.asking
            || self.tracking
            || self.off
            || self.skip
            || self.unconfirmed
        {
            SessionState::Pinned
        } else {
            SessionState::Quiet
        }
    }
}

fn encode(words: &[String], inline: bool) -> Vec<u8> {
    if inline {
        return format!("{}\r\n", words.join("  ")).into_bytes();
    }
    let words: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{words}", words.matches('$').count()).into_bytes()
}
