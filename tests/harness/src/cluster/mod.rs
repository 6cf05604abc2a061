//! A real cluster for tests: masters, replicas and the sentinels that watch them, with faults.
//!
//! The current master is always read from the sentinels and never remembered, because it is what
//! the tests change.

mod apart;
mod builder;
mod config;
mod memory_folder;
mod node;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub use apart::{HARNESS, PROXY};
pub use builder::Builder;
pub use node::Node;

use crate::address::Address;
use crate::node_certificates::Certificates;
use crate::value::Value;
use crate::wait::wait_until;

/// How long a cluster may take to become complete on a machine that is busy with other tests.
/// Sentinel checks a replica's link every ten seconds, and repeats a lost election after twelve.
const WHOLE: Duration = Duration::from_secs(90);

/// A master with its replicas; the roles change during a test.
#[derive(Debug)]
pub struct Group {
    name: String,
    nodes: Vec<Node>,
}

impl Group {
    fn new(name: String, nodes: Vec<Node>) -> Self {
        Self { name, nodes }
    }

    /// The name of the master in the sentinels' configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until every replica acknowledges the master's current writes. A link that is up is not
    /// enough: after a diskless transfer the master sends nothing until the replica's next
    /// acknowledgement, up to a second later, and a replica promoted before that has no data.
    #[track_caller]
    fn wait_streaming(&self) {
        let (Some(master), replicas) = (self.nodes.first(), self.nodes.len().saturating_sub(1))
        else {
            return;
        };
        let mut client = master.client();
        wait_until(&format!("every replica of {} to follow", self.name), WHOLE, || {
            let wrote =
                client.cmd(&["PUBLISH", "harness", "sync"]).map_err(|error| error.to_string())?;
            if wrote.is_error() {
                return Err(format!("{wrote:?}"));
            }
            let followed = client
                .cmd(&["WAIT", &replicas.to_string(), "1000"])
                .map_err(|error| error.to_string())?;
            if followed.int() == i64::try_from(replicas).ok() {
                Ok(())
            } else {
                Err(format!("{followed:?}"))
            }
        });
    }

    /// All its servers; the first one was the master at the start.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }
}

/// A planned failover that was ordered and completed.
#[derive(Debug, Clone, Copy)]
pub struct Failover {
    /// The master before the failover.
    pub from: SocketAddr,
    /// The master after the failover, named by a majority of the sentinels.
    pub to: SocketAddr,
    /// When a sentinel accepted the order.
    pub asked: Instant,
}

/// A running cluster. Dropping it ends every process and removes every file.
#[derive(Debug)]
pub struct Cluster {
    // The processes are dropped before the folder, because they write to it until they end.
    groups: Vec<Group>,
    sentinels: Vec<Node>,
    discover: bool,
    address: Address,
    certificates: Option<Certificates>,
    folder: TempDir,
}

