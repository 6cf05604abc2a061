//! Both ends of a connection and a wire between them that may change bytes, for the fuzz target of
//! records and the test that replays its corpus.
//!
//! The first byte chooses the version, or a stranger: then all other bytes are what it sends.
//! Otherwise each step is two bytes, an operation and its argument.

#![cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "a fuzz target uses it"))]

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};

use crate::{
    ClientSide, MAX_RECORD, MAX_WAITING, RECORD_OVERHEAD, ServerSide, TlsConnection, TlsSide,
};

/// More steps say nothing new.
const MAX_STEPS: usize = 200;

/// The settings of both ends: the client's by version.
#[derive(Debug, Clone)]
pub struct RigSettings {
    /// The server's.
    pub server: Arc<ServerConfig>,
    /// Those of a client of TLS 1.2 and of one of TLS 1.3.
    pub clients: [Arc<ClientConfig>; 2],
    /// The server's name.
    pub name: ServerName<'static>,
}

/// What happened in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Bytes of plaintext that arrived.
    pub arrived: usize,
    /// Whether bytes were changed on the way.
    pub changed: bool,
    /// Whether the receiver refused the rest.
    pub refused: bool,
}

/// Runs the steps of `data`.
///
/// # Panics
///
/// If plaintext arrives that was not sent, or sound plaintext is lost, or too much is kept.
#[allow(clippy::expect_used, reason = "it reports by a panic")]
pub fn run(data: &[u8], settings: &RigSettings) -> Seen {
    let (first, rest) = data.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest));
    let server = TlsConnection::accept(Arc::clone(&settings.server)).expect("a connection");
    if first & 2 != 0 {
        return stranger(server, rest, &settings.server);
    }
    let [old, new] = &settings.clients;
    let config = Arc::clone(if first & 1 == 0 { old } else { new });
    let client = TlsConnection::connect(config, settings.name.clone()).expect("a connection");
    let mut wire =
        WireRig { server, client, bytes: Vec::new(), sent: 0, seen: Seen::default(), ended: false };
    wire.shake();
    for step in rest.chunks_exact(2).take(MAX_STEPS) {
        let [operation, argument] = step else { break };
        wire.step(*operation, usize::from(*argument));
    }
    wire.finish()
}

/// The byte of plaintext at this position, in either direction.
fn plain(at: usize) -> u8 {
    u8::try_from((at / 3 + at / 251) % 251).unwrap_or(0)
}

/// Gives `bytes` to one end. Returns the plaintext, and whether it accepts what it was given.
fn deliver<S: TlsSide>(to: &mut TlsConnection<S>, bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut incoming = [to.waiting(), bytes].concat();
    let mut plaintext = Vec::new();
    let result = to.process(&mut incoming, |it| plaintext.extend_from_slice(it));
    assert!(to.waiting().len() <= MAX_WAITING, "{} are kept", to.waiting().len());
    assert!(result.is_ok() || to.waiting().is_empty(), "kept after a fault");
    (plaintext, result.is_ok())
}

/// A stranger's bytes, at once and one by one: the same result, and never plaintext.
#[allow(clippy::expect_used, reason = "it reports by a panic")]
fn stranger(
    mut at_once: TlsConnection<ServerSide>,
    bytes: &[u8],
    settings: &Arc<ServerConfig>,
) -> Seen {
    let mut by_byte = TlsConnection::accept(Arc::clone(settings)).expect("a connection");
    let (plaintext, accepts) = deliver(&mut at_once, bytes);
    let mut still_accepts = true;
    for byte in bytes {
        let (plaintext, accepts) = deliver(&mut by_byte, &[*byte]);
        assert!(plaintext.is_empty());
        still_accepts &= accepts;
        if !accepts {
            break;
        }
    }
    assert!(plaintext.is_empty() && at_once.is_handshaking() && by_byte.is_handshaking());
    assert_eq!(accepts, still_accepts);
    Seen { arrived: 0, changed: true, refused: !accepts }
}

