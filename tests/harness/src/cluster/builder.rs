//! The topology and options of a cluster, and how it is started.
//!
//! The defaults are the usual topology (one master, two replicas, three sentinels) with short
//! timeouts. The start returns when the cluster is complete: replicas in sync, every sentinel knows
//! all other sentinels and the replicas, and a failover is possible.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use super::config::{RedisPlan, SentinelPlan, Watched, redis_conf, sentinel_conf};
use super::memory_folder::MemoryFolder;
use super::{Cluster, Group, Node};
use crate::address::{Address, Family};
use crate::binary::{Binary, version_of};
use crate::client::Login;
use crate::node_certificates::{CertificateFiles, Certificates, tls_client};
use crate::process::Launch;

/// Collects the options; [`start`](Self::start) starts the cluster.
#[derive(Debug, Clone)]
pub struct Builder {
    pub(super) names: Vec<String>,
    pub(super) replicas: usize,
    pub(super) sentinels: usize,
    pub(super) quorum: Option<usize>,
    pub(super) family: Family,
    pub(super) down_after: Duration,
    pub(super) failover_timeout: Duration,
    pub(super) discover: bool,
    pub(super) password: Option<String>,
    pub(super) users: Vec<String>,
    pub(super) sentinel_password: Option<String>,
    pub(super) sentinel_users: Vec<String>,
    pub(super) redis_lines: Vec<String>,
    pub(super) sentinel_lines: Vec<String>,
    pub(super) newer_replicas: usize,
    pub(super) newer_sentinels: usize,
    pub(super) tls: bool,
    pub(super) own_clocks: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            names: vec!["mymaster".to_owned()],
            replicas: 2,
            sentinels: 3,
            quorum: None,
            family: Family::Ipv4,
            down_after: Duration::from_secs(2),
            failover_timeout: Duration::from_secs(6),
            discover: false,
            password: None,
            users: Vec::new(),
            sentinel_password: None,
            sentinel_users: Vec::new(),
            redis_lines: Vec::new(),
            sentinel_lines: Vec::new(),
            newer_replicas: 0,
            newer_sentinels: 0,
            tls: false,
            own_clocks: false,
        }
    }
}

