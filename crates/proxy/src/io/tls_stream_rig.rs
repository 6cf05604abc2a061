//! A TLS stream over a socket pair with small buffers, and a peer that reads, sends and breaks what
//! it sends, for the fuzz target and the test that replays its corpus.
//!
//! Each step is two bytes, an operation and its argument. What counts as written must be what the
//! peer can read, record by record, and what is read must be what the peer sent.

#![cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "a fuzz target uses it"))]

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use socket2::SockRef;
use tls::rustls::pki_types::ServerName;
use tls::rustls::{ClientConfig, ClientConnection, ServerConfig};
use tls::{ServerSide, TlsConnection};

use crate::io::stream::{ByteStream, SocketStream};
use crate::io::tls_stream::{HandshakeStep, TlsStream};
use crate::runtime::reactor::{self, Reactor, poll_events};

/// More steps say nothing new.
const MAX_STEPS: usize = 100;
/// More rounds than any run needs to deliver everything.
const MAX_ROUNDS: usize = 20_000;

/// What happened in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Bytes that the stream says it has written.
    pub written: usize,
    /// Bytes that the stream has read.
    pub read: usize,
    /// Writes that had to be repeated.
    pub pending: usize,
    /// The peer changed what it sent.
    pub changed: bool,
}

struct StreamRig {
    stream: TlsStream<ServerSide>,
    peer: ClientConnection,
    socket: UnixStream,
    /// Records of the peer that are not in the socket yet.
    wire: Vec<u8>,
    sent: usize,
    received: usize,
    seen: Seen,
    /// The peer has ended its direction.
    ended: bool,
    /// The stream has failed to write, or the peer received an alert.
    failed: bool,
    _eventfd: OwnedFd,
}

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// The byte at this position, in either direction.
fn plain(at: usize) -> u8 {
    u8::try_from((at / 3 + at / 251) % 251).unwrap_or(0)
}

fn part(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(plain).collect()
}

