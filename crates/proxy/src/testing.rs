//! A proxy in the test's own process, with a target publisher that the test controls and backends
//! that the test plays.
//!
//! Clients and backends are plain blocking sockets. Every read has a deadline, so a test that waits
//! for what never comes fails and does not hang.

mod alone;
mod closed_port;
mod fake_stream;
pub(crate) mod tls_client;
pub(crate) mod tls_target;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use drain::{Drain, ShutdownSettings, StopRequest};
use socket2::Socket;
use target::{Destination, EmptyPool, PoolWriter, Target, TargetSource, TargetWriter};

use crate::address::{ListenerId, Peer};
use crate::context::{ListenerContext, ServiceContext, ServiceLogs, WorkerContext};
use crate::counter::Counter;
use crate::limits::{Limits, ResourceShortage, Slots};
use crate::session::report::SessionBase;
use crate::silent_clients::SilentClients;
use crate::stats::ServiceCounters;
use crate::{
    AddressPlan, EndReason, Hint, Hints, NoHints, Options, Running, Service, ServiceSnapshot,
};

pub(crate) use alone::run_alone;
pub(crate) use closed_port::closed_port;
pub(crate) use fake_stream::FakeStream;

/// A generous deadline for anything that should happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Records every hint.
#[derive(Debug, Default)]
pub(crate) struct RecordedHints(Mutex<Vec<Hint>>);

impl Hints for RecordedHints {
    fn hint(&self, _target: &Target, hint: Hint) {
        self.0.lock().unwrap().push(hint);
    }
}

/// A proxy with one service.
pub(crate) struct TestProxy {
    pub(crate) publisher: TargetWriter,
    pub(crate) drain: Drain,
    addr: SocketAddr,
    route: TargetSource,
    hints: Arc<RecordedHints>,
    running: Option<Running>,
    controller: Option<JoinHandle<drain::Summary>>,
}

impl TestProxy {
    /// One worker, no target yet.
    pub(crate) fn new(options: Options) -> Self {
        Self::with(1, 1000, options)
    }

    /// One worker, default options, and the backend as its target. `connect_timeout` is long:
    /// however slowly the test plays an answer, the backend is not taken for one that does not
    /// answer.
    pub(crate) fn with_target(backend: &Backend) -> Self {
        let mut proxy = Self::new(Options { connect_timeout: SOON, ..Options::default() });
        proxy.commit(backend.addr());
        proxy
    }

    pub(crate) fn with(workers: usize, max_connections: usize, options: Options) -> Self {
        let (publisher, route) = TargetWriter::new();
        Self::start(publisher, &route.into(), workers, max_connections, options, drop).0
    }

    /// One worker, with or without a target, and a client whose bytes were in the kernel's queue
    /// before the worker started: its session finds them at its first poll.
    pub(crate) fn with_waiting_client(
        options: Options,
        backend: Option<&Backend>,
        words: &[u8],
    ) -> (Self, TcpStream) {
        let (mut publisher, route) = TargetWriter::new();
        if let Some(backend) = backend {
            publisher.commit(destination(backend.addr()));
        }
        Self::start(publisher, &route.into(), 1, 1000, options, |addr| {
            let mut client = connect(addr);
            client.write_all(words).unwrap();
            client
        })
    }

    /// One worker with a replica pool that is not published yet.
    pub(crate) fn for_readers(empty: EmptyPool, options: Options) -> (Self, PoolWriter) {
        let (publisher, route) = TargetWriter::new();
        let (writer, pool) = PoolWriter::new(&route, empty);
        (Self::start(publisher, &pool.into(), 1, 1000, options, drop).0, writer)
    }

    /// `greet` is called when the address is listened on, and no client is served yet.
    fn start<T>(
        publisher: TargetWriter,
        route: &TargetSource,
        workers: usize,
        max_connections: usize,
        options: Options,
        greet: impl FnOnce(SocketAddr) -> T,
    ) -> (Self, T) {
        let hints = Arc::<RecordedHints>::default();
        let service = Service {
            name: "s".into(),
            route: route.clone(),
            options: options.into(),
            hints: Arc::clone(&hints) as Arc<dyn Hints>,
        };
        let workers = NonZeroUsize::new(workers).unwrap();
        let options = service.options.now();
        let plan = AddressPlan::new(workers, &[], Vec::new());
        let listener = plan.bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
        let addr = listener.addr.tcp().unwrap();
        let greeted = greet(addr);
        let settings = ShutdownSettings {
            accept_min: Duration::ZERO,
            accept_quiet: Duration::ZERO,
            accept_max: Duration::ZERO,
            drain_spread: Duration::ZERO,
            drain_timeout: SOON,
        };
        let (drain, controller) = drain::new(settings);
        let mut running = Running::start(workers, max_connections, &drain).unwrap();
        let number = running.add_service(service);
        running.open(number, listener, options.tls.is_some());
        let controller = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(controller.run())
        });
        (
            Self {
                publisher,
                drain,
                addr,
                route: route.clone(),
                hints,
                running: Some(running),
                controller: Some(controller),
            },
            greeted,
        )
    }

    pub(crate) fn commit(&mut self, addr: SocketAddr) -> Arc<Target> {
        self.publisher.commit(destination(addr))
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The target or the pool of the service, as its sessions see it.
    pub(crate) fn route(&self) -> &TargetSource {
        &self.route
    }

    /// A new client.
    pub(crate) fn client(&self) -> TcpStream {
        connect(self.addr)
    }

    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub(crate) fn stats(&self) -> ServiceSnapshot {
        self.running().stats.service("s").unwrap()
    }

    pub(crate) fn hints(&self) -> Vec<Hint> {
        self.hints.0.lock().unwrap().clone()
    }

    /// Waits until the counters satisfy `condition`.
    #[track_caller]
    pub(crate) fn wait_for(
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
            assert!(begin.elapsed() < SOON, "not in time: {what}; {stats:?}");
            std::thread::yield_now();
        }
    }

    /// Waits until a session has ended for `reason`, and checks that none has ended for another.
    #[track_caller]
    pub(crate) fn wait_for_end(&self, reason: EndReason) {
        let stats = self.wait_for("the end of a session", |stats| stats.closed_in_all() > 0);
        let others =
            EndReason::ALL.iter().filter(|it| stats.closed_for(**it) > 0).collect::<Vec<_>>();
        assert_eq!(others, [&reason]);
    }

    /// Stops the proxy and returns how that went.
    pub(crate) fn stop(mut self, order: StopRequest) -> (drain::Summary, ServiceSnapshot) {
        self.drain.request_stop(order);
        let summary = self.controller.take().unwrap().join().unwrap();
        let running = self.running.take().unwrap();
        let stats = running.stats.clone();
        running.join().unwrap();
        (summary, stats.service("s").unwrap())
    }
}

