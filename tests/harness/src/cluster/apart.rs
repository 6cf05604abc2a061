//! Clusters in which each member has an IP address of its own, like pods or machines, and the
//! standard ports.
//!
//! Each member also connects from its address, so a [`Cut`](crate::Cut) separates any two sets of
//! members. Connections to a member without an explicit source, which are those of the program
//! under test, come from [`PROXY`]. The harness connects from yet another address and can therefore
//! reach every member at any time.
//!
//! The addresses are the same in every such cluster, so each needs its own network namespace.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use super::builder::{Builder, TlsPlan, launch};
use super::{Cluster, Group, Node};
use crate::address::{Address, Family};
use crate::binary::Binary;
use crate::clock::Clock;
use crate::netns::in_private_namespace;
use crate::node_certificates::Certificates;

/// The source address of connections to members without an explicit source.
pub const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// The source address of the harness, which reaches every member at any time.
pub const HARNESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);

const SERVER_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl Builder {
    /// Like [`start`](Self::start), with an address for each member. Passwords, users and
    /// additional master names are not supported, and the sentinels discover the replicas and each
    /// other.
    ///
    /// # Panics
    /// Like `start`, and outside of a private network namespace.
    #[must_use]
    pub fn start_apart(self) -> Cluster {
        assert!(
            in_private_namespace(),
            "members with addresses of their own need a private network namespace"
        );
        let prefix = format!("pointsman-harness-{}-", std::process::id());
        let folder = TempDir::with_prefix(prefix).expect("a folder for temporary files");
        let certificates = self.tls.then(|| Certificates::new(&folder.path().join("tls")));
        let tls = certificates.as_ref().map(TlsPlan::new);
        let place = Place { folder: folder.path(), tls: tls.as_ref(), own_clocks: self.own_clocks };
        let mut nodes = Vec::new();
        for number in 0..=self.replicas {
            let master = nodes.first().map(Node::addr);
            nodes.push(place.server(number, &conf_lines(&self.redis_lines, master)));
        }
        nodes.iter().for_each(Node::start);
        let master = nodes.first().map(Node::addr).expect("a master");
        let group = Group::new(self.names[0].clone(), nodes);
        let sentinels =
            (0..self.sentinels).map(|number| place.sentinel(number, &self.watch(master))).collect();
        let mut cluster =
            Cluster::new(vec![group], Vec::new(), Address::claim(Family::Ipv4), folder, &self);
        cluster.wait_in_sync();
        cluster.sentinels = sentinels;
        cluster.sentinels.iter().for_each(Node::start);
        cluster.wait_whole();
        cluster.certificates = certificates;
        cluster
    }

    /// The lines of a sentinel.conf that watches this master and lists no other server.
    fn watch(&self, master: SocketAddr) -> String {
        let (name, quorum) = (&self.names[0], self.quorum());
        let (ip, port) = (master.ip(), master.port());
        let (down, timeout) = (self.down_after.as_millis(), self.failover_timeout.as_millis());
        let own = self.sentinel_lines.join("\n");
        format!(
            "sentinel monitor {name} {ip} {port} {quorum}\nsentinel down-after-milliseconds {name} {down}\n\
             sentinel failover-timeout {name} {timeout}\nsentinel parallel-syncs {name} 10\n{own}\n"
        )
    }
}

impl Cluster {
    /// Starts an additional empty master that is not a member of the cluster, at the address with
    /// this number, and waits until it answers.
    #[must_use]
    #[track_caller]
    pub fn spare_server(&self, number: usize) -> Node {
        let node = self.place().server(number, "");
        node.restart();
        node
    }

    /// Starts an additional sentinel without state at the address with this number: it has a new
    /// identity and epoch 0, and watches `master` under the cluster's name. Waits until it answers.
    #[must_use]
    #[track_caller]
    pub fn spare_sentinel(&self, number: usize, master: SocketAddr) -> Node {
        let watch = Builder::default().masters(&[self.name()]).with_quorum(2).watch(master);
        let node = self.place().sentinel(number, &watch);
        node.restart();
        node
    }

    /// Where additional members are, which speak no TLS.
    fn place(&self) -> Place<'_> {
        Place { folder: self.folder(), tls: None, own_clocks: false }
    }
}

fn conf_lines(lines: &[String], master: Option<SocketAddr>) -> String {
    let replicaof = master.map(|master| format!("replicaof {} {}\n", master.ip(), master.port()));
    format!("{}\n{}", lines.join("\n"), replicaof.unwrap_or_default())
}

/// What the members of a cluster have in common.
struct Place<'a> {
    folder: &'a Path,
    tls: Option<&'a TlsPlan<'a>>,
    own_clocks: bool,
}

impl Place<'_> {
    /// The redis-server with this number, not started.
    fn server(&self, number: usize, lines: &str) -> Node {
        let addr = SocketAddr::new(ip(100, number), SERVER_PORT);
        let ip = addr.ip();
        let conf = format!(
            "bind {ip}\nbind-source-addr {ip}\nport {SERVER_PORT}\nprotected-mode no\nsave \"\"\nappendonly no\n\
             repl-diskless-sync yes\nrepl-diskless-sync-delay 0\nrepl-diskless-load swapdb\nrepl-ping-replica-period 1\n\
             replica-announce-ip {ip}\nshutdown-timeout 0\nhz 50\n{lines}\n"
        );
        self.member(&format!("redis-{number}"), Binary::Server, addr, &conf)
    }

    /// The redis-sentinel with this number, not started.
    fn sentinel(&self, number: usize, watch: &str) -> Node {
        let addr = SocketAddr::new(ip(101, number), SENTINEL_PORT);
        let ip = addr.ip();
        let conf = format!(
            "bind {ip}\nbind-source-addr {ip}\nport {SENTINEL_PORT}\nprotected-mode no\nsentinel announce-ip {ip}\n{watch}"
        );
        self.member(&format!("sentinel-{number}"), Binary::Sentinel, addr, &conf)
    }

    fn member(&self, name: &str, binary: Binary, addr: SocketAddr, conf: &str) -> Node {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        // Two processes may have the same address one after the other; each keeps its own files.
        let name = format!("{name}-{}", COUNTER.fetch_add(1, Ordering::Relaxed));
        let conf = match self.tls {
            Some(tls) => format!("{conf}\n{}", tls.lines(&name, addr)),
            None => conf.to_owned(),
        };
        let launch = launch(self.folder, &name, &binary.in_folder(self.folder), &conf);
        let clock = self.own_clocks.then(|| Clock::new(&self.folder.join(format!("{name}.clock"))));
        Node::new(launch, addr, None)
            .reached_from(HARNESS)
            .over_tls(self.tls.map(|it| Arc::clone(&it.client)))
            .with_clock(clock)
    }
}

fn ip(third: u8, number: usize) -> IpAddr {
    // A cluster's shared address never has a second octet of 0.
    let last = u8::try_from(number + 1).expect("at most 255 members of a kind");
    IpAddr::V4(Ipv4Addr::new(127, 0, third, last))
}
