//! A misbehaving relay between the clients of one proxy and their server, to show that a run finds
//! what it is for.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::ValueEnum;
use harness::{Client, Value, parse};

/// A source that partitions do not cut off.
const SOURCE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
const TIMEOUT: Duration = Duration::from_secs(20);
/// How often it misbehaves.
const EVERY: u64 = 300;

/// What a relay does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Plant {
    /// Sends a request twice.
    Replay,
    /// Gives a client the latest reply to another one.
    Swap,
    /// Stays with the first master, as a proxy without a fence.
    OldMaster,
}

struct Relay {
    plant: Plant,
    to: SocketAddr,
    requests: AtomicU64,
    /// The latest reply to each command.
    replies: Mutex<BTreeMap<String, Latest>>,
}

#[derive(Clone)]
struct Latest {
    connection: usize,
    key: String,
    reply: Vec<u8>,
}

/// Starts a relay to a server; it ends with the process.
///
/// # Errors
/// Of the listener.
pub(super) fn start(plant: Plant, to: SocketAddr) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let addr = listener.local_addr()?;
    let (requests, replies) = (AtomicU64::new(0), Mutex::default());
    let relay = Arc::new(Relay { plant, to, requests, replies });
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let relay = Arc::clone(&relay);
            std::thread::spawn(move || {
                // An error ends the connection, as it should.
                let _ = relay.serve(&stream, number);
                let _ = stream.shutdown(Shutdown::Both);
            });
        }
    });
    Ok(addr)
}

impl Relay {
    fn serve(&self, stream: &TcpStream, number: usize) -> std::io::Result<()> {
        use std::io::Read as _;
        let (mut reader, mut writer) = (stream, stream);
        let mut server = Client::connect_from(SOURCE, self.to)?;
        server.set_timeout(TIMEOUT)?;
        stream.set_nodelay(true)?;
        let (mut unread, mut chunk) = (Vec::new(), [0; 4096]);
        loop {
            while let Some((request, length)) = parse(&unread).map_err(std::io::Error::other)? {
                let wire: Vec<u8> = unread.drain(..length).collect();
                let mut words = request.items().iter().filter_map(Value::text);
                let (command, key) = (words.next(), words.next());
                let command = command.unwrap_or_default().to_owned();
                let turn = self.requests.fetch_add(1, Ordering::Relaxed);
                let is_time = turn % EVERY > EVERY - 30;
                server.send(&wire)?;
                let mut reply = answer(&server.read_value()?);
                let is_write = command == "RPUSH" && reply.starts_with(b":");
                if self.plant == Plant::Replay && is_write && is_time {
                    server.send(&wire)?;
                    server.read_value()?;
                }
                let is_known = ["GET", "INCR", "LRANGE", "LMOVE"].contains(&command.as_str());
                if self.plant == Plant::Swap && is_known {
                    let key = key.unwrap_or_default().to_owned();
                    let latest = Latest { connection: number, key, reply };
                    reply = self.swap(command, latest, is_time);
                }
                writer.write_all(&reply)?;
            }
            match reader.read(&mut chunk)? {
                0 => return Ok(()),
                read => unread.extend_from_slice(chunk.get(..read).unwrap_or_default()),
            }
        }
    }
}

impl Relay {
    /// The reply to another client's equal request, if it is time.
    fn swap(&self, command: String, latest: Latest, is_time: bool) -> Vec<u8> {
        let own = latest.clone();
        let Ok(mut replies) = self.replies.lock() else { return own.reply };
        let is_other = |it: &Latest| it.connection != own.connection && it.key == own.key;
        let other = replies.insert(command, latest).filter(|it| is_time && is_other(it));
        other.map_or(own.reply, |it| it.reply)
    }
}

/// A reply on the wire.
fn answer(value: &Value) -> Vec<u8> {
    match value {
        Value::Simple(text) => format!("+{text}\r\n").into_bytes(),
        Value::Error(text) => format!("-{text}\r\n").into_bytes(),
        Value::Int(number) => format!(":{number}\r\n").into_bytes(),
        Value::Bulk(bytes) => [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat(),
        Value::Array(items) => {
            let mut all = format!("*{}\r\n", items.len()).into_bytes();
            items.iter().for_each(|item| all.extend(answer(item)));
            all
        }
        _ => b"$-1\r\n".to_vec(),
    }
}
