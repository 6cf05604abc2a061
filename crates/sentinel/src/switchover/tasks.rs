//! The tasks that talk to the servers of a switchover, one per server, so that one that does not
//! answer delays no other.
//!
//! A task executes one command at a time and answers each with one input of the state machine. All
//! tasks end when their owner is dropped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::SwitchoverLimits;
use super::command_connection::CommandConnection;
use super::error::SwitchoverError;
use super::leader::{self, LeaderView, read_event, read_view};
use super::steps::{FailoverReply, Input};
use super::weigh::{Participants, ReplicationOffsets, parse_offsets};
use crate::NodeAddr;
use crate::discovery::handle::Reach;
use crate::discovery::resolve::Lookup;
use crate::link::auth::Denied;
use crate::link::connection::RespConnection;
use crate::link::poll::{SENTINEL_AUTH, has_flag, put_command, read_tilt};
use crate::link::reply::Reply;

/// The configuration section that refusals by Redis nodes refer to.
const AUTH: &str = "service.auth";
/// Capacity for commands and inputs: at most one of each kind is pending.
const BACKLOG: usize = 16;

/// Timeout for the other sentinels, since traffic is held while they are asked.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(100);

/// Commands for the leader.
#[derive(Debug, Clone, Copy)]
pub(super) enum LeaderCommand {
    StartFailover,
    View,
}

/// Commands about the master's other clients.
#[derive(Debug, Clone, Copy)]
pub(super) enum PauseCommand {
    Pause(Duration),
    Unpause,
}

/// The channels to and from the tasks.
#[derive(Debug)]
pub(super) struct ServerTasks {
    pub(super) inputs: mpsc::Receiver<Input>,
    pub(super) look: mpsc::Sender<()>,
    pub(super) clients: mpsc::Sender<PauseCommand>,
    pub(super) leader: mpsc::Sender<LeaderCommand>,
    _tasks: JoinSet<()>,
}

impl ServerTasks {
    pub(super) fn start(
        access: &Reach,
        nodes: ReplicationNodes,
        leader: FailoverLeader,
        limits: SwitchoverLimits,
    ) -> Self {
        let (out, inputs) = mpsc::channel(BACKLOG);
        let (look, looks) = mpsc::channel(BACKLOG);
        let (clients, pauses) = mpsc::channel(BACKLOG);
        let (questions, asked) = mpsc::channel(BACKLOG);
        let mut tasks = JoinSet::new();
        let (dialled, credentials) = (nodes.master.1, access.auth.clone());
        let mut master = MasterClients { dialled, credentials, limits, connection: None };
        tasks.spawn(nodes.serve(looks, out.clone()));
        let unanswered = out.clone();
        tasks.spawn(async move { master.serve(pauses, unanswered).await });
        let FailoverLeader { connection, others, events, .. } = leader;
        if let Some(events) = events {
            tasks.spawn(listen(events, Arc::clone(&access.name), out.clone()));
        }
        tasks.spawn(answer((connection, others), Arc::clone(&access.name), asked, out));
        Self { inputs, look, clients, leader: questions, _tasks: tasks }
    }
}

