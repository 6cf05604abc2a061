//! The task that raises priorities and restores them. It is independent of the switchover: it
//! restores when that ends, however that ends, and continues if a node is away.
//!
//! A value counts as raised from the moment when its command is sent, because a server that hangs
//! executes it later. It is restored only if it is the one that was set here: one that somebody
//! else has set since is left alone and reported. A node that does not answer is tried again, for
//! longer than the switchover is reported as running.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use super::choice::first_choice;
use super::nodes::{NodeAccess, RestoreReply, SetReply, restore, set};
use super::plan::{PriorityChange, former_priority};
use super::{Event, Reporter};
use crate::NodeAddr;
use crate::clock;
use crate::discovery::operations::Operations;
use crate::switchover::command_connection::CommandConnection;
use crate::switchover::error::SwitchoverError;
use crate::switchover::leader::LeaderView;
use crate::switchover::leader_task::view;

/// Interval of polling the leader.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of reporting that the leader does not report the priorities yet.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// A sentinel sends INFO every ten seconds, at its next tick, and may have missed one reply.
const REPORT_PATIENCE: Duration = Duration::from_secs(25);
/// First and longest interval between attempts to restore a value.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// The result of the switchover is reported by then, restored or not.
const RESTORE_PATIENCE: Duration = Duration::from_secs(10);
/// A command that was sent without an answer reaches the server within this time, or never: the
/// kernel gives up after `USER_TIMEOUT`.
const IN_FLIGHT: Duration = Duration::from_secs(4);
/// A node that is away for longer than this has been replaced or restarted.
const GIVE_UP: Duration = Duration::from_secs(3600);

/// A node whose priority is changed.
pub(super) struct ChangedNode {
    change: PriorityChange,
    connection: Option<CommandConnection>,
    /// Its role and master before.
    role: Option<String>,
    is_raised: bool,
    /// A command without an answer may still change the value until then.
    unsure_until: Option<Instant>,
    failed_attempts: u32,
    /// Why its value is not restored yet.
    problem: String,
}

impl ChangedNode {
    pub(super) fn new(
        change: PriorityChange,
        connection: CommandConnection,
        role: Option<String>,
    ) -> Self {
        Self {
            change,
            connection: Some(connection),
            role,
            is_raised: false,
            unsure_until: None,
            failed_attempts: 0,
            problem: "no attempt has ended yet".to_owned(),
        }
    }

    async fn raise(&mut self) -> Result<(), SwitchoverError> {
        (self.is_raised, self.unsure_until) = (true, Some(clock::now() + IN_FLIGHT));
        let Some(connection) = &mut self.connection else { return Ok(()) };
        match set(connection, &self.change).await {
            SetReply::Done => self.unsure_until = None,
            SetReply::Refused(reason) => {
                self.is_raised = false;
                return Err(reason);
            }
            SetReply::Unknown(reason) => {
                self.unsure_until = Some(clock::now() + IN_FLIGHT);
                return Err(reason);
            }
        }
        Ok(())
    }

    /// Processes the result of an attempt to restore the value: what to report, or when to try
    /// again.
    fn restored(&mut self, now: Instant, reply: RestoreReply) -> Result<String, Instant> {
        let PriorityChange { node, from, to, .. } = &self.change;
        let text = match reply {
            RestoreReply::Restored { is_rewritten } => {
                if let Some(until) = self.unsure_until.filter(|until| now < *until) {
                    "a command without an answer may still arrive".clone_into(&mut self.problem);
                    return Err(until);
                }
                let advice =
                    if is_rewritten { rewrite_advice(&self.change) } else { String::new() };
                format!("replica-priority of {node} is {from} again{advice}")
            }
            RestoreReply::Other(value) => format!(
                "replica-priority of {node} was {from}, was set to {to}, and is {value}: somebody \
                 else changed it, so that it stays"
            ),
            RestoreReply::Failed(why) => {
                let pause = RETRY.0.saturating_mul(1 << self.failed_attempts.min(8)).min(RETRY.1);
                self.failed_attempts += 1;
                self.problem = why;
                return Err(now + pause);
            }
        };
        self.is_raised = false;
        Ok(text)
    }
}