/// Runs the steps.
///
/// # Panics
///
/// If the stream and its peer do not agree about what was written and read.
#[allow(clippy::expect_used, reason = "it reports by a panic")]
pub fn run(
    steps: &[u8],
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> Seen {
    let eventfd =
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
    reactor::install(Reactor::new(&eventfd).expect("a reactor"));
    let (ours, socket) = UnixStream::pair().expect("a pair of sockets");
    for end in [&ours, &socket] {
        end.set_nonblocking(true).expect("a socket");
        SockRef::from(end).set_send_buffer_size(1).expect("a socket");
    }
    let connection = TlsConnection::accept(server).expect("a connection");
    let stream = SocketStream::accepted(ours.into(), false).expect("a socket");
    let mut rig = StreamRig {
        stream: TlsStream::new(stream, connection),
        peer: ClientConnection::new(client, name).expect("a connection"),
        socket,
        wire: Vec::new(),
        sent: 0,
        received: 0,
        seen: Seen::default(),
        ended: false,
        failed: false,
        _eventfd: eventfd,
    };
    rig.shake();
    for step in steps.chunks_exact(2).take(MAX_STEPS) {
        let [operation, argument] = step else { break };
        rig.step(*operation, usize::from(*argument));
    }
    rig.finish()
}

impl StreamRig {
    #[allow(clippy::panic, reason = "it reports by a panic")]
    fn shake(&mut self) {
        let mut received = Vec::new();
        loop {
            self.encode();
            self.push(usize::MAX);
            self.receive(usize::MAX);
            self.update();
            match self.stream.poll_handshake(&mut cx(), &mut received) {
                Poll::Ready(Ok(HandshakeStep::Complete)) => break,
                Poll::Ready(Ok(HandshakeStep::Receive)) => {
                    let _read = self.stream.poll_receive(&mut cx(), &mut received);
                }
                Poll::Ready(Err(error)) => panic!("{error:?}"),
                Poll::Pending => {}
            }
        }
        self.receive(usize::MAX);
        assert!(!self.peer.is_handshaking());
    }

    #[allow(clippy::expect_used, reason = "it reports by a panic")]
    fn update(&mut self) {
        poll_events(&mut reactor::no_events(), Some(&reactor::NO_WAIT), drop).expect("events");
        self.stream.update_readiness(&mut cx());
    }

    fn step(&mut self, operation: u8, argument: usize) {
        self.update();
        match operation % 7 {
            0 => self.write(1 + argument * 257),
            1 => {
                self.receive(1 + argument);
            }
            2 => self.send(1 + argument * 40),
            3 => {
                self.push(1 + argument * 64);
            }
            4 => {
                self.read(1 + argument * 64);
            }
            5 => {
                let length = self.wire.len().max(1);
                if let Some(byte) = self.wire.get_mut(argument % length) {
                    *byte ^= 1 << (argument % 8);
                    self.seen.changed = true;
                }
            }
            _ => {
                self.peer.send_close_notify();
                self.encode();
                self.ended = true;
            }
        }
        // What the peer has is written, or was begun.
        let most = self.seen.written + self.stream.begun_write();
        assert!(self.received <= most, "{} of {most}", self.received);
    }

    fn write(&mut self, length: usize) {
        if self.failed {
            return;
        }
        match self.stream.poll_write(&mut cx(), &part(self.seen.written, length)) {
            Poll::Ready(Ok(written)) => {
                assert!(written <= length, "{written} of {length}");
                self.seen.written += written;
            }
            Poll::Ready(Err(_)) => {
                assert!(self.seen.changed, "a sound connection fails");
                self.failed = true;
            }
            Poll::Pending => self.seen.pending += 1,
        }
    }

    /// Lets the peer receive and decrypt, with at most so many calls.
    #[allow(clippy::expect_used, clippy::panic, reason = "it reports by a panic")]
    fn receive(&mut self, most: usize) -> usize {
        let mut moved = 0;
        for _ in 0..most {
            match self.peer.read_tls(&mut self.socket) {
                Ok(0) => break,
                Ok(read) => moved += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
            if let Err(error) = self.peer.process_new_packets() {
                assert!(self.seen.changed, "the peer cannot read a record: {error}");
                self.failed = true;
                break;
            }
            let mut plaintext = Vec::new();
            match self.peer.reader().read_to_end(&mut plaintext) {
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            assert_eq!(plaintext, part(self.received, plaintext.len()), "other bytes");
            self.received += plaintext.len();
        }
        moved
    }

    #[allow(clippy::expect_used, reason = "it reports by a panic")]
    fn send(&mut self, length: usize) {
        if !self.ended {
            self.peer.writer().write_all(&part(self.sent, length)).expect("a buffer");
            self.sent += length;
            self.encode();
        }
    }

    /// Takes the peer's records out of its library.
    #[allow(clippy::expect_used, reason = "it reports by a panic")]
    fn encode(&mut self) {
        while self.peer.wants_write() {
            self.peer.write_tls(&mut self.wire).expect("a buffer");
        }
    }

    /// Moves at most so many bytes of the peer into the socket.
    #[allow(clippy::panic, reason = "it reports by a panic")]
    fn push(&mut self, most: usize) -> usize {
        let piece = self.wire.get(..most.min(self.wire.len())).unwrap_or_default();
        match self.socket.write(piece) {
            Ok(moved) => self.wire.drain(..moved).count(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => panic!("{error}"),
        }
    }

    fn read(&mut self, most: usize) -> usize {
        let mut bytes = vec![0; most];
        let read = match self.stream.poll_read(&mut cx(), &mut bytes) {
            Poll::Pending => 0,
            Poll::Ready(Ok(read)) => read,
            Poll::Ready(Err(error)) => {
                assert!(self.seen.changed, "sound records are refused: {error}");
                0
            }
        };
        bytes.truncate(read);
        assert_eq!(bytes, part(self.seen.read, read), "other bytes");
        self.seen.read += read;
        assert!(self.seen.read <= self.sent);
        read
    }

    /// Delivers what is on its way, and offers again what was begun.
    fn finish(mut self) -> Seen {
        let mut idle = 0;
        for _ in 0..MAX_ROUNDS {
            self.update();
            let begun = self.stream.begun_write();
            if begun > 0 {
                self.write(begun);
            }
            let moved = self.push(usize::MAX) + self.receive(usize::MAX) + self.read(10_000);
            // A part of a record is read, and moves nothing.
            idle = if moved > 0 || (begun > 0 && !self.failed) { 0 } else { idle + 1 };
            if idle > 2 {
                break;
            }
        }
        if !self.failed {
            assert_eq!(self.received, self.seen.written, "after everything was delivered");
        }
        if !self.seen.changed {
            assert_eq!(self.seen.read, self.sent, "after everything was delivered");
            assert_eq!(self.stream.peer_closed(), self.ended);
        }
        self.seen
    }
}
