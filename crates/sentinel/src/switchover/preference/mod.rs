//! Makes Sentinel promote a named replica: by `replica-priority`, for the time until the leader has
//! selected it.
//!
//! Two processes need no lock: what they set and restore is the same (`plan`).
//!
//! Traffic flows meanwhile: the leader learns of a new priority from its next INFO, up to ten
//! seconds later. The values are restored at the selection, 50 ms or more before the promotion,
//! because the CONFIG REWRITE that ends each change of a role would make them permanent.
//!
//! How to restore them by hand is printed before the first one is changed. They are restored for a
//! few seconds, however the switchover ends; one that could not be restored then is reported with
//! its command, and the doctor finds it. `plan` decides which values to change; `nodes` changes
//! them.

mod nodes;
mod plan;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tracing::{error, info};

use self::nodes::Replica;
pub use self::plan::{PriorityChange, former_priority};
use self::plan::{first_choice, is_established};
use super::error::SwitchoverError;
use super::leader_task::FailoverLeader;
use super::participants::Participants;
use super::{Prepared, Reporter, Run};
use crate::NodeAddr;
use crate::clock;

/// Interval of polling the leader.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of reporting that the leader does not report the priorities yet.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// A sentinel sends INFO every ten seconds, at its next tick, and may have missed one reply.
const REPORT_PATIENCE: Duration = Duration::from_secs(25);

/// The temporary priorities of one switchover. Dropping it restores them.
pub(super) struct Preference<'a> {
    /// The replica to promote, as sentinels announce it.
    pub(super) requested: NodeAddr,
    /// Its priority, which is not changed.
    wanted: u64,
    run: &'a Run<'a>,
    replicas: Vec<Replica>,
    /// Each returns what is left for an operator to do.
    restoring: JoinSet<Option<String>>,
}

impl<'a> Preference<'a> {
    /// Reads the priorities of the replicas, and reports which ones are to be changed.
    pub(super) async fn plan(
        run: &'a Run<'a>,
        participants: &Participants,
        leader: &NodeAddr,
        to: &NodeAddr,
    ) -> Result<Self, SwitchoverError> {
        let settings = run.handle.connection_settings();
        let requested = requested_replica(&run.handle.snapshot(), participants, to)?;
        let mut replicas = Vec::with_capacity(participants.replicas.len());
        for (node, dialled) in &participants.replicas {
            replicas.push(Replica::open(&settings.auth, node, *dialled).await?);
        }
        let mut changes: Vec<_> = replicas.iter_mut().map(|it| &mut it.change).collect();
        let wanted = plan::plan(&requested, &mut changes)?;
        replicas.retain(|it| it.change.from != it.change.to);
        announce(&run.reporter, &replicas, leader);
        run.reporter.taken().await;
        Ok(Self { requested, wanted, run, replicas, restoring: JoinSet::new() })
    }

    /// Raises the priorities one after another, without regard to an interruption: each takes half
    /// a second at most.
    pub(super) async fn raise(&mut self) -> Result<(), SwitchoverError> {
        for it in &mut self.replicas {
            let service = &*self.run.handle.connection_settings().name;
            let PriorityChange { node, from, to, .. } = &it.change;
            info!(service, %node, from, to, "changing replica-priority");
            self.run.handle.add_changed_priority(it.change.clone());
            if let Err(reason) = it.raise().await {
                if !it.is_raised {
                    self.run.handle.remove_changed_priority(&it.change);
                }
                return Err(reason);
            }
        }
        Ok(())
    }

