//! A connection to a redis node and the one question that may be open on it.
//!
//! The greeting goes out together with the first question, so that a server which accepts and does
//! not answer costs one connection, however often it is asked. An answer carries the time of its
//! question and never counts as younger. While a question is open no other is written, so that an
//! answer is never taken for that to another question.

use std::net::SocketAddr;

use bytes::BytesMut;
use tokio::time::Instant;

use crate::link::auth::{Credentials, Denied};
use crate::link::conn::{Conn, ConnError};
use crate::link::poll::put_command;
use crate::link::reply::Reply;
use crate::{Lineage, NodeAddr, NodeReport, ProbeFailure, Role, Verify};

/// The configuration section that redis nodes' refusals point to.
const AUTH: &str = "service.auth";

/// The question under way.
struct Open {
    /// When it was written.
    asked_at: Instant,
    /// Answers to come before those to the question: of a connection that has just been made.
    greeting: usize,
    answers: Vec<Reply>,
}

/// See the module's header.
pub(crate) struct ProbeConnection {
    conn: Conn,
    dialled: SocketAddr,
    open: Option<Open>,
    /// The greeting went out.
    greeted: bool,
    /// A question was answered on it.
    answered: bool,
}

/// Why there is no report.
pub(crate) enum Trouble {
    Failed(ProbeFailure),
    /// The dial took too long: nobody is there, or there is no room in the queue of a server that
    /// is busy.
    DialTimedOut,
    Denied(Denied),
}

impl From<ConnError> for Trouble {
    fn from(error: ConnError) -> Self {
        match error {
            ConnError::ConnectTimeout(_) => Self::DialTimedOut,
            _ => Self::Failed(ProbeFailure::Unreachable),
        }
    }
}

/// What a question came to.
pub(crate) type Outcome = Result<NodeReport, Trouble>;

impl ProbeConnection {
    pub(crate) fn new(conn: Conn, dialled: SocketAddr) -> Self {
        Self { conn, dialled, open: None, greeted: false, answered: false }
    }

    pub(crate) fn dialled(&self) -> SocketAddr {
        self.dialled
    }

    /// When the open question was written, if there is one.
    pub(crate) fn asked_at(&self) -> Option<Instant> {
        self.open.as_ref().map(|open| open.asked_at)
    }

    /// Somebody has answered on it.
    pub(crate) fn has_answered(&self) -> bool {
        self.answered
    }

    /// It has been greeted, and nothing is owed.
    pub(crate) fn is_idle(&self) -> bool {
        self.greeted && self.open.is_none()
    }

    /// Waits for a late answer, or for the end: `None`. Whatever is said out of turn is the end
    /// too, since answers could not be told from each other any more. Safe to drop.
    pub(crate) async fn listen(&mut self, verify: Verify) -> Option<(Instant, Outcome)> {
        if self.open.is_none() {
            let _ = self.conn.next().await;
            return None;
        }
        match self.hear(verify).await {
            Ok(()) => Some(self.judge(verify)),
            Err(_) => self
                .turned_away()
                .map(|(asked_at, denied)| (asked_at, Err(Trouble::Denied(denied)))),
        }
    }

    /// The connection ended before all was answered: the error with which the server turned it
    /// away, if there was one. That is the first thing said on a connection; an error that comes
    /// later is an answer like any other, and says nothing about the end.
    pub(crate) fn turned_away(&self) -> Option<(Instant, Denied)> {
        let open = self.open.as_ref().filter(|open| open.greeting > 0)?;
        let line = open.answers.first()?.error()?;
        Some((open.asked_at, Denied::read_last(line, AUTH)?))
    }

    /// Something came that nobody asked for.
    pub(crate) fn is_out_of_turn(&self) -> bool {
        self.open.is_none() && self.conn.has_input()
    }

    /// Asks, behind the greeting on a new connection, or goes on waiting for the question that is
    /// still open. Safe to drop: the question then stays open.
    pub(crate) async fn ask(
        &mut self,
        verify: Verify,
        credentials: Option<&Credentials>,
    ) -> Result<(), ConnError> {
        if self.open.is_none() {
            let (mut commands, mut greeting) = (BytesMut::new(), 0);
            if !self.greeted {
                if let Some(credentials) = credentials {
                    put_command(&mut commands, &credentials.auth());
                    greeting += 1;
                }
                // A name is a courtesy to whoever reads CLIENT LIST; a server that does not allow
                // it is as good.
                put_command(&mut commands, &["CLIENT", "SETNAME", "pointsman"]);
                greeting += 1;
                self.greeted = true;
            }
            for question in questions(verify) {
                put_command(&mut commands, question);
            }
            self.open = Some(Open { asked_at: Instant::now(), greeting, answers: Vec::new() });
            self.conn.send(&commands).await?;
        }
        self.hear(verify).await
    }

