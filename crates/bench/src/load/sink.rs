//! The backend in the event loop of the load generator.
//!
//! A GET of the load is recognised by its bytes and answered from a prepared text; all other
//! commands (from a sentinel or a proxy's checks) are parsed. A connection that sends invalid bytes
//! is closed.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use harness::{Value, parse};
use rustix::event::epoll;

use super::wire::{Workload, answer};

/// Marks events of the backend's connections; the lower bits are the index of the connection.
pub(crate) const SINK: u64 = 1 << 32;
/// The event number of the listener.
pub(crate) const LISTENER: u64 = u64::MAX;

#[derive(Debug)]
struct Conn {
    stream: TcpStream,
    /// The beginning of an incomplete command.
    partial: Vec<u8>,
    /// Replies that the peer has not accepted yet.
    unsent: Vec<u8>,
}

/// The listener and its connections.
#[derive(Debug)]
pub(crate) struct Sink {
    listener: TcpListener,
    conns: Vec<Option<Conn>>,
    free: Vec<usize>,
    request: Vec<u8>,
    reply: Vec<u8>,
    out: Vec<u8>,
}

impl Sink {
    pub(crate) fn new(listener: TcpListener) -> Self {
        let (request, reply) = (Workload::SMALL.request(), Workload::SMALL.reply());
        Self { listener, conns: Vec::new(), free: Vec::new(), request, reply, out: Vec::new() }
    }

    pub(crate) fn addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub(crate) fn listener(&self) -> &TcpListener {
        &self.listener
    }

    /// Accepts all waiting connections.
    pub(crate) fn accept(
        &mut self,
        epoll: impl rustix::fd::AsFd + Copy,
        flags: epoll::EventFlags,
    ) -> io::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let place = self.free.pop().unwrap_or_else(|| {
                self.conns.push(None);
                self.conns.len() - 1
            });
            epoll::add(epoll, &stream, epoll::EventData::new_u64(SINK | place as u64), flags)?;
            if let Some(entry) = self.conns.get_mut(place) {
                *entry = Some(Conn { stream, partial: Vec::new(), unsent: Vec::new() });
            }
        }
    }

    /// Reads and answers until no bytes are left; closes the connection if the peer closed it.
    pub(crate) fn serve(&mut self, place: usize, buffer: &mut [u8]) {
        let Some(entry) = self.conns.get_mut(place) else { return };
        let Some(conn) = entry else { return };
        self.out.clear();
        self.out.append(&mut conn.unsent);
        if exchange(conn, buffer, (&self.request, &self.reply), &mut self.out).is_err() {
            *entry = None;
            self.free.push(place);
        }
    }
}

fn exchange(
    conn: &mut Conn,
    buffer: &mut [u8],
    small: (&[u8], &[u8]),
    out: &mut Vec<u8>,
) -> io::Result<()> {
    loop {
        let read = match (&conn.stream).read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        };
        let bytes = buffer.get(..read).unwrap_or_default();
        if conn.partial.is_empty() {
            let taken = digest(bytes, small.0, small.1, out)?;
            conn.partial.extend_from_slice(bytes.get(taken..).unwrap_or_default());
        } else {
            conn.partial.extend_from_slice(bytes);
            let taken = digest(&conn.partial, small.0, small.1, out)?;
            conn.partial.drain(..taken);
        }
        if read < buffer.len() {
            break;
        }
    }
    let mut sent = 0;
    while let Some(rest) = out.get(sent..).filter(|rest| !rest.is_empty()) {
        match (&conn.stream).write(rest) {
            Ok(written) => sent += written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                conn.unsent.extend_from_slice(rest);
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Answers all complete commands and returns their length in bytes.
fn digest(bytes: &[u8], request: &[u8], reply: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
    let mut rest = bytes;
    loop {
        if let Some(behind) = rest.strip_prefix(request) {
            out.extend_from_slice(reply);
            rest = behind;
            continue;
        }
        if rest.is_empty() {
            return Ok(bytes.len());
        }
        let Some((command, length)) = parse(rest).map_err(io::Error::other)? else {
            return Ok(bytes.len() - rest.len());
        };
        let words: Vec<&str> = command.items().iter().filter_map(Value::text).collect();
        answer(&words, out);
        rest = rest.get(length..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_pieces_once_and_in_order() {
        let (request, reply) = (Workload::SMALL.request(), Workload::SMALL.reply());
        let bytes = [request.repeat(3), Workload::Ping.request(), request.clone()].concat();
        let expected = [reply.repeat(3), Workload::Ping.reply(), reply.clone()].concat();
        for size in 1..bytes.len() {
            let (mut kept, mut out) = (Vec::new(), Vec::new());
            for piece in bytes.chunks(size) {
                kept.extend_from_slice(piece);
                let taken = digest(&kept, &request, &reply, &mut out).expect("sense");
                kept.drain(..taken);
            }
            assert_eq!(out, expected, "pieces of {size}");
        }
        assert!(digest(b"*z\r\n", &request, &reply, &mut Vec::new()).is_err());
    }
}
