//! Listening sockets: which addresses they accept, and which one gets a client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, SockRef, Socket, Type};

use crate::address::{ListenAddr, ListenerId};
use crate::listener::sockets::Sockets;
use crate::listener::{AddressPlan, BindError, InheritedSockets, NewListener, overlaps};
use crate::options::Options;

fn plan(after: &[SocketAddr], bound: &[SocketAddr]) -> AddressPlan {
    AddressPlan::new(NonZeroUsize::new(2).unwrap(), after, bound.to_vec())
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn bind(address: SocketAddr) -> Result<NewListener, BindError> {
    plan(&[address], &[]).bind(address, &Options::default())
}

/// Takes inherited sockets of one address.
fn take(addr: &ListenAddr, sockets: Vec<OwnedFd>) -> NewListener {
    let inherited = InheritedSockets { addr: addr.clone(), sockets };
    plan(&[], &[]).take(inherited, &Options::default()).unwrap()
}

/// How many sockets each of two workers has.
fn shares(listener: &NewListener) -> [usize; 2] {
    [0, 1].map(|number| listener.sockets.iter().filter(|(worker, _)| *worker == number).count())
}

/// The first client in any worker's queue, and the address of its listener.
fn accepted(listeners: &[NewListener]) -> (Socket, ListenAddr) {
    let all: Vec<_> = listeners
        .iter()
        .flat_map(|listener| listener.sockets.iter().map(|(_, socket)| (socket, &listener.addr)))
        .collect();
    let mut asked: Vec<_> =
        all.iter().map(|(socket, _)| PollFd::new(*socket, PollFlags::IN)).collect();
    assert!(
        poll(&mut asked, Some(&Timespec { tv_sec: 30, tv_nsec: 0 })).unwrap() > 0,
        "the client never connected"
    );
    let ready = asked.iter().position(|it| !it.revents().is_empty()).unwrap();
    let (socket, addr) = all[ready];
    (SockRef::from(socket).accept().unwrap().0, addr.clone())
}

#[test]
fn shares_one_port_among_workers_for_port_0() {
    let bound = [bind(addr("127.0.0.1:0")).unwrap(), bind(addr("127.0.0.1:0")).unwrap()];
    assert_ne!(bound[0].addr, bound[1].addr);
    for listener in bound {
        assert_eq!(shares(&listener), [1, 1]);
        for (_, socket) in &listener.sockets {
            let local = SockRef::from(socket).local_addr().unwrap().as_socket();
            assert_eq!(local, listener.addr.tcp());
        }
    }
}

#[test]
fn rejects_address_in_use_even_with_reuseport() {
    let first = bind(addr("127.0.0.1:0")).unwrap();
    let taken = first.addr.tcp().unwrap();
    let error = bind(taken).unwrap_err();
    assert!(error.is_in_use(), "{error:?}");
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("listen address {taken} is already in use by another process;")),
        "{text}"
    );
}

#[test]
fn rejects_address_of_no_interface() {
    let error = bind(addr("192.0.2.1:0")).unwrap_err();
    assert!(error.to_string().contains("192.0.2.1:0 does not exist"), "{error}");
}

#[test]
fn distributes_inherited_sockets_over_all_workers() {
    for count in [1, 2, 3] {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = ListenAddr::from(first.local_addr().unwrap());
        let sockets = (0..count).map(|_| first.try_clone().unwrap().into()).collect();
        let listener = take(&addr, sockets);
        assert_eq!(listener.addr, addr);
        assert_eq!(shares(&listener), if count == 3 { [2, 1] } else { [1, 1] }, "{count}");
    }
}

#[test]
fn sets_options_that_accepted_connections_inherit() {
    let bound = [bind(addr("127.0.0.1:0")).unwrap()];
    let _client = TcpStream::connect(bound[0].addr.tcp().unwrap()).unwrap();
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
    let bound = [bind(addr("[::]:0")).unwrap()];
    let port = bound[0].addr.tcp().unwrap().port();
    let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    assert_eq!(client.is_ok(), takes_both(), "{client:?}");
    let _client = TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
    let _accepted = accepted(&bound);
}

/// A port that is free for both families, as far as can be known.
fn free_port() -> u16 {
    TcpListener::bind("[::]:0").unwrap().local_addr().unwrap().port()
}

fn listener_of(bound: &[NewListener], client: impl Into<IpAddr>, port: u16) -> String {
    let _client = TcpStream::connect((client.into(), port)).unwrap();
    accepted(bound).1.to_string()
}

