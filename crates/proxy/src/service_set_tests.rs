//! Services and listeners that come and go while others serve.

use std::io::Write as _;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use drain::{Drain, ShutdownSettings, StopRequest};
use target::{Destination, TargetWriter};

use crate::testing::{Backend, SOON, connect, expect, rest, run_alone};
use crate::{AddressPlan, ListenerId, NoHints, Options, Running, Service, Sockets};

/// A running data plane with two workers, and a runtime for the drains of listeners.
struct DataPlane {
    running: Running,
    drain: Drain,
    runtime: tokio::runtime::Runtime,
    controller: JoinHandle<drain::Summary>,
    writers: Vec<TargetWriter>,
}

const AT_ONCE: ShutdownSettings = ShutdownSettings {
    accept_min: Duration::ZERO,
    accept_quiet: Duration::ZERO,
    accept_max: Duration::ZERO,
    drain_spread: Duration::ZERO,
    drain_timeout: SOON,
};

fn service(name: &str, backend: &Backend) -> (TargetWriter, Service) {
    let (mut writer, reader) = TargetWriter::new();
    let addr = backend.addr();
    writer.commit(Destination { addr, name: "x".into(), epoch: 0, run_id: None });
    let service = Service {
        name: name.into(),
        route: reader.into(),
        options: Options { connect_timeout: SOON, ..Options::default() }.into(),
        hints: Arc::new(NoHints),
    };
    (writer, service)
}

impl DataPlane {
    fn start(name: &str, backend: &Backend) -> (Self, SocketAddr, Sockets) {
        let (writer, service) = service(name, backend);
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let workers = NonZeroUsize::new(2).unwrap();
        let plan = AddressPlan::new(workers, &[], Vec::new());
        let listener = plan.bind(any, &service.options.now()).unwrap();
        let addr = listener.addr.tcp().unwrap();
        let duplicates = Sockets::duplicate_new(&listener).unwrap();
        let (drain, controller) = drain::new(AT_ONCE);
        let mut running = Running::start(workers, 1000, &drain).unwrap();
        let number = running.add_service(service);
        let id = running.open(number, listener, false);
        let mut sockets = Sockets::default();
        sockets.add(duplicates, id, &name.into());
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let controller = std::thread::spawn(move || runtime().block_on(controller.run()));
        (
            Self { running, drain, runtime: runtime(), controller, writers: vec![writer] },
            addr,
            sockets,
        )
    }

    /// Adds a service with one address.
    fn add(&mut self, name: &str, backend: &Backend) -> (usize, ListenerId, SocketAddr) {
        let (writer, service) = service(name, backend);
        self.writers.push(writer);
        let plan = AddressPlan::new(NonZeroUsize::new(2).unwrap(), &[], Vec::new());
        let new = plan.bind("127.0.0.1:0".parse().unwrap(), &Options::default()).unwrap();
        let addr = new.addr.tcp().unwrap();
        let number = self.running.add_service(service);
        (number, self.running.open(number, new, false), addr)
    }

    /// Closes a listener and waits for the end of its drain.
    fn remove(&mut self, id: ListenerId) -> drain::Summary {
        let controller = self.running.close(id, false, AT_ONCE).unwrap();
        let summary = self.runtime.block_on(controller.run());
        self.running.remove(id);
        summary
    }

