//! Listening sockets: which addresses they accept, and which one gets a client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, SockRef, Socket, Type};
use target::TargetWriter;

use crate::address::ListenAddr;
use crate::listener::{BindError, Bound, InheritedSockets, WorkerListener};
use crate::options::Options;
use crate::service::{NoHints, Service};

fn service() -> Service {
    let (_, target) = TargetWriter::new();
    Service {
        name: "s".into(),
        route: target.into(),
        options: Options::default().into(),
        hints: Arc::new(NoHints),
    }
}

fn two() -> NonZeroUsize {
    NonZeroUsize::new(2).unwrap()
}

fn tcp(addrs: &[ListenAddr]) -> Vec<SocketAddr> {
    addrs.iter().filter_map(ListenAddr::tcp).collect()
}

/// The first client in any worker's queue, and the address of its listener.
fn accepted(bound: &Bound) -> (Socket, ListenAddr) {
    let all: Vec<&WorkerListener> = bound.listeners.iter().flatten().collect();
    let mut asked: Vec<_> = all.iter().map(|it| PollFd::new(&it.socket, PollFlags::IN)).collect();
    assert!(
        poll(&mut asked, Some(&Timespec { tv_sec: 30, tv_nsec: 0 })).unwrap() > 0,
        "the client never connected"
    );
    let ready = asked.iter().position(|it| !it.revents().is_empty()).unwrap();
    let listener = all[ready];
    (SockRef::from(&listener.socket).accept().unwrap().0, listener.addr.clone())
}

#[test]
fn shares_one_port_among_workers_for_port_0() {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let bound = Bound::bind(two(), 10, [(service(), vec![any, any])]).unwrap();
    let [addrs] = bound.local_addrs() else { panic!("one service") };
    assert_ne!(addrs[0], addrs[1]);
    for worker in &bound.listeners {
        let local = |it: &WorkerListener| {
            SockRef::from(&it.socket).local_addr().unwrap().as_socket().unwrap()
        };
        assert_eq!(worker.iter().map(local).collect::<Vec<_>>(), tcp(addrs));
    }
}

#[test]
fn rejects_address_in_use_even_with_reuseport() {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let first = Bound::bind(two(), 10, [(service(), vec![any])]).unwrap();
    let taken = tcp(&first.local_addrs()[0])[0];
    let error = Bound::bind(two(), 10, [(service(), vec![taken])]).unwrap_err();
    assert!(matches!(&error, BindError::InUse { addr, .. } if *addr == taken), "{error:?}");
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("listen address {taken} is already in use by another process;")),
        "{text}"
    );
}

#[test]
fn rejects_address_of_no_interface() {
    let error =
        Bound::bind(two(), 10, [(service(), vec!["192.0.2.1:0".parse().unwrap()])]).unwrap_err();
    assert!(matches!(error, BindError::NotHere { .. }), "{error:?}");
}

#[test]
fn distributes_inherited_sockets_over_all_workers() {
    let socket = || TcpListener::bind("127.0.0.1:0").unwrap();
    for count in [1, 2, 3] {
        let first = socket();
        let addr = ListenAddr::from(first.local_addr().unwrap());
        let sockets: Vec<OwnedFd> = (0..count).map(|_| first.try_clone().unwrap().into()).collect();
        let nothing = InheritedSockets { addr: addr.clone(), sockets: Vec::new() };
        let inherited = vec![InheritedSockets { addr: addr.clone(), sockets }, nothing];
        let bound =
            Bound::bind_or_take(two(), 10, &[], [(service(), Vec::new(), inherited)]).unwrap();
        assert_eq!(bound.local_addrs(), [vec![addr]]);
        let shares: Vec<usize> = bound.listeners.iter().map(Vec::len).collect();
        assert_eq!(shares, if count == 3 { [2, 1] } else { [1, 1] }, "{count}");
        assert_eq!(bound.sockets().unwrap().all().len(), shares.iter().sum::<usize>());
    }
}

#[test]
fn sets_options_that_accepted_connections_inherit() {
    let bound =
        Bound::bind(two(), 10, [(service(), vec!["127.0.0.1:0".parse().unwrap()])]).unwrap();
    let _client = TcpStream::connect(tcp(&bound.local_addrs()[0])[0]).unwrap();
    let (accepted, _) = accepted(&bound);
    assert!(accepted.tcp_nodelay().unwrap());
    assert!(accepted.keepalive().unwrap());
    assert_eq!(accepted.tcp_user_timeout().unwrap(), Some(Options::default().user_timeout));
    assert_eq!(accepted.tcp_keepalive_time().unwrap(), Options::default().keepalive);
}

