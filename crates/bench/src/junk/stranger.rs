//! Strangers: connections that say what no client says.
//!
//! Most leave at once. Some stay and continue a byte at a time, until they are closed or too many:
//! a bounded number of half hellos and slow headers is open at any time.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::SockRef;

/// Strangers that stay at a time.
const STAYING: usize = 200;
/// How long a stranger tries to connect or to send: a port that refuses is answered at once.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long a stranger waits for an answer.
const GLANCE: Duration = Duration::from_millis(2);
/// Connections of a flood.
const FLOOD: usize = 20;

/// A port, by what is spoken there.
#[derive(Debug, Clone, Copy)]
pub(super) enum Port {
    Clients(SocketAddr),
    Admin(SocketAddr),
}

impl Port {
    fn addr(self) -> SocketAddr {
        match self {
            Self::Clients(addr) | Self::Admin(addr) => addr,
        }
    }
}

/// All strangers of a window.
#[derive(Debug)]
pub(super) struct Strangers {
    random: fastrand::Rng,
    staying: VecDeque<TcpStream>,
    count: u64,
}

impl Strangers {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), staying: VecDeque::new(), count: 0 }
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
                if let Some(stream) = connect(port) {
                    leave(&stream, self.random.bool());
                }
            }
            return;
        }
        self.count += 1;
        let Some(mut stream) = connect(port) else { return };
        let words = self.words();
        // A refusal closes the connection while it is being written to.
        let _sent = stream.write_all(&words);
        if self.random.bool() {
            let _read = stream.read(&mut [0; 4096]);
            leave(&stream, self.random.bool());
        } else {
            self.staying.push_back(stream);
        }
        self.continue_staying();
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

    fn words(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        match random.u8(..16) {
            0 => (0..random.usize(1..65_536)).map(|_| random.u8(..)).collect(),
            // A hello of TLS: whole by its length, cut, and one that promises more than there is.
            1 => hello(200, 200, random),
            2 => hello(512, 40, random),
            3 => hello(16_000, 5, random),
            4 => b"*1000000000\r\n".to_vec(),
            5 => b"*2\r\n$3\r\nGET\r\n$99999999999\r\n".to_vec(),
            6 => b"*-7\r\n$-5\r\n:1\r\n".to_vec(),
            7 => b"*1\r\n".repeat(4000),
            8 => vec![b'a'; 70_000],
            9 => b"\r\n".repeat(random.usize(1..4000)),
            10 => [b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ".to_vec(), vec![b'a'; 100_000]].concat(),
            11 => b"GET / HTTP/1.1\r\nX".to_vec(),
            12 => b"POST /control/kill HTTP/1.1\r\nContent-Length: -1\r\n\r\n".to_vec(),
            13 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            14 => b"PROXY TCP4 1.2.3.4 5.6.7.8 1 ".to_vec(),
            _ => b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff".to_vec(),
        }
    }
}

/// A record of a TLS hello that says it has `length` bytes, and has `sent` of them.
fn hello(length: u16, sent: usize, random: &mut fastrand::Rng) -> Vec<u8> {
    let [high, low] = length.to_be_bytes();
    let [inner_high, inner_low] = length.saturating_sub(4).to_be_bytes();
    let mut bytes = vec![22, 3, 1, high, low, 1, 0, inner_high, inner_low, 3, 3];
    bytes.extend((0..sent).map(|_| random.u8(..)));
    bytes
}

fn connect(port: Port) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&port.addr(), PATIENCE).ok()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_junk_of_a_seed_and_varies_it() {
        let all = |seed| {
            let mut strangers = Strangers::new(seed);
            (0..200).map(|_| strangers.words()).collect::<Vec<_>>()
        };
        assert_eq!(all(1), all(1));
        let mut kinds: Vec<_> = all(1).iter().map(|words| words.first().copied()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        assert!(kinds.len() > 6, "{kinds:?}");
        assert_ne!(all(1), all(2));
    }

    #[test]
    fn promises_more_of_a_hello_than_it_sends() {
        let hello = hello(512, 40, &mut fastrand::Rng::with_seed(1));
        assert_eq!((hello.len(), &hello[..5]), (51, [22, 3, 1, 2, 0].as_slice()));
    }
}
