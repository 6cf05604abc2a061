//! A stream over a socket pair, whose other end the test plays record by record.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::task::{Context, Poll, Waker};

use socket2::SockRef;
use tls::rustls::pki_types::ServerName;
use tls::rustls::{ClientConnection, StreamOwned};
use tls::{ServerSide, TlsConnection, Version};

use crate::io::buffer::KeptBytes;
use crate::io::stream::{ByteStream, SocketStream};
use crate::io::tls_stream::{HandshakeStep, TlsStream};
use crate::io::tls_stream_rig;
use crate::runtime::reactor::{self, Reactor, poll_events};
use crate::testing::tls_client::TestCa;

struct Ends {
    stream: TlsStream<ServerSide>,
    peer: StreamOwned<ClientConnection, UnixStream>,
    _eventfd: std::os::fd::OwnedFd,
}

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn eventfd() -> std::os::fd::OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
}

impl Ends {
    /// Both ends after the handshake, over sockets with small buffers.
    fn new(version: Version) -> Self {
        let eventfd = eventfd();
        reactor::install(Reactor::new(&eventfd).unwrap());
        let (ours, theirs) = UnixStream::pair().unwrap();
        for socket in [&ours, &theirs] {
            socket.set_nonblocking(true).unwrap();
            SockRef::from(socket).set_send_buffer_size(1).unwrap();
        }
        let ca = TestCa::new();
        let server = ca.listening(&ca.settings()).settings;
        let connection = TlsConnection::accept(server.config()).unwrap();
        let socket = SocketStream::accepted(ours.into(), false).unwrap();
        let config = ca.client_config((version, version), None);
        let name = ServerName::try_from("redis.example").unwrap();
        let peer = StreamOwned::new(ClientConnection::new(config, name).unwrap(), theirs);
        let stream = TlsStream::new(socket, connection);
        let mut ends = Self { stream, peer, _eventfd: eventfd };
        ends.shake();
        ends
    }

    fn shake(&mut self) {
        let mut received = Vec::new();
        loop {
            self.progress();
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
        self.progress();
        assert!(!self.peer.conn.is_handshaking());
    }

    /// Lets the peer send and receive what it can.
    fn progress(&mut self) {
        while self.peer.conn.wants_write() && self.peer.conn.write_tls(&mut self.peer.sock).is_ok()
        {
        }
        while self.peer.conn.wants_read() && self.peer.conn.read_tls(&mut self.peer.sock).is_ok() {
            self.peer.conn.process_new_packets().unwrap();
        }
    }

    fn update(&mut self) {
        poll_events(&mut reactor::no_events(), Some(&reactor::NO_WAIT), drop).unwrap();
        self.stream.update_readiness(&mut cx());
    }

    /// What the peer can read now, at most `most` bytes.
    fn received(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most];
        match self.peer.read(&mut bytes) {
            Ok(read) => bytes.truncate(read),
            Err(error) if error.kind() == ErrorKind::WouldBlock => bytes.clear(),
            Err(error) => panic!("{error}"),
        }
        bytes
    }

    /// Lets the peer send these bytes, which fit.
    fn send(&mut self, bytes: &[u8]) {
        self.peer.write_all(bytes).unwrap();
        self.peer.flush().unwrap();
    }

    fn read(&mut self, most: usize) -> Poll<Vec<u8>> {
        self.update();
        let mut bytes = vec![0; most];
        self.stream.poll_read(&mut cx(), &mut bytes).map(|read| {
            bytes.truncate(read.unwrap());
            bytes
        })
    }
}

/// A client that announces a hello of 64 KiB and sends it in small records.
#[test]
fn ends_long_handshakes_while_the_worker_keeps_much() {
    let ca = TestCa::new();
    for (much, held) in [(0, 60_000), (1 << 24, 17_000)] {
        let kept = KeptBytes::new(vec![0; much]);
        let (eventfd, (ours, _theirs)) = (eventfd(), UnixStream::pair().unwrap());
        reactor::install(Reactor::new(&eventfd).unwrap());
        ours.set_nonblocking(true).unwrap();
        let server = ca.listening(&ca.settings()).settings;
        let connection = TlsConnection::accept(server.config()).unwrap();
        let socket = SocketStream::accepted(ours.into(), false).unwrap();
        let mut stream = TlsStream::new(socket, connection);
        let hello = [&[1, 0, 0xff, 0xff, 3, 3][..], &[b'r'; 61_000]].concat();
        let mut records = hello.chunks(1000).map(|piece| {
            [&[0x16, 3, 1][..], &u16::try_from(piece.len()).unwrap().to_be_bytes(), piece].concat()
        });
        let ended = records.position(|mut record| {
            matches!(stream.poll_handshake(&mut cx(), &mut record), Poll::Ready(Err(_)))
        });
        let taken = ended.map_or(61_000, |records| records * 1000);
        assert!(ended.is_some() == (much > 0) && taken.abs_diff(held) < 1500, "{ended:?}");
        drop(kept);
    }
}

#[test]
fn writes_exactly_what_was_sent_in_whole_records() {
    for version in Version::ALL {
        let mut ends = Ends::new(version);
        let all: Vec<u8> = (0..1_000_000_u32).map(|at| (at / 7) as u8).collect();
        let (mut written, mut read, mut pending) = (0, Vec::new(), 0);
        while read.len() < all.len() {
            ends.update();
            if written < all.len() {
                match ends.stream.poll_write(&mut cx(), &all[written..]) {
                    Poll::Ready(n) => written += n.unwrap(),
                    Poll::Pending => {
                        pending += 1;
                        assert!(ends.stream.has_begun_write());
                    }
                }
            }
            // The peer can never read what does not count as written, apart from the records on
            // their way at this moment.
            let piece = ends.received(1 + read.len() % 5000);
            read.extend_from_slice(&piece);
        }
        assert!(read == all && written == all.len(), "{version:?}");
        assert!(pending > 10 && !ends.stream.has_begun_write(), "{pending}");
    }
}

