//! The tasks that talk to the servers of a switchover, one per server, so that one that does not
//! answer delays no other.
//!
//! A task executes one command at a time and answers each with one input of the state machine. All
//! tasks end when their owner is dropped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::SwitchoverLimits;
use super::catch_up::{ReplicationOffsets, parse_offsets};
use super::command_connection::CommandConnection;
use super::error::SwitchoverError;
use super::handover::{HandoverState, parse_handover};
use super::leader_task::{FailoverLeader, LeaderCommand, answer, listen};
use super::participants::Participants;
use super::steps::Input;
use crate::NodeAddr;
use crate::discovery::handle::ConnectionSettings;
use crate::link::auth::Denied;
use crate::link::login::Login;
use crate::link::reply::Reply;

/// The configuration section that refusals by Redis nodes refer to.
const AUTH: &str = "service.auth";
/// Capacity for commands and inputs: at most one of each kind is pending.
const BACKLOG: usize = 16;

/// Commands for the master: about its other clients, and about a handover.
#[derive(Debug, Clone, Copy)]
pub(super) enum MasterCommand {
    Pause(Duration),
    Unpause,
    ReadHandover,
    EndHandover,
}

/// The channels to and from the tasks.
#[derive(Debug)]
pub(super) struct ServerTasks {
    pub(super) inputs: mpsc::Receiver<Input>,
    pub(super) look: mpsc::Sender<()>,
    pub(super) master: mpsc::Sender<MasterCommand>,
    pub(super) leader: mpsc::Sender<LeaderCommand>,
    _tasks: JoinSet<()>,
}

impl ServerTasks {
    pub(super) fn start(
        access: &ConnectionSettings,
        nodes: ReplicationNodes,
        leader: FailoverLeader,
        limits: SwitchoverLimits,
    ) -> Self {
        let (out, inputs) = mpsc::channel(BACKLOG);
        let (look, looks) = mpsc::channel(BACKLOG);
        let (commands, ordered) = mpsc::channel(BACKLOG);
        let (questions, asked) = mpsc::channel(BACKLOG);
        let mut tasks = JoinSet::new();
        let (dialled, login) = (nodes.master.1, access.auth.clone());
        let node = nodes.master.0.clone();
        let mut master = MasterTask { node, dialled, login, limits, connection: None };
        tasks.spawn(nodes.serve(looks, out.clone()));
        let unanswered = out.clone();
        tasks.spawn(async move { master.serve(ordered, unanswered).await });
        let FailoverLeader { connection, others, events, .. } = leader;
        if let Some(events) = events {
            tasks.spawn(listen(events, Arc::clone(&access.master_name), out.clone()));
        }
        tasks.spawn(answer(connection, others, Arc::clone(&access.master_name), asked, out));
        Self { inputs, look, master: commands, leader: questions, _tasks: tasks }
    }
}

async fn open_node(
    access: &ConnectionSettings,
    node: &NodeAddr,
    dialled: SocketAddr,
    limits: SwitchoverLimits,
) -> Result<CommandConnection, SwitchoverError> {
    let connection = CommandConnection::open(dialled, &access.auth, AUTH, limits.timeout).await;
    connection.map_err(|problem| SwitchoverError::Node { node: node.clone(), problem })
}

/// The nodes whose replication offsets are read.
#[derive(Debug)]
pub(super) struct ReplicationNodes {
    master: (NodeAddr, SocketAddr, CommandConnection),
    replicas: Vec<(NodeAddr, CommandConnection)>,
}

impl ReplicationNodes {
    pub(super) async fn open(
        access: &ConnectionSettings,
        participants: &Participants,
        limits: SwitchoverLimits,
    ) -> Result<Self, SwitchoverError> {
        let connection =
            open_node(access, &participants.master, participants.dialled, limits).await?;
        let master = (participants.master.clone(), participants.dialled, connection);
        let mut replicas = Vec::new();
        for (node, dialled) in &participants.replicas {
            replicas.push((node.clone(), open_node(access, node, *dialled, limits).await?));
        }
        Ok(Self { master, replicas })
    }

    /// Reads the master first: the replicas' offsets are compared with what it had written before.
    pub(super) async fn look(
        &mut self,
    ) -> Result<(ReplicationOffsets, Vec<(NodeAddr, ReplicationOffsets)>), SwitchoverError> {
        let (node, _, connection) = &mut self.master;
        let wrote = look(node, connection).await?;
        let mut have = Vec::with_capacity(self.replicas.len());
        for (node, connection) in &mut self.replicas {
            have.push((node.clone(), look(node, connection).await?));
        }
        Ok((wrote, have))
    }