    /// Waits until the leader reports the requested replica as its first choice.
    pub(super) async fn reported(&mut self, prepared: Prepared) -> Result<(), SwitchoverError> {
        let Self { requested, wanted, run: Run { reporter, .. }, .. } = self;
        let Prepared { participants, mut leader, .. } = prepared;
        let sentinel = leader.addr.clone();
        let since = clock::now();
        let mut report_at = since + PROGRESS_INTERVAL;
        loop {
            let seen = leader.look().await;
            let seen = seen.map_err(|problem| SwitchoverError::node(&sentinel, problem))?;
            let (now, master) = (clock::now(), &participants.master.addr);
            let waited = now.saturating_duration_since(since);
            let judged = is_established(&seen, &sentinel, master, requested, *wanted, waited);
            let Err(problem) = judged? else { break };
            if now >= since + REPORT_PATIENCE {
                let problem = format!(
                    "it does not report {requested} as the first choice after {} s: {problem}",
                    REPORT_PATIENCE.as_secs()
                );
                return Err(SwitchoverError::node(&sentinel, problem));
            }
            if now >= report_at {
                report_at = now + PROGRESS_INTERVAL;
                reporter.report("prefer", format!("waiting for sentinel {sentinel}: {problem}"));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let text = format!(
            "sentinel {sentinel} reports {requested} as its first choice, with priority {wanted}"
        );
        reporter.report("prefer", text);
        Ok(())
    }

    /// Whether the sentinel that starts the failover would promote the requested replica.
    pub(super) fn check(&self, leader: &FailoverLeader) -> Result<(), SwitchoverError> {
        first_choice(&leader.view, &self.requested, self.wanted)
            .map_err(|problem| SwitchoverError::Refused(format!("{}: {problem}", leader.addr)))
    }

    /// Starts to restore the priorities that were raised, all at once.
    pub(super) fn restore(&mut self) {
        for mut it in std::mem::take(&mut self.replicas).into_iter().filter(|it| it.is_raised) {
            let (handle, reporter) = (self.run.handle.clone(), self.run.reporter.clone());
            self.restoring.spawn(async move {
                let restored = it.restore().await;
                handle.remove_changed_priority(&it.change);
                let service = &*handle.connection_settings().name;
                let (node, remedy) = (&it.change.node, it.change.remedy());
                match restored {
                    Ok(text) => {
                        info!(service, step = "restore", "{text}");
                        reporter.report("restore", text);
                        None
                    }
                    Err(problem) => {
                        error!(service, %node, problem, remedy, "replica-priority is not restored");
                        let text = format!(
                            "replica-priority of {node} is not restored ({problem}), and a command \
                             without an answer may still change it: {remedy}"
                        );
                        reporter.report("restore", text.clone());
                        Some(text)
                    }
                }
            });
        }
    }

    /// Restores the priorities, and returns what is left after a few seconds.
    pub(super) async fn settled(mut self) -> Vec<String> {
        self.restore();
        let mut left = Vec::new();
        while let Some(restored) = self.restoring.join_next().await {
            left.extend(restored.ok().flatten());
        }
        left
    }
}

impl Drop for Preference<'_> {
    fn drop(&mut self) {
        if Handle::try_current().is_ok() {
            self.restore();
        }
        self.restoring.detach_all();
    }
}

/// Reports the changes and how to undo them before they are made: an operator can do so if this
/// process is killed.
fn announce(reporter: &Reporter, replicas: &[Replica], leader: &NodeAddr) {
    let changes = || replicas.iter().map(|it| &it.change);
    let text = if replicas.is_empty() {
        "no priority has to be changed".to_owned()
    } else {
        let list = changes().map(|it| format!("{} from {} to {}", it.node, it.from, it.to));
        let list: Vec<String> = list.collect();
        let remedies: Vec<String> = changes().map(PriorityChange::remedy).collect();
        format!(
            "replica-priority changes until a replica is selected: {}; to restore it by hand: {}",
            list.join(", "),
            remedies.join("; ")
        )
    };
    reporter.report("prefer", text);
    // Taken only when the one before has been written.
    let text = format!("sentinel {leader} learns of priorities within ten seconds; traffic flows");
    reporter.report("prefer", text);
}

/// Whether the requested replica can be promoted, from what is known before anything is asked.
fn requested_replica(
    seen: &crate::DiscoverySnapshot,
    participants: &Participants,
    to: &NodeAddr,
) -> Result<NodeAddr, SwitchoverError> {
    let is_it = |addr: &NodeAddr, dialled: SocketAddr| addr == to || NodeAddr::from(dialled) == *to;
    if is_it(&participants.master.addr, participants.master.dialled) {
        return Err(SwitchoverError::node(to, "it is the master already"));
    }
    let found = participants.replicas.iter().find(|(addr, dialled)| is_it(addr, *dialled));
    let node = found.map_or(to, |(addr, _)| addr);
    let listed = seen.nodes.iter().find(|it| it.addr == *node).map_or(0, |it| it.listed_healthy);
    let (members, majority) = seen.quorum;
    if listed < majority {
        let problem = format!(
            "it is listed as a healthy replica by {listed} of {members} sentinels; {majority} are \
             required"
        );
        return Err(SwitchoverError::node(node, problem));
    }
    let problem = "it does not report that it follows the master";
    found.map(|(addr, _)| addr.clone()).ok_or_else(|| SwitchoverError::node(to, problem))
}