#[test]
fn leaves_ipv4_clients_to_an_ipv4_address_of_the_process() {
    let port = free_port();
    let (v4, v6) = (format!("0.0.0.0:{port}"), format!("[::]:{port}"));
    let both = [&v4, &v6].map(|it| it.parse::<SocketAddr>().unwrap());
    for order in [both, [both[1], both[0]]] {
        let plan = plan(&both, &[]);
        let bound = order.map(|addr| plan.bind(addr, &Options::default()).unwrap());
        assert_eq!(listener_of(&bound, Ipv4Addr::LOCALHOST, port), v4);
        assert_eq!(listener_of(&bound, Ipv6Addr::LOCALHOST, port), v6);
    }
    // An address of the admin server counts too.
    let admin = TcpListener::bind(both[0]).unwrap();
    let after = [both[1], admin.local_addr().unwrap()];
    let bound = [plan(&after, &[]).bind(both[1], &Options::default()).unwrap()];
    assert_eq!(listener_of(&bound, Ipv6Addr::LOCALHOST, port), v6);
}

#[test]
fn joins_inherited_dual_stack_socket_for_ipv4() {
    let old = bind(addr("[::]:0")).unwrap();
    let (both, options) = (old.addr.clone(), Options::default());
    let port = both.tcp().unwrap().port();
    let sockets = old.sockets.into_iter().map(|(_, socket)| socket).collect();
    let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let mut plan = plan(&[v4], &[]);
    let inherited = InheritedSockets { addr: both.clone(), sockets };
    let taken = plan.take(inherited, &options).unwrap();
    let bound = [plan.bind(v4, &options).unwrap(), taken];
    assert_eq!(listener_of(&bound, Ipv4Addr::LOCALHOST, port), v4.to_string());
    assert_eq!(listener_of(&bound, Ipv6Addr::LOCALHOST, port), both.to_string());
}

#[test]
fn shares_unix_socket_among_workers() {
    // An abstract socket, without a file.
    let at =
        UnixAddr::from_abstract_name(format!("pointsman-listener-{}", std::process::id())).unwrap();
    let socket = UnixListener::bind_addr(&at).unwrap();
    let addr = ListenAddr::Unix("/run/redis.sock".into());
    let listener = take(&addr, vec![socket.into()]);
    assert_eq!(shares(&listener), [1, 1]);
    let mut sockets = Sockets::default();
    let duplicates = Sockets::duplicate_new(&listener).unwrap();
    sockets.add(duplicates, ListenerId::default(), &"s".into());
    sockets.retune("s", &Options::default()).unwrap();
    sockets.release();
    let _client = UnixStream::connect_addr(&at).unwrap();
    assert_eq!(accepted(&[listener]).1, addr);
}

#[test]
fn joins_own_wildcard_and_no_other_process() {
    let options = Options::default();
    let first = plan(&[], &[]).bind(addr("0.0.0.0:0"), &options).unwrap();
    let any = first.addr.tcp().unwrap();
    let one = SocketAddr::new(addr("127.0.0.1:0").ip(), any.port());
    let refused = plan(&[one], &[]).bind(one, &options).unwrap_err();
    assert!(refused.is_in_use(), "not known as our own: {refused}");
    let second = plan(&[one], &[any]).bind(one, &options).unwrap();
    assert_eq!((second.addr.tcp(), second.sockets.len()), (Some(one), 2));
    // Both families at the place of one.
    let both = SocketAddr::new(addr("[::]:0").ip(), any.port());
    assert!(plan(&[both], &[any]).bind(both, &options).is_ok());
    let other = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let taken = TcpListener::bind(other).unwrap();
    assert!(plan(&[other], &[any]).bind(other, &options).is_err());
    drop(taken);
}

#[test]
fn compares_families_and_ports() {
    let overlap = |one: &str, own: &str| overlaps(addr(one), false, addr(own));
    assert!(overlap("127.0.0.1:1", "127.0.0.1:1") && overlap("[::]:1", "0.0.0.0:1"));
    assert!(overlap("127.0.0.1:1", "[::]:1") && overlap("0.0.0.0:1", "10.0.0.1:1"));
    assert!(!overlap("127.0.0.1:1", "127.0.0.2:1") && !overlap("127.0.0.1:1", "127.0.0.1:2"));
    assert!(!overlap("[::1]:1", "0.0.0.0:1") && !overlap("0.0.0.0:0", "0.0.0.0:0"));
    assert!(!overlaps(addr("[::]:1"), true, addr("0.0.0.0:1")), "it leaves IPv4 alone");
}
