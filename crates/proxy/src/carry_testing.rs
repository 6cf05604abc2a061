//! A model of the server, for the property that nobody notices: what one connection is, and what all servers have executed.
//!
//! The same model plays the servers and says what their answers must have been: if a session arrives anywhere as somebody
//! else, the two differ.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::Subscriptions;

/// One connection, as the server keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Connection {
    db: u32,
    user: String,
    name: String,
    resp3: bool,
    queue: Option<Vec<Vec<String>>>,
    watching: bool,
    /// A transaction changed it, in an answer that nobody looks into.
    doubtful: bool,
    /// Channels, and patterns that stand for the one channel they name.
    channels: [BTreeSet<String>; 2],
}

impl Connection {
    /// Whether nothing stands against carrying it, if subscriptions are replayed or not.
    pub(crate) fn is_free(&self, subscriptions: Subscriptions) -> bool {
        let stays = subscriptions == Subscriptions::Close && self.is_subscribed();
        self.queue.is_none() && !self.watching && !self.doubtful && !stays
    }

    fn is_subscribed(&self) -> bool {
        self.channels.iter().any(|names| !names.is_empty())
    }

    fn frame(&self) -> char {
        if self.resp3 { '>' } else { '*' }
    }

    /// What a message is to this connection.
    pub(crate) fn hears(&self, channel: &str, message: u32) -> String {
        let (frame, text) = (self.frame(), message.to_string());
        let [channels, patterns] = self.channels.each_ref().map(|names| names.contains(channel));
        let tail = format!("${}\r\n{channel}\r\n${}\r\n{text}\r\n", channel.len(), text.len());
        let plain = if channels { format!("{frame}3\r\n$7\r\nmessage\r\n{tail}") } else { String::new() };
        let matched = format!("{frame}4\r\n$8\r\npmessage\r\n${}\r\n{channel}\r\n{tail}", channel.len());
        if patterns { plain + &matched } else { plain }
    }

    fn subscribe(&mut self, command: &str, names: &[&str]) -> String {
        let (which, subscribes) = (usize::from(command.starts_with('P')), !command.contains("UNSUB"));
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
                Some(name) if subscribes => drop(self.channels[which].insert(name.clone())),
                Some(name) => drop(self.channels[which].remove(name)),
                None => {}
            }
            let name = name.map_or_else(|| "$-1".to_owned(), |name| format!("${}\r\n{name}", name.len()));
            let count: usize = self.channels.iter().map(BTreeSet::len).sum();
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

    /// The answer to a command; the numbers it executes go into `log`.
    pub(crate) fn answer(&mut self, command: &[String], log: &mut Vec<u32>) -> String {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let subscribing = words[0].ends_with("SUBSCRIBE");
        if let Some(refusal) = self.refuse(words[0], subscribing) {
            return refusal.to_owned();
        }
        if let Some(queue) = &mut self.queue
            && !matches!(words[0], "EXEC" | "DISCARD" | "RESET" | "MULTI" | "WATCH" | "AUTH" | "HELLO")
        {
            queue.push(command.to_vec());
            return "+QUEUED\r\n".to_owned();
        }
        match words[..] {
            ["WHO", number] => {
                log.push(number.parse().unwrap());
                let Self { db, user, name, resp3, .. } = self;
                let text = format!("{number} {db} {user} {name} {resp3}");
                format!("${}\r\n{text}\r\n", text.len())
            }
            [command, ref names @ ..] if subscribing => self.subscribe(command, names),
            ["PING"] => "+PONG\r\n".to_owned(),
            ["SELECT", db] => match db.parse() {
                Ok(db @ 0..16) => self.accept(|it| {
                    it.db = db;
                }),
                _ => "-ERR DB index is out of range\r\n".to_owned(),
            },
            ["AUTH", _, "wrong"] => "-WRONGPASS invalid\r\n".to_owned(),
            ["AUTH", user, _] => self.accept(|it| {
                user.clone_into(&mut it.user);
            }),
            ["CLIENT", "SETNAME", name] => self.accept(|it| {
                name.clone_into(&mut it.name);
            }),
            ["HELLO", proto] => {
                self.resp3 = proto == "3";
                if self.resp3 { "%1\r\n+proto\r\n:3\r\n".to_owned() } else { "*2\r\n+proto\r\n:2\r\n".to_owned() }
            }
            ["MULTI"] if self.queue.is_none() => self.accept(|it| {
                it.queue = Some(Vec::new());
            }),
            ["WATCH", _] if self.queue.is_none() => self.accept(|it| {
                it.watching = true;
            }),
            ["UNWATCH"] => self.accept(|it| {
                it.watching = false;
            }),
            ["RESET"] => {
                *self = Self::default();
                "+RESET\r\n".to_owned()
            }
            ["EXEC"] if self.queue.is_some() => {
                let queue = self.queue.take().unwrap_or_default();
                self.watching = false;
                self.doubtful |= queue.iter().any(|command| matches!(command[0].as_str(), "SELECT" | "CLIENT"));
                let answers: String = queue.iter().map(|command| self.answer(command, log)).collect();
                format!("*{}\r\n{answers}", queue.len())
            }
            ["DISCARD"] if self.queue.is_some() => {
                self.queue = None;
                self.accept(|it| {
                    it.watching = false;
                })
            }
            _ => "-ERR not like this\r\n".to_owned(),
        }
    }
}

