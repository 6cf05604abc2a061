//! One idle connection to one redis node: the bird in the mine, and the voice that answers probes.
//!
//! Promotion and re-pointing kill a node's clients, so the end of this connection is the earliest sign of a failover there is.
//! A question that is not answered stays on its connection: asking again on a new one would fill the accept queue of a server
//! that is merely busy. Its late answer counts with the time at which it was asked.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::auth::{Credentials, Denied};
use crate::conn::{Conn, ConnError, USER_TIMEOUT};
use crate::discovery::Incoming;
use crate::questions::put_command;
use crate::reply::Reply;
use crate::resolve::{Lookup, Resolver, leads_back};
use crate::{Lineage, NodeAddr, Probe, ProbeFailure, Report, Role, Verify};

/// The configuration section that redis nodes' refusals point to.
const AUTH: &str = "service.auth";

/// A question without an answer is given up, with its connection, after this long.
const GIVE_UP: Duration = Duration::from_secs(5);

/// What all canaries of one group share.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) credentials: Option<Credentials>,
    pub(crate) verify: Verify,
    /// How long one probe waits for its connection, and how long for its answer.
    pub(crate) patience: Duration,
    /// Announced address to the address to dial, for NAT.
    pub(crate) address_map: BTreeMap<NodeAddr, NodeAddr>,
    /// Our own listeners, never to be dialled.
    pub(crate) own: Vec<SocketAddr>,
    /// For names.
    pub(crate) resolver: Resolver,
}

/// What a canary tells.
#[derive(Debug)]
pub(crate) enum Song {
    /// A probe was answered, or was not.
    Probed { probe: Probe, denied: Option<Denied> },
    /// The idle connection ended by itself.
    Ended,
}

/// Runs until its owner drops it. `ask` is rung for a probe.
pub(crate) async fn run(
    group: usize,
    node: NodeAddr,
    keeper: Arc<Keeper>,
    ask: Arc<Notify>,
    out: mpsc::Sender<Incoming>,
) {
    let dial = keeper.address_map.get(&node).unwrap_or(&node);
    let mut canary = Canary { lookup: Lookup::new(&keeper.resolver, &dial.host, dial.port), keeper, perch: None };
    loop {
        let song = tokio::select! {
            () = ask.notified() => canary.probe().await,
            () = canary.ended() => Song::Ended,
        };
        if out.send(Incoming::Canary(group, node.clone(), song)).await.is_err() {
            return;
        }
    }
}

struct Perch {
    conn: Conn,
    dialled: SocketAddr,
    /// When the open question was written, and what came back of it so far.
    open: Option<(Instant, Vec<Reply>)>,
    questions: usize,
}

struct Canary {
    lookup: Lookup,
    keeper: Arc<Keeper>,
    perch: Option<Perch>,
}

enum Trouble {
    Failed(ProbeFailure),
    Denied(Denied),
}

impl From<ConnError> for Trouble {
    fn from(_: ConnError) -> Self {
        Self::Failed(ProbeFailure::Unreachable)
    }
}

impl Canary {
    /// Waits for the idle connection's end. Pending while there is none.
    async fn ended(&mut self) {
        let Some(perch) = &mut self.perch else { return std::future::pending().await };
        loop {
            match perch.conn.next().await {
                Err(_) => break,
                Ok(reply) => {
                    // A late answer to a question that was given up waiting for; kept, so that the next probe starts clean.
                    if let Some((_, replies)) = &mut perch.open {
                        replies.push(reply);
                    }
                }
            }
        }
        self.perch = None;
    }

    async fn probe(&mut self) -> Song {
        let asked_at = Instant::now();
        let (asked_at, outcome, denied) = match self.try_probe(asked_at).await {
            Ok((at, report)) => (at, Ok(report), None),
            Err(Trouble::Failed(failure)) => {
                if failure != ProbeFailure::Silent {
                    self.perch = None;
                }
                (asked_at, Err(failure), None)
            }
            Err(Trouble::Denied(denied)) => {
                self.perch = None;
                (asked_at, Err(ProbeFailure::Denied), Some(denied))
            }
        };
        Song::Probed { probe: Probe { asked_at: asked_at.into_std(), outcome }, denied }
    }