#[test]
fn sends_nothing_more_while_less_is_allowed() {
    let mut ends = Ends::new(Version::Tls13);
    let all = vec![b'x'; 500_000];
    let mut written = 0;
    while let Poll::Ready(n) = ends.stream.poll_write(&mut cx(), &all[written..]) {
        written += n.unwrap();
        ends.update();
    }
    // A record is on its way, and its upper layer must send less than it has now.
    let mut read = 0;
    loop {
        let piece = ends.received(100_000).len();
        read += piece;
        ends.update();
        assert!(ends.stream.poll_write(&mut cx(), b"x").is_pending());
        if piece == 0 {
            break;
        }
    }
    assert!(read <= written, "{read} of {written}");
    // As soon as it may, everything arrives.
    while read < all.len() {
        ends.update();
        if let Poll::Ready(n) = ends.stream.poll_write(&mut cx(), &all[written..]) {
            written += n.unwrap();
        }
        read += ends.received(100_000).len();
    }
    assert_eq!((read, written), (all.len(), all.len()));
}

#[test]
fn reads_records_into_buffers_of_any_size() {
    for version in Version::ALL {
        let mut ends = Ends::new(version);
        for size in [1, 10, 5000, 300_000] {
            ends.send(&[7; 3000]);
            let mut read = 0;
            while read < 3000 {
                // What was decrypted and not read makes the stream readable.
                assert!(ends.stream.is_readable() || read == 0, "{version:?} {size} {read}");
                if let Poll::Ready(bytes) = ends.read(size) {
                    assert!(!bytes.is_empty() && bytes.iter().all(|it| *it == 7));
                    read += bytes.len();
                }
            }
            assert!(ends.read(size).is_pending() && !ends.stream.is_readable());
            assert!(!ends.stream.has_unread());
        }
    }
}

#[test]
fn reports_parts_of_records_as_unread() {
    let mut ends = Ends::new(Version::Tls13);
    ends.peer.conn.writer().write_all(b"PING\r\n").unwrap();
    let mut record = Vec::new();
    ends.peer.conn.write_tls(&mut record).unwrap();
    let (half, rest) = record.split_at(9);
    ends.peer.sock.write_all(half).unwrap();
    assert!(ends.stream.has_unread() && ends.read(100).is_pending());
    // It is not in the socket any more, and still on its way.
    assert!(ends.stream.has_unread() && !ends.stream.is_readable());
    ends.peer.sock.write_all(rest).unwrap();
    assert_eq!(ends.read(3), Poll::Ready(b"PIN".to_vec()));
    assert!(ends.stream.has_unread());
    assert_eq!(ends.read(100), Poll::Ready(b"G\r\n".to_vec()));
    assert!(!ends.stream.has_unread());
}

#[test]
fn reads_an_announced_end_after_all_bytes() {
    let mut ends = Ends::new(Version::Tls13);
    ends.send(b"QUIT\r\n");
    ends.peer.conn.send_close_notify();
    ends.progress();
    assert!(!ends.stream.peer_closed());
    assert_eq!(ends.read(100), Poll::Ready(b"QUIT\r\n".to_vec()));
    // The socket is open, and there is still something to read: the end.
    assert!(ends.stream.peer_closed() && ends.stream.is_readable());
    assert_eq!(
        (ends.read(100), ends.read(100)),
        (Poll::Ready(Vec::new()), Poll::Ready(Vec::new()))
    );
    // The other direction is open until it is ended, too.
    assert!(matches!(ends.stream.poll_write(&mut cx(), b"+OK\r\n"), Poll::Ready(Ok(5))));
    assert!(ends.stream.poll_shutdown(&mut cx()).is_ready());
    assert_eq!(ends.received(100), b"+OK\r\n");
    assert_eq!(ends.peer.read(&mut [0]).unwrap(), 0);
}

/// Every input of the corpus, and variations of it, with both versions.
#[test]
fn counts_whole_records_on_the_fuzz_corpus() {
    let ca = TestCa::new();
    let server = ca.listening(&ca.settings()).settings;
    let name = ServerName::try_from("redis.example").unwrap();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut random, mut seen) = (fastrand::Rng::with_seed(7), [0; 3]);
    for file in std::fs::read_dir(folder.join("../../fuzz/corpus/tls_stream")).unwrap() {
        let input = std::fs::read(file.unwrap().path()).unwrap();
        for variation in 0..6 {
            let mut steps = input.clone();
            for _ in 0..variation {
                if !steps.is_empty() {
                    let at = random.usize(..steps.len());
                    steps[at] = random.u8(..);
                }
            }
            let version = Version::ALL[variation % 2];
            let client = (ca.client_config((version, version), None), name.clone());
            let run = tls_stream_rig::run(&steps, server.config(), client.0, client.1);
            seen[0] += usize::from(run.pending > 0 && run.written > 0);
            seen[1] += usize::from(run.read > 0 && !run.changed);
            seen[2] += usize::from(run.read > 0 && run.changed);
        }
    }
    assert!(seen.iter().all(|count| *count > 5), "of no use: {seen:?}");
}
