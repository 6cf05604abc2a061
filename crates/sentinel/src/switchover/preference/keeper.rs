//! The task that sets priorities and restores them. It is independent of the switchover: it
//! restores when that ends, however that ends, and continues if a node is away.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use super::changes::{Action, Input, PriorityChanges, RestoreReply, SetReply};
use super::nodes::{NodeAccess, restore, set};
use super::plan::PriorityChange;
use super::{Event, Reporter};
use crate::clock;
use crate::discovery::operations::Operations;
use crate::switchover::command_connection::CommandConnection;
use crate::switchover::error::SwitchoverError;
use crate::switchover::leader_task::view;

/// A finished request, with its connection if that is still usable.
enum Finished {
    Set(usize, SetReply, Option<CommandConnection>),
    View(Box<Input>, CommandConnection),
    Restored(usize, RestoreReply, Option<CommandConnection>),
}

/// The connections of one changed node.
pub(super) struct ChangedNode {
    pub(super) change: PriorityChange,
    pub(super) connection: Option<CommandConnection>,
    /// Its role and master before.
    pub(super) role: Option<String>,
}

pub(super) struct PriorityKeeper {
    /// The name of the service, in logs.
    pub(super) name: Arc<str>,
    /// Sentinel's name of the master.
    pub(super) master_name: Arc<str>,
    pub(super) access: NodeAccess,
    pub(super) operations: Operations,
    pub(super) nodes: Vec<ChangedNode>,
    pub(super) leader: Option<CommandConnection>,
    /// Its end, and anything received, is the order to restore.
    pub(super) orders: mpsc::Receiver<()>,
    pub(super) events: mpsc::Sender<Event>,
    /// `None` once the result was reported: the response of the command ends then.
    pub(super) reporter: Option<Reporter>,
}

impl PriorityKeeper {
    pub(super) async fn run(mut self, begun: (PriorityChanges, Vec<Action>)) {
        let (mut machine, mut actions) = begun;
        let (mut requests, mut ordered) = (JoinSet::new(), false);
        loop {
            self.operations.set_changed_priorities(machine.changed());
            for action in actions {
                if action == Action::Over {
                    self.report_left(&machine.changed());
                    self.operations.set_changed_priorities(Vec::new());
                    return;
                }
                self.perform(action, &mut requests);
            }
            let due = machine.next_deadline();
            let wake = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let input = tokio::select! {
                biased;
                _ = self.orders.recv(), if !ordered => {
                    ordered = true;
                    Input::Restore
                }
                Some(finished) = requests.join_next() => match finished {
                    Ok(finished) => self.take_back(finished),
                    Err(_) => Input::Restore,
                },
                () = wake => Input::Tick,
            };
            actions = machine.step(clock::now(), input);
        }
    }

    fn perform(&mut self, action: Action, requests: &mut JoinSet<Finished>) {
        match action {
            Action::Set(index) => {
                let Some(node) = self.nodes.get_mut(index) else { return };
                let (change, connection) = (node.change.clone(), node.connection.take());
                let (service, node, from) = (&*self.name, &change.node, change.from);
                info!(service, %node, from, to = change.to, "changing replica-priority");
                requests.spawn(async move {
                    let Some(mut connection) = connection else {
                        let (node, problem) = (change.node, "not connected".to_owned());
                        let refused = SwitchoverError::Node { node, problem };
                        return Finished::Set(index, SetReply::Refused(refused), None);
                    };
                    let reply = set(&mut connection, &change).await;
                    Finished::Set(index, reply, Some(connection))
                });
            }
            Action::PollLeader => {
                // Taken back before the next poll.
                let (name, leader) = (Arc::clone(&self.master_name), self.leader.take());
                let Some(mut leader) = leader else { return };
                requests.spawn(async move {
                    let seen = view(&mut leader, &name).await;
                    Finished::View(Box::new(Input::View(seen)), leader)
                });
            }
            Action::Restore(index) => {
                let Some(node) = self.nodes.get_mut(index) else { return };
                let (change, connection) = (node.change.clone(), node.connection.take());
                let (access, role) = (self.access.clone(), node.role.clone());
                requests.spawn(async move {
                    let (reply, connection) =
                        restore_once(&access, connection, &change, role.as_deref()).await;
                    Finished::Restored(index, reply, connection)
                });
            }
            Action::Report(step, text) => {
                info!(service = &*self.name, step, "{text}");
                self.report(step, text);
            }
            Action::Established => self.send(Event::Established),
            Action::Failed(reason) => self.send(Event::Failed(reason)),
            Action::Settled(left) => {
                for (change, problem) in &left {
                    let (node, remedy) = (&change.node, change.remedy());
                    error!(service = &*self.name, %node, problem, remedy, "replica-priority is not restored yet");
                    self.report("restore", format!("{node}: {problem}; to restore it: {remedy}"));
                }
                self.reporter = None;
                self.send(Event::Settled(left));
            }
            Action::Over => {}
        }
    }

    fn take_back(&mut self, finished: Finished) -> Input {
        match finished {
            Finished::Set(index, reply, connection) => {
                if let Some(node) = self.nodes.get_mut(index) {
                    node.connection = connection;
                }
                Input::Set(reply)
            }
            Finished::View(input, connection) => {
                self.leader = Some(connection);
                *input
            }
            Finished::Restored(index, reply, connection) => {
                if let Some(node) = self.nodes.get_mut(index) {
                    node.connection = connection;
                }
                Input::Restored(index, reply)
            }
        }
    }

    fn report(&self, step: &'static str, text: String) {
        if let Some(reporter) = &self.reporter {
            reporter.report(step, text);
        }
    }

    /// The switchover may have ended without waiting.
    fn send(&self, event: Event) {
        let _ = self.events.try_send(event);
    }

    fn report_left(&self, left: &[PriorityChange]) {
        for change in left {
            let (node, remedy) = (&change.node, change.remedy());
            warn!(service = &*self.name, %node, remedy, "replica-priority was not restored: giving up");
        }
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
