//! The fields of the status document, with names and units. The JSON schema (`pointsman status
//! --schema`, `deploy/status.schema.json`) is generated from these definitions and comments.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::{CredentialsStatus, SharedStatus, VerdictStatus};

/// Version of the document's schema.
pub(crate) const SCHEMA: u32 = 1;

/// The status document.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Status {
    /// Version of the schema: fields may be added at any time; it changes when a field is renamed,
    /// removed or changes its meaning.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: u32,
    /// Version of the program.
    pub version: &'static str,
    /// Seconds since the start.
    pub uptime_s: f64,
    /// Phase of the shutdown: `serving`, `leaving`, `draining`, `cutting` or `stopped`.
    pub phase: &'static str,
    /// Whether `/ready` succeeds.
    pub ready: bool,
    /// The reasons why the process is not ready.
    pub not_ready_because: Vec<String>,
    /// The most severe fact about the process and its services, in a sentence.
    pub verdict: VerdictStatus,
    /// Other facts that need attention, the most severe first.
    pub notices: Vec<VerdictStatus>,
    /// Hash of the effective configuration without its secrets.
    pub config_hash: String,
    /// The effective configuration and the results of reloads.
    pub config: ConfigStatus,
    /// Sessions by how they ended since the start.
    pub drain: DrainStatus,
    /// The services, in the order of the configuration.
    pub services: Vec<ServiceStatus>,
}

/// The effective configuration.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ConfigStatus {
    /// Its hash.
    pub hash: String,
    /// Number of reloads by result: `applied`, `unchanged`, `refused`, `partial` (a secret file
    /// could not be read, all else was applied).
    pub reloads: BTreeMap<&'static str, u64>,
    /// Result of the last reload.
    pub last_reload: Option<&'static str>,
    /// Seconds since the last reload.
    pub last_reload_age_s: Option<f64>,
    /// Why the last reload was refused, or which secrets it could not read.
    pub faults: Vec<String>,
    /// The file that is being read. A read takes milliseconds unless its file system hangs.
    pub reading: Option<FileRead>,
    /// Keys whose configured value takes effect only after a restart.
    pub pending_restart: Vec<String>,
    /// The certificates in use, those that expire first in front.
    pub certificates: Vec<super::CertificateStatus>,
}

/// A configuration file that is being read.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FileRead {
    /// Its path.
    pub file: String,
    /// Seconds since the read began.
    pub for_s: f64,
}

/// Sessions since the start of the process.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DrainStatus {
    /// Currently open.
    pub open: u64,
    /// Ended by client or server.
    pub completed: u64,
    /// Closed at a command boundary because the drain asked for it.
    pub drained: u64,
    /// Cut, because they were open at the deadline or at the second signal.
    pub cut: u64,
}

/// One service.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ServiceStatus {
    /// The name of the service.
    pub name: String,
    /// Sentinel's name of the master: `service.master`, by default the name of the service.
    pub master_name: String,
    /// The addresses of its listener; none once they are closed.
    pub listen: Vec<String>,
    /// Whether a reload removed it from the configuration, and its last sessions are leaving.
    pub removed: bool,
    /// State of discovery: `bootstrap` (no master found since the start), `stable`, `suspect` (the
    /// master may have failed; traffic flows), `unconfirmed` (it may have been replaced unnoticed;
    /// traffic is held), `armed` (the sentinels have begun a failover; traffic is held),
    /// `committing` (they have decided, and the new master is verified), `no_master`.
    pub state: &'static str,
    /// What that means for clients, in a sentence.
    pub verdict: VerdictStatus,
    /// The node that is expected to become the master, in the states `armed` and `committing`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate: Option<String>,
    /// `open`, or `closed` while traffic is held.
    pub gate: &'static str,
    /// Number of the commit in force.
    pub generation: Option<u64>,
    /// The master in force.
    pub target: Option<TargetStatus>,
    /// Seconds for which no request could be sent to a master; absent while traffic flows.
    pub outage_s: Option<f64>,
    /// Seconds for which traffic has been held; absent while it is not.
    pub held_s: Option<f64>,
    /// The operator's command that holds traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<PauseStatus>,
    /// Nodes whose `replica-priority` this process has changed for a switchover and not restored
    /// yet.
    pub changed_priorities: Vec<ChangedPriorityStatus>,
    /// Whether sentinels with a vote name different masters or epochs, which happens briefly in
    /// every failover.
    pub disagreement: bool,
    /// Whether the reachable sentinels are provably a minority.
    pub minority: bool,
    /// How many more replicas the master has than have to confirm a write (`durability`). Below 0
    /// writes are refused. `null` without durability or a master.
    pub spare_replicas: Option<i32>,
    /// The credentials for the Redis nodes and for the sentinels.
    pub credentials: CredentialsStatus,
    /// The operator's order that replaces the sentinels; absent if none is in force.
    #[serde(rename = "override", skip_serializing_if = "Option::is_none")]
    pub follow: Option<OverrideStatus>,
    /// Why the last override ended: `confirmed`, `switched`, `expired`, `unfollowed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_override_end: Option<&'static str>,
    /// Size of the electorate and of its majority.
    pub electorate: ElectorateStatus,
    /// Why there is no verified master: the answer of each sentinel and node. Empty if there is a
    /// target and the state is neither `committing` nor `no_master`.
    pub no_master_because: Vec<String>,
    /// The sentinels.
    pub sentinels: Vec<SentinelStatus>,
    /// The Redis nodes that are probed.
    pub nodes: Vec<NodeStatus>,
    /// The listener for readers; absent if none is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readers: Option<ReadersStatus>,
    /// The replicas, if readers are served; otherwise empty.
    pub replicas: Vec<ReplicaStatus>,
    /// The last master changes, oldest first.
    pub failovers: Vec<FailoverStatus>,
    /// The last alarms about the servers that ended, oldest first, then those that are on.
    pub alarms: Vec<AlarmStatus>,
    /// Counters of the data plane.
    pub traffic: TrafficStatus,
}

