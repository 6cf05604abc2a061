//! The vocabulary: who says what about which node. Plain values, no behaviour beyond reading them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// Sentinel's config-epoch: the logical clock of failovers. Higher is later; nothing else may be
/// read from it.
pub type Epoch = u64;

/// A sentinel's identity (`SENTINEL MYID`, 40 hex digits). Survives its restarts and address
/// changes, and is therefore what votes are counted by.
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

    /// The first eight digits, enough for people.
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

/// A redis node as sentinels announce it: an IP address, or a name where `announce-hostnames` is
/// on. Identity is the announced text, since that is what all sentinels share; the IP behind a name
/// is pinned per probe.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeAddr {
    /// IP address without brackets, or a DNS name.
    pub host: Box<str>,
    /// Never 0 in an accepted address.
    pub port: u16,
}

impl NodeAddr {
    /// From the two strings that Sentinel gives. `None` for a port that is no number or 0, and for
    /// an empty host.
    #[must_use]
    pub fn parse(host: &str, port: &str) -> Option<Self> {
        let port: u16 = port.parse().ok()?;
        (port != 0 && !host.is_empty() && host.len() <= 253)
            .then(|| Self { host: host.into(), port }.normal())
    }

    /// The one spelling of this address: names compare without regard to case, as in Sentinel
    /// itself (`redis:src/sentinel.c:sentinelAddrOrHostnameEqual`), and an IP address has many
    /// forms.
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

impl From<SocketAddr> for NodeAddr {
    fn from(addr: SocketAddr) -> Self {
        Self { host: addr.ip().to_string().into(), port: addr.port() }
    }
}

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
    /// Where it is announced to be.
    pub addr: NodeAddr,
    /// Not `s_down`, not `o_down`, not `disconnected`.
    pub healthy: bool,
}

/// What one sentinel holds to be true of one master, read in one pipelined round of questions.
///
/// The address comes from `get-master-addr-by-name` alone and the epoch from `SENTINEL MASTER`
/// alone, since on the leader of a failover `MASTER` shows the old address with the new epoch for
/// up to seconds. The address is asked before and after, and a round in which the two differ is no
/// view at all.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct View {
    /// The master's announced address.
    pub addr: NodeAddr,
    /// `config-epoch` of `SENTINEL MASTER`.
    pub epoch: Epoch,
    /// The master's `run_id` as this sentinel knows it; empty before it ever reached the master.
    pub run_id: Box<str>,
    /// `s_down` or `o_down` stands on the master. Means nothing in TILT.
    pub down: bool,
    /// `failover_in_progress` stands on the master.
    pub failing_over: bool,
    /// `master_reboot` stands on the master: its `run_id` changed, and the sentinel waits before it
    /// trusts it again.
    pub rebooted: bool,
    /// The sentinel is in TILT mode: its clock or its scheduling jumped, and its opinion on who is
    /// down is void.
    pub tilt: bool,
    /// How many sentinels have to agree that the master is down, by this one's configuration; 0 if
    /// it does not say.
    pub quorum: usize,
    /// Every other sentinel it knows, with whether it holds that one to be up.
    pub peers: Vec<(MyId, bool)>,
    /// The replicas it knows.
    pub replicas: Vec<ReplicaView>,
}

impl View {
    /// A sentinel that never reached the master it was configured with knows nothing: epoch 0,
    /// alone, no `run_id`. It would name a dead address without end, so it has no vote.
    #[must_use]
    pub fn is_empty_state(&self) -> bool {
        self.epoch == 0 && self.peers.is_empty() && self.run_id.is_empty()
    }
}

/// The role a redis node reports of itself (`ROLE`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Role {
    /// It takes writes. Necessary, not sufficient: a demoted master says so for about 11 s after a
    /// planned failover.
    Master,
    /// It follows another node.
    Replica {
        /// The node it follows, as it was told.
        master: NodeAddr,
        /// Its link is up and in sync (`connected`).
        connected: bool,
    },
    /// Not asked, because `verify` is `ping` or `tcp`, or not understood.
    Unknown,
}

/// What a redis node answered to one probe.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Report {
    /// The address that was really dialled: the pinned IP of a name, or the mapped address.
    pub dialled: SocketAddr,
    /// What it says it is.
    pub role: Role,
    /// It answered PING with PONG. `LOADING`, `MASTERDOWN` and the like are no PONG.
    pub pong: bool,
    /// From `ROLE`: bytes of the replication stream that a master has written or a replica has
    /// applied; `None` where it gives none, as a replica does before its first synchronisation.
    pub offset: Option<u64>,
    /// From `INFO`, where the credentials allow it.
    pub lineage: Option<Lineage>,
}

/// Identity and history of a node's data set (`INFO server`, `INFO replication`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Lineage {
    /// `run_id`: changes with every start of the process.
    pub run_id: Box<str>,
    /// `master_replid`: names the history it writes now.
    pub replid: Box<str>,
    /// `master_replid2`: names the history it continued from; all zeros where there is none.
    pub replid2: Box<str>,
    /// `master_repl_offset`, in bytes of the replication stream.
    pub offset: u64,
    /// `second_repl_offset`: where it left the history of `replid2`; negative where there is none.
    pub second_offset: i64,
}

impl Lineage {
    /// Whether this node continues the history that `older` wrote, or writes it still.
    #[must_use]
    pub fn continues(&self, older: &Self) -> bool {
        !older.replid.is_empty() && (self.replid2 == older.replid || self.replid == older.replid)
    }
}

/// Why a probe got no report. The machine treats "nobody is there" and "somebody is there but does
/// not answer" unlike: a server busy with a long command accepts connections and stays silent, and
/// its sessions must not be cut for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbeFailure {
    /// The name did not resolve, the connection was refused, reset or timed out.
    Unreachable,
    /// Connected, but no whole answer came in time.
    Unresponsive,
    /// It answered a new connection with an error and closed it, as a server at `maxclients` or in
    /// protected mode does: somebody is there, and nothing more is known.
    ConnectionRejected,
    /// `NOAUTH`, `WRONGPASS` or `NOPERM`: it cannot be verified with these credentials.
    Denied,
    /// The address may not be used: it would lead back to this very proxy, or it is not an address
    /// at all.
    UnusableAddress,
}

/// The outcome of one probe of one node, with the moment at which its question was written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Probe {
    /// When the question went out: evidence that is younger than this is not covered by the answer.
    pub asked_at: Instant,
    /// What came back.
    pub outcome: Result<Report, ProbeFailure>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_has_one_spelling() {
        let parse = |host: &str| NodeAddr::parse(host, "6379").map(|addr| addr.to_string());
        assert_eq!(parse("Redis-0.Redis.SVC").as_deref(), Some("redis-0.redis.svc:6379"));
        assert_eq!(parse("FD00:0:0:0:0:0:0:1"), parse("fd00::1"));
        assert_eq!(NodeAddr::parse("10.0.0.1", "0"), None);
        assert_eq!(NodeAddr::parse("", "1"), None);
    }
}