    /// Waits for the rest of the answers to the open question. Safe to drop.
    async fn hear(&mut self, verify: Verify) -> Result<(), ConnError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        while open.answers.len() < open.greeting + questions(verify).len() {
            open.answers.push(self.conn.next().await?);
        }
        Ok(())
    }

    /// What the answers to the open question come to, which is closed by that.
    pub(crate) fn judge(&mut self, verify: Verify) -> (Instant, Outcome) {
        let Some(Open { asked_at, greeting, answers }) = self.open.take() else {
            return (Instant::now(), Err(Trouble::Failed(ProbeFailure::Unreachable)));
        };
        self.answered = true;
        let (greeting, answers) = answers.split_at_checked(greeting).unwrap_or_default();
        // With credentials the first of two is that to AUTH; a name that cannot be set is no
        // matter.
        let refused = match greeting {
            [auth, _] => auth.error().and_then(|line| Denied::read(line, "AUTH", "+auth", AUTH)),
            _ => None,
        };
        let outcome = refused.map_or_else(|| read(answers, verify, self.dialled), Err);
        (asked_at, outcome.map_err(Trouble::Denied))
    }
}

fn questions(verify: Verify) -> &'static [&'static [&'static str]] {
    const ALL: &[&[&str]] = &[&["PING"], &["ROLE"], &["INFO", "server"], &["INFO", "replication"]];
    match verify {
        Verify::Role => ALL,
        Verify::Ping => &[&["PING"]],
        Verify::Tcp => &[],
    }
}

/// Reads the answers to one probe.
fn read(replies: &[Reply], verify: Verify, dialled: SocketAddr) -> Result<NodeReport, Denied> {
    let refusal = |at: usize, command, rule| {
        replies
            .get(at)
            .and_then(Reply::error)
            .and_then(|line| Denied::read(line, command, rule, AUTH))
    };
    if let Some(denied) = refusal(0, "PING", "+ping").or_else(|| refusal(1, "ROLE", "+role")) {
        return Err(denied);
    }
    let pong = replies.first().and_then(Reply::text) == Some("PONG");
    let role = if verify == Verify::Role {
        replies.get(1).map_or(Role::Unknown, read_role)
    } else {
        Role::Unknown
    };
    let lineage = match (replies.get(2).and_then(Reply::text), replies.get(3).and_then(Reply::text))
    {
        (Some(server), Some(replication)) => read_lineage(server, replication),
        _ => None,
    };
    let offset = replies.get(1).filter(|_| verify == Verify::Role).and_then(read_offset);
    Ok(NodeReport { dialled, role, pong, offset, lineage })
}

fn read_role(reply: &Reply) -> Role {
    let Some(items) = reply.list() else { return Role::Unknown };
    match (items.first().and_then(Reply::text), items) {
        (Some("master"), _) => Role::Master,
        (Some("slave"), [_, host, port, state, ..]) => {
            let port = port.number().map(|port| port.to_string()).unwrap_or_default();
            match NodeAddr::parse(host.text().unwrap_or_default(), &port) {
                Some(master) => {
                    Role::Replica { master, connected: state.text() == Some("connected") }
                }
                None => Role::Unknown,
            }
        }
        _ => Role::Unknown,
    }
}

/// The offset that `ROLE` gives: the second element of a master's answer, the fifth of a replica's
/// (-1 while it has none).
fn read_offset(reply: &Reply) -> Option<u64> {
    let items = reply.list()?;
    let at = if items.first().and_then(Reply::text) == Some("master") { 1 } else { 4 };
    u64::try_from(items.get(at)?.number()?).ok()
}

fn read_lineage(server: &str, replication: &str) -> Option<Lineage> {
    let field = |text: &'_ str, key: &str| -> Option<String> {
        text.lines().find_map(|line| {
            line.strip_prefix(key)?.strip_prefix(':').map(|value| value.trim_end().to_owned())
        })
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
        assert!(report.pong && report.role == Role::Master && report.offset == Some(3));
        let lineage = report.lineage.expect("lineage");
        assert_eq!(
            (&*lineage.run_id, &*lineage.replid2, lineage.offset, lineage.second_offset),
            ("abc", "y", 42, -1)
        );
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
        assert_eq!(read_offset(&role), Some(9));
        let replies =
            [text("PONG"), Reply::Error("NOPERM no permissions to run the 'role' command".into())];
        assert!(
            read(&replies, Verify::Role, dialled())
                .expect_err("refused")
                .to_string()
                .contains("+role")
        );
    }
}
