//! The servers of the comparison: a Redis that is used directly, and an identical one with a
//! sentinel behind Pointsman.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use harness::{Client, Cluster, Node, Pointsman, wait_until};

use super::generator::Profile;
use super::words;
use crate::metrics;

/// Longer than a busy machine delays anything that is going to happen.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How old Pointsman's knowledge whether the servers ask for credentials may be, with shared
/// connections (docs/shared-upstreams.md, "Credentials").
const ADMITTED: Duration = Duration::from_millis(300);

/// Requests of this program and of Pointsman, whatever the conversation does to other users.
const OPERATOR: &str = "ops";

/// Makes servers equal again.
const RESET: &[&str] = &[
    "ACL DELUSER alice bob carol other",
    "SCRIPT FLUSH",
    "SLOWLOG RESET",
    "LATENCY RESET",
    "ACL LOG RESET",
];
const OPEN: &str = "ACL SETUSER default reset on nopass ~* &* +@all";
const RESET_MASTER: &[&str] = &["FLUSHALL", "FUNCTION FLUSH"];

/// Running servers.
pub(super) struct Rig {
    pointsman: Pointsman,
    behind: Cluster,
    direct: Cluster,
    operators: Operators,
    /// The default user has a password.
    is_closed: bool,
    desyncs: u64,
}

/// Connections of the operator.
struct Operators {
    direct: Client,
    /// To the master behind Pointsman, then to its replicas.
    behind: Vec<Client>,
}

impl Rig {
    pub(super) fn start(program: &Path, profile: Profile) -> Result<Self, String> {
        let Profile { is_shared, has_failover } = profile;
        let cluster = |replicas, sentinels| {
            let builder = Cluster::builder().replicas(replicas).sentinels(sentinels);
            builder
                .user(&format!("{OPERATOR} on >{OPERATOR} ~* &* +@all"))
                .redis_line(&format!("masteruser {OPERATOR}"))
                .redis_line(&format!("masterauth {OPERATOR}"))
                .sentinel_line(&format!("sentinel auth-user mymaster {OPERATOR}"))
                .sentinel_line(&format!("sentinel auth-pass mymaster {OPERATOR}"))
                .down_after(Duration::from_secs(60))
                .start()
        };
        let (direct, behind) = (cluster(0, 0), cluster(usize::from(has_failover), 1));
        let mode = if is_shared { "shared" } else { "dedicated" };
        let auth = format!("auth = {{ username = \"{OPERATOR}\", password = \"{OPERATOR}\" }}");
        let pointsman = Pointsman::builder(program, &behind)
            .service_line(&format!("upstream = \"{mode}\""))
            .service_line(&auth)
            .start();
        let operators = Operators::connect(&direct, &behind)?;
        Ok(Self { pointsman, behind, direct, operators, is_closed: false, desyncs: 0 })
    }

    pub(super) fn direct_addr(&self) -> SocketAddr {
        self.direct.nodes().first().map_or(self.pointsman.addr(), Node::addr)
    }

    pub(super) fn proxied_addr(&self) -> SocketAddr {
        self.pointsman.addr()
    }

    /// Sends a request to all servers.
    pub(super) fn operate(&mut self, words: &[Vec<u8>]) {
        for client in std::iter::once(&mut self.operators.direct).chain(&mut self.operators.behind)
        {
            // The reply is that of a correct request.
            let _reply = client.cmd(words);
        }
        if words.get(2).is_some_and(|user| user == b"default") {
            self.is_closed = true;
            harness::pause(ADMITTED);
        }
    }

    /// Whether the servers are in the same state as before a conversation.
    pub(super) fn reset(&mut self) -> Result<(), String> {
        self.until("sessions to end", |rig| match rig.sum("pointsman_sessions_open") {
            0 => Ok(()),
            open => Err(format!("{open} are open")),
        })?;
        self.await_clients(0)?;
        for text in RESET {
            self.operate(&words(text));
        }
        if std::mem::take(&mut self.is_closed) {
            self.operate(&words(OPEN));
            self.is_closed = false;
        }
        let masters = [Some(&mut self.operators.direct), self.operators.behind.first_mut()];
        for master in masters.into_iter().flatten() {
            for text in RESET_MASTER {
                let _reply = master.cmd(&words(text));
            }
        }
        Ok(())
    }