impl Builder {
    /// The names of the masters. All are watched by the same sentinels; each has its own replicas.
    /// Default: `mymaster`.
    #[must_use]
    pub fn masters(mut self, names: &[&str]) -> Self {
        self.names = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// Number of replicas per master. Default: 2.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// Number of sentinels. Default: 3; 0 gives plain replication.
    #[must_use]
    pub fn sentinels(mut self, count: usize) -> Self {
        self.sentinels = count;
        self
    }

    /// The quorum of the sentinels. Default: a majority.
    #[must_use]
    pub fn with_quorum(mut self, quorum: usize) -> Self {
        self.quorum = Some(quorum);
        self
    }

    /// The kind of address. Default: an IPv4 address that no other cluster uses.
    #[must_use]
    pub fn family(mut self, family: Family) -> Self {
        self.family = family;
        self
    }

    /// Sentinel's `down-after-milliseconds`. Default: 2 s. Sentinel pings once per second, so 1 s
    /// leaves no slack: on a busy machine one in nine failovers was followed by a second one, away
    /// from the healthy new master.
    #[must_use]
    pub fn down_after(mut self, time: Duration) -> Self {
        self.down_after = time;
        self
    }

    /// Sentinel's `failover-timeout`. Default: 6 s.
    #[must_use]
    pub fn failover_timeout(mut self, time: Duration) -> Self {
        self.failover_timeout = time;
        self
    }

    /// Lets the sentinels discover the replicas and each other, which takes some seconds longer.
    #[must_use]
    pub fn discover(mut self) -> Self {
        self.discover = true;
        self
    }

    /// `requirepass` and `masterauth` of the redis servers, also configured in the sentinels.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// An ACL user of the redis servers, in the syntax of ACL SETUSER: `app on >pw ~* &* +@all`.
    #[must_use]
    pub fn user(mut self, rules: &str) -> Self {
        self.users.push(rules.to_owned());
        self
    }

    /// `requirepass` of the sentinels.
    #[must_use]
    pub fn sentinel_password(mut self, password: &str) -> Self {
        self.sentinel_password = Some(password.to_owned());
        self
    }

    /// An ACL user of the sentinels.
    #[must_use]
    pub fn sentinel_user(mut self, rules: &str) -> Self {
        self.sentinel_users.push(rules.to_owned());
        self
    }

    /// An additional line of every redis.conf.
    #[must_use]
    pub fn redis_line(mut self, line: &str) -> Self {
        self.redis_lines.push(line.to_owned());
        self
    }

    /// An additional line of every sentinel.conf.
    #[must_use]
    pub fn sentinel_line(mut self, line: &str) -> Self {
        self.sentinel_lines.push(line.to_owned());
        self
    }

    /// This many replicas of every master and this many sentinels, the last ones, run the version
    /// that an upgrade leads to ([`Binary::newer_in_folder`]). Default: none.
    #[must_use]
    pub fn newer(mut self, replicas: usize, sentinels: usize) -> Self {
        (self.newer_replicas, self.newer_sentinels) = (replicas, sentinels);
        self
    }

    /// All servers speak TLS only, also among themselves, and demand a certificate of the
    /// [authority](Cluster::certificates) from everybody. A server's own certificate is in the
    /// files with its name, for its IP address, `localhost` and `redis.test`; clients may use the
    /// files `client.crt` and `client.key`. Default: no TLS.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Each server has a [wall clock](Node::set_clock) of its own. Only with
    /// [`start_apart`](Self::start_apart). Default: the machine's clock.
    #[must_use]
    pub fn own_clocks(mut self) -> Self {
        self.own_clocks = true;
        self
    }

    pub(super) fn quorum(&self) -> usize {
        self.quorum.unwrap_or(self.sentinels / 2 + 1)
    }

    /// Starts all processes and waits until the cluster is complete.
    ///
    /// # Panics
    /// If a program is missing, or the cluster is not complete in time; the logs are printed then.
    #[must_use]
    pub fn start(self) -> Cluster {
        // The name contains the owner's process id, so that leftovers of a killed process can be
        // told from folders in use.
        let prefix = format!("pointsman-harness-{}-", std::process::id());
        let folder = TempDir::with_prefix(prefix).expect("a folder for temporary files");
        let address = Address::claim(self.family);
        let certificates = self.tls.then(|| Certificates::new(&folder.path().join("tls")));
        let tls = certificates.as_ref().map(TlsPlan::new);
        let groups: Vec<Group> = (0..self.names.len())
            .map(|number| {
                let group = self.group(number, &address, folder.path(), tls.as_ref());
                group.nodes().iter().for_each(Node::start);
                group
            })
            .collect();
        let mut cluster = Cluster::new(groups, Vec::new(), address, folder, &self);
        // The sentinels start when the replicas are in sync: their first INFO, the only one for ten
        // seconds, then finds all of them.
        cluster.wait_in_sync();
        cluster.sentinels = self.sentinel_nodes(&cluster, tls.as_ref());
        cluster.sentinels.iter().for_each(Node::start);
        cluster.wait_whole();
        cluster.certificates = certificates;
        cluster
    }

    fn group(
        &self,
        number: usize,
        address: &Address,
        folder: &Path,
        tls: Option<&TlsPlan<'_>>,
    ) -> Group {
        let (bind, announced) = (address.ip().to_string(), address.announced());
        let mut master = None;
        let nodes = (0..=self.replicas)
            .map(|index| {
                let addr = address.port();
                let newer = index > self.replicas.saturating_sub(self.newer_replicas);
                let server = program(Binary::Server, newer, folder);
                let plan = RedisPlan {
                    builder: self,
                    bind: &bind,
                    announced: &announced,
                    port: addr.port(),
                    master,
                    version: version_of(&server),
                };
                let name = format!("redis-{number}-{index}");
                let conf =
                    redis_conf(&plan) + &tls.map_or_else(String::new, |it| it.lines(&name, addr));
                master = master.or(Some(addr.port()));
                let launch = launch(folder, &name, &server, &conf);
                let node = Node::new(launch, addr, login(self.password.as_ref()));
                node.over_tls(tls.map(|it| Arc::clone(&it.client)))
            })
            .collect();
        Group::new(self.names[number].clone(), nodes)
    }

    fn sentinel_nodes(&self, cluster: &Cluster, tls: Option<&TlsPlan<'_>>) -> Vec<Node> {
        let (bind, announced) = (cluster.address().ip().to_string(), cluster.address().announced());
        let addrs: Vec<_> = (0..self.sentinels).map(|_| cluster.address().port()).collect();
        let sentinels: Vec<(u16, String)> =
            addrs.iter().map(|addr| (addr.port(), run_id(addr.port(), &bind))).collect();
        let watched: Vec<Watched<'_>> = cluster
            .groups()
            .iter()
            .map(|group| {
                let mut ports = group.nodes().iter().map(|node| node.addr().port());
                let master = ports.next().expect("a group has a master");
                Watched { name: group.name(), master, replicas: ports.collect() }
            })
            .collect();
        let plan = |index| SentinelPlan {
            builder: self,
            bind: &bind,
            announced: &announced,
            sentinels: &sentinels,
            index,
            watched: &watched,
        };
        addrs
            .iter()
            .enumerate()
            .map(|(index, addr)| {
                let name = format!("sentinel-{index}");
                let conf = sentinel_conf(&plan(index))
                    + &tls.map_or_else(String::new, |it| it.lines(&name, *addr));
                let newer = index >= self.sentinels.saturating_sub(self.newer_sentinels);
                let program = program(Binary::Sentinel, newer, cluster.folder());
                let launch = launch(cluster.folder(), &name, &program, &conf);
                let node = Node::new(launch, *addr, login(self.sentinel_password.as_ref()));
                node.over_tls(tls.map(|it| Arc::clone(&it.client)))
            })
            .collect()
    }
}

/// What the servers of a cluster over TLS share.
pub(super) struct TlsPlan<'a> {
    certificates: &'a Certificates,
    pub(super) client: Arc<rustls::ClientConfig>,
}

