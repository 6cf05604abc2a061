//! A model of the server, for the property that nobody notices: what one connection is, and what it answers.
//!
//! The same model plays the servers and says what their answers must have been: if a session arrives anywhere as somebody
//! else, the two differ. The one answer that a client may get in the server's place is that to the handshake about maintenance.
//!
//! Deliberately absent: sockets.

use std::collections::BTreeSet;

use crate::Subscriptions;

/// What a client has agreed to be told of maintenance: nothing, or to move to an address, or to where it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Agreed {
    #[default]
    No,
    There,
    Here,
}

/// What stands in a long answer, which is meant to be taken for what it is not.
const BAIT: &str =
    "\r\n>3\r\n$11\r\nFAILED_OVER\r\n:1\r\n$2\r\n[]\r\n-ERR unknown subcommand 'MAINT_NOTIFICATIONS'.\r\n+OK\r\n";

/// How a server refuses what it does not know.
pub(crate) const UNKNOWN: &str = "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n";

/// One connection, as the server keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Connection {
    /// The server knows the handshake.
    knows: bool,
    db: u32,
    user: String,
    name: String,
    library: String,
    no_touch: bool,
    read_only: bool,
    resp3: bool,
    queue: Option<Vec<Vec<String>>>,
    /// Something was refused on its way into the queue.
    spoiled: bool,
    watching: bool,
    /// A transaction changed it, in an answer that nobody looks into; or the server itself agreed to the handshake.
    stays: bool,
    /// What changes frames or pushes was queued, and nobody can tell when that takes effect.
    lost_sight_of: bool,
    agreed: Agreed,
    /// The server itself has agreed to the handshake.
    promised: bool,
    /// Cursors of iterations under way, which no other server knows.
    cursors: BTreeSet<u32>,
    /// The client may rely on the connection's number or on the cache of scripts.
    relies: bool,
    /// Channels, patterns that stand for the one channel they name, and shard channels.
    channels: [BTreeSet<String>; 3],
}

impl Connection {
    pub(crate) fn new(knows: bool) -> Self {
        Self { knows, ..Self::default() }
    }

    /// Whether nothing stands against carrying it, if subscriptions are replayed or not.
    pub(crate) fn is_free(&self, subscriptions: Subscriptions) -> bool {
        let subscribed = subscriptions == Subscriptions::Close && self.is_subscribed();
        let bound = self.stays || self.relies || !self.cursors.is_empty();
        self.queue.is_none() && !self.watching && !bound && !self.lost_sight_of && !subscribed
    }

    /// What its client may be told of maintenance.
    pub(crate) fn agreed(&self) -> Agreed {
        if self.resp3 && !self.lost_sight_of { self.agreed } else { Agreed::No }
    }

    fn is_subscribed(&self) -> bool {
        self.channels.iter().any(|names| !names.is_empty())
    }

    fn frame(&self) -> char {
        if self.resp3 { '>' } else { '*' }
    }

    /// What a message, published in every way that there is, is to this connection: a frame for each way that leads here.
    pub(crate) fn hears(&self, channel: &str, message: u32) -> Vec<String> {
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
        let mut names: Vec<Option<String>> = names.iter().map(|name| Some((*name).to_owned())).collect();
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
            let name = name.map_or_else(|| "$-1".to_owned(), |name| format!("${}\r\n{name}", name.len()));
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

    /// What a subscribed RESP2 connection is told, and what this model leaves out.
    fn refuse(&self, command: &str, subscribing: bool) -> Option<&'static str> {
        if self.queue.is_some() && subscribing {
            return Some("-ERR not in this model\r\n");
        }
        let refuses = self.is_subscribed() && !self.resp3 && !subscribing && command != "RESET";
        refuses.then_some(if command == "PING" { "*2\r\n$4\r\npong\r\n$0\r\n\r\n" } else { "-ERR Can't execute\r\n" })
    }

    /// The answer that the client gets if pointsman `answers` the handshake where the server does not know it; the numbers that the
    /// command executes go into `log`.
    pub(crate) fn answer_through(&mut self, command: &[String], log: &mut Vec<u32>, answers: bool) -> String {
        let answer = self.answer(command, log);
        if answer == UNKNOWN && answers && self.resp3 && self.queue.is_none() && !self.lost_sight_of {
            self.agree(command);
            return "+OK\r\n".to_owned();
        }
        answer
    }

    fn agree(&mut self, handshake: &[String]) {
        self.agreed = match handshake.last().map(String::as_str) {
            Some("OFF") => Agreed::No,
            Some("none") => Agreed::Here,
            _ => Agreed::There,
        };
    }