/// A pause of the traffic through this process.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PauseStatus {
    /// The command: `pause`, or `switchover`, whose pause ends with the switch.
    pub by: &'static str,
    /// Seconds since it began.
    pub for_s: f64,
    /// Seconds until it ends by itself.
    pub left_s: f64,
}

/// A `replica-priority` that was changed for a switchover.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChangedPriorityStatus {
    /// The node.
    pub node: String,
    /// The value before.
    pub from: u64,
    /// The value during the switchover.
    pub to: u64,
    /// The command that restores it.
    pub restore: String,
}

/// The listener for readers.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ReadersStatus {
    /// Its addresses.
    pub listen: Vec<String>,
    /// Number of replicas that serve readers; absent while unknown.
    pub eligible: Option<usize>,
    /// What readers get while no replica is eligible: `reject` or `master`.
    pub empty: &'static str,
    /// Number of times a replica became ineligible.
    pub ejections: u64,
    /// Number of times a replica became eligible again.
    pub readmissions: u64,
    /// Counters of the data plane for this listener.
    pub traffic: TrafficStatus,
}

/// The eligibility of one replica for readers.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ReplicaStatus {
    /// Its announced address.
    pub addr: String,
    /// `eligible`, or the reason why it serves no readers.
    pub state: &'static str,
    /// Bytes of the replication stream that it lacked at its last answer.
    pub lag_bytes: u64,
    /// Seconds for which the master had had the first of them.
    pub lag_s: f64,
    /// Readers connected to it.
    pub sessions: usize,
}

/// The master in force.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TargetStatus {
    /// The address announced by the sentinels.
    pub name: String,
    /// The address that is dialled.
    pub addr: String,
    /// Config-epoch of the commit.
    pub epoch: u64,
    /// Run id of its process, if known.
    pub run_id: Option<String>,
    /// Whether new connections of sessions to it fail: one did within the last ten seconds, and no
    /// new session has had an answer since.
    pub connects_fail: bool,
    /// Seconds since the commit.
    pub age_s: f64,
}

/// An override in force: a master that is followed without the sentinels, by an operator's order.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OverrideStatus {
    /// The address of the order.
    pub master: String,
    /// Seconds since the order.
    pub age_s: f64,
    /// Seconds until it ends by itself.
    pub left_s: f64,
    /// What sentinels that answer name instead.
    pub contradicted_by: Vec<String>,
}

/// Size of the electorate.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ElectorateStatus {
    /// Number of sentinels with a vote.
    pub voters: usize,
    /// Number of votes that make a majority.
    pub majority: usize,
}

/// One sentinel.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SentinelStatus {
    /// Its address.
    pub addr: String,
    /// Its MYID.
    pub id: Option<String>,
    /// Whether it is connected.
    pub up: bool,
    /// Whether it pushes events.
    pub events: bool,
    /// The version of TLS: "1.2" or "1.3"; absent for plain text, and while it is not connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<&'static str>,
    /// The kind of the problem, if it is one of TLS: `not_tls`, `expired`, `not_yet_valid`,
    /// `unknown_issuer`, `wrong_name`, `unusable`, `refused`, `no_common_protocol`, `timed_out`,
    /// `closed`, `broken`, `internal`, or `not_plain` without TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_fault: Option<&'static str>,
    /// Whether it has a vote.
    pub votes: bool,
    /// `configured` if the configuration leads to it, `learned` if other sentinels list it.
    pub origin: &'static str,
    /// The master that it names.
    pub master: Option<String>,
    /// The config-epoch that it names.
    pub epoch: Option<u64>,
    /// Seconds since its last answer.
    pub age_s: Option<f64>,
    /// Whether it names another master or epoch than the one in force.
    pub disagrees: bool,
    /// The current problem with a remedy.
    pub problem: Option<String>,
}

