//! A connection for single commands to one server, with a timeout for each.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;

use crate::link::auth::{Credentials, Denied};
use crate::link::connection::{RespConnection, USER_TIMEOUT};
use crate::link::links::describe;
use crate::link::poll::put_command;
use crate::link::reply::Reply;

/// An authenticated connection.
#[derive(Debug)]
pub(super) struct CommandConnection {
    /// `None` after a command without an answer: the answer may still arrive, and would be taken
    /// for that of the next command.
    connection: Option<RespConnection>,
    timeout: Duration,
}

impl CommandConnection {
    /// Connects and authenticates. The error is for operators and contains no secret.
    pub(super) async fn open(
        addr: SocketAddr,
        (credentials, setting): (Option<&Credentials>, &'static str),
        timeout: Duration,
    ) -> Result<Self, String> {
        let connection = RespConnection::connect(addr, timeout, USER_TIMEOUT)
            .await
            .map_err(|error| describe(&error))?;
        let mut talk = Self { connection: Some(connection), timeout };
        if let Some(credentials) = credentials {
            let reply = talk.ask(&credentials.auth()).await?;
            if let Some(line) = reply.error() {
                let denied = Denied::read(line, "AUTH", "+auth", setting);
                return Err(denied
                    .map_or_else(|| "it refuses AUTH".to_owned(), |denied| denied.to_string()));
            }
        }
        Ok(talk)
    }

    /// The connection, for another use; `None` if a command was left without an answer.
    pub(super) fn into_connection(self) -> Option<RespConnection> {
        self.connection
    }

    /// Sends one command and returns its answer.
    pub(super) async fn ask(&mut self, words: &[&str]) -> Result<Reply, String> {
        let mut command = BytesMut::new();
        put_command(&mut command, words);
        let mut connection = self.connection.take().ok_or("an earlier command was not answered")?;
        let asking = async {
            connection.send(&command).await?;
            connection.next().await
        };
        match tokio::time::timeout(self.timeout, asking).await {
            Ok(Ok(reply)) => {
                self.connection = Some(connection);
                Ok(reply)
            }
            Ok(Err(error)) => Err(describe(&error)),
            Err(_) => Err(format!("no answer within {} ms", self.timeout.as_millis())),
        }
    }
}