    /// Waits until the direct server has no more clients than these. It may have closed some.
    pub(super) fn await_clients(&mut self, count: i64) -> Result<(), String> {
        self.until("clients of the direct server to leave", |rig| {
            let connected = field(&mut rig.operators.direct, "clients", "connected_clients");
            // One is the operator.
            if connected <= count + 1 { Ok(()) } else { Err(format!("it has {connected}")) }
        })
    }

    /// Waits until both servers have as many blocked, tracking and subscribed clients.
    pub(super) fn settle(&mut self) -> Result<(), String> {
        self.until("both servers to have the same clients", |rig| {
            let direct = fingerprint(&mut rig.operators.direct);
            let behind = rig.operators.behind.first_mut().map(fingerprint).unwrap_or_default();
            let are_equal = direct == behind;
            if are_equal { Ok(()) } else { Err(format!("{direct} directly, {behind} behind")) }
        })
    }

    pub(super) fn blocked_directly(&mut self) -> i64 {
        field(&mut self.operators.direct, "clients", "blocked_clients")
    }

    /// A planned failover after the replica has everything.
    pub(super) fn failover(&mut self) -> Result<(), String> {
        if let Some(master) = self.operators.behind.first_mut() {
            let _replicated = master.cmd(&["WAIT", "1", "10000"]);
        }
        self.behind.failover();
        // Sentinel ends the connections to the former master, so each look uses a new one.
        for node in self.behind.replicas() {
            wait_until("the former master to follow", PATIENCE * 3, || {
                let reply = operator(node).cmd(&["INFO", "replication"]);
                let info = reply.map_err(|error| error.to_string())?;
                let is_up = info.text().is_some_and(|it| it.contains("master_link_status:up"));
                if is_up { Ok(()) } else { Err("its link is down".to_owned()) }
            });
        }
        self.operators = Operators::connect(&self.direct, &self.behind)?;
        Ok(())
    }

    /// Shared connections that were closed since the last call, because their replies did not
    /// match.
    pub(super) fn new_desyncs(&mut self) -> u64 {
        let all = self.sum("pointsman_shared_desyncs_total");
        all - std::mem::replace(&mut self.desyncs, all).min(all)
    }

    /// The sum of all series of a metric of Pointsman.
    pub(super) fn sum(&self, metric: &str) -> u64 {
        let text = metrics::get(self.pointsman.admin(), "/metrics").unwrap_or_default();
        metrics::sum(&text, metric)
    }

    /// The end of Pointsman's log.
    pub(super) fn log(&self) -> String {
        const LINES: usize = 8;
        let log = self.pointsman.process().log();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n")
    }

    fn until(
        &mut self,
        what: &str,
        condition: impl Fn(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match condition(self) {
                Ok(()) => return Ok(()),
                Err(state) if Instant::now() > deadline => {
                    return Err(format!("waited in vain for {what}: {state}"));
                }
                Err(_) => harness::pause(Duration::from_micros(300)),
            }
        }
    }
}

impl Operators {
    fn connect(direct: &Cluster, behind: &Cluster) -> Result<Self, String> {
        let master = behind.current_master_addr().ok();
        let is_replica = |node: &&Node| Some(node.addr()) != master;
        let mut nodes: Vec<&Node> = behind.nodes().iter().filter(|it| !is_replica(it)).collect();
        nodes.extend(behind.nodes().iter().filter(is_replica));
        let direct = direct.nodes().first().map(operator).ok_or("no direct server")?;
        Ok(Self { direct, behind: nodes.into_iter().map(operator).collect() })
    }
}

fn operator(node: &Node) -> Client {
    let mut client = node.client();
    // A refusal shows at the first request.
    let _reply = client.cmd(&["AUTH", OPERATOR, OPERATOR]);
    client
}

/// What other clients may see of a client: whether it is blocked, tracks keys or has subscribed.
fn fingerprint(operator: &mut Client) -> String {
    let mut seen: Vec<String> = ["blocked_clients", "tracking_clients"]
        .map(|name| format!("{name} {}", field(operator, "clients", name)))
        .to_vec();
    for request in ["PUBSUB NUMSUB ch0 ch1 ch", "PUBSUB SHARDNUMSUB sh0 ch", "PUBSUB NUMPAT"] {
        let reply = operator.cmd(&words(request));
        seen.push(format!("{request} {reply:?}"));
    }
    seen.join(", ")
}

fn field(operator: &mut Client, section: &str, name: &str) -> i64 {
    let info = operator.cmd(&["INFO", section]).ok();
    let text = info.as_ref().and_then(|info| info.text()).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(-1)
}
