//! A connection to a Redis node, with at most one pending probe.
//!
//! The handshake is sent together with the first probe, so that a server which accepts connections
//! and does not answer costs one connection, however often it is probed. The credentials go to the
//! committed master at once. Every other node is first asked without them, on each connection, and
//! gets them if it is [trusted](Trust) and does not answer, or has shown the master's history. An
//! answer carries the time of its probe and never counts as younger. No second probe is written
//! while one is pending, so an answer is never attributed to the wrong probe.

use std::net::SocketAddr;

use tls::{Fault, OutsideText, Version};
use tokio::time::Instant;

use crate::link::auth::{Credentials, Denied};
use crate::link::connection::{ConnectionError, RespConnection};
use crate::link::reply::{Reply, info_field};
use crate::link::rotation::{CredentialsId, Presented, Rotation};
use crate::{
    AttachedReplica, Lineage, NodeAddr, NodeReport, PingReply, ProbeFailure, Role, Trust, Verify,
};

/// The configuration section that refusals by Redis nodes refer to.
pub(crate) const AUTH: &str = "service.auth";

/// The maximum number of replicas that are read from a master's answer.
const MAX_REPLICAS: usize = 64;

/// A pending probe.
struct PendingProbe {
    /// When it was written.
    asked_at: Instant,
    /// What it asks for: the rule may change while it is pending.
    verify: Verify,
    /// Number of handshake replies that precede the answers; 0 unless the connection is new.
    handshake: usize,
    answers: Vec<Reply>,
}

/// A probe connection. See the module's header.
pub struct ProbeConnection {
    connection: RespConnection,
    pub(crate) dialled: SocketAddr,
    /// The credentials of the handshake.
    login: Presented,
    pending: Option<PendingProbe>,
    /// When the first probe was sent.
    first_asked_at: Option<Instant>,
    /// The credentials were sent, or there are none.
    authenticated: bool,
    /// The server answers less without credentials.
    wants_password: bool,
    /// A probe was answered on it.
    answered: bool,
    /// The last full answer on it. The connection leads to one process, so that answer still
    /// identifies it while a script keeps it from answering more than `BUSY`.
    known: Option<NodeReport>,
    /// The `run_id` of the process whose answers count, if others do not.
    only: Option<[Box<str>; 2]>,
}

/// Why there is no report.
#[derive(Debug)]
pub enum ProbeError {
    /// The node did not answer, or its answer is of no use.
    Failed(ProbeFailure),
    /// The dial timed out: no server is there, or the accept queue of a busy server is full.
    DialTimedOut,
    /// It refused the connection or a command.
    Denied(Denied),
    /// TLS failed: for discovery the node is unreachable.
    Tls(Fault),
}

impl From<ConnectionError> for ProbeError {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::ConnectTimeout(_) => Self::DialTimedOut,
            ConnectionError::Tls(fault) => Self::Tls(fault),
            _ => Self::Failed(ProbeFailure::Unreachable),
        }
    }
}

impl ProbeError {
    /// What discovery has to know of it.
    pub(super) fn failure(&self) -> ProbeFailure {
        match self {
            Self::Failed(failure) => *failure,
            Self::DialTimedOut | Self::Tls(_) => ProbeFailure::Unreachable,
            Self::Denied(denied) if denied.is_server_wide() => ProbeFailure::ConnectionRejected,
            Self::Denied(_) => ProbeFailure::Denied,
        }
    }
}

/// The result of a probe.
pub type ProbeResult = Result<NodeReport, ProbeError>;

impl ProbeConnection {
    /// A connection on which nothing was sent, for a node that gets these credentials.
    #[must_use]
    pub fn with_credentials(
        connection: RespConnection,
        dialled: SocketAddr,
        credentials: Option<Credentials>,
    ) -> Self {
        Self::new(connection, dialled, Rotation::new(credentials).newest().clone())
    }

    pub(crate) fn new(connection: RespConnection, dialled: SocketAddr, login: Presented) -> Self {
        let authenticated = login.credentials.is_none();
        Self {
            connection,
            dialled,
            login,
            pending: None,
            first_asked_at: None,
            authenticated,
            wants_password: false,
            answered: false,
            known: None,
            only: None,
        }
    }

    /// Lets only the answers of a process with one of these `run_id`s count, if some are given.
    pub(crate) fn only(self, run_ids: Option<[Box<str>; 2]>) -> Self {
        Self { only: run_ids, ..self }
    }

    /// The credentials with which it was opened.
    pub(crate) fn credentials(&self) -> CredentialsId {
        self.login.id
    }

    /// The credentials were sent, or there are none.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// The version of TLS; `None` for plain text.
    pub(crate) fn tls(&self) -> Option<Version> {
        self.connection.tls().map(|it| it.version)
    }

    /// When the pending probe was written, if there is one.
    pub(crate) fn asked_at(&self) -> Option<Instant> {
        self.pending.as_ref().map(|pending| pending.asked_at)
    }

