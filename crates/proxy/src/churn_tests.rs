//! Sessions that come and go, on two workers, under a load of random pieces: bytes arrive, and
//! nobody waits for ever.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::testing::{Backend, TestProxy, rest};
use crate::{EndReason, Options, Refusals};

/// A small generator, so that a failure can be repeated.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn throw(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % most as u64).unwrap()
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| u8::try_from(self.throw(256)).unwrap()).collect()
    }
}

/// Sends back whatever comes, to the end.
pub(crate) fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; 20_000];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..n]).is_err() {
            return;
        }
    }
    drop(stream.shutdown(Shutdown::Write));
}

#[test]
fn sessions_that_come_and_go_keep_their_bytes() {
    const CLIENTS: u64 = 8;
    const SESSIONS: usize = 25;
    let backend = Backend::new();
    // Most of the bytes are no requests.
    let options = Options { refusals: Refusals::default(), ..Options::default() };
    let mut proxy = TestProxy::with(2, 1000, options);
    proxy.commit(backend.addr());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                if let Some(stream) = backend.next() {
                    thread::spawn(|| echo(stream));
                } else {
                    thread::yield_now();
                }
            }
        });
        let clients: Vec<_> = (1..=CLIENTS)
            .map(|seed| {
                let proxy = &proxy;
                scope.spawn(move || {
                    let mut dice = Dice(seed * 0x9E37_79B9);
                    for _ in 0..SESSIONS {
                        one_session(proxy.client(), &mut dice);
                    }
                })
            })
            .collect();
        let ended: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::SeqCst);
        assert!(ended.iter().all(Result::is_ok));
    });
    let all = u64::try_from(SESSIONS).unwrap() * CLIENTS;
    let stats = proxy.wait_for("the end of all", |stats| stats.closed_in_all() == all);
    assert_eq!(stats.closed_for(EndReason::ClientClosed), all);
}

/// Writes in random pieces, waits now and then until all has come back, ends its direction and
/// reads to the end.
fn one_session(mut client: TcpStream, dice: &mut Dice) {
    // What begins otherwise may have to wait (`session::first_bytes`).
    let (mut sent, mut read) = (b"*1\r\n$4\r\nPING\r\n".to_vec(), Vec::new());
    client.write_all(&sent).unwrap();
    for _ in 0..dice.throw(12) {
        let most = [4, 300, 30_000][dice.throw(3)];
        let length = 1 + dice.throw(most);
        let piece = dice.bytes(length);
        client.write_all(&piece).unwrap();
        sent.extend(piece);
        if dice.throw(3) == 0 {
            let mut back = vec![0; sent.len() - read.len()];
            client.read_exact(&mut back).unwrap();
            read.extend(back);
        }
    }
    client.shutdown(Shutdown::Write).unwrap();
    read.extend(rest(&mut client));
    assert!(sent == read, "{} bytes sent, {} came back", sent.len(), read.len());
}