    async fn try_probe(&mut self, now: Instant) -> Result<(Instant, Report), Trouble> {
        if self.keeper.verify == Verify::Tcp {
            // Nothing may be asked, so that a fresh connection is all there is to learn from.
            self.perch = None;
        }
        if self.perch.as_ref().and_then(|perch| perch.open.as_ref()).is_some_and(|(at, _)| now - *at > GIVE_UP) {
            self.perch = None;
        }
        if self.perch.is_none() {
            self.perch = Some(self.connect().await?);
        }
        let (patience, verify) = (self.keeper.patience, self.keeper.verify);
        let Some(perch) = &mut self.perch else { return Err(Trouble::Failed(ProbeFailure::Unreachable)) };
        if verify == Verify::Tcp {
            return Ok((now, Report { dialled: perch.dialled, role: Role::Unknown, pong: false, lineage: None }));
        }
        let answered = tokio::time::timeout(patience, perch.ask(verify)).await;
        let (asked_at, replies) = answered.map_err(|_| Trouble::Failed(ProbeFailure::Silent))??;
        read(&replies, verify, perch.dialled).map(|report| (asked_at, report)).map_err(Trouble::Denied)
    }

    async fn connect(&mut self) -> Result<Perch, Trouble> {
        let unreachable = Trouble::Failed(ProbeFailure::Unreachable);
        let Ok(dialled) = self.lookup.address(self.keeper.patience).await else { return Err(unreachable) };
        if leads_back(dialled, &self.keeper.own) {
            return Err(Trouble::Failed(ProbeFailure::Rejected));
        }
        let connected = Conn::connect(dialled, self.keeper.patience, USER_TIMEOUT).await;
        let mut conn = connected.inspect_err(|_| self.lookup.failed())?;
        if self.keeper.verify != Verify::Tcp {
            let greeting =
                tokio::time::timeout(self.keeper.patience, greet(&mut conn, self.keeper.credentials.as_ref()));
            greeting.await.map_err(|_| Trouble::Failed(ProbeFailure::Silent))??;
        }
        Ok(Perch { conn, dialled, open: None, questions: 0 })
    }
}

async fn greet(conn: &mut Conn, credentials: Option<&Credentials>) -> Result<(), Trouble> {
    let mut commands = BytesMut::new();
    if let Some(credentials) = credentials {
        put_command(&mut commands, &credentials.auth());
    }
    put_command(&mut commands, &["CLIENT", "SETNAME", "pointsman"]);
    conn.send(&commands).await?;
    if credentials.is_some() {
        let reply = conn.next().await?;
        if let Some(denied) = reply.error().and_then(|line| Denied::read(line, "AUTH", "+auth", AUTH)) {
            return Err(Trouble::Denied(denied));
        }
    }
    // A name is a courtesy to whoever reads CLIENT LIST; a server that does not allow it is as good.
    conn.next().await?;
    Ok(())
}

impl Perch {
    /// Asks, or goes on waiting for the question that is still open. Safe to drop.
    async fn ask(&mut self, verify: Verify) -> Result<(Instant, Vec<Reply>), ConnError> {
        if self.open.is_none() {
            let mut commands = BytesMut::new();
            put_command(&mut commands, &["PING"]);
            self.questions = 1;
            if verify == Verify::Role {
                put_command(&mut commands, &["ROLE"]);
                put_command(&mut commands, &["INFO", "server"]);
                put_command(&mut commands, &["INFO", "replication"]);
                self.questions = 4;
            }
            self.open = Some((Instant::now(), Vec::new()));
            self.conn.send(&commands).await?;
        }
        while self.open.as_ref().is_some_and(|(_, replies)| replies.len() < self.questions) {
            let reply = self.conn.next().await?;
            if let Some((_, replies)) = &mut self.open {
                replies.push(reply);
            }
        }
        self.open.take().ok_or(ConnError::Closed)
    }
}