impl<'a> TlsPlan<'a> {
    pub(super) fn new(certificates: &'a Certificates) -> Self {
        let client = tls_client(Some(&certificates.issue("client", &["client"])));
        Self { certificates, client }
    }

    /// Issues the certificate of this server, and returns the lines of its configuration. They
    /// replace the port that is set before them.
    pub(super) fn lines(&self, name: &str, addr: SocketAddr) -> String {
        let names = [&addr.ip().to_string(), "localhost", "redis.test"];
        let CertificateFiles { certificate, key } = self.certificates.issue(name, &names);
        format!(
            "port 0\ntls-port {}\ntls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\n\
             tls-auth-clients yes\ntls-replication yes\n",
            addr.port(),
            certificate.display(),
            key.display(),
            self.certificates.ca_file().display()
        )
    }
}

/// The program of one node.
fn program(binary: Binary, newer: bool, folder: &Path) -> PathBuf {
    if newer { binary.newer_in_folder(folder) } else { binary.in_folder(folder) }
}

/// Writes the configuration into the server's folder and returns how to start it.
pub(super) fn launch(folder: &Path, name: &str, program: &Path, conf: &str) -> Launch {
    let own = folder.join(name);
    if !(name.starts_with("sentinel") && MemoryFolder::create(&own)) {
        std::fs::create_dir(&own)
            .unwrap_or_else(|error| panic!("cannot make {}: {error}", own.display()));
    }
    let file = own.join(format!("{name}.conf"));
    std::fs::write(&file, conf)
        .unwrap_or_else(|error| panic!("cannot write {}: {error}", file.display()));
    Launch {
        name: name.to_owned(),
        program: program.to_owned(),
        args: vec![file.into_os_string()],
        env: Vec::new(),
        folder: own,
    }
}

fn login(password: Option<&String>) -> Option<Login> {
    password.map(|password| Login { user: None, password: password.clone() })
}

/// Forty hexadecimal digits that are unique on this machine; sentinels are identified by them.
fn run_id(port: u16, ip: &str) -> String {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new();
    let part = |salt: u8| format!("{:016x}", random.hash_one((port, ip, salt)));
    [part(0), part(1), part(2)].concat()[..40].to_owned()
}
