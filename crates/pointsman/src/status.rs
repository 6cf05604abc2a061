//! The status document: everything a person or a script may want to know of this process, as JSON.
//!
//! The schema is versioned: fields are added freely, and `schema` changes when one is renamed, removed or given another
//! meaning. Times are ages in seconds, because clocks here are monotonic and readers' clocks are not ours. No secret is ever
//! near: this module sees addresses, names and counters only.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sentinel::{ProbeFailure, Role, Seen};
use serde::Serialize;

/// Version of the document's shape.
pub const SCHEMA: u32 = 1;

/// The whole document.
#[derive(Debug, Serialize)]
pub struct Status {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of the program.
    pub version: &'static str,
    /// Seconds since the start.
    pub uptime_s: f64,
    /// Phase of the shutdown: `serving` while there is none.
    pub phase: &'static str,
    /// Whether `/ready` says yes, and if not, why.
    pub ready: bool,
    /// The reasons against it.
    pub not_ready_because: Vec<String>,
    /// Hash of the effective configuration without its secrets.
    pub config_hash: String,
    /// The configuration in force, and how the reloads went.
    pub config: Config,
    /// Sessions by how they ended since the start.
    pub drain: Drain,
    /// One entry a service, in the order of the configuration.
    pub services: Vec<Service>,
}

/// The configuration in force.
#[derive(Debug, Serialize)]
pub struct Config {
    /// Its hash.
    pub hash: String,
    /// Reloads by how they ended: `applied`, `unchanged`, `refused`.
    pub reloads: BTreeMap<&'static str, u64>,
    /// How the last one ended.
    pub last_reload: Option<&'static str>,
    /// Seconds since then.
    pub last_reload_age_s: Option<f64>,
    /// Why it was refused, if it was.
    pub faults: Vec<String>,
    /// Keys that are written otherwise than in force and need a restart.
    pub pending_restart: Vec<String>,
}

/// Sessions since the start of the process.
#[derive(Debug, Serialize)]
pub struct Drain {
    /// Open now.
    pub open: u64,
    /// Ended by themselves.
    pub left: u64,
    /// Ended because they were asked to.
    pub asked: u64,
    /// Cut.
    pub cut: u64,
}

/// One service.
#[derive(Debug, Serialize)]
pub struct Service {
    /// Sentinel's name of the master.
    pub name: String,
    /// Where its clients arrive.
    pub listen: Vec<String>,
    /// State of discovery: `bootstrap`, `stable`, `suspect`, `armed`, `committing`, `no_master`.
    pub state: &'static str,
    /// `open`, or `shut` while traffic is held.
    pub gate: &'static str,
    /// Number of the commit in force.
    pub generation: Option<u64>,
    /// The master in force.
    pub target: Option<Target>,
    /// Seconds for which nothing could be sent to a master; absent while all flows.
    pub stopped_s: Option<f64>,
    /// Seconds for which traffic has been held; absent while it is not.
    pub held_s: Option<f64>,
    /// Sentinels with a vote name different masters, or different epochs: for a moment in every failover.
    pub disagreement: bool,
    /// The sentinels that can be heard are provably a minority of theirs.
    pub minority: bool,
    /// Size of the electorate and of its majority.
    pub quorum: Quorum,
    /// Each sentinel.
    pub sentinels: Vec<Sentinel>,
    /// Each redis node under observation.
    pub nodes: Vec<Node>,
    /// What is served to readers; absent where nobody asked for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readers: Option<Readers>,
    /// Each replica, where readers are served.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<Replica>,
    /// The last moves of the points, oldest first.
    pub failovers: Vec<Failover>,
    /// Counters of the data plane.
    pub traffic: BTreeMap<&'static str, u64>,
}

/// The listener for readers.
#[derive(Debug, Serialize)]
pub struct Readers {
    /// Where readers arrive.
    pub listen: Vec<String>,
    /// How many replicas serve them; absent before that is known.
    pub eligible: Option<usize>,
    /// What they get while none does: `reject` or `master`.
    pub empty: &'static str,
    /// Times a replica was put out.
    pub ejections: u64,
    /// Times one that had been put out came back.
    pub readmissions: u64,
    /// Counters of the data plane for this listener.
    pub traffic: BTreeMap<&'static str, u64>,
}