/// Reads the answers to one probe.
fn read(replies: &[Reply], verify: Verify, dialled: SocketAddr) -> Result<Report, Denied> {
    let refusal = |at: usize, command, rule| {
        replies.get(at).and_then(Reply::error).and_then(|line| Denied::read(line, command, rule, AUTH))
    };
    if let Some(denied) = refusal(0, "PING", "+ping").or_else(|| refusal(1, "ROLE", "+role")) {
        return Err(denied);
    }
    let pong = replies.first().and_then(Reply::text) == Some("PONG");
    let role = if verify == Verify::Role { replies.get(1).map_or(Role::Unknown, read_role) } else { Role::Unknown };
    let lineage = match (replies.get(2).and_then(Reply::text), replies.get(3).and_then(Reply::text)) {
        (Some(server), Some(replication)) => read_lineage(server, replication),
        _ => None,
    };
    Ok(Report { dialled, role, pong, lineage })
}

fn read_role(reply: &Reply) -> Role {
    let Some(items) = reply.list() else { return Role::Unknown };
    match (items.first().and_then(Reply::text), items) {
        (Some("master"), _) => Role::Master,
        (Some("slave"), [_, host, port, state, ..]) => {
            let port = port.number().map(|port| port.to_string()).unwrap_or_default();
            match NodeAddr::parse(host.text().unwrap_or_default(), &port) {
                Some(master) => Role::Replica { master, connected: state.text() == Some("connected") },
                None => Role::Unknown,
            }
        }
        _ => Role::Unknown,
    }
}

fn read_lineage(server: &str, replication: &str) -> Option<Lineage> {
    let field = |text: &'_ str, key: &str| -> Option<String> {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':').map(|value| value.trim_end().to_owned()))
    };
    Some(Lineage {
        run_id: field(server, "run_id")?.into(),
        replid: field(replication, "master_replid")?.into(),
        replid2: field(replication, "master_replid2")?.into(),
        offset: field(replication, "master_repl_offset")?.parse().ok()?,
        second_offset: field(replication, "second_repl_offset")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(word: &str) -> Reply {
        Reply::Text(bytes::Bytes::copy_from_slice(word.as_bytes()))
    }

    fn dialled() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 1))
    }

    #[test]
    fn reads_a_master_with_its_lineage() {
        let replies = [
            text("PONG"),
            Reply::List(vec![text("master"), Reply::Number(3), Reply::List(vec![])]),
            text("# Server\r\nrun_id:abc\r\n"),
            text(
                "role:master\r\nmaster_replid:x\r\nmaster_replid2:y\r\nmaster_repl_offset:42\r\nsecond_repl_offset:-1\r\n",
            ),
        ];
        let report = read(&replies, Verify::Role, dialled()).expect("a report");
        assert!(report.pong && report.role == Role::Master);
        let lineage = report.lineage.expect("lineage");
        assert_eq!((&*lineage.run_id, &*lineage.replid2, lineage.offset, lineage.second_offset), ("abc", "y", 42, -1));
    }

    #[test]
    fn a_loading_server_has_a_role_but_no_pong() {
        let replies = [
            Reply::Error("LOADING Redis is loading the dataset in memory".into()),
            Reply::List(vec![text("master"), Reply::Number(0), Reply::List(vec![])]),
            Reply::Error("LOADING".into()),
            Reply::Error("LOADING".into()),
        ];
        let report = read(&replies, Verify::Role, dialled()).expect("a report");
        assert!(!report.pong && report.role == Role::Master && report.lineage.is_none());
    }

    #[test]
    fn a_replica_names_its_master_and_a_narrow_acl_is_told() {
        let role = Reply::List(vec![
            text("slave"),
            text("10.0.0.1"),
            Reply::Number(6379),
            text("connected"),
            Reply::Number(9),
        ]);
        let master = NodeAddr { host: "10.0.0.1".into(), port: 6379 };
        assert_eq!(read_role(&role), Role::Replica { master, connected: true });
        let replies = [text("PONG"), Reply::Error("NOPERM no permissions to run the 'role' command".into())];
        assert!(read(&replies, Verify::Role, dialled()).expect_err("refused").to_string().contains("+role"));
    }
}