/// What all servers have executed, in order: they replicate without loss.
pub(crate) type Log = Arc<Mutex<Vec<u32>>>;

/// A connection, and its socket.
type Open = Arc<(Mutex<Connection>, TcpStream)>;

/// A server that can die and come back.
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    dead: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<Open>>>,
}

impl Server {
    pub(crate) fn start(log: &Log) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (dead, connections) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<Open>>>::default());
        let server = Self { addr, dead: Arc::clone(&dead), connections: Arc::clone(&connections) };
        let log = Arc::clone(log);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if Arc::strong_count(&dead) == 1 {
                    return;
                }
                if !dead.load(Ordering::SeqCst) {
                    let open = Arc::new((Mutex::default(), stream));
                    connections.lock().unwrap().push(Arc::clone(&open));
                    let log = Arc::clone(&log);
                    thread::spawn(move || serve(&open, &log));
                }
            }
        });
        server
    }

    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        for open in self.connections.lock().unwrap().drain(..) {
            drop(open.1.shutdown(Shutdown::Both));
        }
    }

    /// Publishes to all who are subscribed here.
    pub(crate) fn publish(&self, channel: &str, message: u32) {
        for open in self.connections.lock().unwrap().iter() {
            let connection = open.0.lock().unwrap();
            drop((&open.1).write_all(connection.hears(channel, message).as_bytes()));
        }
    }

    pub(crate) fn revive(&self) {
        self.dead.store(false, Ordering::SeqCst);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        self.dead = Arc::default();
        // The accepting thread finds that nobody else holds its flag.
        drop(TcpStream::connect(self.addr));
    }
}

fn serve(open: &Open, log: &Log) {
    let (connection, mut stream) = (&open.0, &open.1);
    let (mut chunk, mut buffer) = ([0; 512], Vec::new());
    while let Ok(read @ 1..) = stream.read(&mut chunk) {
        buffer.extend_from_slice(&chunk[..read]);
        while let Some((command, len)) = parse(&buffer) {
            buffer.drain(..len);
            let mut connection = connection.lock().unwrap();
            let answer = connection.answer(&command, &mut log.lock().unwrap());
            // Within the lock, so that no message comes before the confirmation.
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// A whole command and its length.
fn parse(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let text = std::str::from_utf8(bytes).unwrap();
    let mut at = text.find("\r\n")? + 2;
    let count: usize = text[1..at - 2].parse().unwrap();
    let mut words = Vec::new();
    for _ in 0..count {
        let end = at + text[at..].find("\r\n")? + 2;
        let len: usize = text[at + 1..end - 2].parse().unwrap();
        words.push(text.get(end..end + len)?.to_owned());
        at = end + len + 2;
        text.get(..at)?;
    }
    Some((words, at))
}

pub(crate) fn encode(command: &[String]) -> String {
    let words: String = command.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{words}", command.len())
}
