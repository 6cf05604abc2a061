//! Messages on the simulated network, and the addresses of their senders.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use bytes::Bytes;
use sentinel::NodeAddr;

/// Virtual microseconds since the start of the run.
pub(crate) type Micros = u64;

/// One millisecond.
pub(crate) const MS: Micros = 1000;

/// One second.
pub(crate) const SECOND: Micros = 1_000_000;

/// A process by its number: proxies first, then sentinels, then redis nodes.
pub(crate) type Pid = usize;

/// An address: the last byte of 10.0.0.x, and the port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Addr {
    pub(crate) ip: u8,
    pub(crate) port: u16,
}

/// The name of the only master.
pub(crate) const NAME: &str = "mymaster";

/// What the addresses and the names of all hosts begin with; the number of the host follows.
const NETWORK: &str = "10.0.0.";
const NAMES: &str = "host-";

/// The port of every Redis node.
pub(crate) const REDIS: u16 = 6379;

/// The port of every sentinel.
pub(crate) const SENTINEL: u16 = 26379;

impl Addr {
    pub(crate) fn redis(ip: u8) -> Self {
        Self { ip, port: REDIS }
    }

    pub(crate) fn node(self) -> NodeAddr {
        NodeAddr { host: self.host().into(), port: self.port }
    }

    pub(crate) fn host(self) -> String {
        format!("{NETWORK}{}", self.ip)
    }

    /// The name of the host.
    pub(crate) fn name(self) -> String {
        format!("{NAMES}{}", self.ip)
    }

    /// The address by this name; `None` for a name that does not end with a host's number.
    pub(crate) fn named(name: &str, port: u16) -> Option<Self> {
        Some(Self { ip: name.strip_prefix(NAMES)?.parse().ok()?, port })
    }

    pub(crate) fn socket(self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, self.ip)), self.port)
    }

    /// The address of a socket of the simulation.
    pub(crate) fn of_socket(addr: SocketAddr) -> Self {
        let ip = match addr.ip() {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(_) => 0,
        };
        Self { ip, port: addr.port() }
    }

    /// `None` for an address that does not belong to the simulation.
    pub(crate) fn of(node: &NodeAddr) -> Option<Self> {
        let ip =
            || Some(Self { ip: node.host.strip_prefix(NETWORK)?.parse().ok()?, port: node.port });
        Self::named(&node.host, node.port).or_else(ip)
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ".{}:{}", self.ip, self.port)
    }
}

/// Forty hexadecimal digits from a number: a run ID, a MYID or a replication ID.
pub(crate) fn hex(number: u64) -> String {
    format!("{number:040x}")
}

/// A hello: a sentinel's own address and its master's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) addr: Addr,
    pub(crate) id: u64,
    pub(crate) current_epoch: u64,
    pub(crate) master: Addr,
    pub(crate) config_epoch: u64,
}

/// `INFO` of a Redis node, as far as a sentinel or a proxy reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) run_id: u64,
    pub(crate) master: Option<Addr>,
    pub(crate) link_up: bool,
    pub(crate) link_down_for: Micros,
    /// It is a master that waits for a replica to take its place.
    pub(crate) hands_over: bool,
    pub(crate) replicas: Vec<Addr>,
    pub(crate) priority: u64,
    pub(crate) offset: u64,
    pub(crate) replid: u64,
    pub(crate) replid2: u64,
    pub(crate) second_offset: i64,
}

/// A message on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    // From a sentinel, or to one.
    Ping,
    Pong,
    Info,
    InfoIs(Box<Info>),
    Subscribe,
    Publish(Rc<Hello>),
    Hello(Rc<Hello>),
    SlaveOf(Option<Addr>),
    /// `FAILOVER TO`: the master hands over to this replica.
    Failover {
        to: Addr,
        lasts: Micros,
    },
    IsMasterDown {
        addr: Addr,
        epoch: u64,
        candidate: Option<u64>,
    },
    MasterDown {
        down: bool,
        leader: Option<u64>,
        leader_epoch: u64,
    },
    // From a proxy to a server, and back.
    Request(Bytes),
    Response(Bytes, Option<Told>),
    Write {
        id: u32,
    },
    Written {
        id: u32,
        at: Micros,
    },
    ReadOnly {
        id: u32,
    },
    /// `-ERR max number of clients reached`, before the server closes.
    TooMany,
    // Between Redis nodes.
    Psync {
        replid: u64,
        offset: u64,
        from: Addr,
        /// `PSYNC … FAILOVER`: the receiver becomes the master.
        failover: bool,
    },
    /// Sent behind the stream, to learn when a replica has all of it.
    CatchUp,
    CaughtUp,
    Continue {
        replid: u64,
    },
    /// A copy of the data set.
    Full {
        replid: u64,
        offset: u64,
        writes: Rc<Vec<u32>>,
    },
    Stream {
        id: Option<u32>,
        offset: u64,
    },
}

/// What a server tells a proxy, for the oracle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    /// A sentinel with this MYID names a master at an epoch, and has ordered the successor, or the
    /// master itself, to be one.
    View { id: u64, master: Addr, epoch: u64, successor: Addr },
    /// It publishes an event.
    Event { id: u64, channel: &'static str, payload: Rc<str> },
    /// A Redis node that writes this history says that it is a master, or not.
    Role { is_master: bool, history: u64 },
}

/// The passwords of a cluster under attack.
pub(crate) const NODE_SECRET: &str = "the-node-secret";
pub(crate) const SENTINEL_SECRET: &str = "the-sentinel-secret";
