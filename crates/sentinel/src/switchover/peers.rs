//! The servers that a switchover talks to, each in a task of its own, so that one that does not
//! answer delays no other.
//!
//! A task takes one command after the other and answers each with one input for the course. All end
//! when their owner is dropped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Limits;
use super::leader::{self, LeaderView, read_event, read_view};
use super::reason::Reason;
use super::steps::{Answer, Input};
use super::talk::Talk;
use super::weigh::{Cast, ReplicationOffsets, standing};
use crate::NodeAddr;
use crate::discovery::handle::ConnectionSettings;
use crate::link::auth::Denied;
use crate::link::conn::Conn;
use crate::link::poll::{SENTINEL_AUTH, has_flag, put_command, read_tilt};
use crate::link::reply::Reply;
use crate::net::resolve::Lookup;

/// Where redis nodes' refusals point to.
const AUTH: &str = "service.auth";
/// Commands and inputs under way: there is at most one of each kind.
const BACKLOG: usize = 16;

/// Traffic is held while the other sentinels are asked.
const AT_ONCE: Duration = Duration::from_millis(100);

/// What the leader is asked.
#[derive(Debug, Clone, Copy)]
pub(super) enum Question {
    Order,
    View,
}

/// What is done about the master's other clients.
#[derive(Debug, Clone, Copy)]
pub(super) enum Clients {
    Pause(Duration),
    Unpause,
}

/// The ends of all tasks.
#[derive(Debug)]
pub(super) struct Peers {
    pub(super) inputs: mpsc::Receiver<Input>,
    pub(super) look: mpsc::Sender<()>,
    pub(super) clients: mpsc::Sender<Clients>,
    pub(super) leader: mpsc::Sender<Question>,
    _tasks: JoinSet<()>,
}

impl Peers {
    pub(super) fn start(
        reach: &ConnectionSettings,
        nodes: Nodes,
        leader: Leader,
        limits: Limits,
    ) -> Self {
        let (out, inputs) = mpsc::channel(BACKLOG);
        let (look, looks) = mpsc::channel(BACKLOG);
        let (clients, pauses) = mpsc::channel(BACKLOG);
        let (questions, asked) = mpsc::channel(BACKLOG);
        let mut tasks = JoinSet::new();
        let (dialled, credentials) = (nodes.master.1, reach.auth.clone());
        let mut master = Master { dialled, credentials, limits, talk: None };
        tasks.spawn(nodes.serve(looks, out.clone()));
        let unanswered = out.clone();
        tasks.spawn(async move { master.serve(pauses, unanswered).await });
        let Leader { talk, others, events, .. } = leader;
        if let Some(events) = events {
            tasks.spawn(listen(events, Arc::clone(&reach.name), out.clone()));
        }
        tasks.spawn(answer((talk, others), Arc::clone(&reach.name), asked, out));
        Self { inputs, look, clients, leader: questions, _tasks: tasks }
    }
}

async fn open_node(
    reach: &ConnectionSettings,
    node: &NodeAddr,
    dialled: SocketAddr,
    limits: Limits,
) -> Result<Talk, Reason> {
    let talk = Talk::open(dialled, (reach.auth.as_ref(), AUTH), limits.patience).await;
    talk.map_err(|problem| Reason::Node { node: node.clone(), problem })
}

/// The nodes, asked for their offsets.
#[derive(Debug)]
pub(super) struct Nodes {
    master: (NodeAddr, SocketAddr, Talk),
    replicas: Vec<(NodeAddr, Talk)>,
}

impl Nodes {
    pub(super) async fn open(
        reach: &ConnectionSettings,
        cast: &Cast,
        limits: Limits,
    ) -> Result<Self, Reason> {
        let talk = open_node(reach, &cast.master, cast.dialled, limits).await?;
        let master = (cast.master.clone(), cast.dialled, talk);
        let mut replicas = Vec::new();
        for (node, dialled) in &cast.replicas {
            replicas.push((node.clone(), open_node(reach, node, *dialled, limits).await?));
        }
        Ok(Self { master, replicas })
    }

    /// The master first: what the replicas have by then is compared with what it had written
    /// before.
    pub(super) async fn look(
        &mut self,
    ) -> Result<(ReplicationOffsets, Vec<(NodeAddr, ReplicationOffsets)>), Reason> {
        let (node, _, talk) = &mut self.master;
        let wrote = look(node, talk).await?;
        let mut have = Vec::with_capacity(self.replicas.len());
        for (node, talk) in &mut self.replicas {
            have.push((node.clone(), look(node, talk).await?));
        }
        Ok((wrote, have))
    }