/// One replica, as far as readers are concerned.
#[derive(Debug, Serialize)]
pub struct Replica {
    /// As announced.
    pub addr: String,
    /// `eligible`, or why readers are not sent there.
    pub state: &'static str,
    /// Bytes of the replication stream that it lacked when it last answered.
    pub lag_bytes: u64,
    /// For how long the master had had the first of them, in seconds.
    pub lag_s: f64,
    /// Readers on it now.
    pub sessions: usize,
}

/// The master in force.
#[derive(Debug, Serialize)]
pub struct Target {
    /// As announced by the sentinels.
    pub name: String,
    /// As dialled.
    pub addr: String,
    /// Config-epoch of the commit.
    pub epoch: u64,
    /// The process behind it, where known.
    pub run_id: Option<String>,
    /// Seconds since the commit.
    pub age_s: f64,
}

/// Who may vote, and how many have to.
#[derive(Debug, Serialize)]
pub struct Quorum {
    /// Sentinels that have a vote.
    pub voters: usize,
    /// How many make a majority.
    pub majority: usize,
}

/// One sentinel.
#[derive(Debug, Serialize)]
pub struct Sentinel {
    /// Its address.
    pub addr: String,
    /// Its MYID.
    pub id: Option<String>,
    /// Connected.
    pub up: bool,
    /// It pushes events.
    pub events: bool,
    /// It has a vote.
    pub votes: bool,
    /// The master it names.
    pub says: Option<String>,
    /// At which epoch.
    pub epoch: Option<u64>,
    /// Seconds since it said so.
    pub age_s: Option<f64>,
    /// It names something else than what is in force.
    pub disagrees: bool,
    /// What is wrong with it, and what to do.
    pub problem: Option<String>,
}

/// One redis node.
#[derive(Debug, Serialize)]
pub struct Node {
    /// As announced.
    pub addr: String,
    /// `master`, `replica`, `unknown`, or how the last probe failed: `unreachable`, `silent`, `denied`, `rejected`.
    pub role: &'static str,
    /// It answered PING with PONG.
    pub pong: bool,
    /// Its offset in the replication stream, in bytes.
    pub offset: Option<u64>,
    /// Seconds since it was asked.
    pub age_s: Option<f64>,
    /// Why it refuses our questions.
    pub problem: Option<String>,
}

/// One move of the points.
#[derive(Debug, Serialize)]
pub struct Failover {
    /// Where they led before.
    pub from: Option<String>,
    /// Where they lead since.
    pub to: String,
    /// At which epoch.
    pub epoch: u64,
    /// Why: `Majority`, `Solo`, `Again`, `Regress`, `BootstrapMinority`.
    pub basis: String,
    /// Seconds since the commit.
    pub age_s: Option<f64>,
    /// From the first sign of trouble to the commit, in milliseconds.
    pub suspected_ms: Option<f64>,
    /// For how long traffic was held before the commit, in milliseconds.
    pub held_ms: Option<f64>,
    /// From the arrival of what made a majority, mostly a `+switch-master`, to the commit, in milliseconds.
    pub switched_ms: Option<f64>,
    /// From the arrival of the evidence's last answer to the commit, in milliseconds.
    pub verified_ms: Option<f64>,
    /// From the commit to the first session on the new master, in milliseconds; absent while there is none.
    pub first_session_ms: Option<f64>,
    /// Bytes of the old master's history that the new one does not have, estimated, where known.
    pub lost_bytes: Option<u64>,
}

fn seconds(since: Duration) -> f64 {
    (since.as_secs_f64() * 1000.0).round() / 1000.0
}

fn ms(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e6).round() / 1000.0
}

