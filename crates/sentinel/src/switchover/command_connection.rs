//! A connection for single commands to one server, with a timeout for each. It connects with its
//! first command, and anew after a command without an answer; no command is sent twice.

use std::net::SocketAddr;
use std::time::Duration;

use crate::NodeAddr;
use crate::link::auth::{Credentials, Denied};
use crate::link::connection::{RespConnection, USER_TIMEOUT};
use crate::link::links::describe;
use crate::link::login::Login;
use crate::link::poll::SENTINEL_AUTH;
use crate::link::reply::Reply;
use crate::link::rotation::Presented;

/// How long one command may take, a subscription, or the lookup of an address.
pub(super) const TIMEOUT: Duration = Duration::from_millis(500);

/// Why a command has no result. The texts are for operators and contain no secret.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    /// The server refused it, or it was not sent.
    #[error("{0}")]
    NotExecuted(String),
    /// No answer arrived: the server may execute it, even later.
    #[error("{0}")]
    Unanswered(String),
}

impl From<CommandError> for String {
    fn from(error: CommandError) -> Self {
        error.to_string()
    }
}

/// A server that is logged in to.
#[derive(Debug)]
pub(super) struct CommandConnection {
    addr: SocketAddr,
    login: Login,
    /// The configuration section that refusals refer to.
    setting: &'static str,
    /// How long an answer is waited for.
    pub(super) timeout: Duration,
    /// `None` after a command without an answer: the answer may still arrive, and would be taken
    /// for that of the next command.
    connection: Option<RespConnection>,
}

impl CommandConnection {
    pub(super) fn to_node(addr: SocketAddr, login: Login) -> Self {
        Self { addr, login, setting: "service.auth", timeout: TIMEOUT, connection: None }
    }

    /// A sentinel does not answer while it writes its configuration to a slow disk.
    pub(super) fn to_sentinel(addr: SocketAddr, login: Login) -> Self {
        Self { addr, login, setting: SENTINEL_AUTH, timeout: TIMEOUT * 2, connection: None }
    }

    /// Connects and authenticates, with older credentials if the server does not know the newest
    /// ones yet.
    pub(super) async fn connect(&mut self) -> Result<RespConnection, String> {
        let transport = self.login.transport();
        let connecting =
            RespConnection::connect(self.addr, transport, self.timeout, USER_TIMEOUT).await;
        let mut connection = connecting.map_err(|error| describe(&error))?;
        let login = self.login.register(NodeAddr::from(self.addr));
        loop {
            let Presented { id, credentials } = login.present();
            let words = credentials.as_ref().map_or_else(|| vec!["PING"], Credentials::auth);
            let reply = exchange(&mut connection, &words, self.timeout).await?;
            let Some(line) = reply.error() else {
                login.accept(id);
                return Ok(connection);
            };
            match Denied::read(line, "AUTH", "+auth", self.setting) {
                Some(denied) if login.refuse(id, &denied) => {}
                Some(Denied::NotPermitted { .. }) | None if credentials.is_none() => {
                    return Ok(connection);
                }
                Some(denied) => return Err(denied.to_string()),
                None => return Err("it refuses AUTH".to_owned()),
            }
        }
    }

    /// Sends one command and returns its answer, which may be an error reply.
    pub(super) async fn ask(&mut self, words: &[&str]) -> Result<Reply, CommandError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await.map_err(CommandError::NotExecuted)?,
        };
        let reply = exchange(&mut connection, words, self.timeout).await;
        let reply = reply.map_err(CommandError::Unanswered)?;
        self.connection = Some(connection);
        Ok(reply)
    }

    /// Executes one command, which the ACL `rule` allows.
    pub(super) async fn run(
        &mut self,
        words: &[&str],
        command: &'static str,
        rule: &'static str,
    ) -> Result<Reply, CommandError> {
        let reply = self.ask(words).await?;
        self.accepted(reply, command, rule)
    }

    /// The reply to a command, unless it is an error.
    pub(super) fn accepted(
        &self,
        reply: Reply,
        command: &'static str,
        rule: &'static str,
    ) -> Result<Reply, CommandError> {
        let Some(line) = reply.error() else { return Ok(reply) };
        Err(CommandError::NotExecuted(match Denied::read(line, command, rule, self.setting) {
            Some(denied) => denied.to_string(),
            None if line.starts_with("ERR unknown command") => {
                format!("{command} is renamed or disabled there")
            }
            None => format!("{command} failed: {}", line.chars().take(120).collect::<String>()),
        }))
    }
}

async fn exchange(
    connection: &mut RespConnection,
    words: &[&str],
    timeout: Duration,
) -> Result<Reply, String> {
    match tokio::time::timeout(timeout, connection.ask_one(words)).await {
        Ok(reply) => reply.map_err(|error| describe(&error)),
        Err(_) => Err(format!("no answer within {} ms", timeout.as_millis())),
    }
}
