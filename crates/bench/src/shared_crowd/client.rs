//! A client that recognizes a reply that is not its own: each of its values names it and counts.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// What the proxy says, unasked, to a client that is one too many.
const TOO_MANY: &str = "-ERR max number of clients reached";

/// What is wrong with a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// It belongs to another client, or to no request of this one.
    Wrong(String),
    /// A write that was acknowledged is missing.
    Lost,
    /// The server or the proxy refused the request.
    Refused(String),
}

/// What a request in flight awaits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    Set,
    Get,
}

/// A client.
#[derive(Debug)]
pub(super) struct Crowded {
    number: usize,
    to: SocketAddr,
    stream: TcpStream,
    buffer: Vec<u8>,
    awaited: Option<(Awaited, Instant)>,
    /// The count of the latest write, and of the latest one that was acknowledged.
    written: u64,
    acknowledged: u64,
    turn: u64,
}

impl Crowded {
    /// Connects.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn connect(number: usize, to: SocketAddr) -> io::Result<Self> {
        let stream = open(to)?;
        let (buffer, awaited) = (Vec::new(), None);
        Ok(Self { number, to, stream, buffer, awaited, written: 0, acknowledged: 0, turn: 0 })
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether its last request was answered.
    pub(super) fn is_free(&self) -> bool {
        self.awaited.is_none()
    }

    /// Connects again after its connection was closed. What was in flight may have been executed.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) fn reconnect(&mut self) -> io::Result<()> {
        self.stream = open(self.to)?;
        self.buffer.clear();
        self.awaited = None;
        Ok(())
    }

    /// Sends the next request, which was due at `due`: a write, and then a read of it.
    ///
    /// # Errors
    /// The connection is closed.
    pub(super) fn ask(&mut self, due: Instant) -> io::Result<()> {
        self.turn += 1;
        let key = format!("crowd:{}", self.number);
        let (awaited, request) = if self.turn % 2 == 1 {
            self.written += 1;
            let value = self.value(self.written);
            (Awaited::Set, harness::encode(&["SET", &key, &value]))
        } else {
            (Awaited::Get, harness::encode(&["GET", &key]))
        };
        self.awaited = Some((awaited, due));
        self.stream.write_all(&request)
    }

    fn value(&self, count: u64) -> String {
        format!("client-{}-{count}-{}", self.number, "x".repeat(64))
    }

    /// Reads. Returns when the request that was answered was due, and what is wrong with the reply.
    ///
    /// # Errors
    /// The connection is closed.
    pub(super) fn read(&mut self) -> io::Result<Option<(Instant, Option<Fault>)>> {
        let mut piece = [0; 4096];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(ErrorKind::ConnectionReset.into()),
                Ok(len) => self.buffer.extend(piece.iter().take(len)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let parsed = harness::parse(&self.buffer).map_err(io::Error::other)?;
        let Some((reply, len)) = parsed else { return Ok(None) };
        let Some((awaited, due)) = self.awaited.take() else {
            let text = self.buffer.escape_ascii().to_string();
            if text.starts_with(TOO_MANY) {
                return Ok(Some((Instant::now(), Some(Fault::Refused(text)))));
            }
            return Ok(Some((Instant::now(), Some(Fault::Wrong(text)))));
        };
        self.buffer.drain(..len);
        let rest = !self.buffer.is_empty();
        let fault = self.judge(awaited, &reply);
        let fault = if rest { Some(Fault::Wrong("more than one reply".to_owned())) } else { fault };
        Ok(Some((due, fault)))
    }

    fn judge(&mut self, awaited: Awaited, reply: &harness::Value) -> Option<Fault> {
        if reply.is_error() {
            return Some(Fault::Refused(format!("{reply:?}")));
        }
        if awaited == Awaited::Set {
            if !reply.is_ok() {
                return Some(Fault::Wrong(format!("{reply:?}")));
            }
            self.acknowledged = self.written;
            return None;
        }
        let Some(text) = reply.text() else {
            // None of its writes was executed, or they are gone.
            return (self.acknowledged > 0).then_some(Fault::Lost);
        };
        let found = (0..=self.written).rev().find(|count| self.value(*count) == text);
        match found {
            None => Some(Fault::Wrong(text.to_owned())),
            Some(count) if count < self.acknowledged => {
                // Once is enough.
                self.acknowledged = count;
                Some(Fault::Lost)
            }
            Some(count) => {
                self.acknowledged = count;
                None
            }
        }
    }
}

fn open(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}