    async fn serve(mut self, mut looks: mpsc::Receiver<()>, out: mpsc::Sender<Input>) {
        while looks.recv().await.is_some() {
            let looked = self.look().await;
            if out.send(Input::OffsetsRead(looked)).await.is_err() {
                return;
            }
        }
    }
}

/// Reads the replication offset of a node.
async fn look(
    node: &NodeAddr,
    connection: &mut CommandConnection,
) -> Result<ReplicationOffsets, SwitchoverError> {
    let problem = |problem: String| SwitchoverError::Node { node: node.clone(), problem };
    let reply = connection.ask(&["INFO", "replication"]).await.map_err(problem)?;
    if let Some(denied) = reply.error().and_then(|line| Denied::read(line, "INFO", "+info", AUTH)) {
        return Err(problem(denied.to_string()));
    }
    let read = reply.text().and_then(parse_offsets);
    read.ok_or_else(|| problem("INFO replication contains no offset".to_owned()))
}

/// The connection that pauses and unpauses the master's clients, in the order of the commands.
struct MasterTask {
    node: NodeAddr,
    dialled: SocketAddr,
    login: Login,
    limits: SwitchoverLimits,
    connection: Option<CommandConnection>,
}

impl MasterTask {
    async fn serve(
        &mut self,
        mut commands: mpsc::Receiver<MasterCommand>,
        out: mpsc::Sender<Input>,
    ) {
        while let Some(command) = commands.recv().await {
            let input = match command {
                MasterCommand::Pause(span) => Input::Paused(self.pause(span).await),
                MasterCommand::Unpause => {
                    // On a new connection if the current one is broken. If that fails too, the
                    // pause ends by itself.
                    if self.ask(&["CLIENT", "UNPAUSE"]).await.is_err() {
                        let _ = self.ask(&["CLIENT", "UNPAUSE"]).await;
                    }
                    Input::Unpaused
                }
                MasterCommand::ReadHandover => Input::HandoverRead(self.handover().await.ok()),
                MasterCommand::EndHandover => Input::HandoverEnded(self.end_handover().await),
            };
            if out.send(input).await.is_err() {
                return;
            }
        }
    }

    async fn pause(&mut self, span: Duration) -> Result<(), String> {
        let millis = span.as_millis().to_string();
        let reply = self.ask(&["CLIENT", "PAUSE", &millis, "WRITE"]).await?;
        let Some(line) = reply.error() else { return Ok(()) };
        let denied = Denied::read(line, "CLIENT PAUSE", "+client|pause +client|unpause", AUTH);
        Err(denied.map_or_else(
            || "the master does not support CLIENT PAUSE … WRITE".to_owned(),
            |it| it.to_string(),
        ))
    }

    async fn handover(&mut self) -> Result<HandoverState, String> {
        let reply = self.ask(&["INFO", "replication"]).await?;
        reply.text().and_then(parse_handover).ok_or_else(|| "INFO tells no state".to_owned())
    }

    /// Revokes the `CLIENT PAUSE` that a failed handover leaves. A master that still waits for its
    /// replica is left alone: it may hand over between two commands, and `FAILOVER ABORT` would
    /// then make a second master of it.
    async fn end_handover(&mut self) -> Result<(), String> {
        let node = self.node.clone();
        match self.handover().await {
            Ok(HandoverState::Idle) => {}
            Ok(HandoverState::HandedOver) => return Ok(()),
            Ok(HandoverState::WaitingForReplica) => {
                return Err(format!(
                    "{node} accepts no writes while it waits for the replica, at most until \
                     Sentinel's failover-timeout: FAILOVER ABORT there ends that"
                ));
            }
            Err(problem) => return Err(still_paused(&node, &problem)),
        }
        let reply = self.ask(&["CLIENT", "UNPAUSE"]).await;
        let reply = reply.map_err(|problem| still_paused(&node, &problem))?;
        let Some(line) = reply.error() else { return Ok(()) };
        let denied = Denied::read(line, "CLIENT UNPAUSE", "+client|unpause", AUTH);
        let problem =
            denied.map_or_else(|| "it refuses CLIENT UNPAUSE".to_owned(), |it| it.to_string());
        Err(still_paused(&node, &problem))
    }

    async fn ask(&mut self, words: &[&str]) -> Result<Reply, String> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                CommandConnection::open(self.dialled, &self.login, AUTH, self.limits.timeout)
                    .await?
            }
        };
        let reply = connection.ask(words).await?;
        self.connection = Some(connection);
        Ok(reply)
    }
}

fn still_paused(node: &NodeAddr, problem: &str) -> String {
    format!(
        "{node} may accept no writes until Sentinel's failover-timeout ({problem}): CLIENT UNPAUSE \
         there ends that"
    )
}
