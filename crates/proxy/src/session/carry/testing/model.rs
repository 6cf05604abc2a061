//! A model of a Redis connection for the property test: its state, and its replies.
//!
//! The same model plays the servers and predicts their replies: if a carried session has another
//! identity, the two differ. The one reply that a client may get from the proxy instead is that to
//! the maintenance handshake.
//!
//! Values that depend on the server process (the order of keys by its hash seed, the number of the
//! connection, its cache of scripts) no client can predict. In a predicted reply such a line is a
//! [`BLANK`], and the client records the actual value: see
//! [`Filled`](crate::session::carry::testing::blanks::Filled).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Subscriptions;
use crate::session::carry::testing::blanks::{BLANK, KEYS};

/// The notifications that a client has agreed to: none, to move to an address, or to reconnect to
/// the same one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Agreement {
    #[default]
    Off,
    OtherAddress,
    SameAddress,
}

/// Part of a long reply that looks like frames of its own.
const BAIT: &str = "\r\n>3\r\n$11\r\nFAILED_OVER\r\n:1\r\n$2\r\n[]\r\n\
     -ERR unknown subcommand 'MAINT_NOTIFICATIONS'.\r\n+OK\r\n";

/// The refusal of an unknown handshake.
pub(crate) const UNKNOWN: &str =
    "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n";

/// The refusal of a script that is not loaded.
pub(crate) const NO_SCRIPT: &str = "-NOSCRIPT No matching script. Please use EVAL.\r\n";

/// The state of one process of a server.
#[derive(Debug, Default)]
pub(crate) struct ServerProcess {
    /// Decides in which order it returns its keys.
    pub(crate) seed: u32,
    pub(crate) has_script: AtomicBool,
}

/// The state of one connection in the server.
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelConnection {
    /// The server knows the handshake.
    knows_handshake: bool,
    db: u32,
    user: String,
    name: String,
    library: String,
    no_touch: bool,
    read_only: bool,
    resp3: bool,
    queue: Option<Vec<Vec<String>>>,
    /// A command was refused instead of queued.
    refused: bool,
    watching: bool,
    /// A transaction changed its state, in a reply that is not parsed; or the server itself agreed
    /// to the handshake. It is pinned.
    pinned: bool,
    /// A command that changes frames or pushes was queued, so it is not known when it takes effect.
    unpredictable: bool,
    agreement: Agreement,
    /// The server itself has agreed to the handshake.
    server_agreed: bool,
    /// The process that it is connected to, and its number there; a client knows neither.
    process: Option<(Arc<ServerProcess>, u32)>,
    /// Iterations under way.
    iterations: i32,
    /// The client may rely on the connection's number or on the cache of scripts.
    depends_on_server: bool,
    /// A module may keep state for it.
    module: bool,
    /// Channels, patterns that match only the channel of their name, and shard channels.
    channels: [BTreeSet<String>; 3],
}

impl ModelConnection {
    pub(crate) fn new(knows_handshake: bool) -> Self {
        Self { knows_handshake, ..Self::default() }
    }

    /// The same, connected to a process under the given number.
    pub(crate) fn at(knows_handshake: bool, process: Arc<ServerProcess>, number: u32) -> Self {
        Self { process: Some((process, number)), ..Self::new(knows_handshake) }
    }