async fn open_node(
    access: &Reach,
    node: &NodeAddr,
    dialled: SocketAddr,
    limits: SwitchoverLimits,
) -> Result<CommandConnection, SwitchoverError> {
    let connection =
        CommandConnection::open(dialled, (access.auth.as_ref(), AUTH), limits.timeout).await;
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
        access: &Reach,
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
struct MasterClients {
    dialled: SocketAddr,
    credentials: Option<crate::Credentials>,
    limits: SwitchoverLimits,
    connection: Option<CommandConnection>,
}

impl MasterClients {
    async fn serve(
        &mut self,
        mut commands: mpsc::Receiver<PauseCommand>,
        out: mpsc::Sender<Input>,
    ) {
        while let Some(command) = commands.recv().await {
            let input = match command {
                PauseCommand::Pause(span) => Input::Paused(self.pause(span).await),
                PauseCommand::Unpause => {
                    // On a new connection if the current one is broken. If that fails too, the pause ends by
                    // itself.
                    if self.ask(&["CLIENT", "UNPAUSE"]).await.is_err() {
                        let _ = self.ask(&["CLIENT", "UNPAUSE"]).await;
                    }
                    Input::Unpaused
                }
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

    async fn ask(&mut self, words: &[&str]) -> Result<Reply, String> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                CommandConnection::open(
                    self.dialled,
                    (self.credentials.as_ref(), AUTH),
                    self.limits.timeout,
                )
                .await?
            }
        };
        let reply = connection.ask(words).await?;
        self.connection = Some(connection);
        Ok(reply)
    }
}

/// The sentinel that starts the failover.
#[derive(Debug)]
pub(super) struct FailoverLeader {
    pub(super) addr: NodeAddr,
    pub(super) view: LeaderView,
    connection: CommandConnection,
    /// The sentinels that do not start the failover.
    others: Vec<(NodeAddr, CommandConnection)>,
    /// `None` if its ACL does not allow SUBSCRIBE: its answers say the same, later.
    events: Option<RespConnection>,
}

impl FailoverLeader {
    /// The first sentinel that can start the failover, with a subscription to its events. All are
    /// asked, because none may be failing over already: two failovers at once can promote two
    /// replicas.
    pub(super) async fn choose(
        access: &Reach,
        participants: &Participants,
        limits: SwitchoverLimits,
    ) -> Result<Self, SwitchoverError> {
        let mut problem = String::from("no sentinel is reachable");
        let (mut chosen, mut others): (Option<Self>, Vec<(NodeAddr, CommandConnection)>) =
            (None, Vec::new());
        for sentinel in &participants.sentinels {
            match Self::open(access, sentinel, limits).await {
                Ok(leader) if leader.view.failing_over => {
                    return Err(SwitchoverError::FailingOver(leader.addr));
                }
                Ok(leader) if chosen.is_some() => others.push((leader.addr, leader.connection)),
                Ok(leader) if leader.view.master != participants.master => {
                    problem = format!("{sentinel}: it names {} as the master", leader.view.master);
                }
                Ok(leader) if leader.view.down => {
                    problem = format!("{sentinel}: it considers the master down")
                }
                Ok(leader) => chosen = Some(leader),
                Err(why) => problem = format!("{sentinel}: {why}"),
            }
        }
        chosen.map(|leader| Self { others, ..leader }).ok_or(SwitchoverError::Refused(problem))
    }

    async fn open(
        access: &Reach,
        sentinel: &NodeAddr,
        limits: SwitchoverLimits,
    ) -> Result<Self, String> {
        let auth = (access.sentinel_auth.as_ref(), SENTINEL_AUTH);
        let mut lookup = Lookup::new(&access.resolver, &sentinel.host, sentinel.port);
        let addr = lookup.address(limits.timeout).await.map_err(|error| error.to_string())?;
        // A sentinel does not answer while it writes its configuration to a slow disk.
        let mut connection = CommandConnection::open(addr, auth, limits.timeout * 2).await?;
        if read_tilt(&connection.ask(&["INFO", "sentinel"]).await?) {
            return Err("it is in TILT".to_owned());
        }
        let view = view(&mut connection, &access.name).await?;
        let events =
            subscribe(CommandConnection::open(addr, auth, limits.timeout).await?, limits.timeout)
                .await?;
        Ok(Self { addr: sentinel.clone(), view, connection, others: Vec::new(), events })
    }
}

async fn view(connection: &mut CommandConnection, name: &str) -> Result<LeaderView, String> {
    let master = connection.ask(&["SENTINEL", "MASTER", name]).await?;
    let replicas = connection.ask(&["SENTINEL", "REPLICAS", name]).await?;
    for (reply, command, rule) in [
        (&master, "SENTINEL MASTER", "+sentinel|master"),
        (&replicas, "SENTINEL REPLICAS", "+sentinel|replicas"),
    ] {
        if let Some(denied) =
            reply.error().and_then(|line| Denied::read(line, command, rule, SENTINEL_AUTH))
        {
            return Err(denied.to_string());
        }
    }
    read_view(&master, &replicas)
        .ok_or_else(|| "SENTINEL MASTER and REPLICAS returned no usable view".to_owned())
}

/// Subscribes on a dedicated connection. `None` if the sentinel refuses.
async fn subscribe(
    connection: CommandConnection,
    timeout: Duration,
) -> Result<Option<RespConnection>, String> {
    let Some(mut connection) = connection.into_connection() else { return Ok(None) };
    let mut command = BytesMut::new();
    let words: Vec<&str> =
        std::iter::once("SUBSCRIBE").chain(leader::CHANNELS.iter().copied()).collect();
    put_command(&mut command, &words);
    let subscribing = async {
        connection.send(&command).await?;
        let mut confirmed = 0;
        while confirmed < leader::CHANNELS.len() {
            match connection.next().await? {
                Reply::List(items) | Reply::Push(items) => {
                    confirmed +=
                        usize::from(items.first().and_then(Reply::text) == Some("subscribe"));
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(connection))
    };
    match tokio::time::timeout(timeout, subscribing).await {
        Ok(done) => done.map_err(|error: crate::link::connection::ConnectionError| {
            crate::link::links::describe(&error)
        }),
        Err(_) => Err(format!("no answer to SUBSCRIBE within {} ms", timeout.as_millis())),
    }
}

/// Forwards events. When the connection ends, the answers to polls still show the progress.
async fn listen(mut connection: RespConnection, name: Arc<str>, out: mpsc::Sender<Input>) {
    while let Ok(reply) = connection.next().await {
        let (Reply::List(items) | Reply::Push(items)) = reply else { continue };
        let [kind, channel, payload] = items.as_slice() else { continue };
        let (Some("message"), Some(channel), Some(payload)) =
            (kind.text(), channel.text(), payload.text())
        else {
            continue;
        };
        if let Some(event) = read_event(channel, payload, &name)
            && out.send(Input::Event(event)).await.is_err()
        {
            return;
        }
    }
}

async fn answer(
    (mut connection, mut others): (CommandConnection, Vec<(NodeAddr, CommandConnection)>),
    name: Arc<str>,
    mut asked: mpsc::Receiver<LeaderCommand>,
    out: mpsc::Sender<Input>,
) {
    while let Some(question) = asked.recv().await {
        let input = match question {
            LeaderCommand::StartFailover => {
                Input::FailoverReply(match begun_elsewhere(&mut others, &name).await {
                    Some(other) => FailoverReply::Refused(SwitchoverError::FailingOver(other)),
                    None => order(&mut connection, &name).await,
                })
            }
            LeaderCommand::View => {
                view(&mut connection, &name).await.map_or_else(Input::LeaderLost, Input::View)
            }
        };
        if out.send(input).await.is_err() {
            return;
        }
    }
}

/// The sentinel that has started a failover since it was first asked. One that does not answer in
/// time counts as not having started one.
async fn begun_elsewhere(
    others: &mut [(NodeAddr, CommandConnection)],
    name: &str,
) -> Option<NodeAddr> {
    let asking = async {
        for (sentinel, connection) in others {
            let reply = connection.ask(&["SENTINEL", "MASTER", name]).await;
            if reply.is_ok_and(|reply| has_flag(&reply, "failover_in_progress")) {
                return Some(sentinel.clone());
            }
        }
        None
    };
    tokio::time::timeout(OTHERS_TIMEOUT, asking).await.ok().flatten()
}

/// Sends the failover command. Whatever the answer, no other sentinel is asked: two failovers could
/// follow each other.
async fn order(connection: &mut CommandConnection, name: &str) -> FailoverReply {
    // Where COORDINATED is supported, the master takes part and stops accepting writes by itself.
    let coordinated = connection.ask(&["SENTINEL", "FAILOVER", name, "COORDINATED"]).await;
    let reply = match coordinated {
        Ok(reply) if reply.error().is_some_and(|line| line.starts_with("ERR ")) => {
            connection.ask(&["SENTINEL", "FAILOVER", name]).await
        }
        reply => reply,
    };
    match reply {
        Ok(reply) => match reply.error() {
            None => FailoverReply::Accepted,
            Some(line) => {
                let denied =
                    Denied::read(line, "SENTINEL FAILOVER", "+sentinel|failover", SENTINEL_AUTH);
                let line = line.chars().take(120).collect();
                FailoverReply::Refused(SwitchoverError::Refused(
                    denied.map_or(line, |denied| denied.to_string()),
                ))
            }
        },
        Err(problem) => FailoverReply::Unknown(problem),
    }
}