/// Whether sockets on `[::]` accept IPv4 by the system's default.
fn takes_both() -> bool {
    !Socket::new(Domain::IPV6, Type::STREAM, None).unwrap().only_v6().unwrap()
}

#[test]
fn accepts_ipv4_clients_on_unspecified_ipv6_address() {
    let bound = Bound::bind(two(), 10, [(service(), vec!["[::]:0".parse().unwrap()])]).unwrap();
    let port = tcp(&bound.local_addrs()[0])[0].port();
    let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    assert_eq!(client.is_ok(), takes_both(), "{client:?}");
    let _client = TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
    let _accepted = accepted(&bound);
}

/// A port that is free for both families, as far as can be known.
fn free_port() -> u16 {
    TcpListener::bind("[::]:0").unwrap().local_addr().unwrap().port()
}

fn listener_of(bound: &Bound, client: impl Into<IpAddr>, port: u16) -> String {
    let _client = TcpStream::connect((client.into(), port)).unwrap();
    accepted(bound).1.to_string()
}

#[test]
fn leaves_ipv4_clients_to_an_ipv4_address_of_the_process() {
    let port = free_port();
    let (v4, v6) = (format!("0.0.0.0:{port}"), format!("[::]:{port}"));
    let both = [&v4, &v6].map(|it| it.parse::<SocketAddr>().unwrap());
    for order in [both, [both[1], both[0]]] {
        // As two services: a client of one must never reach the other.
        let services = order.map(|addr| (service(), vec![addr]));
        let bound = Bound::bind(two(), 10, services).unwrap();
        assert_eq!(listener_of(&bound, Ipv4Addr::LOCALHOST, port), v4);
        assert_eq!(listener_of(&bound, Ipv6Addr::LOCALHOST, port), v6);
    }
    // An address of the admin server counts too.
    let admin = TcpListener::bind(both[0]).unwrap();
    let elsewhere = [admin.local_addr().unwrap()];
    let bound =
        Bound::bind_or_take(two(), 10, &elsewhere, [(service(), vec![both[1]], Vec::new())])
            .unwrap();
    assert_eq!(listener_of(&bound, Ipv6Addr::LOCALHOST, port), v6);
}

#[test]
fn joins_inherited_dual_stack_socket_for_ipv4() {
    let old = Bound::bind(two(), 10, [(service(), vec!["[::]:0".parse().unwrap()])]).unwrap();
    let addr = old.local_addrs()[0][0].clone();
    let port = addr.tcp().unwrap().port();
    let sockets = old.listeners.into_iter().flatten().map(|it| it.socket).collect();
    let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let services = [
        (service(), vec![v4], Vec::new()),
        (service(), Vec::new(), vec![InheritedSockets { addr: addr.clone(), sockets }]),
    ];
    let bound = Bound::bind_or_take(two(), 10, &[], services).unwrap();
    assert_eq!(listener_of(&bound, Ipv4Addr::LOCALHOST, port), v4.to_string());
    assert_eq!(listener_of(&bound, Ipv6Addr::LOCALHOST, port), addr.to_string());
}

#[test]
fn shares_unix_socket_among_workers() {
    // An abstract socket, without a file.
    let at =
        UnixAddr::from_abstract_name(format!("pointsman-listener-{}", std::process::id())).unwrap();
    let socket = UnixListener::bind_addr(&at).unwrap();
    let addr = ListenAddr::Unix("/run/redis.sock".into());
    let inherited = vec![InheritedSockets { addr: addr.clone(), sockets: vec![socket.into()] }];
    let bound = Bound::bind_or_take(two(), 10, &[], [(service(), Vec::new(), inherited)]).unwrap();
    assert_eq!(bound.listeners.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
    let mut sockets = bound.sockets().unwrap();
    sockets.retune("s", &Options::default()).unwrap();
    sockets.release();
    let _client = UnixStream::connect_addr(&at).unwrap();
    assert_eq!(accepted(&bound).1, addr);
}
