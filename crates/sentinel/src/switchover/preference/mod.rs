//! Makes Sentinel promote a named replica: by `replica-priority`, for the time until the leader has
//! selected it.
//!
//! Two processes need no lock: what they set and restore is the same (`plan`).
//!
//! Traffic flows meanwhile: the leader learns of a new priority from its next INFO, up to ten
//! seconds later. The values are restored at the selection, 50 ms or more before the promotion,
//! because the CONFIG REWRITE that ends each change of a role would make them permanent.
//!
//! `plan` decides which values to change; `keeper` sets and restores them.

mod choice;
mod keeper;
mod nodes;
mod plan;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use self::choice::first_choice;
use self::keeper::{ChangedNode, PriorityKeeper};
use self::nodes::{NodeAccess, OpenReplica};
pub use self::plan::PriorityChange;
pub use self::plan::former_priority;
use super::SwitchoverStep;
use super::command_connection::CommandConnection;
use super::error::SwitchoverError;
use super::leader::LeaderView;
use super::participants::Participants;
use crate::NodeAddr;
use crate::clock;
use crate::discovery::handle::DiscoveryHandle;

/// How long a report of the changes is waited for, so that it precedes them.
const REPORT_TIMEOUT: Duration = Duration::from_millis(500);

/// Reports steps to the one that requested the switchover.
#[derive(Debug, Clone)]
pub(super) struct Reporter {
    pub(super) steps: mpsc::Sender<SwitchoverStep>,
    pub(super) start: Instant,
}

impl Reporter {
    /// Never blocks: the switchover must not depend on how fast its steps are read.
    pub(super) fn report(&self, step: &'static str, text: String) {
        let after = clock::since(self.start);
        // A receiver that was dropped is detected before the failover is started.
        let _ = self.steps.try_send(SwitchoverStep { after, step, text });
    }

    /// Waits until every report was taken, or its reader is too slow or gone.
    async fn taken(&self) {
        let taken = async {
            while self.steps.capacity() < self.steps.max_capacity() && !self.steps.is_closed() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let _in_time = tokio::time::timeout(REPORT_TIMEOUT, taken).await;
    }
}

/// What the keeper reports.
#[derive(Debug)]
pub(super) enum Event {
    Established,
    Failed(SwitchoverError),
    Settled(Vec<(PriorityChange, String)>),
}

/// The temporary priorities of one switchover. Dropping it restores them.
#[derive(Debug)]
pub(super) struct Preference {
    requested: NodeAddr,
    wanted: u64,
    orders: mpsc::Sender<()>,
    events: mpsc::Receiver<Event>,
}

impl Preference {
    /// Reads the priorities of the replicas, reports which ones change, and starts to change them.
    pub(super) async fn start(
        handle: &DiscoveryHandle,
        participants: &Participants,
        leader: NodeAddr,
        connection: CommandConnection,
        requested: NodeAddr,
        timeout: Duration,
        reporter: Reporter,
    ) -> Result<Self, SwitchoverError> {
        let settings = handle.connection_settings();
        let access = NodeAccess { login: settings.auth.clone(), timeout };
        let mut replicas = Vec::with_capacity(participants.replicas.len());
        for (node, dialled) in &participants.replicas {
            replicas.push(OpenReplica::open(&access, node.clone(), *dialled).await?);
        }
        let candidates: Vec<_> = replicas.iter().map(|it| it.candidate.clone()).collect();
        let (changes, wanted) = plan::plan(&requested, &candidates)?;
        announce(&reporter, &changes, &leader);
        reporter.taken().await;
        let mut nodes = Vec::with_capacity(changes.len());
        for it in replicas {
            let change = changes.iter().find(|change| change.node == it.candidate.node);
            let Some(change) = change.cloned() else { continue };
            nodes.push(ChangedNode::new(change, it.connection, it.role));
        }
        let (orders, ordered) = mpsc::channel(1);
        let (out, events) = mpsc::channel(4);
        let keeper = PriorityKeeper {
            name: Arc::clone(&settings.name),
            master_name: Arc::clone(&settings.master_name),
            master: participants.master.clone(),
            sentinel: leader,
            requested: requested.clone(),
            wanted,
            access,
            operations: handle.operations().clone(),
            nodes,
            events: out,
            reporter: Some(reporter),
        };
        tokio::spawn(keeper.run(connection, ordered));
        Ok(Self { requested, wanted, orders, events })
    }

    /// The replica to promote, as sentinels announce it.
    pub(super) fn requested(&self) -> &NodeAddr {
        &self.requested
    }

    /// Waits until the leader reports the requested replica as its first choice.
    pub(super) async fn established(&mut self) -> Result<(), SwitchoverError> {
        match self.events.recv().await {
            Some(Event::Established) => Ok(()),
            Some(Event::Failed(reason)) => Err(reason),
            Some(Event::Settled(_)) | None => Err(SwitchoverError::Unsettled),
        }
    }

    /// Whether the sentinel that starts the failover would promote the requested replica.
    pub(super) fn check(
        &self,
        leader: &NodeAddr,
        view: &LeaderView,
    ) -> Result<(), SwitchoverError> {
        first_choice(view, &self.requested, self.wanted)
            .map_err(|problem| SwitchoverError::Refused(format!("{leader}: {problem}")))
    }

    /// Starts to restore the priorities, without waiting for it.
    pub(super) fn restore(&self) {
        let _ = self.orders.try_send(());
    }

    /// Restores the priorities, or reports which ones are left. Bounded.
    pub(super) async fn settled(mut self) -> Vec<(PriorityChange, String)> {
        self.restore();
        while let Some(event) = self.events.recv().await {
            if let Event::Settled(left) = event {
                return left;
            }
        }
        Vec::new()
    }
}

/// Reports the changes and how to undo them before they are made: an operator can do so if this
/// process is killed.
fn announce(reporter: &Reporter, changes: &[PriorityChange], leader: &NodeAddr) {
    let text = if changes.is_empty() {
        "no priority has to be changed".to_owned()
    } else {
        let change = |it: &PriorityChange| format!("{} from {} to {}", it.node, it.from, it.to);
        let list: Vec<String> = changes.iter().map(change).collect();
        let remedies: Vec<String> = changes.iter().map(PriorityChange::remedy).collect();
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
pub(super) fn requested_replica(
    seen: &crate::DiscoverySnapshot,
    participants: &Participants,
    to: &NodeAddr,
) -> Result<NodeAddr, SwitchoverError> {
    let is_it = |addr: &NodeAddr, dialled: SocketAddr| addr == to || NodeAddr::from(dialled) == *to;
    if is_it(&participants.master, participants.dialled) {
        return Err(SwitchoverError::AlreadyMaster(to.clone()));
    }
    let found = participants.replicas.iter().find(|(addr, dialled)| is_it(addr, *dialled));
    let node = found.map_or(to, |(addr, _)| addr);
    let listed = seen.nodes.iter().find(|it| it.addr == *node).map_or(0, |it| it.listed_healthy);
    let (members, majority) = seen.quorum;
    if listed < majority {
        return Err(SwitchoverError::NotListed { node: node.clone(), listed, members, majority });
    }
    let problem = || "it does not report that it follows the master".to_owned();
    let refused = || SwitchoverError::NotPromotable { node: to.clone(), problem: problem() };
    found.map(|(addr, _)| addr.clone()).ok_or_else(refused)
}