    /// A probe was answered on this connection.
    pub(crate) fn has_answered(&self) -> bool {
        self.answered
    }

    /// The handshake is complete and no reply is owed.
    pub(crate) fn is_idle(&self) -> bool {
        self.first_asked_at.is_some() && self.pending.is_none()
    }

    /// The connection itself, if no reply is owed on it.
    #[must_use]
    pub fn into_connection(self) -> Option<RespConnection> {
        self.is_idle().then_some(self.connection)
    }

    /// Waits for a late answer, or for the end of the connection: `None`. An unsolicited reply
    /// ends it, too, since answers could not be attributed any more. Cancel-safe.
    pub(crate) async fn wait(&mut self) -> Option<(Instant, ProbeResult)> {
        if self.pending.is_none() {
            let _ = self.connection.next().await;
            return None;
        }
        match self.receive().await {
            Ok(()) => Some(self.take_result()),
            Err(_) => self
                .rejection()
                .map(|(asked_at, denied)| (asked_at, Err(ProbeError::Denied(denied)))),
        }
    }

    /// The error with which the server rejected the connection, if it ended for that reason.
    /// Such an error is the first reply of a connection; a later error is an answer and says
    /// nothing about the end.
    #[must_use]
    pub fn rejection(&self) -> Option<(Instant, Denied)> {
        let pending = self.pending.as_ref().filter(|pending| pending.handshake > 0)?;
        let line = pending.answers.first()?.error()?;
        Some((pending.asked_at, Denied::read_last(line, AUTH)?))
    }

    /// Data arrived without a probe.
    pub(crate) fn has_unsolicited_input(&self) -> bool {
        self.pending.is_none() && self.connection.has_input()
    }

    /// Probes the node and returns its answer, with credentials if `trust` allows them and it does
    /// not answer without. Cancel-safe: the probe then stays pending.
    ///
    /// # Errors
    ///
    /// The connection ended.
    pub async fn probe(
        &mut self,
        verify: Verify,
        trust: Trust,
    ) -> Result<(Instant, ProbeResult), ConnectionError> {
        loop {
            let anonymous = !self.authenticated;
            self.ask(verify, trust).await?;
            let result = self.take_result();
            if !(anonymous && self.may_authenticate(trust)) {
                return Ok(result);
            }
        }
    }

    /// Whether the next probe sends the credentials.
    fn may_authenticate(&self, trust: Trust) -> bool {
        let shown = |at| self.first_asked_at.is_some_and(|first| at >= first.into_std());
        let allowed = match trust {
            Trust::Stranger => false,
            Trust::Vouched => self.wants_password,
            Trust::Shown(at) => self.wants_password || shown(at),
            Trust::Committed => true,
        };
        allowed && !self.authenticated
    }

    /// Sends a probe, after the handshake on a new connection, or keeps waiting for the pending
    /// one.
    async fn ask(&mut self, verify: Verify, trust: Trust) -> Result<(), ConnectionError> {
        if self.pending.is_none() {
            let (mut request, auth) = (Vec::new(), self.may_authenticate(trust));
            if auth || self.first_asked_at.is_none() {
                let credentials = self.login.credentials.as_ref().filter(|_| auth);
                request.extend(credentials.map(Credentials::auth));
                self.authenticated |= credentials.is_some();
                // The name only helps readers of CLIENT LIST; a server may refuse it.
                request.push(vec!["CLIENT", "SETNAME", "pointsman"]);
            }
            let handshake = request.len();
            request.extend(commands(verify).iter().map(|words| words.to_vec()));
            let (asked_at, answers) = (Instant::now(), Vec::new());
            self.first_asked_at.get_or_insert(asked_at);
            self.pending = Some(PendingProbe { asked_at, verify, handshake, answers });
            self.connection.send(&request).await?;
        }
        self.receive().await
    }

    /// Waits for the remaining answers to the pending probe. Cancel-safe.
    async fn receive(&mut self) -> Result<(), ConnectionError> {
        let Some(pending) = &mut self.pending else { return Ok(()) };
        while pending.answers.len() < pending.handshake + commands(pending.verify).len() {
            pending.answers.push(self.connection.next().await?);
        }
        Ok(())
    }

    /// Evaluates the answers to the pending probe, which is complete after that.
    pub(crate) fn take_result(&mut self) -> (Instant, ProbeResult) {
        let Some(PendingProbe { asked_at, verify, handshake, answers }) = self.pending.take()
        else {
            return (Instant::now(), Err(ProbeError::Failed(ProbeFailure::Unreachable)));
        };
        self.answered = true;
        let (handshake, answers) = answers.split_at_checked(handshake).unwrap_or_default();
        // With credentials, the first of two handshake replies is that to AUTH; a refused name is
        // ignored.
        let refused = match handshake {
            [auth, _] => auth.error().and_then(|line| Denied::read(line, "AUTH", "+auth", AUTH)),
            _ => None,
        };
        let outcome = refused.map_or_else(|| read(answers, verify, self.dialled), Err);
        let unread = |report: &NodeReport| {
            verify == Verify::Role && report.lineage.is_none() && report.ping != PingReply::Busy
        };
        self.wants_password = !self.authenticated
            && outcome.as_ref().map_or_else(|denied| !denied.is_server_wide(), unread);
        let withheld = self.wants_password;
        let denied = |denied| if withheld { Denied::PasswordWithheld } else { denied };
        let outcome = outcome.map_err(|it| ProbeError::Denied(denied(it)));
        (asked_at, outcome.and_then(|report| self.identify(report, verify)))
    }