impl Drop for TestProxy {
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

pub(crate) fn connect(addr: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(addr).unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    client.set_write_timeout(Some(SOON)).unwrap();
    client.set_nodelay(true).unwrap();
    client
}

/// The published form of an address.
pub(crate) fn destination(addr: SocketAddr) -> Destination {
    Destination { addr, name: addr.to_string().into(), epoch: 0, run_id: None }
}

/// A server played by the test.
pub(crate) struct Backend {
    listener: TcpListener,
    /// Keeps the port reserved when the listener is closed.
    closed: Socket,
}

impl Backend {
    pub(crate) fn new() -> Self {
        let (closed, addr) = closed_port();
        Self { listener: TcpListener::bind(addr).unwrap(), closed }
    }

    /// Stops listening: the port refuses connections, and is reserved as long as the socket is
    /// open.
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

    /// The next connection of the proxy, if there is one.
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

    /// Whether a connection waits to be accepted.
    pub(crate) fn has_pending_connection(&self) -> bool {
        self.listener.set_nonblocking(true).unwrap();
        self.listener.accept().is_ok()
    }
}

/// A client and the backend's side of its session, after one request and its reply.
pub(crate) fn session(proxy: &TestProxy, backend: &Backend) -> (TcpStream, TcpStream) {
    let mut client = proxy.client();
    let mut upstream = backend.accept();
    client.write_all(b"PING\r\n").unwrap();
    expect(&mut upstream, b"PING\r\n");
    upstream.write_all(b"+PONG\r\n").unwrap();
    expect(&mut client, b"+PONG\r\n");
    (client, upstream)
}

/// The context of one worker and service, with a target.
pub(crate) fn context() -> (TargetWriter, Arc<WorkerContext>) {
    let (mut publisher, route) = TargetWriter::new();
    publisher.commit(destination("127.0.0.1:1".parse().unwrap()));
    let service = Arc::new(Service {
        name: "s".into(),
        route: route.into(),
        options: Options::default().into(),
        hints: Arc::new(NoHints),
    });
    let shared = Arc::new(ServiceContext {
        service,
        limits: Limits::new(1, 0, Slots::new(1), ResourceShortage::default()),
        awaiting_header: Slots::new(2),
        logs: ServiceLogs::default(),
    });
    let counters = ServiceCounters::new(Arc::from("s"), 1).of_worker(0).unwrap();
    let drain = drain::new(ShutdownSettings::default()).0;
    let listener = ListenerContext::new(ListenerId::default(), &drain, false);
    (
        publisher,
        Arc::new(WorkerContext {
            shared,
            counters,
            listener,
            events: Counter::default(),
            dial_permits: Arc::default(),
            silent_clients: SilentClients::default(),
        }),
    )
}

/// Reads exactly these bytes.
#[track_caller]
pub(crate) fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut read = vec![0; bytes.len()];
    stream.read_exact(&mut read).unwrap();
    assert_eq!(String::from_utf8_lossy(&read), String::from_utf8_lossy(bytes));
}

/// Reads to the end, which must be an orderly one.
#[track_caller]
pub(crate) fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut read = Vec::new();
    stream.read_to_end(&mut read).unwrap();
    read
}

/// Reads to the end, which is a reset if nothing was owed.
pub(crate) fn rest_or_reset(stream: &mut TcpStream) -> Vec<u8> {
    let mut read = Vec::new();
    let _reset = stream.read_to_end(&mut read);
    read
}

/// Whether nothing can be read at this moment, not even an end.
pub(crate) fn is_silent(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let silent =
        matches!(stream.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
    stream.set_nonblocking(false).unwrap();
    silent
}

/// Closes a socket so that its peer gets a reset.
pub(crate) fn reset(stream: TcpStream) {
    Socket::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}

/// The facts of a session of `context`.
pub(crate) fn session_base(context: &Arc<WorkerContext>) -> SessionBase {
    SessionBase::new(Peer::UNIX, Arc::clone(context))
}
