//! Strangers: connections that say what no client says.
//!
//! Most leave at once. Some stay and continue a byte at a time, until they are closed or too many:
//! a bounded number of half hellos and slow headers is open at any time.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use harness::{Client, Tls};
use socket2::{Domain, SockRef, Socket, Type};

use super::words::{self, Kind};

/// Strangers that stay at a time.
const STAYING: usize = 200;
/// Connections of a flood, which come at once.
const FLOOD: u32 = 20;
/// How long a stranger tries to connect or to send: a port that refuses is answered at once.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long a stranger waits for an answer.
const GLANCE: Duration = Duration::from_millis(2);
/// The address of strangers that come as a load balancer does, with a header.
pub(super) const BALANCER: Ipv4Addr = Ipv4Addr::new(127, 99, 9, 9);

/// A port, and what is spoken there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Port {
    pub(super) kind: Kind,
    pub(super) addr: SocketAddr,
}

/// All strangers of a window.
#[derive(Debug)]
pub(super) struct Strangers {
    random: fastrand::Rng,
    /// For those that complete a handshake.
    tls: Tls,
    staying: VecDeque<TcpStream>,
    count: u64,
}

impl Strangers {
    pub(super) fn new(tls: Tls) -> Self {
        let random = fastrand::Rng::with_seed(1);
        Self { random, tls, staying: VecDeque::new(), count: 0 }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// One visit, or one flood, at one of the ports.
    pub(super) fn visit(&mut self, ports: &[Port]) {
        let Some(port) = self.random.choice(ports).copied() else { return };
        if self.random.u8(..) < 8 {
            for _ in 0..FLOOD {
                self.count += 1;
                if let Some(stream) = open(port) {
                    leave(&stream, self.random.bool());
                }
            }
            return;
        }
        self.count += 1;
        if port.kind == Kind::Tls && self.random.u8(..) < 32 {
            self.break_session(port.addr);
        } else {
            self.talk(port);
        }
        self.continue_staying();
    }

    fn talk(&mut self, port: Port) {
        let Some(mut stream) = open(port) else { return };
        for (number, piece) in words::pieces(port.kind, &mut self.random).iter().enumerate() {
            if number > 0 {
                let _read = stream.read(&mut [0; 4096]);
            }
            // A refusal closes the connection while it is being written to.
            let _sent = stream.write_all(piece);
        }
        if self.random.bool() {
            let _read = stream.read(&mut [0; 4096]);
            leave(&stream, self.random.bool());
        } else {
            self.staying.push_back(stream);
        }
    }

    /// Completes a handshake, and then sends what is not encrypted: a second hello, as a client
    /// does that wants to renegotiate, or nothing that is TLS.
    fn break_session(&mut self, addr: SocketAddr) {
        let Ok(client) = Client::connect_tls(addr, &self.tls, PATIENCE) else { return };
        let junk = if self.random.bool() {
            words::client_hello(false)
        } else {
            words::pieces(Kind::Clients, &mut self.random).concat()
        };
        let mut stream = client.stream();
        let _sent = stream.write_all(&junk);
        let _set = stream.set_read_timeout(Some(GLANCE));
        let _read = stream.read(&mut [0; 4096]);
        leave(stream, self.random.bool());
    }

    /// Lets one of those that stay send another byte, and the oldest leave if they are too many.
    fn continue_staying(&mut self) {
        if let Some(mut stream) = self.staying.pop_front() {
            if self.staying.len() >= STAYING {
                leave(&stream, self.random.bool());
            } else if stream.write_all(&[self.random.u8(..)]).is_ok() {
                self.staying.push_back(stream);
            }
        }
    }
}

/// Whether the server of a port with TLS answers a hello of the strangers with its own, for each
/// version: otherwise they would show nothing.
pub(super) fn is_answered(port: Port) -> bool {
    [true, false].into_iter().all(|newest| {
        let Some(mut stream) = open(port) else { return false };
        let _set = stream.set_read_timeout(Some(Duration::from_secs(5)));
        let mut answer = [0; 6];
        let sent = stream.write_all(&words::client_hello(newest));
        sent.and_then(|()| stream.read_exact(&mut answer)).is_ok() && matches!(answer, [22, .., 2])
    })
}

fn open(Port { kind, addr }: Port) -> Option<TcpStream> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None).ok()?;
    if kind == Kind::Proxied {
        socket.bind(&SocketAddr::from((BALANCER, 0)).into()).ok()?;
    }
    socket.connect_timeout(&addr.into(), PATIENCE).ok()?;
    let stream = TcpStream::from(socket);
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    stream.set_read_timeout(Some(GLANCE)).ok()?;
    Some(stream)
}

/// Prepares the end: with RST, or with FIN.
fn leave(stream: &TcpStream, reset: bool) {
    let linger = reset.then_some(Duration::ZERO);
    // It is closed either way.
    let _set = SockRef::from(stream).set_linger(linger);
}