    /// Completes the answer of a server that is busy with a script. It also answers `ROLE` and
    /// `INFO` with `BUSY`, and refuses to change its role meanwhile.
    fn identify(&mut self, report: NodeReport, verify: Verify) -> ProbeResult {
        if verify != Verify::Role || report.ping != PingReply::Busy || report.role != Role::Unknown
        {
            let process = report.lineage.as_ref().map(|it| &it.run_id);
            if self.only.as_ref().is_some_and(|only| !process.is_some_and(|it| only.contains(it))) {
                return Err(ProbeError::Failed(ProbeFailure::Unreachable));
            }
            self.known = Some(report.clone());
            return Ok(report);
        }
        let known = self.known.clone().ok_or(ProbeError::Failed(ProbeFailure::Busy))?;
        Ok(NodeReport { ping: PingReply::Busy, offset: None, ..known })
    }
}

/// The commands of a probe.
fn commands(verify: Verify) -> &'static [&'static [&'static str]] {
    const ALL: &[&[&str]] = &[&["PING"], &["ROLE"], &["INFO", "server"], &["INFO", "replication"]];
    match verify {
        Verify::Role => ALL,
        Verify::Ping => &[&["PING"]],
        Verify::Tcp => &[],
    }
}

/// Evaluates the answers to one probe.
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
    let ping = match replies.first() {
        Some(reply) if reply.text() == Some("PONG") => PingReply::Pong,
        reply => reply.and_then(Reply::error).map_or(PingReply::Other, PingReply::from_error),
    };
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
    let replicas = replies.get(1).filter(|_| role == Role::Master).and_then(read_replicas);
    Ok(NodeReport { dialled, role, ping, offset, lineage, replicas })
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

/// The replicas in the `ROLE` reply of a master, as they announce themselves.
fn read_replicas(reply: &Reply) -> Option<Box<[AttachedReplica]>> {
    let entry = |reply: &Reply| match reply.list()? {
        [host, port, offset, ..] => Some(AttachedReplica {
            addr: NodeAddr::parse(host.text()?, port.text()?)?,
            // One that cannot be read confirms nothing.
            acknowledged: offset.text().and_then(|it| it.parse().ok()).unwrap_or(0),
        }),
        _ => None,
    };
    Some(reply.list()?.get(2)?.list()?.iter().filter_map(entry).take(MAX_REPLICAS).collect())
}

/// The offset in a `ROLE` reply: the second element for a master, the fifth for a replica (-1 while
/// it has none).
fn read_offset(reply: &Reply) -> Option<u64> {
    let items = reply.list()?;
    let at = if items.first().and_then(Reply::text) == Some("master") { 1 } else { 4 };
    u64::try_from(items.get(at)?.number()?).ok()
}

fn read_lineage(server: &str, replication: &str) -> Option<Lineage> {
    let field = |text: &str, key: &str| info_field(text, key).map(OutsideText::from);
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
    fn reads_master_with_lineage() {
        let replies = [
            text("PONG"),
            Reply::List(vec![text("master"), Reply::Number(3), Reply::List(vec![])]),
            text("# Server\r\nrun_id:abc\r\n"),
            text(
                "role:master\r\nmaster_replid:x\r\nmaster_replid2:y\r\nmaster_repl_offset:42\r\nsecond_repl_offset:-1\r\n",
            ),
        ];
        let report = read(&replies, Verify::Role, dialled()).expect("a report");
        assert!(
            report.ping == PingReply::Pong
                && report.role == Role::Master
                && report.offset == Some(3)
        );
        let lineage = report.lineage.expect("lineage");
        assert_eq!(
            (&*lineage.run_id, &*lineage.replid2, lineage.offset, lineage.second_offset),
            ("abc", "y", 42, -1)
        );
    }

    #[test]
    fn reads_role_of_loading_server_without_pong() {
        let replies = [
            Reply::Error("LOADING Redis is loading the dataset in memory".into()),
            Reply::List(vec![text("master"), Reply::Number(0), Reply::List(vec![])]),
            Reply::Error("LOADING".into()),
            Reply::Error("LOADING".into()),
        ];
        let report = read(&replies, Verify::Role, dialled()).expect("a report");
        assert!(
            report.ping == PingReply::Loading
                && report.role == Role::Master
                && report.lineage.is_none()
        );
    }

    #[test]
    fn reads_master_of_replica_and_names_missing_acl_rule() {
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