    /// The answer to a command; the numbers it executes go into `log`.
    pub(crate) fn answer(&mut self, command: &[String], log: &mut Vec<u32>) -> String {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let subscribing = words[0].ends_with("SUBSCRIBE");
        self.relies |= matches!(words[..], ["MODULE.X", ..] | ["CLIENT", "ID"] | ["SCRIPT", "LOAD", ..]);
        if let Some(refusal) = self.refuse(words[0], subscribing) {
            return refusal.to_owned();
        }
        let handshake = words.get(1) == Some(&"MAINT_NOTIFICATIONS");
        if handshake && !self.knows {
            self.spoiled |= self.queue.is_some();
            return UNKNOWN.to_owned();
        }
        if let Some(queue) = &mut self.queue
            && !matches!(words[0], "EXEC" | "DISCARD" | "RESET" | "MULTI" | "WATCH")
        {
            self.lost_sight_of |= handshake || words[0] == "HELLO";
            self.stays |= words[0] == "SCAN";
            self.relies |= words[0] == "EVAL";
            queue.push(command.to_vec());
            return "+QUEUED\r\n".to_owned();
        }
        match words[..] {
            _ if handshake => self.accept(|it| {
                it.stays = true;
                it.agree(command);
                it.promised = it.agreed != Agreed::No;
            }),
            [command, ref names @ ..] if subscribing => self.subscribe(command, names),
            ["ECHO", number] => self.who(number, log),
            ["SCAN", cursor] => self.scan(cursor),
            ["EVAL" | "MODULE.X", ..] | ["CLIENT", "ID"] | ["SCRIPT", "LOAD", ..] => ":7\r\n".to_owned(),
            ["PING"] => "+PONG\r\n".to_owned(),
            ["MULTI" | "EXEC" | "DISCARD" | "WATCH" | "UNWATCH", ..] => self.transact(words[0], log),
            _ => self.become_somebody(&words),
        }
    }

    fn who(&self, number: &str, log: &mut Vec<u32>) -> String {
        let count: u32 = number.parse().unwrap();
        log.push(count);
        let Self { db, user, name, library, no_touch, read_only, promised, relies, resp3, .. } = self;
        let bait = if count.is_multiple_of(3) { BAIT } else { "" };
        let text =
            format!("{number} {db} {user} {name} {library} {no_touch} {read_only} {promised} {relies} {resp3}{bait}");
        format!("${}\r\n{text}\r\n", text.len())
    }

    /// A page of an iteration of two. A real server would take a cursor that another one gave, and leave out keys.
    fn scan(&mut self, cursor: &str) -> String {
        let cursor: u32 = cursor.parse().unwrap();
        let next = if cursor == 0 { (1..).find(|it| !self.cursors.contains(it)).unwrap_or(1) } else { 0 };
        if cursor == 0 {
            self.cursors.insert(next);
        } else if !self.cursors.remove(&cursor) {
            return "-ERR not a cursor of this server\r\n".to_owned();
        }
        format!("*2\r\n${}\r\n{next}\r\n*0\r\n", next.to_string().len())
    }

    fn become_somebody(&mut self, words: &[&str]) -> String {
        match *words {
            ["SELECT", db] => match db.parse() {
                Ok(db @ 0..16) => self.accept(|it| it.db = db),
                _ => "-ERR DB index is out of range\r\n".to_owned(),
            },
            ["AUTH", _, "wrong"] => "-WRONGPASS invalid\r\n".to_owned(),
            ["AUTH", user, _] => self.accept(|it| user.clone_into(&mut it.user)),
            ["CLIENT", "SETNAME", name] => self.accept(|it| name.clone_into(&mut it.name)),
            ["CLIENT", "SETINFO", "LIB-NAME", name] => self.accept(|it| name.clone_into(&mut it.library)),
            ["CLIENT", "NO-TOUCH", on] => self.accept(|it| it.no_touch = on == "ON"),
            ["READONLY" | "READWRITE"] => self.accept(|it| it.read_only = words[0] == "READONLY"),
            ["HELLO", proto] => {
                self.resp3 = proto == "3";
                if self.resp3 { "%1\r\n+proto\r\n:3\r\n".to_owned() } else { "*2\r\n+proto\r\n:2\r\n".to_owned() }
            }
            ["RESET"] => {
                // The name of the library survives it, and so does what cannot be followed or had again elsewhere.
                let Self { knows, stays, relies, lost_sight_of, .. } = *self;
                let (library, cursors) = (std::mem::take(&mut self.library), std::mem::take(&mut self.cursors));
                *self = Self { knows, stays, relies, lost_sight_of, library, cursors, ..Self::default() };
                "+RESET\r\n".to_owned()
            }
            _ => "-ERR not like this\r\n".to_owned(),
        }
    }

    fn transact(&mut self, command: &str, log: &mut Vec<u32>) -> String {
        match (command, self.queue.is_some()) {
            ("MULTI", false) => self.accept(|it| (it.queue, it.spoiled) = (Some(Vec::new()), false)),
            ("WATCH", false) => self.accept(|it| it.watching = true),
            ("UNWATCH", false) => self.accept(|it| it.watching = false),
            ("DISCARD", true) => self.accept(|it| (it.queue, it.watching) = (None, false)),
            ("EXEC", true) => {
                let queue = self.queue.take().unwrap_or_default();
                self.watching = false;
                if self.spoiled {
                    return "-EXECABORT Transaction discarded\r\n".to_owned();
                }
                let changes = |command: &Vec<String>| {
                    matches!(command[0].as_str(), "SELECT" | "AUTH" | "CLIENT" | "READONLY" | "READWRITE")
                };
                self.stays |= queue.iter().any(changes);
                let answers: String = queue.iter().map(|command| self.answer(command, log)).collect();
                format!("*{}\r\n{answers}", queue.len())
            }
            _ => "-ERR not like this\r\n".to_owned(),
        }
    }
}

/// The length of the first frame, if all of it is there.
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