/// Sentinel rewrote the node's configuration file before the value was restored.
fn rewrite_advice(change: &PriorityChange) -> String {
    let (host, port) = (change.dialled.ip(), change.dialled.port());
    format!(
        "; its configuration file may contain {}: run redis-cli -h {host} -p {port} CONFIG REWRITE",
        change.to
    )
}

/// The result of an attempt, with the position of its node, and the connection if still usable.
type Attempt = (usize, RestoreReply, Option<CommandConnection>);

pub(super) struct PriorityKeeper {
    /// The name of the service, in logs.
    pub(super) name: Arc<str>,
    /// Sentinel's name of the master.
    pub(super) master_name: Arc<str>,
    pub(super) master: NodeAddr,
    /// The sentinel that will start the failover.
    pub(super) sentinel: NodeAddr,
    pub(super) requested: NodeAddr,
    /// The priority of the requested replica after the changes.
    pub(super) wanted: u64,
    pub(super) access: NodeAccess,
    pub(super) operations: Operations,
    pub(super) nodes: Vec<ChangedNode>,
    pub(super) events: mpsc::Sender<Event>,
    /// `None` once the result was reported: the response of the command ends then.
    pub(super) reporter: Option<Reporter>,
}

impl PriorityKeeper {
    /// Raises the priorities, and restores them on an order or at the end of `orders`.
    pub(super) async fn run(mut self, leader: CommandConnection, mut orders: mpsc::Receiver<()>) {
        let established = tokio::select! {
            biased;
            _ = orders.recv() => None,
            result = self.establish(leader) => Some(result),
        };
        match established {
            None => {}
            Some(Ok(())) => {
                self.send(Event::Established);
                let _ordered = orders.recv().await;
            }
            Some(Err(reason)) => self.send(Event::Failed(reason)),
        }
        self.restore().await;
        for change in self.raised() {
            let (node, remedy) = (&change.node, change.remedy());
            warn!(service = &*self.name, %node, remedy, "replica-priority was not restored: giving up");
        }
        self.operations.set_changed_priorities(Vec::new());
    }

    /// The nodes whose value may differ from the one before.
    fn raised(&self) -> Vec<PriorityChange> {
        self.nodes.iter().filter(|it| it.is_raised).map(|it| it.change.clone()).collect()
    }