    fn end(self) {
        self.drain.request_stop(StopRequest::DrainAtOnce);
        self.controller.join().unwrap();
        self.running.join().unwrap();
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn serves_and_closes_added_service_beside_others() {
    let (first, second) = (Backend::new(), Backend::new());
    let (mut plane, addr, _sockets) = DataPlane::start("a", &first);
    let mut kept = connect(addr);
    kept.write_all(b"PING\r\n").unwrap();
    let mut upstream = first.accept();
    expect(&mut upstream, b"PING\r\n");
    let (number, id, new) = plane.add("b", &second);
    let mut client = connect(new);
    client.write_all(b"PING\r\n").unwrap();
    let mut other = second.accept();
    expect(&mut other, b"PING\r\n");
    assert_eq!(plane.running.stats.service("b").unwrap().accepted, 1);
    other.write_all(b"+PONG\r\n").unwrap();
    expect(&mut client, b"+PONG\r\n");
    let summary = plane.remove(id);
    assert!(summary.is_clean() && rest(&mut client).is_empty());
    assert!(std::net::TcpStream::connect(new).is_err());
    plane.running.remove_service(number);
    assert!(plane.running.stats.service("b").is_none());
    // The other service noticed nothing: its request is still in flight.
    upstream.write_all(b"+PONG\r\n").unwrap();
    expect(&mut kept, b"+PONG\r\n");
    drop((kept, upstream));
    plane.end();
}

#[test]
fn moves_sockets_without_refusing_or_misdirecting() {
    let (first, second) = (Backend::new(), Backend::new());
    let (mut plane, addr, mut sockets) = DataPlane::start("a", &first);
    let mut old = connect(addr);
    old.write_all(b"PING\r\n").unwrap();
    let mut upstream = first.accept();
    expect(&mut upstream, b"PING\r\n");
    let (number, ..) = plane.add("b", &second);
    let id = sockets.all()[0].id;
    let moved = sockets.duplicate(id).unwrap().remove(0);
    let kept = Sockets::duplicate_new(&moved).unwrap();
    let controller = plane.running.close(id, true, AT_ONCE).unwrap();
    let new = plane.running.open(number, moved, false);
    sockets.remove(id);
    sockets.add(kept, new, &Arc::from("b"));
    let closing = std::thread::spawn({
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        move || runtime.block_on(controller.run())
    });
    // Until the workers have left the address to the other service, either may accept.
    let deadline = Instant::now() + SOON;
    while !plane.running.is_closed(id) {
        assert!(Instant::now() < deadline, "it is still open");
        std::thread::yield_now();
    }
    for _ in 0..8 {
        let mut client = connect(addr);
        client.write_all(b"PING\r\n").unwrap();
        expect(&mut second.accept(), b"PING\r\n");
    }
    // The session of the old service got its reply before it left.
    upstream.write_all(b"+PONG\r\n").unwrap();
    expect(&mut old, b"+PONG\r\n");
    assert!(rest(&mut old).is_empty());
    assert!(closing.join().unwrap().is_clean());
    plane.end();
}

/// The descriptors of other tests in the process would be counted, too.
#[test]
fn returns_all_descriptors_of_removed_services() {
    let name = "service_set_tests::returns_all_descriptors_of_removed_services";
    run_alone(name, add_and_remove_services);
}

fn add_and_remove_services() {
    let backend = Backend::new();
    let (mut plane, _, _sockets) = DataPlane::start("a", &backend);
    let mut before = 0;
    for round in 0..20 {
        let (number, id, addr) = plane.add("b", &backend);
        let mut client = connect(addr);
        client.write_all(b"PING\r\n").unwrap();
        drop((backend.accept(), client));
        plane.remove(id);
        plane.running.remove_service(number);
        plane.writers.truncate(1);
        if round == 0 {
            before = descriptors();
        }
    }
    // A worker closes its copy of the last listener after it has reported the end.
    let deadline = Instant::now() + SOON;
    while descriptors() > before {
        assert!(Instant::now() < deadline, "{before} {}", descriptors());
        std::thread::yield_now();
    }
    assert_eq!(plane.running.stats.services().len(), 1);
    plane.end();
}

#[test]
fn stops_with_a_listener_half_closed() {
    let (first, second) = (Backend::new(), Backend::new());
    let (mut plane, _, _sockets) = DataPlane::start("a", &first);
    let (_, id, addr) = plane.add("b", &second);
    let mut client = connect(addr);
    client.write_all(b"PING\r\n").unwrap();
    let mut upstream = second.accept();
    expect(&mut upstream, b"PING\r\n");
    let long = ShutdownSettings { drain_timeout: SOON * 100, ..AT_ONCE };
    let controller = plane.running.close(id, false, long).unwrap();
    let closing = std::thread::spawn({
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        move || runtime.block_on(controller.run())
    });
    // The session waits for its reply; the shutdown of the process cuts it.
    plane.drain.request_stop(StopRequest::DrainAtOnce);
    plane.drain.request_stop(StopRequest::Cut);
    assert_eq!(plane.controller.join().unwrap().since_stop_request.cut, 1);
    plane.running.join().unwrap();
    closing.join().unwrap();
}
