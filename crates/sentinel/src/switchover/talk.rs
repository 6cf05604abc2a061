//! A short conversation with one server, every step of it bounded.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;

use crate::auth::{Credentials, Denied};
use crate::conn::{Conn, USER_TIMEOUT};
use crate::questions::put_command;
use crate::reply::Reply;

/// An open connection that has said who we are.
pub(super) struct Talk {
    conn: Conn,
    patience: Duration,
}

impl Talk {
    /// Connects and authenticates. The error is for people and holds no secret.
    pub(super) async fn open(
        addr: SocketAddr,
        (credentials, setting): (Option<&Credentials>, &'static str),
        patience: Duration,
    ) -> Result<Self, String> {
        let conn = Conn::connect(addr, patience, USER_TIMEOUT).await.map_err(|error| chain(&error))?;
        let mut talk = Self { conn, patience };
        if let Some(credentials) = credentials {
            let reply = talk.ask(&credentials.auth()).await?;
            if let Some(line) = reply.error() {
                let denied = Denied::read(line, "AUTH", "+auth", setting);
                return Err(denied.map_or_else(|| "it refuses AUTH".to_owned(), |denied| denied.to_string()));
            }
        }
        Ok(talk)
    }

    /// One command and its answer.
    pub(super) async fn ask(&mut self, words: &[&str]) -> Result<Reply, String> {
        let mut command = BytesMut::new();
        put_command(&mut command, words);
        let asking = async {
            self.conn.send(&command).await?;
            self.conn.next().await
        };
        match tokio::time::timeout(self.patience, asking).await {
            Ok(answered) => answered.map_err(|error| chain(&error)),
            Err(_) => Err(format!("no answer within {} ms", self.patience.as_millis())),
        }
    }
}

/// The error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