    /// Raises the priorities one after another, and waits until the leader reports the requested
    /// replica as its first choice. May be dropped at any point.
    async fn establish(&mut self, mut leader: CommandConnection) -> Result<(), SwitchoverError> {
        for index in 0..self.nodes.len() {
            let mut shown = self.raised();
            let Some(node) = self.nodes.get_mut(index) else { break };
            let change = &node.change;
            shown.push(change.clone());
            self.operations.set_changed_priorities(shown);
            let (service, from, to) = (&*self.name, change.from, change.to);
            info!(service, node = %change.node, from, to, "changing replica-priority");
            node.raise().await?;
        }
        let since = clock::now();
        let mut report_at = since + PROGRESS_INTERVAL;
        loop {
            let seen = view(&mut leader, &self.master_name).await;
            let seen = seen.map_err(|problem| {
                SwitchoverError::Refused(format!("{}: {problem}", self.sentinel))
            })?;
            let Err(problem) = self.judge(&seen)? else { break };
            let now = clock::now();
            if now >= since + REPORT_PATIENCE {
                let (sentinel, node) = (self.sentinel.clone(), self.requested.clone());
                let wait = REPORT_PATIENCE;
                return Err(SwitchoverError::NotReported { sentinel, node, problem, wait });
            }
            if now >= report_at {
                report_at = now + PROGRESS_INTERVAL;
                let sentinel = &self.sentinel;
                self.report("prefer", format!("waiting for sentinel {sentinel}: {problem}"));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let (sentinel, requested, wanted) = (&self.sentinel, &self.requested, self.wanted);
        let text = format!(
            "sentinel {sentinel} reports {requested} as its first choice, with priority {wanted}"
        );
        self.report("prefer", text);
        Ok(())
    }

    /// Whether the leader would promote the requested replica, or why not yet.
    fn judge(&self, seen: &LeaderView) -> Result<Result<(), String>, SwitchoverError> {
        if seen.failing_over {
            return Err(SwitchoverError::FailingOver(self.sentinel.clone()));
        }
        if seen.master != self.master || seen.down {
            return Err(SwitchoverError::Unsettled);
        }
        // Raised by another process since this one has read it.
        let own = seen.replicas.iter().find(|it| it.addr == self.requested).map(|it| it.priority);
        if let Some((value, former)) = own.and_then(|it| Some((it, former_priority(it)?))) {
            let node = self.requested.clone();
            return Err(SwitchoverError::PrioritiesInUse { node, value, former });
        }
        Ok(first_choice(seen, &self.requested, self.wanted))
    }

    /// Restores every raised value, all of them at once.
    async fn restore(&mut self) {
        let since = clock::now();
        let (mut attempts, mut is_settled) = (JoinSet::new(), false);
        for index in 0..self.nodes.len() {
            self.attempt(index, since, &mut attempts);
        }
        loop {
            let left = self.raised();
            let is_done = left.is_empty();
            self.operations.set_changed_priorities(left);
            let due = since + if is_settled { GIVE_UP } else { RESTORE_PATIENCE };
            if !is_settled && (is_done || clock::now() >= due) {
                is_settled = true;
                self.settle();
                continue;
            }
            if is_done || clock::now() >= due {
                return;
            }
            tokio::select! {
                Some(Ok(attempt)) = attempts.join_next() => self.attempted(attempt, &mut attempts),
                () = tokio::time::sleep_until(due.into()) => {}
            }
        }
    }

    /// Starts an attempt to restore the value of a node, if it was raised.
    fn attempt(&mut self, index: usize, at: Instant, attempts: &mut JoinSet<Attempt>) {
        let Some(node) = self.nodes.get_mut(index).filter(|it| it.is_raised) else { return };
        let (change, connection) = (node.change.clone(), node.connection.take());
        let (access, role) = (self.access.clone(), node.role.clone());
        attempts.spawn(async move {
            tokio::time::sleep_until(at.into()).await;
            let (reply, connection) =
                restore_once(&access, connection, &change, role.as_deref()).await;
            (index, reply, connection)
        });
    }

    fn attempted(&mut self, attempt: Attempt, attempts: &mut JoinSet<Attempt>) {
        let (index, reply, connection) = attempt;
        let Some(node) = self.nodes.get_mut(index) else { return };
        node.connection = connection;
        match node.restored(clock::now(), reply) {
            Ok(text) => self.report("restore", text),
            Err(again_at) => self.attempt(index, again_at, attempts),
        }
    }

    /// Reports the result of the switchover: the nodes that are left.
    fn settle(&mut self) {
        let left = self.nodes.iter().filter(|it| it.is_raised);
        let left: Vec<_> = left.map(|it| (it.change.clone(), it.problem.clone())).collect();
        for (change, problem) in &left {
            let (node, remedy) = (&change.node, change.remedy());
            error!(service = &*self.name, %node, problem, remedy, "replica-priority is not restored yet");
            if let Some(reporter) = &self.reporter {
                reporter.report("restore", format!("{node}: {problem}; to restore it: {remedy}"));
            }
        }
        self.reporter = None;
        self.send(Event::Settled(left));
    }

    fn report(&self, step: &'static str, text: String) {
        info!(service = &*self.name, step, "{text}");
        if let Some(reporter) = &self.reporter {
            reporter.report(step, text);
        }
    }

    /// The switchover may have ended without waiting.
    fn send(&self, event: Event) {
        let _ = self.events.try_send(event);
    }
}

/// Tries once; on a new connection if the present one is broken.
async fn restore_once(
    access: &NodeAccess,
    connection: Option<CommandConnection>,
    change: &PriorityChange,
    role: Option<&str>,
) -> (RestoreReply, Option<CommandConnection>) {
    if let Some(mut connection) = connection
        && let Ok(reply) = restore(&mut connection, change, role).await
    {
        return (reply, Some(connection));
    }
    let mut connection = match access.open(change.dialled).await {
        Ok(connection) => connection,
        Err(problem) => return (RestoreReply::Failed(problem), None),
    };
    match restore(&mut connection, change, role).await {
        Ok(reply) => (reply, Some(connection)),
        Err(problem) => (RestoreReply::Failed(problem), None),
    }
}

#[cfg(test)]
mod tests;