    async fn serve(mut self, mut looks: mpsc::Receiver<()>, out: mpsc::Sender<Input>) {
        while looks.recv().await.is_some() {
            let looked = self.look().await;
            if out.send(Input::Looked(looked)).await.is_err() {
                return;
            }
        }
    }
}

/// Asks a node where it stands.
async fn look(node: &NodeAddr, talk: &mut Talk) -> Result<ReplicationOffsets, Reason> {
    let problem = |problem: String| Reason::Node { node: node.clone(), problem };
    let reply = talk.ask(&["INFO", "replication"]).await.map_err(problem)?;
    if let Some(denied) = reply.error().and_then(|line| Denied::read(line, "INFO", "+info", AUTH)) {
        return Err(problem(denied.to_string()));
    }
    let read = reply.text().and_then(standing);
    read.ok_or_else(|| problem("INFO replication tells no offset".to_owned()))
}

/// The master, whose other clients are paused and let go in the order of the commands.
struct Master {
    dialled: SocketAddr,
    credentials: Option<crate::Credentials>,
    limits: Limits,
    talk: Option<Talk>,
}

impl Master {
    async fn serve(&mut self, mut commands: mpsc::Receiver<Clients>, out: mpsc::Sender<Input>) {
        while let Some(command) = commands.recv().await {
            let input = match command {
                Clients::Pause(span) => Input::Paused(self.pause(span).await),
                Clients::Unpause => {
                    // On another connection if the one in use has broken. If that fails too, the
                    // pause ends by itself.
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
            || "the master does not know CLIENT PAUSE … WRITE".to_owned(),
            |it| it.to_string(),
        ))
    }

    async fn ask(&mut self, words: &[&str]) -> Result<Reply, String> {
        let mut talk = match self.talk.take() {
            Some(talk) => talk,
            None => {
                Talk::open(self.dialled, (self.credentials.as_ref(), AUTH), self.limits.patience)
                    .await?
            }
        };
        let reply = talk.ask(words).await?;
        self.talk = Some(talk);
        Ok(reply)
    }
}

/// The sentinel that is given the order.
#[derive(Debug)]
pub(super) struct Leader {
    pub(super) addr: NodeAddr,
    pub(super) view: LeaderView,
    talk: Talk,
    /// The sentinels that are not given the order.
    others: Vec<(NodeAddr, Talk)>,
    /// `None` where its ACL does not allow SUBSCRIBE: then its answers tell the same, later.
    events: Option<Conn>,
}

impl Leader {
    /// The first sentinel that can carry out the order, with its events subscribed to. All are
    /// asked, because none of them may be failing over already: two failovers at once can promote
    /// two replicas.
    pub(super) async fn choose(
        reach: &ConnectionSettings,
        cast: &Cast,
        limits: Limits,
    ) -> Result<Self, Reason> {
        let mut problem = String::from("none can be reached");
        let (mut chosen, mut others): (Option<Self>, Vec<(NodeAddr, Talk)>) = (None, Vec::new());
        for sentinel in &cast.sentinels {
            match Self::open(reach, sentinel, limits).await {
                Ok(leader) if leader.view.failing_over => {
                    return Err(Reason::FailingOver(leader.addr));
                }
                Ok(leader) if chosen.is_some() => others.push((leader.addr, leader.talk)),
                Ok(leader) if leader.view.master != cast.master => {
                    problem = format!("{sentinel}: it names {} as the master", leader.view.master);
                }
                Ok(leader) if leader.view.down => {
                    problem = format!("{sentinel}: it holds the master to be down")
                }
                Ok(leader) => chosen = Some(leader),
                Err(why) => problem = format!("{sentinel}: {why}"),
            }
        }
        chosen.map(|leader| Self { others, ..leader }).ok_or(Reason::Refused(problem))
    }

