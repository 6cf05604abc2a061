//! A server in miniature, to hold conversations with: it executes commands one after the other and
//! answers as Redis does.
//!
//! It shares no code with the ledger and works the other way round: it knows the truth and produces
//! the bytes. What the ledger does not follow by design (see the tests of the rules) is never said
//! to it: [`ModelServer::hear`] declines.

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
    /// Whether a request is answered with this frame, for good.
    pub(crate) answers: bool,
}

/// A command of a conversation; numbers choose among the variants.
#[derive(Debug, Clone)]
pub(crate) struct ModelCommand {
    pub(crate) what: usize,
    pub(crate) detail: usize,
    /// Refused by access rules.
    pub(crate) refused: bool,
    pub(crate) inline: bool,
    /// Whether something unasked follows.
    pub(crate) news: bool,
}

#[derive(Debug, Default)]
pub(crate) struct ModelServer {
    resp3: bool,
    sets: [BTreeSet<usize>; 3],
    multi: Option<Transaction>,
    /// Sent, whether or not it was accepted.
    multi_sent: bool,
    watching: bool,
    asking: bool,
    tracking: bool,
    off: bool,
    skip: bool,
    unseen: bool,
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

fn told(text: &str) -> Vec<ServerFrame> {
    vec![ServerFrame { bytes: frame(text), answers: true }]
}

impl ModelServer {
    /// The bytes of a request and what it is answered with; `None` if the ledger is not meant to
    /// follow it now.
    pub(crate) fn hear(&mut self, say: &ModelCommand) -> Option<(Vec<u8>, bool, Vec<ServerFrame>)> {
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
        let reply = if name == "CLIENT" && words[1] == "REPLY" {
            self.reply_mode(&words[2], say)
        } else {
            self.run(&name, &words, say)
        }?;
        self.multi_sent = match name.as_str() {
            "MULTI" => true,
            "EXEC" | "DISCARD" | "RESET" => false,
            _ => self.multi_sent,
        };
        let answered = !reply.is_empty();
        self.unseen = !answered;
        self.asking = self.asking && name == "ASKING";
        let mut tells = reply;
        if say.news {
            tells.extend(self.news());
        }
        Some((request, answered, tells))
    }

    fn subscriptions(&self) -> usize {
        self.sets.iter().map(BTreeSet::len).sum()
    }

    fn restricted(&self) -> bool {
        !self.resp3 && self.subscriptions() > 0
    }

    fn news(&self) -> Option<ServerFrame> {
        let text = match (self.resp3, self.subscriptions() > 0) {
            (true, _) => ">2/$10/invalidate/*1/$1/k/",
            (false, true) => "*3/$7/message/$1/a/$3/abc/",
            (false, false) => return None,
        };
        Some(ServerFrame { bytes: frame(text), answers: false })
    }

    fn reply_mode(&mut self, mode: &str, say: &ModelCommand) -> Option<Vec<ServerFrame>> {
        if self.multi_sent || self.restricted() || say.refused {
            return None;
        }
        match mode {
            "ON" => (self.off, self.skip) = (false, false),
            "OFF" => (self.off, self.skip) = (true, false),
            _ => self.skip = !self.off,
        }
        Some(if mode == "ON" { told("+OK/") } else { Vec::new() })
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
                return Some(told("+RESET/"));
            }
            self.skip = self.skip && !plain;
            return plain.then(Vec::new);
        }
        if say.refused {
            if let Some(transaction) = &mut self.multi {
                transaction.dirty = true;
                if name == "EXEC" {
                    (self.multi, self.watching) = (None, false);
                    return Some(told("-EXECABORT Transaction discarded because of: NOPERM/"));
                }
            }
            return Some(told("-NOPERM no/"));
        }
        if name == "RESET" {
            *self = Self::default();
            return Some(told("+RESET/"));
        }
        if self.restricted() && !name.ends_with("SUBSCRIBE") {
            return Some(told(if name == "PING" {
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
                Some(told(&answer))
            }
            "DISCARD" => {
                (self.multi, self.watching) = (None, false);
                Some(told("+OK/"))
            }
            "MULTI" | "WATCH" => Some(told("-ERR not inside MULTI/")),
            "HELLO" => None,
            _ if name.ends_with("SUBSCRIBE") => None,
            "CLIENT" => None,
            _ => {
                transaction.queued += 1;
                Some(told("+QUEUED/"))
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
            _ if sub && !unsub && words.len() == 1 => told("-ERR wrong number of arguments/"),
            _ if sub => self.subscribe(&name.to_lowercase(), &words[1..], unsub),
            "MULTI" => {
                self.multi = Some(Transaction::default());
                told("+OK/")
            }
            "EXEC" | "DISCARD" => told("-ERR without MULTI/"),
            "WATCH" | "UNWATCH" => {
                self.watching = name == "WATCH";
                told("+OK/")
            }
            "ASKING" => {
                self.asking = true;
                told("+OK/")
            }
            "HELLO" => {
                self.resp3 = words[1] == "3";
                told(if self.resp3 {
                    "%2/$6/server/$5/redis/$5/proto/:3/"
                } else {
                    "*4/$6/server/$5/redis/$5/proto/:2/"
                })
            }
            "CLIENT" if words[1].eq_ignore_ascii_case("TRACKING") => {
                self.tracking = words[2] == "ON";
                told("+OK/")
            }
            _ => {
                let choice = say.detail % (REPLIES.len() + REPLIES3.len());
                told(match REPLIES3.get(choice) {
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
        let mut tells = Vec::new();
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
            tells.push(ServerFrame { bytes: frame(&text), answers: i == last });
            if i != last {
                // A message may come between two confirmations.
                tells.extend(self.news());
            }
        }
        tells
    }

    /// Where the session stands once all has been said and answered.
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
            || self.unseen
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
