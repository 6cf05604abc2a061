//! A proxy in the test's own process, with points that the test moves and backends that the test
//! plays.
//!
//! Clients and backends are plain blocking sockets. Every read has a deadline, so a test that waits
//! for what never comes fails and does not hang.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use drain::{Drain, ShutdownSettings, StopRequest};
use socket2::{Domain, Socket, Type};
use target::{Destination, EmptyPool, PoolWriter, Target, TargetSource, TargetWriter};

use crate::context::{ServiceContext, WorkerContext};
use crate::io::stream::ByteStream;
use crate::limits::{Limits, ResourceShortage, Slots};
use crate::stats::Stats;
use crate::{Bound, EndReason, Hint, Hints, NoHints, Options, Running, Service, ServiceSnapshot};

/// How long anything may take that should happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Remembers every hint.
#[derive(Default)]
pub(crate) struct Heard(Mutex<Vec<Hint>>);

impl Hints for Heard {
    fn hint(&self, _target: &Target, hint: Hint) {
        self.0.lock().unwrap().push(hint);
    }
}

/// A proxy with one service.
pub(crate) struct House {
    pub(crate) points: TargetWriter,
    pub(crate) drain: Drain,
    addr: SocketAddr,
    heard: Arc<Heard>,
    running: Option<Running>,
    controller: Option<JoinHandle<drain::Summary>>,
}

impl House {
    /// One worker, no target yet.
    pub(crate) fn new(options: Options) -> Self {
        Self::with(1, 1000, options)
    }

    /// One worker, default options, and the backend as its target; but however long the test takes
    /// to play an answer, it is not taken for a server that gives none.
    pub(crate) fn towards(backend: &Backend) -> Self {
        let mut house = Self::new(Options { connect_timeout: SOON, ..Options::default() });
        house.commit(backend.addr());
        house
    }

    pub(crate) fn with(workers: usize, max_connections: usize, options: Options) -> Self {
        let (points, route) = TargetWriter::new();
        Self::on(points, &route.into(), (workers, max_connections), options, drop).0
    }

    /// One worker, perhaps a target, and a client that had said this in the kernel's queue before
    /// anybody was served: its session finds its words at the first look.
    pub(crate) fn awaited(
        options: Options,
        backend: Option<&Backend>,
        words: &[u8],
    ) -> (Self, TcpStream) {
        let (mut points, route) = TargetWriter::new();
        if let Some(backend) = backend {
            points.commit(destination(backend.addr()));
        }
        Self::on(points, &route.into(), (1, 1000), options, |addr| {
            let mut client = connect(addr);
            client.write_all(words).unwrap();
            client
        })
    }

    /// One worker and the way to a pool, of which nothing is known yet.
    pub(crate) fn reading(empty: EmptyPool, options: Options) -> (Self, PoolWriter) {
        let (points, route) = TargetWriter::new();
        let (writer, pool) = PoolWriter::new(&route, empty);
        (Self::on(points, &pool.into(), (1, 1000), options, drop).0, writer)
    }