/// One Redis node.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct NodeStatus {
    /// Its announced address.
    pub addr: String,
    /// `master`, `replica`, `unknown`, or how the last probe failed: `unreachable`, `unresponsive`,
    /// `connection_rejected`, `busy`, `denied`, `unusable_address`,
    /// `outside_nodes`.
    pub role: &'static str,
    /// Whether it answered PING with PONG.
    pub pong: bool,
    /// Its answer to PING: `pong`, `loading`, `masterdown`, `misconf`, `busy` or `other`. Only
    /// `loading`, `masterdown` and `other` mean that it is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ping: Option<&'static str>,
    /// Its offset in the replication stream, in bytes.
    pub offset: Option<u64>,
    /// Seconds since the last probe.
    pub age_s: Option<f64>,
    /// The version of TLS of its last answer; absent for plain text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<&'static str>,
    /// The kind of the problem, if it is one of TLS, as for sentinels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_fault: Option<&'static str>,
    /// Why it refuses the probes, or what is wrong with TLS.
    pub problem: Option<String>,
    /// Sessions on it: writers on the master in force, readers on a replica.
    pub sessions: usize,
    /// Connections of sessions to it that failed, as long as it is watched.
    pub failed_connects: usize,
    /// Probes without an answer or with a refusal, since it is watched.
    pub failed_probes: u64,
}

/// An alarm: a lasting condition among the servers that an operator has to end.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AlarmStatus {
    /// `name_unknown`, `unlisted`, `ghosts`, `outside_nodes`, `followed_by_replica` or
    /// `lacks_confirmed`.
    pub alarm: &'static str,
    /// Whether it is on.
    pub on: bool,
    /// Seconds since the condition began.
    pub age_s: f64,
    /// Seconds since it ended; absent while it is on.
    pub ended_s: Option<f64>,
    /// The servers concerned, now or last.
    pub sentinels: Vec<String>,
    /// The condition and its consequence.
    pub message: &'static str,
}

/// One master change.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FailoverStatus {
    /// The former master; absent for the first one.
    pub from: Option<String>,
    /// The new master.
    pub to: String,
    /// Number of the commit.
    pub generation: u64,
    /// Config-epoch of the commit.
    pub epoch: u64,
    /// The evidence: `majority`, `single_sentinel`, `reconfirmed`, `epoch_regression`,
    /// `bootstrap_minority`; `operator` for an order to follow a node.
    pub decided_by: String,
    /// Seconds since the commit.
    pub age_s: Option<f64>,
    /// Milliseconds from the first sign of failure to the commit.
    pub duration_ms: Option<f64>,
    /// Milliseconds for which traffic was held before the commit.
    pub held_ms: Option<f64>,
    /// Milliseconds from the arrival of the message that completed a majority, usually a
    /// `+switch-master`, to the commit.
    pub switched_ms: Option<f64>,
    /// Milliseconds from the arrival of the answer that completed the evidence to the commit: the
    /// verification of the new master with all its attempts.
    pub verified_ms: Option<f64>,
    /// Milliseconds from the commit to the first session on the new master; absent while there is
    /// none.
    pub first_session_ms: Option<f64>,
    /// Estimated bytes of the replication stream that the old master had and the new one lacks, if
    /// known.
    pub lost_bytes: Option<u64>,
}

/// Counters of one listener of the data plane: totals since the start, except those named open,
/// waiting or limit.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TrafficStatus {
    /// Client connections currently open.
    pub sessions_open: u64,
    /// Client connections that wait for a master.
    pub sessions_waiting: u64,
    /// Maximum number of client connections.
    pub sessions_limit: u64,
    /// Client connections accepted and served.
    pub sessions_total: u64,
    /// Client connections refused because of a limit.
    pub sessions_refused: u64,
    /// Client connections rejected because of where they came from, by reason. Reasons without
    /// connections are omitted.
    pub clients_rejected: BTreeMap<&'static str, u64>,
    /// Number of times a session was carried over to another connection without its client
    /// noticing.
    pub sessions_carried: u64,
    /// Open sessions by state: `ordinary` ones would be carried over at a failover, all others
    /// closed. States without sessions are omitted.
    pub sessions_by_state: BTreeMap<&'static str, u64>,
    /// Sessions closed instead of carried over, by reason. Reasons that never occurred are omitted.
    pub sessions_not_carried: BTreeMap<&'static str, u64>,
    /// Client connections ended, by reason. Reasons that never occurred are omitted.
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
    /// Median duration of commands, in microseconds; 0 if none was measured.
    pub command_p50_us: u64,
    /// 99th percentile of the duration of commands, in microseconds.
    pub command_p99_us: u64,
    /// Median time to connect to Redis, in microseconds; 0 if none was measured.
    pub dial_p50_us: u64,
    /// 99th percentile of the time to connect to Redis, in microseconds.
    pub dial_p99_us: u64,
    /// Shared connections to Redis; absent unless `upstream = "shared"`, or sessions still share
    /// after a reload that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedStatus>,
}
