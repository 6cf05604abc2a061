//! Plain values shared by all modules: identities, addresses, views of sentinels and reports of
//! nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::labelled::labelled;

/// Sentinel's config-epoch: the logical clock of failovers. A higher epoch is newer; it has no
/// other meaning.
pub type Epoch = u64;

/// A sentinel's identity (`SENTINEL MYID`, 40 hex digits). It survives restarts and address
/// changes, so votes are counted by it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MyId(Box<str>);

impl MyId {
    /// `None` unless `text` is 40 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .then(|| Self(text.into()))
    }

    /// All 40 digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first eight digits, for display.
    #[must_use]
    pub fn short(&self) -> &str {
        self.0.get(..8).unwrap_or(&self.0)
    }
}

impl fmt::Display for MyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The address of a redis node as sentinels announce it: an IP address, or a name with
/// `announce-hostnames`. The announced text is the identity, since all sentinels share it; the IP
/// address of a name is pinned per probe.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeAddr {
    /// An IP address without brackets, or a DNS name.
    pub host: Box<str>,
    /// Never 0 in an accepted address.
    pub port: u16,
}

impl NodeAddr {
    /// Parses the two strings that Sentinel sends. `None` for an invalid port or 0, and for a host
    /// that is neither an IP address nor made of what DNS names consist of: a sentinel chooses
    /// these bytes, and they are printed, logged and counted under this address.
    #[must_use]
    pub fn parse(host: &str, port: &str) -> Option<Self> {
        let port: u16 = port.parse().ok()?;
        let is_name = (1..=253).contains(&host.len()) && host.bytes().all(is_in_a_name);
        let is_host = is_name || host.parse::<IpAddr>().is_ok();
        (port != 0 && is_host).then(|| Self { host: host.into(), port }.normal())
    }

    /// The canonical spelling: names compare without regard to case, as in Sentinel itself
    /// (`redis:src/sentinel.c:sentinelAddrOrHostnameEqual`), and an IP address has several forms.
    #[must_use]
    pub(crate) fn normal(self) -> Self {
        let host = self.ip().map_or_else(|| self.host.to_ascii_lowercase(), |ip| ip.to_string());
        Self { host: host.into(), port: self.port }
    }

    /// The host as an IP address, if it is one.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

/// Underscores are not allowed in host names, but Docker and Windows use them.
fn is_in_a_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_')
}

impl From<SocketAddr> for NodeAddr {
    fn from(addr: SocketAddr) -> Self {
        Self { host: addr.ip().to_string().into(), port: addr.port() }
    }
}

/// Announced address to the address to dial.
pub(crate) type AddressMap = BTreeMap<NodeAddr, NodeAddr>;

impl fmt::Display for NodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A replica as a sentinel lists it (`SENTINEL REPLICAS`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReplicaView {
    /// The announced address.
    pub addr: NodeAddr,
    /// Not `s_down`, not `o_down`, not `disconnected`.
    pub healthy: bool,
}

/// The view of one sentinel on one master, read in one pipelined round of queries.
///
/// The address comes from `get-master-addr-by-name` alone and the epoch from `SENTINEL MASTER`
/// alone, since on the leader of a failover `MASTER` shows the old address with the new epoch for
/// up to seconds. The address is queried before and after; a round in which the two differ is not a
/// view.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct View {
    /// The master's announced address.
    pub addr: NodeAddr,
    /// `config-epoch` of `SENTINEL MASTER`.
    pub epoch: Epoch,
    /// The master's `run_id` as known to this sentinel; empty before it first reached the master.
    pub run_id: Box<str>,
    /// The master has the flag `s_down` or `o_down`. Meaningless in TILT.
    pub down: bool,
    /// The master has the flag `o_down`: as many sentinels as a failover needs find it down.
    pub objectively_down: bool,
    /// The sentinel has a failover in progress.
    pub failing_over: bool,
    /// This failover has promoted the master at `addr`, and the replicas are being reconfigured.
    pub promoted: bool,
    /// The master has the flag `master_reboot`: its `run_id` changed, and the sentinel waits before
    /// it trusts the master again.
    pub rebooted: bool,
    /// How long ago the master last answered this sentinel's PING; `MAX` if the sentinel does not
    /// report it. Without a `run_id` it reports its start, a failover or a RESET as an answer,
    /// until there is one.
    pub pong_age: Duration,
    /// How long ago it read the `run_id`; `MAX` if it does not report it.
    pub info_age: Duration,
    /// The sentinel is in TILT mode: its clock or its scheduling jumped, and its opinion on which
    /// servers are down is void.
    pub tilt: bool,
    /// The configured number of sentinels that have to agree that the master is down; 0 if the
    /// sentinel does not report it.
    pub quorum: usize,
    /// Each other sentinel it knows, and whether it considers that one up.
    pub peers: Vec<(MyId, bool)>,
    /// The replicas it knows.
    pub replicas: Vec<ReplicaView>,
}