/// A client that sends, a server that receives, and the wire between them.
struct WireRig {
    server: TlsConnection<ServerSide>,
    client: TlsConnection<ClientSide>,
    /// Records that are not delivered yet.
    bytes: Vec<u8>,
    sent: usize,
    seen: Seen,
    /// The client has ended its direction.
    ended: bool,
}

impl WireRig {
    fn shake(&mut self) {
        loop {
            let (_, sound) = deliver(&mut self.client, &[]);
            let there = std::mem::take(self.client.outgoing());
            let (_, accepts) = deliver(&mut self.server, &there);
            let back = std::mem::take(self.server.outgoing());
            let (_, answers) = deliver(&mut self.client, &back);
            assert!(sound && accepts && answers);
            if there.is_empty() && back.is_empty() {
                break;
            }
        }
        assert!(!self.client.is_handshaking() && !self.server.is_handshaking());
    }

    fn step(&mut self, operation: u8, argument: usize) {
        let length = self.bytes.len();
        match operation % 7 {
            0 => self.send(1 + argument * 200),
            1 => self.deliver(1 + argument * argument),
            2 if length > 0 => {
                if let Some(byte) = self.bytes.get_mut(argument % length) {
                    *byte ^= 1 << (argument % 8);
                }
                self.seen.changed = true;
            }
            3 if length > 0 => {
                self.bytes.remove(argument % length);
                self.seen.changed = true;
            }
            4 => {
                let byte = u8::try_from(argument).unwrap_or(0);
                self.bytes.splice(0..0, [byte; 3]);
                self.seen.changed = true;
            }
            5 => self.end(),
            _ => self.answer(1 + argument),
        }
    }

    #[allow(clippy::expect_used, reason = "it reports by a panic")]
    fn send(&mut self, length: usize) {
        if self.ended {
            return;
        }
        let plaintext: Vec<u8> = (self.sent..self.sent + length).map(plain).collect();
        for piece in plaintext.chunks(MAX_RECORD) {
            let mut record = vec![0; piece.len() + RECORD_OVERHEAD];
            let length = self.client.encrypt(piece, &mut record).expect("an open connection");
            self.bytes.extend(record.iter().take(length));
        }
        self.sent += length;
    }

    #[allow(clippy::expect_used, reason = "it reports by a panic")]
    fn end(&mut self) {
        self.client.close().expect("an open connection");
        self.bytes.append(self.client.outgoing());
        self.ended = true;
    }

    fn deliver(&mut self, most: usize) {
        let piece: Vec<u8> = self.bytes.drain(..most.min(self.bytes.len())).collect();
        if self.seen.refused {
            return;
        }
        let (plaintext, accepts) = deliver(&mut self.server, &piece);
        for byte in plaintext {
            assert_eq!(byte, plain(self.seen.arrived), "other plaintext at {}", self.seen.arrived);
            self.seen.arrived += 1;
        }
        assert!(self.seen.arrived <= self.sent);
        assert!(accepts || self.seen.changed, "sound records are refused");
        self.seen.refused = !accepts;
    }

    /// The other direction works for as long as this end has found no fault.
    #[allow(clippy::expect_used, reason = "it reports by a panic")]
    fn answer(&mut self, length: usize) {
        if self.seen.refused {
            return;
        }
        let plaintext: Vec<u8> = (0..length).map(plain).collect();
        let mut record = vec![0; length + RECORD_OVERHEAD];
        let sealed = self.server.encrypt(&plaintext, &mut record).expect("an open connection");
        record.truncate(sealed);
        let before = std::mem::take(self.server.outgoing());
        let (arrived, accepts) = deliver(&mut self.client, &[before, record].concat());
        assert!(accepts && arrived == plaintext);
        self.bytes.append(self.client.outgoing());
    }

    fn finish(mut self) -> Seen {
        self.deliver(usize::MAX);
        if !self.seen.changed {
            assert_eq!(self.seen.arrived, self.sent, "plaintext is missing");
            assert_eq!(self.server.peer_closed(), self.ended);
        }
        self.seen
    }
}
