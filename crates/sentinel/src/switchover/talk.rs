//! A short conversation with one server, every step of it bounded.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;

use crate::link::auth::{Credentials, Denied};
use crate::link::conn::{Conn, USER_TIMEOUT};
use crate::link::links::describe;
use crate::link::poll::put_command;
use crate::link::reply::Reply;

/// An open connection that has said who we are.
#[derive(Debug)]
pub(super) struct Talk {
    /// `None` after a question without an answer: the answer may still come, and would be taken for
    /// the next one's.
    conn: Option<Conn>,
    patience: Duration,
}

impl Talk {
    /// Connects and authenticates. The error is for people and holds no secret.
    pub(super) async fn open(
        addr: SocketAddr,
        (credentials, setting): (Option<&Credentials>, &'static str),
        patience: Duration,
    ) -> Result<Self, String> {
        let conn =
            Conn::connect(addr, patience, USER_TIMEOUT).await.map_err(|error| describe(&error))?;
        let mut talk = Self { conn: Some(conn), patience };
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

    /// The connection, for another use; `None` if a question was left without an answer.
    pub(super) fn into_conn(self) -> Option<Conn> {
        self.conn
    }

    /// One command and its answer.
    pub(super) async fn ask(&mut self, words: &[&str]) -> Result<Reply, String> {
        let mut command = BytesMut::new();
        put_command(&mut command, words);
        let mut conn = self.conn.take().ok_or("an earlier question got no answer")?;
        let asking = async {
            conn.send(&command).await?;
            conn.next().await
        };
        match tokio::time::timeout(self.patience, asking).await {
            Ok(Ok(reply)) => {
                self.conn = Some(conn);
                Ok(reply)
            }
            Ok(Err(error)) => Err(describe(&error)),
            Err(_) => Err(format!("no answer within {} ms", self.patience.as_millis())),
        }
    }
}
