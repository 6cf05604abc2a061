//! A connection for single commands to one server, with a timeout for each.

use std::net::SocketAddr;
use std::time::Duration;

use crate::NodeAddr;
use crate::link::auth::{Credentials, Denied};
use crate::link::connection::{RespConnection, USER_TIMEOUT};
use crate::link::links::describe;
use crate::link::login::Login;
use crate::link::reply::Reply;
use crate::link::rotation::Presented;

/// An authenticated connection.
#[derive(Debug)]
pub(super) struct CommandConnection {
    /// `None` after a command without an answer: the answer may still arrive, and would be taken
    /// for that of the next command.
    connection: Option<RespConnection>,
    timeout: Duration,
}

impl CommandConnection {
    /// Connects and authenticates, with older credentials if the server does not know the newest
    /// ones yet. The error is for operators and contains no secret.
    pub(super) async fn open(
        addr: SocketAddr,
        login: &Login,
        setting: &'static str,
        timeout: Duration,
    ) -> Result<Self, String> {
        let connection = RespConnection::connect(addr, login.transport(), timeout, USER_TIMEOUT)
            .await
            .map_err(|error| describe(&error))?;
        let mut talk = Self { connection: Some(connection), timeout };
        let login = login.register(NodeAddr::from(addr));
        loop {
            let Presented { id, credentials } = login.present();
            let words = credentials.as_ref().map_or_else(|| vec!["PING"], Credentials::auth);
            let reply = talk.ask(&words).await?;
            let Some(line) = reply.error() else {
                login.accept(id);
                break;
            };
            match Denied::read(line, "AUTH", "+auth", setting) {
                Some(denied) if login.refuse(id, &denied) => {}
                Some(Denied::NotPermitted { .. }) | None if credentials.is_none() => break,
                Some(denied) => return Err(denied.to_string()),
                None => return Err("it refuses AUTH".to_owned()),
            }
        }
        Ok(talk)
    }

    /// Waits this long for an answer from now on.
    pub(super) fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The connection, for another use; `None` if a command was left without an answer.
    pub(super) fn into_connection(self) -> Option<RespConnection> {
        self.connection
    }

    /// Sends one command and returns its answer.
    pub(super) async fn ask(&mut self, words: &[&str]) -> Result<Reply, String> {
        let mut connection = self.connection.take().ok_or("an earlier command was not answered")?;
        match tokio::time::timeout(self.timeout, connection.ask_one(words)).await {
            Ok(Ok(reply)) => {
                self.connection = Some(connection);
                Ok(reply)
            }
            Ok(Err(error)) => Err(describe(&error)),
            Err(_) => Err(format!("no answer within {} ms", self.timeout.as_millis())),
        }
    }
}