/// A listener's addresses and counters.
pub type Listener = (Vec<String>, BTreeMap<&'static str, u64>);

/// What discovery sees of one service, as a part of the document. The listeners are the data plane's: for those who write, and
/// for readers if there is one.
#[must_use]
pub fn service(seen: &Seen, (listen, traffic): Listener, readers: Option<Listener>, now: Instant) -> Service {
    let age = |at: Instant| seconds(now.saturating_duration_since(at));
    let target = seen.master.as_ref().map(|master| Target {
        name: master.addr.to_string(),
        addr: master.dialled.to_string(),
        epoch: master.epoch,
        run_id: master.run_id.as_deref().map(str::to_owned),
        age_s: age(master.since),
    });
    let (voters, majority) = seen.quorum;
    Service {
        name: seen.name.to_string(),
        listen,
        state: seen.state,
        gate: if seen.holding { "shut" } else { "open" },
        generation: seen.master.as_ref().map(|master| master.generation),
        target,
        stopped_s: seen.stopped_since.map(age),
        held_s: seen.held_since.map(age),
        disagreement: seen.disagreement,
        minority: seen.minority,
        quorum: Quorum { voters, majority },
        sentinels: seen.sentinels.iter().map(|it| sentinel(it, age)).collect(),
        nodes: seen.nodes.iter().map(|it| node(it, age)).collect(),
        readers: seen.replicas.as_ref().zip(readers).map(|(seen, it)| self::readers(seen, it)),
        replicas: seen.replicas.iter().flat_map(|it| it.replicas.iter().map(replica)).collect(),
        failovers: seen.failovers.iter().map(|it| failover(it, age)).collect(),
        traffic,
    }
}

fn readers(seen: &sentinel::SeenReplicas, (listen, traffic): Listener) -> Readers {
    Readers {
        listen,
        eligible: seen.eligible,
        empty: if seen.stands_in { "master" } else { "reject" },
        ejections: seen.ejections,
        readmissions: seen.readmissions,
        traffic,
    }
}

fn replica(seen: &sentinel::SeenReplica) -> Replica {
    Replica {
        addr: seen.addr.to_string(),
        state: seen.standing.label(),
        lag_bytes: seen.lag.bytes,
        lag_s: seconds(seen.lag.time),
        sessions: seen.sessions,
    }
}

fn sentinel(seen: &sentinel::SeenSentinel, age: impl Fn(Instant) -> f64) -> Sentinel {
    Sentinel {
        addr: seen.addr.to_string(),
        id: seen.id.as_ref().map(ToString::to_string),
        up: seen.up,
        events: seen.events,
        votes: seen.member,
        says: seen.view.as_ref().map(|(addr, ..)| addr.to_string()),
        epoch: seen.view.as_ref().map(|(_, epoch, _)| *epoch),
        age_s: seen.view.as_ref().map(|(_, _, at)| age(*at)),
        disagrees: seen.disagrees,
        problem: seen.problem.clone(),
    }
}

fn node(seen: &sentinel::SeenNode, age: impl Fn(Instant) -> f64) -> Node {
    let report = seen.probe.as_ref().and_then(|probe| probe.outcome.as_ref().ok());
    let role = match seen.probe.as_ref().map(|probe| &probe.outcome) {
        None => "unknown",
        Some(Ok(report)) => match report.role {
            Role::Master => "master",
            Role::Replica { .. } => "replica",
            Role::Unknown => "unknown",
        },
        Some(Err(ProbeFailure::Unreachable)) => "unreachable",
        Some(Err(ProbeFailure::Silent)) => "silent",
        Some(Err(ProbeFailure::Denied)) => "denied",
        Some(Err(ProbeFailure::Rejected)) => "rejected",
    };
    Node {
        addr: seen.addr.to_string(),
        role,
        pong: report.is_some_and(|report| report.pong),
        offset: report.and_then(|report| report.lineage.as_ref()).map(|lineage| lineage.offset),
        age_s: seen.probe.as_ref().map(|probe| age(probe.asked_at)),
        problem: seen.problem.clone(),
    }
}

fn failover(seen: &sentinel::Failover, age: impl Fn(Instant) -> f64) -> Failover {
    let story = &seen.story;
    Failover {
        from: seen.from.as_ref().map(ToString::to_string),
        to: seen.to.to_string(),
        epoch: seen.epoch,
        basis: format!("{:?}", seen.basis),
        age_s: story.committed_at.map(age),
        suspected_ms: story.suspicion().map(ms),
        held_ms: story.hold().map(ms),
        switched_ms: seen.swap().map(ms),
        verified_ms: seen.verification().map(ms),
        first_session_ms: seen.first_session().map(ms),
        lost_bytes: seen.lost_bytes,
    }
}