    async fn open(
        reach: &ConnectionSettings,
        sentinel: &NodeAddr,
        limits: Limits,
    ) -> Result<Self, String> {
        let auth = (reach.sentinel_auth.as_ref(), SENTINEL_AUTH);
        let mut lookup = Lookup::new(&reach.resolver, &sentinel.host, sentinel.port);
        let addr = lookup.address(limits.patience).await.map_err(|error| error.to_string())?;
        // A sentinel does not answer while it writes its configuration to a slow disk.
        let mut talk = Talk::open(addr, auth, limits.patience * 2).await?;
        if read_tilt(&talk.ask(&["INFO", "sentinel"]).await?) {
            return Err("it is in TILT".to_owned());
        }
        let view = view(&mut talk, &reach.name).await?;
        let events =
            subscribe(Talk::open(addr, auth, limits.patience).await?, limits.patience).await?;
        Ok(Self { addr: sentinel.clone(), view, talk, others: Vec::new(), events })
    }
}

async fn view(talk: &mut Talk, name: &str) -> Result<LeaderView, String> {
    let master = talk.ask(&["SENTINEL", "MASTER", name]).await?;
    let replicas = talk.ask(&["SENTINEL", "REPLICAS", name]).await?;
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
    read_view(&master, &replicas).ok_or_else(|| "it does not tell of the master".to_owned())
}

/// Subscribes on a connection that is used for nothing else. `None` if it is refused.
async fn subscribe(talk: Talk, patience: Duration) -> Result<Option<Conn>, String> {
    let Some(mut conn) = talk.into_conn() else { return Ok(None) };
    let mut command = BytesMut::new();
    let words: Vec<&str> =
        std::iter::once("SUBSCRIBE").chain(leader::CHANNELS.iter().copied()).collect();
    put_command(&mut command, &words);
    let subscribing = async {
        conn.send(&command).await?;
        let mut confirmed = 0;
        while confirmed < leader::CHANNELS.len() {
            match conn.next().await? {
                Reply::List(items) | Reply::Push(items) => {
                    confirmed +=
                        usize::from(items.first().and_then(Reply::text) == Some("subscribe"));
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(conn))
    };
    match tokio::time::timeout(patience, subscribing).await {
        Ok(done) => {
            done.map_err(|error: crate::link::conn::ConnError| crate::link::links::describe(&error))
        }
        Err(_) => Err(format!("no answer to SUBSCRIBE within {} ms", patience.as_millis())),
    }
}

/// Passes events on. When the connection ends, the answers to questions still tell what happens.
async fn listen(mut conn: Conn, name: Arc<str>, out: mpsc::Sender<Input>) {
    while let Ok(reply) = conn.next().await {
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
    (mut talk, mut others): (Talk, Vec<(NodeAddr, Talk)>),
    name: Arc<str>,
    mut asked: mpsc::Receiver<Question>,
    out: mpsc::Sender<Input>,
) {
    while let Some(question) = asked.recv().await {
        let input = match question {
            Question::Order => Input::Ordered(match begun_elsewhere(&mut others, &name).await {
                Some(other) => Answer::Refused(Reason::FailingOver(other)),
                None => order(&mut talk, &name).await,
            }),
            Question::View => {
                view(&mut talk, &name).await.map_or_else(Input::LeaderLost, Input::View)
            }
        };
        if out.send(input).await.is_err() {
            return;
        }
    }
}

/// The sentinel that has begun a failover since it was asked first. One that does not answer at
/// once has not.
async fn begun_elsewhere(others: &mut [(NodeAddr, Talk)], name: &str) -> Option<NodeAddr> {
    let asking = async {
        for (sentinel, talk) in others {
            let reply = talk.ask(&["SENTINEL", "MASTER", name]).await;
            if reply.is_ok_and(|reply| has_flag(&reply, "failover_in_progress")) {
                return Some(sentinel.clone());
            }
        }
        None
    };
    tokio::time::timeout(AT_ONCE, asking).await.ok().flatten()
}

/// Has the sentinel start the failover. Whatever it answers, no other one is asked: two failovers
/// could follow each other.
async fn order(talk: &mut Talk, name: &str) -> Answer {
    // Where it is known, the master takes part and stops taking writes by itself.
    let coordinated = talk.ask(&["SENTINEL", "FAILOVER", name, "COORDINATED"]).await;
    let reply = match coordinated {
        Ok(reply) if reply.error().is_some_and(|line| line.starts_with("ERR ")) => {
            talk.ask(&["SENTINEL", "FAILOVER", name]).await
        }
        reply => reply,
    };
    match reply {
        Ok(reply) => match reply.error() {
            None => Answer::Taken,
            Some(line) => {
                let denied =
                    Denied::read(line, "SENTINEL FAILOVER", "+sentinel|failover", SENTINEL_AUTH);
                let line = line.chars().take(120).collect();
                Answer::Refused(Reason::Refused(denied.map_or(line, |denied| denied.to_string())))
            }
        },
        Err(problem) => Answer::Unknown(problem),
    }
}