impl View {
    /// Whether the sentinel never reached its configured master and therefore knows nothing: epoch
    /// 0, no peers, no `run_id`. It would name a dead address forever, so it has no vote.
    #[must_use]
    pub fn is_empty_state(&self) -> bool {
        self.epoch == 0 && self.peers.is_empty() && self.run_id.is_empty()
    }

    /// Whether the sentinel has begun to replace this master.
    #[must_use]
    pub fn replaces(&self, master: &NodeAddr) -> bool {
        self.failing_over && !self.promoted && self.addr == *master
    }
}

/// The role that a redis node reports (`ROLE`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Role {
    /// It accepts writes. Necessary but not sufficient: a demoted master reports this for about 11
    /// s after a planned failover.
    Master,
    /// It replicates another node.
    Replica {
        /// The configured address of its master.
        master: NodeAddr,
        /// Its replication link is up and in sync (`connected`).
        connected: bool,
    },
    /// Not queried, because `verify` is `ping` or `tcp`, or not understood.
    Unknown,
}

/// The answers of a redis node to one probe.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeReport {
    /// The dialled address: the pinned IP address of a name, or the mapped address.
    pub dialled: SocketAddr,
    /// Its role.
    pub role: Role,
    /// How it answered `PING`.
    pub ping: PingReply,
    /// From `ROLE`: bytes of the replication stream that a master has written or a replica has
    /// applied; `None` if not reported, as by a replica before its first synchronization.
    pub offset: Option<u64>,
    /// From `INFO`, if the credentials permit it.
    pub lineage: Option<Lineage>,
    /// The replicas that a master reports in `ROLE`; `None` if not queried.
    pub replicas: Option<Box<[AttachedReplica]>>,
}

impl NodeReport {
    /// The report on a node that accepts connections and was asked nothing.
    #[must_use]
    pub fn not_asked(dialled: SocketAddr) -> Self {
        Self {
            dialled,
            role: Role::Unknown,
            ping: PingReply::Other,
            offset: None,
            lineage: None,
            replicas: None,
        }
    }
}

/// A replica in the `ROLE` reply of its master.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AttachedReplica {
    /// As it announces itself.
    pub addr: NodeAddr,
    /// The offset that it has acknowledged last.
    pub acknowledged: u64,
}

labelled! {
    /// How a node answered `PING`. Any reply proves a living process: whether that can serve is
    /// for its role to say, and it is not ready only while it loads its data or lacks its master's.
    pub enum PingReply {
        /// `PONG`.
        Pong = "pong",
        /// `LOADING`: it reads its data from the disk.
        Loading = "loading",
        /// `MASTERDOWN`: a replica without a link, and configured not to serve stale data.
        MasterDown = "masterdown",
        /// `MISCONF`: it cannot save to its disk and refuses writes. It serves reads.
        Misconf = "misconf",
        /// `BUSY`: a script or function runs too long. It accepts commands that end the script.
        Busy = "busy",
        /// Something else, or it was not asked.
        Other = "other",
    }
}

