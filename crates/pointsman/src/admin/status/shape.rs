//! The shape of the status document: what is in it, under which name and in which unit. The JSON
//! schema that people get (`pointsman status --schema`, `deploy/status.schema.json`) is made of
//! these very definitions and their words.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

/// Version of the document's shape.
pub const SCHEMA: u32 = 1;

/// The whole document.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Status {
    /// Version of this shape: fields are added freely, and it changes when one is renamed, removed
    /// or given another meaning.
    #[schemars(extend("const" = SCHEMA))]
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
#[derive(Debug, Serialize, JsonSchema)]
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
    /// The file that is being read, which is over in milliseconds unless its file system hangs.
    pub reading: Option<Reading>,
    /// Keys that are written otherwise than in force and need a restart.
    pub pending_restart: Vec<String>,
}

/// A file of the configuration that is being read.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Reading {
    /// Its path.
    pub file: String,
    /// Seconds for which it has been read.
    pub for_s: f64,
}

/// Sessions since the start of the process.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Drain {
    /// Open now.
    pub open: u64,
    /// Ended by themselves.
    pub left: u64,
    /// Ended because they were asked to.
    pub asked: u64,
    /// Cut: they had not gone by the deadline, or at the second signal.
    pub cut: u64,
}

/// One service.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Service {
    /// Sentinel's name of the master.
    pub name: String,
    /// Where its clients arrive.
    pub listen: Vec<String>,
    /// State of discovery: `bootstrap`, `stable`, `suspect`, `unconfirmed`, `armed`, `committing`,
    /// `no_master`.
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
    /// Sentinels with a vote name different masters, or different epochs: for a moment in every
    /// failover.
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
    /// Each replica, where readers are served; empty elsewhere.
    pub replicas: Vec<Replica>,
    /// The last moves of the points, oldest first.
    pub failovers: Vec<Failover>,
    /// Counters of the data plane.
    pub traffic: Traffic,
}

/// The listener for readers.
#[derive(Debug, Serialize, JsonSchema)]
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
    pub traffic: Traffic,
}

/// One replica, as far as readers are concerned.
#[derive(Debug, Serialize, JsonSchema)]
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
#[derive(Debug, Serialize, JsonSchema)]
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
#[derive(Debug, Serialize, JsonSchema)]
pub struct Quorum {
    /// Sentinels that have a vote.
    pub voters: usize,
    /// How many make a majority.
    pub majority: usize,
}

/// One sentinel.
#[derive(Debug, Serialize, JsonSchema)]
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
#[derive(Debug, Serialize, JsonSchema)]
pub struct Node {
    /// As announced.
    pub addr: String,
    /// `master`, `replica`, `unknown`, or how the last probe failed: `unreachable`, `unresponsive`,
    /// `connection_rejected`, `denied`, `unusable_address`.
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
#[derive(Debug, Serialize, JsonSchema)]
pub struct Failover {
    /// Where they led before.
    pub from: Option<String>,
    /// Where they lead since.
    pub to: String,
    /// The commit's number.
    pub generation: u64,
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
    /// From the arrival of what made a majority, mostly a `+switch-master`, to the commit, in
    /// milliseconds.
    pub switched_ms: Option<f64>,
    /// From the arrival of the evidence's last answer to the commit, in milliseconds.
    pub verified_ms: Option<f64>,
    /// From the commit to the first session on the new master, in milliseconds; absent while there
    /// is none.
    pub first_session_ms: Option<f64>,
    /// Bytes of the old master's history that the new one does not have, estimated, where known.
    pub lost_bytes: Option<u64>,
}

/// What one listener of the data plane counts; totals since the start, but for what is called open,
/// waiting or limit.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Traffic {
    /// Client connections now.
    pub sessions_open: u64,
    /// Those of them that wait for a master.
    pub sessions_waiting: u64,
    /// Client connections allowed.
    pub sessions_limit: u64,
    /// Client connections accepted and served.
    pub sessions_total: u64,
    /// Client connections refused for a limit.
    pub sessions_refused: u64,
    /// Times a session was carried over to another connection, unnoticed by its client.
    pub sessions_carried: u64,
    /// Sessions by what would close them at a failover, the `ordinary` ones included, which would
    /// be carried over; states that no session is in are left out.
    pub sessions_by_state: BTreeMap<&'static str, u64>,
    /// Sessions closed instead of carried over after they lost their server, by reason; reasons
    /// that never occurred are left out.
    pub sessions_not_carried: BTreeMap<&'static str, u64>,
    /// Client connections ended, by reason; reasons that never occurred are left out.
    pub sessions_closed: BTreeMap<&'static str, u64>,
    /// Commands forwarded and answered.
    pub commands: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
    /// Connections to Redis opened.
    pub dials: u64,
    /// Connections to Redis that failed.
    pub dial_errors: u64,
    /// Half of the commands measured took less than this, in microseconds; 0 while none was.
    pub command_p50_us: u64,
    /// 99 of 100 took less than this.
    pub command_p99_us: u64,
    /// Half of the connections to Redis were open after this, in microseconds; 0 while none was.
    pub dial_p50_us: u64,
    /// 99 of 100 were open after this.
    pub dial_p99_us: u64,
}
