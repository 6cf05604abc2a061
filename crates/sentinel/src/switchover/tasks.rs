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

use super::catch_up::{ReplicationReading, ReplicationState, parse_replication};
use super::command_connection::CommandConnection;
use super::error::SwitchoverError;
use super::leader_task::{FailoverLeader, listen};
use super::participants::Participants;
use super::state_machine::{Input, LeaderCommand, MasterCommand};
use crate::NodeAddr;
use crate::discovery::handle::ConnectionSettings;
use crate::link::login::Login;

/// Capacity for commands and inputs: at most one of each kind is pending.
const BACKLOG: usize = 16;

/// The channels to and from the tasks.
#[derive(Debug)]
pub(super) struct ServerTasks {
    pub(super) inputs: mpsc::Receiver<Input>,
    pub(super) look: mpsc::Sender<Duration>,
    pub(super) master: mpsc::Sender<MasterCommand>,
    pub(super) leader: mpsc::Sender<LeaderCommand>,
    _tasks: JoinSet<()>,
}

impl ServerTasks {
    pub(super) fn start(
        access: &ConnectionSettings,
        participants: &Participants,
        nodes: ReplicationNodes,
        mut leader: FailoverLeader,
    ) -> Self {
        let (out, inputs) = mpsc::channel(BACKLOG);
        let (look, looks) = mpsc::channel(BACKLOG);
        let (master, ordered) = mpsc::channel(BACKLOG);
        let (questions, asked) = mpsc::channel(BACKLOG);
        let mut tasks = JoinSet::new();
        if let Some(events) = leader.events.take() {
            tasks.spawn(listen(events, Arc::clone(&access.master_name), out.clone()));
        }
        // On a connection of its own: a pause has to be renewed while offsets are read.
        let node =
            RedisNode::new(&participants.master.addr, participants.master.dialled, &access.auth);
        tasks.spawn(node.serve(ordered, out.clone()));
        tasks.spawn(nodes.serve(looks, out.clone()));
        tasks.spawn(leader.serve(asked, out));
        Self { inputs, look, master, leader: questions, _tasks: tasks }
    }
}

/// The nodes whose replication offsets are read.
#[derive(Debug)]
pub(super) struct ReplicationNodes {
    master: RedisNode,
    replicas: Vec<RedisNode>,
}

impl ReplicationNodes {
    pub(super) fn new(participants: &Participants, login: &Login) -> Self {
        let Participants { master, replicas, .. } = participants;
        let replicas = replicas.iter().map(|(it, dialled)| RedisNode::new(it, *dialled, login));
        let replicas = replicas.collect();
        Self { master: RedisNode::new(&master.addr, master.dialled, login), replicas }
    }

    /// Reads the master first: the replicas' offsets are compared with what it had written before.
    pub(super) async fn look(&mut self) -> Result<ReplicationReading, SwitchoverError> {
        let master = self.master.look().await?;
        let mut replicas = Vec::with_capacity(self.replicas.len());
        for it in &mut self.replicas {
            replicas.push((it.node.clone(), it.look().await?));
        }
        Ok(ReplicationReading { master, replicas })
    }

    async fn serve(mut self, mut looks: mpsc::Receiver<Duration>, out: mpsc::Sender<Input>) {
        while let Some(after) = looks.recv().await {
            tokio::time::sleep(after).await;
            let _ = out.send(Input::OffsetsRead(self.look().await)).await;
        }
    }
}

/// One node with a connection.
#[derive(Debug)]
struct RedisNode {
    node: NodeAddr,
    connection: CommandConnection,
}

impl RedisNode {
    fn new(node: &NodeAddr, dialled: SocketAddr, login: &Login) -> Self {
        let connection = CommandConnection::to_node(dialled, login.clone());
        Self { node: node.clone(), connection }
    }

    async fn replication(&mut self) -> Result<ReplicationState, String> {
        let reply = self.connection.run(&["INFO", "replication"], "INFO", "+info").await?;
        let state = reply.text().and_then(parse_replication);
        state.ok_or_else(|| "INFO replication does not contain what is needed".to_owned())
    }

    async fn look(&mut self) -> Result<ReplicationState, SwitchoverError> {
        self.replication().await.map_err(|problem| SwitchoverError::node(&self.node, problem))
    }

    /// Executes the commands for a master.
    async fn serve(
        mut self,
        mut commands: mpsc::Receiver<MasterCommand>,
        out: mpsc::Sender<Input>,
    ) {
        while let Some(command) = commands.recv().await {
            let input = match command {
                MasterCommand::Pause(span) => {
                    let words = ["CLIENT", "PAUSE", &span.as_millis().to_string(), "WRITE"];
                    let rules = "+client|pause +client|unpause";
                    let reply = self.connection.run(&words, "CLIENT PAUSE … WRITE", rules).await;
                    Input::Paused(reply.map(drop).map_err(String::from))
                }
                MasterCommand::Unpause => {
                    // On a new connection if the current one is broken. If that fails too, the
                    // pause ends by itself.
                    if self.connection.ask(&["CLIENT", "UNPAUSE"]).await.is_err() {
                        let _ = self.connection.ask(&["CLIENT", "UNPAUSE"]).await;
                    }
                    Input::Unpaused(Ok(()))
                }
                MasterCommand::ReadHandover => Input::HandoverRead(self.replication().await.ok()),
                MasterCommand::EndHandover => Input::Unpaused(self.end_handover().await),
            };
            let _ = out.send(input).await;
        }
    }

    /// Revokes the `CLIENT PAUSE` that a failed handover leaves. A master that still waits for its
    /// replica is left alone: it may hand over between two commands, and `FAILOVER ABORT` would
    /// then make a second master of it.
    async fn end_handover(&mut self) -> Result<(), String> {
        let unpaused = match self.replication().await {
            Ok(state) if !state.is_master => return Ok(()),
            Ok(state) if state.is_handing_over => {
                return Err(format!(
                    "{} accepts no writes while it waits for the replica, at most until \
                     Sentinel's failover-timeout: FAILOVER ABORT there ends that",
                    self.node
                ));
            }
            Ok(_) => {
                let (words, rule) = (["CLIENT", "UNPAUSE"], "+client|unpause");
                let reply = self.connection.run(&words, "CLIENT UNPAUSE", rule).await;
                reply.map(drop).map_err(String::from)
            }
            Err(problem) => Err(problem),
        };
        unpaused.map_err(|problem| {
            format!(
                "{} may accept no writes until Sentinel's failover-timeout ({problem}): CLIENT \
                 UNPAUSE there ends that",
                self.node
            )
        })
    }
}