    /// `greet` is called when the address is listened on, and nobody is served yet.
    fn on<T>(
        points: TargetWriter,
        route: &TargetSource,
        (workers, max_connections): (usize, usize),
        options: Options,
        greet: impl FnOnce(SocketAddr) -> T,
    ) -> (Self, T) {
        let heard = Arc::<Heard>::default();
        let hints = Arc::clone(&heard) as Arc<dyn Hints>;
        let service =
            Service { name: "s".into(), route: route.clone(), options: options.into(), hints };
        let workers = NonZeroUsize::new(workers).unwrap();
        let bound = Bound::bind(
            workers,
            max_connections,
            [(service, vec!["127.0.0.1:0".parse().unwrap()])],
        )
        .unwrap();
        let addr = bound.local_addrs()[0][0].tcp().unwrap();
        let greeted = greet(addr);
        let settings = ShutdownSettings {
            accept_min: Duration::ZERO,
            accept_quiet: Duration::ZERO,
            accept_max: Duration::ZERO,
            drain_spread: Duration::ZERO,
            drain_timeout: SOON,
        };
        let (drain, controller) = drain::new(settings);
        let running = bound.serve(&drain).unwrap();
        let controller = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(controller.run())
        });
        (
            Self {
                points,
                drain,
                addr,
                heard,
                running: Some(running),
                controller: Some(controller),
            },
            greeted,
        )
    }

    pub(crate) fn commit(&mut self, addr: SocketAddr) -> Arc<Target> {
        self.points.commit(destination(addr))
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// A new client.
    pub(crate) fn client(&self) -> TcpStream {
        connect(self.addr)
    }

    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub(crate) fn stats(&self) -> ServiceSnapshot {
        self.running().stats().service("s").unwrap()
    }

    pub(crate) fn hints(&self) -> Vec<Hint> {
        self.heard.0.lock().unwrap().clone()
    }

    /// Waits until the counters are as `condition` wants them.
    #[track_caller]
    pub(crate) fn until(
        &self,
        what: &str,
        condition: impl Fn(&ServiceSnapshot) -> bool,
    ) -> ServiceSnapshot {
        let begin = Instant::now();
        loop {
            let stats = self.stats();
            if condition(&stats) {
                return stats;
            }
            assert!(begin.elapsed() < SOON, "never came: {what}; {stats:?}");
            std::thread::yield_now();
        }
    }

    /// Waits until a session has ended for `reason`, and checks that none has for another.
    #[track_caller]
    pub(crate) fn ended(&self, reason: EndReason) {
        let stats = self.until("the end of a session", |stats| stats.closed_in_all() > 0);
        let others =
            EndReason::ALL.iter().filter(|it| stats.closed_for(**it) > 0).collect::<Vec<_>>();
        assert_eq!(others, [&reason]);
    }

    /// Ends it by a drain and returns how that went.
    pub(crate) fn end(mut self, order: StopRequest) -> (drain::Summary, ServiceSnapshot) {
        self.drain.request_stop(order);
        let summary = self.controller.take().unwrap().join().unwrap();
        let running = self.running.take().unwrap();
        let stats = running.stats().clone();
        running.join().unwrap();
        (summary, stats.service("s").unwrap())
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.drain.request_stop(StopRequest::Cut);
        if let Some(controller) = self.controller.take() {
            drop(controller.join());
        }
        if let Some(running) = self.running.take() {
            let ended = running.join();
            assert!(std::thread::panicking() || ended.is_ok(), "{ended:?}");
        }
    }
}

fn connect(addr: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(addr).unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    client.set_write_timeout(Some(SOON)).unwrap();
    client.set_nodelay(true).unwrap();
    client
}

/// What is published of an address.
pub(crate) fn destination(addr: SocketAddr) -> Destination {
    Destination { addr, name: addr.to_string().into(), epoch: 0, run_id: None }
}

/// A port that refuses until the socket is told to listen, and that nobody else gets as long as it
/// is kept.
pub(crate) fn closed_port() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // So that a listener can be bound beside it; a port that the kernel chooses for somebody else
    // is still another one.
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let addr = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, addr)
}

/// A server played by the test.
pub(crate) struct Backend {
    listener: TcpListener,
    /// Of the same port, which stays its own when the listener is closed.
    closed: Socket,
}

impl Backend {
    pub(crate) fn new() -> Self {
        let (closed, addr) = closed_port();
        Self { listener: TcpListener::bind(addr).unwrap(), closed }
    }

    /// Listens no more: its port refuses, and is nobody else's as long as the socket is kept.
    pub(crate) fn close(self) -> Socket {
        self.closed
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// The next connection of the proxy.
    pub(crate) fn accept(&self) -> TcpStream {
        let begin = Instant::now();
        loop {
            if let Some(stream) = self.next() {
                return stream;
            }
            assert!(begin.elapsed() < SOON, "no connection came");
            std::thread::yield_now();
        }
    }

    /// The next connection of the proxy, if one is there.
    pub(crate) fn next(&self) -> Option<TcpStream> {
        self.listener.set_nonblocking(true).unwrap();
        match self.listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(SOON)).unwrap();
                stream.set_write_timeout(Some(SOON)).unwrap();
                stream.set_nodelay(true).unwrap();
                Some(stream)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => panic!("no connection can be accepted: {error}"),
        }
    }

    /// Whether somebody has connected and was not accepted yet.
    pub(crate) fn is_called(&self) -> bool {
        self.listener.set_nonblocking(true).unwrap();
        self.listener.accept().is_ok()
    }
}