impl PingReply {
    /// Reads the first word of an error.
    pub(crate) fn from_error(line: &str) -> Self {
        match line.split(' ').next() {
            Some("LOADING") => Self::Loading,
            Some("MASTERDOWN") => Self::MasterDown,
            Some("MISCONF") => Self::Misconf,
            Some("BUSY") => Self::Busy,
            _ => Self::Other,
        }
    }

    /// Whether a node that answers like this, and reports its role, serves what its role permits.
    #[must_use]
    pub const fn is_ready(self) -> bool {
        !matches!(self, Self::Loading | Self::MasterDown)
    }

    /// Why a node that is ready does not say `PONG`, for operators.
    #[must_use]
    pub const fn refusal(self) -> Option<&'static str> {
        match self {
            Self::Misconf => Some(
                "it answers -MISCONF and refuses writes: it cannot save to its disk; see its log \
                 and INFO persistence",
            ),
            Self::Busy => Some(
                "it answers -BUSY: a script runs too long; SCRIPT KILL or FUNCTION KILL ends it, \
                 unless it has written",
            ),
            Self::Pong | Self::Loading | Self::MasterDown | Self::Other => None,
        }
    }
}

/// Identity and history of a node's data set (`INFO server`, `INFO replication`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Lineage {
    /// `run_id`: changes with every start of the process.
    pub run_id: Box<str>,
    /// `master_replid`: the history it writes now.
    pub replid: Box<str>,
    /// `master_replid2`: the history it continued from; all zeros if there is none.
    pub replid2: Box<str>,
    /// `master_repl_offset`, in bytes of the replication stream.
    pub offset: u64,
    /// `second_repl_offset`: where it left the history of `replid2`; negative if there is none.
    pub second_offset: i64,
}

impl Lineage {
    /// The history that it left when it began its own.
    pub(crate) fn continued(&self) -> Option<&str> {
        Some(&*self.replid2).filter(|it| it.bytes().any(|byte| byte != b'0'))
    }

    /// Whether this node continues the history that `older` wrote, or still writes it.
    #[must_use]
    pub fn continues(&self, older: &Self) -> bool {
        !older.replid.is_empty() && (self.replid2 == older.replid || self.replid == older.replid)
    }
}

/// Why a probe got no report. The machine distinguishes an unreachable server from one that accepts
/// the connection but does not answer: a server busy with a long command does that, and its
/// sessions must not be closed for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbeFailure {
    /// The name did not resolve, or the connection was refused, reset or timed out.
    Unreachable,
    /// Connected, but no complete answer came in time.
    Unresponsive,
    /// It answered a new connection with an error and closed it, as a server at `maxclients` or in
    /// protected mode does. A server is present; nothing else is known.
    ConnectionRejected,
    /// `BUSY` to every query, on a connection on which it has not answered before: a script runs. A
    /// server is present; nothing else is known.
    Busy,
    /// `NOAUTH`, `WRONGPASS` or `NOPERM`: it cannot be verified with these credentials.
    Denied,
    /// The address must not be used: it leads back to this process, or it is not an address.
    UnusableAddress,
    /// The option `nodes` does not permit the address, so it was not dialled.
    OutsideNodes,
}

/// The outcome of one probe of one node, and when its query was written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Probe {
    /// When the query was sent. The answer says nothing about evidence that is newer.
    pub asked_at: Instant,
    /// The answer or the failure.
    pub outcome: Result<NodeReport, ProbeFailure>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalizes_spellings_of_an_address() {
        let parse = |host: &str| NodeAddr::parse(host, "6379").map(|addr| addr.to_string());
        assert_eq!(parse("Redis-0.Redis.SVC").as_deref(), Some("redis-0.redis.svc:6379"));
        assert_eq!(parse("FD00:0:0:0:0:0:0:1"), parse("fd00::1"));
        assert_eq!(NodeAddr::parse("10.0.0.1", "0"), None);
        for host in
            ["", "a b", "a\u{1b}[2J", "a\nb", "a\u{9b}", "a\"b", "a:b", "ä", "fe80::1%\u{7}"]
        {
            assert_eq!(NodeAddr::parse(host, "1"), None, "{host:?}");
        }
        assert!(NodeAddr::parse("my_host-1.example.", "1").is_some());
    }
}