    /// The command that continues an iteration, or begins one.
    pub(crate) fn next_page(&self) -> &'static str {
        if self.iterations > 0 && self.queue.is_none() { "SCAN 4" } else { "SCAN 0" }
    }

    /// Whether it can be carried, if subscriptions are replayed or not.
    pub(crate) fn is_free(&self, subscriptions: Subscriptions) -> bool {
        let subscribed = subscriptions == Subscriptions::Close && self.is_subscribed();
        let bound = self.pinned || self.depends_on_server || self.module || self.iterations != 0;
        self.queue.is_none() && !self.watching && !bound && !self.unpredictable && !subscribed
    }

    /// The notifications that the proxy may send to its client.
    pub(crate) fn agreement(&self) -> Agreement {
        if self.resp3 && !self.unpredictable { self.agreement } else { Agreement::Off }
    }

    fn is_subscribed(&self) -> bool {
        self.channels.iter().any(|names| !names.is_empty())
    }

    fn frame(&self) -> char {
        if self.resp3 { '>' } else { '*' }
    }

    /// The frames that this connection receives of a message published by every kind of
    /// subscription.
    pub(crate) fn frames_of(&self, channel: &str, message: u32) -> Vec<String> {
        let (frame, text) = (self.frame(), message.to_string());
        let tail = format!("${}\r\n{channel}\r\n${}\r\n{text}\r\n", channel.len(), text.len());
        let each = [
            format!("{frame}3\r\n$7\r\nmessage\r\n{tail}"),
            format!("{frame}4\r\n$8\r\npmessage\r\n${}\r\n{channel}\r\n{tail}", channel.len()),
            format!("{frame}3\r\n$8\r\nsmessage\r\n{tail}"),
        ];
        let leads = self.channels.iter().map(|names| names.contains(channel));
        each.into_iter().zip(leads).filter(|(_, leads)| *leads).map(|(frame, _)| frame).collect()
    }

    fn subscribe(&mut self, command: &str, names: &[&str]) -> String {
        let which = match command {
            "PSUBSCRIBE" | "PUNSUBSCRIBE" => 1,
            "SSUBSCRIBE" | "SUNSUBSCRIBE" => 2,
            _ => 0,
        };
        let mut names: Vec<Option<String>> =
            names.iter().map(|name| Some((*name).to_owned())).collect();
        if names.is_empty() {
            names = self.channels[which].iter().cloned().map(Some).collect();
        }
        if names.is_empty() {
            names.push(None);
        }
        let mut answer = String::new();
        for name in names {
            match &name {
                Some(name) if command.contains("UNSUB") => drop(self.channels[which].remove(name)),
                Some(name) => drop(self.channels[which].insert(name.clone())),
                None => {}
            }
            let name =
                name.map_or_else(|| "$-1".to_owned(), |name| format!("${}\r\n{name}", name.len()));
            let [channels, patterns, shards] = self.channels.each_ref().map(BTreeSet::len);
            let count = if which == 2 { shards } else { channels + patterns };
            let (frame, word) = (self.frame(), command.to_lowercase());
            answer += &format!("{frame}3\r\n${}\r\n{word}\r\n{name}\r\n:{count}\r\n", word.len());
        }
        answer
    }

    fn accept(&mut self, change: impl FnOnce(&mut Self)) -> String {
        change(self);
        "+OK\r\n".to_owned()
    }

    /// The errors of a subscribed RESP2 connection, and of what this model does not support.
    fn refuse(&self, command: &str, subscribing: bool) -> Option<&'static str> {
        if self.queue.is_some() && subscribing {
            return Some("-ERR not in this model\r\n");
        }
        let refuses = self.is_subscribed() && !self.resp3 && !subscribing && command != "RESET";
        refuses.then_some(if command == "PING" {
            "*2\r\n$4\r\npong\r\n$0\r\n\r\n"
        } else {
            "-ERR Can't execute\r\n"
        })
    }

    /// The reply that the client gets if the proxy `answers` the handshake where the server does
    /// not know it; the numbers that the command executes are added to `log`.
    pub(crate) fn answer_through(
        &mut self,
        command: &[String],
        log: &mut Vec<u32>,
        answers: bool,
    ) -> String {
        let answer = self.answer(command, log);
        if answer == UNKNOWN && answers && self.resp3 && self.queue.is_none() && !self.unpredictable
        {
            self.agree(command);
            return "+OK\r\n".to_owned();
        }
        answer
    }

    fn agree(&mut self, handshake: &[String]) {
        self.agreement = match handshake.last().map(String::as_str) {
            Some("OFF") => Agreement::Off,
            Some("none") => Agreement::SameAddress,
            _ => Agreement::OtherAddress,
        };
    }

    /// The reply to a command; the numbers that it executes are added to `log`.
    pub(crate) fn answer(&mut self, command: &[String], log: &mut Vec<u32>) -> String {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let subscribing = words[0].ends_with("SUBSCRIBE");
        self.depends_on_server |= matches!(words[..], ["CLIENT", "ID"] | ["SCRIPT", "LOAD", ..]);
        self.module |= words[0] == "MODULE.X";
        if let Some(refusal) = self.refuse(words[0], subscribing) {
            return refusal.to_owned();
        }
        let handshake = words.get(1) == Some(&"MAINT_NOTIFICATIONS");
        if handshake && !self.knows_handshake {
            self.refused |= self.queue.is_some();
            return UNKNOWN.to_owned();
        }
        if let Some(queue) = &mut self.queue
            && !matches!(words[0], "EXEC" | "DISCARD" | "RESET" | "MULTI" | "WATCH")
        {
            self.unpredictable |= handshake || words[0] == "HELLO";
            self.pinned |= words[0] == "SCAN";
            self.depends_on_server |= matches!(words[0], "EVAL" | "EVALSHA");
            queue.push(command.to_vec());
            return "+QUEUED\r\n".to_owned();
        }
        match words[..] {
            _ if handshake => self.accept(|it| {
                it.pinned = true;
                it.agree(command);
                it.server_agreed = it.agreement != Agreement::Off;
            }),
            [command, ref names @ ..] if subscribing => self.subscribe(command, names),
            ["ECHO", number] => self.echo(number, log),
            ["SCAN", cursor] => self.scan(cursor),
            ["CLIENT", "ID"] => match &self.process {
                Some((_, number)) => format!(":{number}\r\n"),
                None => format!("{BLANK}id\r\n"),
            },
            ["EVAL" | "EVALSHA", ..] | ["SCRIPT", "LOAD", ..] => {
                self.evaluate(words[0] != "EVALSHA")
            }
            ["MODULE.X"] => ":7\r\n".to_owned(),
            ["PING"] => "+PONG\r\n".to_owned(),
            ["MULTI" | "EXEC" | "DISCARD" | "WATCH" | "UNWATCH", ..] => {
                self.transact(words[0], log)
            }
            _ => self.change_state(&words),
        }
    }

    fn echo(&self, number: &str, log: &mut Vec<u32>) -> String {
        let count: u32 = number.parse().unwrap();
        log.push(count);
        let Self {
            db, user, name, library, no_touch, read_only, server_agreed, module, resp3, ..
        } = self;
        let bait = if count.is_multiple_of(3) { BAIT } else { "" };
        let text = format!(
            "{number} {db} {user} {name} {library} {no_touch} {read_only} {server_agreed} {module} \
             {resp3}{bait}"
        );
        format!("${}\r\n{text}\r\n", text.len())
    }

    /// One of the two pages of an iteration. Like a real server, it accepts a cursor of another
    /// server: the keys are in buckets that depend on its seed, and the cursor is the number of a
    /// bucket.
    fn scan(&mut self, cursor: &str) -> String {
        let first: u32 = cursor.parse().unwrap();
        self.iterations += if first == 0 { 1 } else { -1 };
        let key_in = |bucket: u32| match &self.process {
            // Odd, so that every key has a bucket of its own.
            Some((process, _)) => {
                format!("k{}", (bucket * (2 * process.seed + 1) + process.seed) % KEYS)
            }
            None => format!("{BLANK}k"),
        };
        let keys: String = (first..first + KEYS / 2)
            .map(|bucket| format!("$2\r\n{}\r\n", key_in(bucket)))
            .collect();
        format!("*2\r\n$1\r\n{}\r\n*{}\r\n{keys}", (first + KEYS / 2) % KEYS, KEYS / 2)
    }

    /// Runs the only script, which `EVAL` and `SCRIPT LOAD` contain.
    fn evaluate(&mut self, brought: bool) -> String {
        let Some((process, _)) = &self.process else {
            return if brought { ":7\r\n".to_owned() } else { format!("{BLANK}script\r\n") };
        };
        let known = process.has_script.fetch_or(brought, Ordering::SeqCst);
        if brought || known { ":7\r\n".to_owned() } else { NO_SCRIPT.to_owned() }
    }

    fn change_state(&mut self, words: &[&str]) -> String {
        match *words {
            ["SELECT", db] => match db.parse() {
                Ok(db @ 0..16) => self.accept(|it| it.db = db),
                _ => "-ERR DB index is out of range\r\n".to_owned(),
            },
            ["AUTH", _, "wrong"] => "-WRONGPASS invalid\r\n".to_owned(),
            ["AUTH", user, _] => self.accept(|it| user.clone_into(&mut it.user)),
            ["CLIENT", "SETNAME", name] => self.accept(|it| name.clone_into(&mut it.name)),
            ["CLIENT", "SETINFO", "LIB-NAME", name] => {
                self.accept(|it| name.clone_into(&mut it.library))
            }
            ["CLIENT", "NO-TOUCH", on] => self.accept(|it| it.no_touch = on == "ON"),
            ["READONLY" | "READWRITE"] => self.accept(|it| it.read_only = words[0] == "READONLY"),
            ["HELLO", proto, ref rest @ ..] => {
                if let ["SETNAME", name] = *rest {
                    self.accept(|it| name.clone_into(&mut it.name));
                }
                self.resp3 = proto == "3";
                if self.resp3 {
                    "%1\r\n+proto\r\n:3\r\n".to_owned()
                } else {
                    "*2\r\n+proto\r\n:2\r\n".to_owned()
                }
            }
            ["RESET"] => {
                // The library name survives it, and so does everything that cannot be followed or
                // replayed.
                let Self {
                    knows_handshake,
                    pinned,
                    depends_on_server,
                    module,
                    unpredictable,
                    iterations,
                    ..
                } = *self;
                let (library, process) = (std::mem::take(&mut self.library), self.process.take());
                let kept = Self {
                    knows_handshake,
                    pinned,
                    depends_on_server,
                    module,
                    unpredictable,
                    iterations,
                    ..Self::default()
                };
                *self = Self { library, process, ..kept };
                "+RESET\r\n".to_owned()
            }
            _ => "-ERR unsupported\r\n".to_owned(),
        }
    }

    fn transact(&mut self, command: &str, log: &mut Vec<u32>) -> String {
        match (command, self.queue.is_some()) {
            ("MULTI", false) => {
                self.accept(|it| (it.queue, it.refused) = (Some(Vec::new()), false))
            }
            ("WATCH", false) => self.accept(|it| it.watching = true),
            ("UNWATCH", false) => self.accept(|it| it.watching = false),
            ("DISCARD", true) => self.accept(|it| (it.queue, it.watching) = (None, false)),
            ("EXEC", true) => {
                let queue = self.queue.take().unwrap_or_default();
                self.watching = false;
                if self.refused {
                    return "-EXECABORT Transaction discarded\r\n".to_owned();
                }
                let changes = |command: &Vec<String>| {
                    matches!(
                        command[0].as_str(),
                        "SELECT" | "AUTH" | "CLIENT" | "READONLY" | "READWRITE"
                    )
                };
                self.pinned |= queue.iter().any(changes);
                let answers: String =
                    queue.iter().map(|command| self.answer(command, log)).collect();
                format!("*{}\r\n{answers}", queue.len())
            }
            _ => "-ERR unsupported\r\n".to_owned(),
        }
    }
}

/// The length of the first frame, if it is complete.
pub(crate) fn frame(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|it| it == b"\r\n")? + 2;
    let count = || std::str::from_utf8(&bytes[1..line - 2]).unwrap().parse::<i64>().unwrap();
    let elements = match bytes[0] {
        b'+' | b'-' | b':' | b'_' => return Some(line),
        b'$' => {
            let end = usize::try_from(count()).map_or(line, |len| line + len + 2);
            return (bytes.len() >= end).then_some(end);
        }
        b'*' | b'>' => count(),
        b'%' => 2 * count(),
        _ => panic!("no frame: {:?}", String::from_utf8_lossy(bytes)),
    };
    (0..elements).try_fold(line, |at, _| Some(at + frame(&bytes[at..])?))
}