impl Cluster {
    /// A builder with the usual topology.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn new(
        groups: Vec<Group>,
        sentinels: Vec<Node>,
        address: Address,
        mut folder: TempDir,
        builder: &Builder,
    ) -> Self {
        // Keeps the files for inspection after a failed test.
        folder.disable_cleanup(std::env::var_os("HARNESS_KEEP").is_some());
        let discover = builder.discover;
        Self { groups, sentinels, discover, address, certificates: None, folder }
    }

    /// All groups, in the order of the names that were given.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The redis servers of the first group; the first one was the master at the start.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        self.groups[0].nodes()
    }

    /// The name of the first group.
    #[must_use]
    pub fn name(&self) -> &str {
        self.groups[0].name()
    }

    /// The sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Node] {
        &self.sentinels
    }

    /// Makes the running sentinels look at the servers every second instead of every ten, so that
    /// they notice completed role changes earlier and the next failover is possible sooner. What
    /// makes them find a master down is not affected.
    pub fn look_often(&self) {
        self.sentinels.iter().for_each(Node::look_often);
    }

    /// Where the sentinels listen.
    #[must_use]
    pub fn sentinel_addrs(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(Node::addr).collect()
    }

    /// The address that all members share, for additional ports.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Whether its servers speak [TLS](Builder::tls).
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.certificates.is_some()
    }

    /// The authority of a cluster that speaks [TLS](Builder::tls).
    ///
    /// # Panics
    /// If this one does not.
    #[must_use]
    #[track_caller]
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("a cluster that speaks TLS")
    }

    /// The folder for temporary files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Keeps the folder after the end of the cluster, for inspection.
    pub fn keep_folder(&mut self) {
        self.folder.disable_cleanup(true);
    }

    /// The redis server at an address.
    #[must_use]
    pub fn node_at(&self, addr: SocketAddr) -> Option<&Node> {
        self.groups.iter().flat_map(Group::nodes).find(|node| node.addr() == addr)
    }

    /// The current master of the first group, named by a majority of the sentinels.
    ///
    /// # Panics
    /// If the sentinels do not agree in time.
    #[must_use]
    #[track_caller]
    pub fn master(&self) -> &Node {
        let addr =
            wait_until("sentinels that agree on the master", WHOLE, || self.current_master_addr());
        self.node_at(addr)
            .unwrap_or_else(|| panic!("the sentinels name {addr}, which is not of this cluster"))
    }

    /// The running servers of the first group except the master.
    ///
    /// # Panics
    /// Like [`master`](Self::master).
    #[must_use]
    #[track_caller]
    pub fn replicas(&self) -> Vec<&Node> {
        let master = self.master().addr();
        self.nodes().iter().filter(|node| node.addr() != master && node.is_running()).collect()
    }

    /// The reply of one sentinel to `SENTINEL GET-MASTER-ADDR-BY-NAME`.
    ///
    /// # Errors
    /// A message for people: the sentinel does not answer, or does not know the name.
    pub fn master_addr_of(&self, sentinel: &Node, name: &str) -> Result<SocketAddr, String> {
        let reply = sentinel
            .ask_briefly(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name])
            .map_err(|error| error.to_string())?;
        let [host, port] = reply.items() else {
            return Err(format!("{} knows no {name}", sentinel.name()));
        };
        let pair = (
            host.text().unwrap_or_default(),
            port.int().and_then(|port| port.try_into().ok()).unwrap_or(0),
        );
        // A name may resolve to an address of the other family as well.
        let ours =
            |addr: &SocketAddr| addr.ip() == self.address.ip() || self.node_at(*addr).is_some();
        let mut found = pair.to_socket_addrs().map_err(|error| format!("{}: {error}", pair.0))?;
        found.find(ours).ok_or_else(|| format!("{} names {}:{}", sentinel.name(), pair.0, pair.1))
    }

    /// The master of the first group, named by a majority of all sentinels.
    ///
    /// # Errors
    /// A message for people, if no majority names the same address.
    pub fn current_master_addr(&self) -> Result<SocketAddr, String> {
        self.master_addr(self.name())
    }

    /// The master of a group, named by a majority of all sentinels.
    ///
    /// # Errors
    /// A message for people, if no majority names the same address.
    pub fn master_addr(&self, name: &str) -> Result<SocketAddr, String> {
        if self.sentinels.is_empty() {
            let group = self.groups.iter().find(|group| group.name() == name);
            return group
                .map(|group| group.nodes[0].addr())
                .ok_or_else(|| format!("no group {name}"));
        }
        let answers: Vec<_> =
            self.sentinels.iter().map(|sentinel| self.master_addr_of(sentinel, name)).collect();
        let named = |addr: SocketAddr| answers.iter().filter(|answer| **answer == Ok(addr)).count();
        let majority = |addr: &SocketAddr| named(*addr) * 2 > answers.len();
        answers
            .iter()
            .filter_map(|answer| answer.as_ref().ok())
            .copied()
            .find(majority)
            .ok_or_else(|| format!("the sentinels do not agree: {answers:?}"))
    }

    /// Orders a planned failover of the first group and waits until a majority of the sentinels
    /// names another master.
    ///
    /// # Panics
    /// If it takes too long.
    #[track_caller]
    pub fn failover(&self) -> Failover {
        self.failover_of(self.name())
    }

    /// Like [`failover`](Self::failover), for any group.
    ///
    /// # Panics
    /// If it takes too long.
    #[track_caller]
    pub fn failover_of(&self, name: &str) -> Failover {
        let from =
            wait_until("sentinels that agree on the master", WHOLE, || self.master_addr(name));
        let asked = self.begin_failover_of(name);
        let to = wait_until("another master after SENTINEL FAILOVER", WHOLE, || {
            self.master_addr(name)
                .and_then(|to| if to == from { Err(format!("still {to}")) } else { Ok(to) })
        });
        Failover { from, to, asked }
    }

    /// Orders a planned failover and returns as soon as a sentinel accepted it. Repeats the order
    /// while no sentinel can execute it (`-NOGOODSLAVE`, `-INPROG`). Each reply is awaited: if a
    /// sentinel accepted and replied late, and another one was asked in the meantime, there would
    /// be two failovers.
    ///
    /// # Panics
    /// If no sentinel accepts in time.
    #[track_caller]
    pub fn begin_failover_of(&self, name: &str) -> Instant {
        let mut turn = 0;
        wait_until("a sentinel that accepts SENTINEL FAILOVER", WHOLE, || {
            turn += 1;
            self.sentinels[turn % self.sentinels.len()]
                .ask(&["SENTINEL", "FAILOVER", name])
                .map(|_| Instant::now())
        })
    }

    /// Waits until every replica of every group is in sync with its first master.
    ///
    /// # Panics
    /// If it takes too long.
    #[track_caller]
    pub fn wait_in_sync(&self) {
        for node in self.groups.iter().flat_map(Group::nodes) {
            node.wait_answers();
        }
        for node in self.groups.iter().flat_map(|group| group.nodes.iter().skip(1)) {
            wait_until(&format!("{} in sync", node.name()), WHOLE, || {
                assert!(node.is_running(), "{} ended:\n{}", node.name(), node.log());
                let status = node.info("replication", "master_link_status");
                status
                    .map_err(|error| error.to_string())
                    .and_then(|status| if status == "up" { Ok(()) } else { Err(status) })
            });
        }
        for group in &self.groups {
            group.wait_streaming();
        }
    }

    /// Whether a server replicates, in sync, from the master that the sentinels name.
    ///
    /// # Errors
    /// Why it does not, or who cannot be asked.
    pub fn follows(&self, node: &Node) -> Result<(), String> {
        let master = self.current_master_addr()?;
        let wanted = [
            ("role", "slave".to_owned()),
            ("master_host", master.ip().to_string()),
            ("master_port", master.port().to_string()),
            ("master_link_status", "up".to_owned()),
        ];
        for (field, wanted) in wanted {
            let found = node.info("replication", field).map_err(|error| error.to_string())?;
            if found != wanted {
                return Err(format!("{} of {} is {found}, not {wanted}", field, node.name()));
            }
        }
        Ok(())
    }

    /// Waits until every running sentinel sees all running servers and sentinels, and a failover is
    /// possible.
    ///
    /// # Panics
    /// If it takes too long.
    #[track_caller]
    pub fn wait_whole(&self) {
        for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.is_running()) {
            sentinel.wait_answers();
            for group in &self.groups {
                wait_until(
                    &format!("{} seeing all of {}", sentinel.name(), group.name()),
                    WHOLE,
                    || self.sees_all(sentinel, group),
                );
            }
        }
    }

    /// Whether the sentinels discovered each other by hello messages.
    #[must_use]
    pub fn discovers(&self) -> bool {
        self.discover
    }

    fn sees_all(&self, sentinel: &Node, group: &Group) -> Result<(), String> {
        let ask = |what: &str| {
            sentinel
                .ask_briefly(&["SENTINEL", what, group.name()])
                .map_err(|error| error.to_string())
        };
        let text =
            |value: &Value, key: &str| value.field(key).map(Value::to_string).unwrap_or_default();
        let (master, replicas, others) = (ask("MASTER")?, ask("REPLICAS")?, ask("SENTINELS")?);
        if text(&master, "flags") != "master" || text(&master, "runid").is_empty() {
            return Err(format!("the master is {:?}", text(&master, "flags")));
        }
        let good = |replica: &&Value| {
            text(replica, "flags") == "slave" && text(replica, "master-link-status") == "ok"
        };
        let replicas = replicas.items().iter().filter(good).count();
        let expected = group.nodes.iter().filter(|node| node.is_running()).count() - 1;
        if replicas < expected {
            return Err(format!("{replicas} of {expected} replicas are fine"));
        }
        let others =
            others.items().iter().filter(|other| text(other, "flags") == "sentinel").count();
        let expected = self.sentinels.iter().filter(|node| node.is_running()).count() - 1;
        if others < expected {
            return Err(format!("{others} of {expected} other sentinels are fine"));
        }
        ask("CKQUORUM").map(|_| ())
    }
}