/// A client and the backend's end of its session, which has exchanged a byte each way.
pub(crate) fn session(house: &House, backend: &Backend) -> (TcpStream, TcpStream) {
    let mut client = house.client();
    let mut upstream = backend.accept();
    client.write_all(b"PING\r\n").unwrap();
    expect(&mut upstream, b"PING\r\n");
    upstream.write_all(b"+PONG\r\n").unwrap();
    expect(&mut client, b"+PONG\r\n");
    (client, upstream)
}

/// What one worker has of a service, with points that lead somewhere.
pub(crate) fn context() -> (TargetWriter, WorkerContext) {
    let (mut points, route) = TargetWriter::new();
    let addr = "127.0.0.1:1".parse().unwrap();
    points.commit(Destination { addr, name: "x".into(), epoch: 0, run_id: None });
    let service = Arc::new(Service {
        name: "s".into(),
        route: route.into(),
        options: Options::default().into(),
        hints: Arc::new(NoHints),
    });
    let limits = Limits::new(1, 0, Slots::new(1), ResourceShortage::default());
    let shared = Arc::new(ServiceContext {
        service,
        limits,
        held: Slots::new(1),
        moving: std::sync::OnceLock::new(),
    });
    let counters = Stats::new(1, [Arc::from("s")]).counters(0, 0).unwrap();
    let (drain, _controller) = drain::new(ShutdownSettings::default());
    (
        points,
        WorkerContext {
            shared,
            counters,
            drain,
            session_notify: tokio::sync::Notify::new(),
            dial_permits: crate::session::dial_permits::DialPermits::default(),
        },
    )
}

/// Reads exactly these bytes.
#[track_caller]
pub(crate) fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut read = vec![0; bytes.len()];
    stream.read_exact(&mut read).unwrap();
    assert_eq!(String::from_utf8_lossy(&read), String::from_utf8_lossy(bytes));
}

/// Reads to the end, which must come, and be none of the broken kind.
#[track_caller]
pub(crate) fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut read = Vec::new();
    stream.read_to_end(&mut read).unwrap();
    read
}

/// Whether there is nothing to be read at this moment, not even an end.
pub(crate) fn is_silent(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let silent =
        matches!(stream.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
    stream.set_nonblocking(false).unwrap();
    silent
}

/// Closes a socket so that its peer gets a reset.
pub(crate) fn reset(stream: TcpStream) {
    let socket = Socket::from(stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
}

/// An end of a session without a socket: what it has to say, how much it takes, and what it was
/// told.
#[derive(Debug, Default)]
pub(crate) struct Puppet {
    /// What it says, a read each; an empty one is its end.
    pub(crate) says: VecDeque<Vec<u8>>,
    /// How many bytes it takes before it makes the other side wait.
    pub(crate) takes: usize,
    /// What was written to it.
    pub(crate) heard: Vec<u8>,
    /// It was told that the other direction has ended.
    pub(crate) told: bool,
    /// Largest read that was asked of it since this was last set.
    pub(crate) asked: usize,
    /// It says so much more than it read or took: an end with a bug.
    pub(crate) overstates: usize,
}

impl Puppet {
    pub(crate) fn saying(words: &[&[u8]]) -> Self {
        let says = words.iter().map(|word| word.to_vec()).collect();
        Self { says, takes: usize::MAX, ..Self::default() }
    }
}

impl ByteStream for Puppet {
    fn update_readiness(&mut self, _cx: &mut Context<'_>) {}

    fn is_readable(&self) -> bool {
        !self.says.is_empty()
    }

    fn poll_read(&mut self, _cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.asked = self.asked.max(buffer.len());
        let Some(mut word) = self.says.pop_front() else { return Poll::Pending };
        let n = word.len().min(buffer.len());
        buffer[..n].copy_from_slice(&word[..n]);
        if n < word.len() {
            self.says.push_front(word.split_off(n));
        }
        let n = if self.overstates > 0 { buffer.len() + self.overstates } else { n };
        Poll::Ready(Ok(n))
    }

    fn poll_write(&mut self, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let n = bytes.len().min(self.takes);
        if n == 0 {
            return Poll::Pending;
        }
        self.takes -= n;
        self.heard.extend_from_slice(&bytes[..n]);
        Poll::Ready(Ok(n + self.overstates))
    }

    fn poll_shutdown(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.told = true;
        Poll::Ready(Ok(()))
    }

    fn peer_closed(&self) -> bool {
        self.says.back().is_some_and(Vec::is_empty)
    }

    fn has_unread(&self) -> bool {
        self.says.front().is_some_and(|word| !word.is_empty())
    }
}
