//! Asks a new master about commands that the built-in table lacks.
//!
//! A server that is newer than this program has commands that the table does not know, and a
//! session that uses one would be pinned although the command leaves nothing on its connection.
//! The names come from `COMMAND LIST`, and what they do from `COMMAND INFO`, once per master. A
//! server that refuses one of the two, or has no `LIST` (before Redis 7), leaves the built-in table
//! alone.
//!
//! The question has a connection of its own, so that no probe waits behind a large reply.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use resp::{CommandInfo, is_unlisted};

use crate::NodeAddr;
use crate::link::backoff::Backoff;
use crate::link::connection::{ConnectionError, RespConnection, USER_TIMEOUT};
use crate::link::login::ServerLogin;
use crate::link::poll::put_command;
use crate::link::reply::Reply;
use crate::prober::ProberFactory;

/// Maximum number of commands that are asked about. Of a server that lists more, the rest counts
/// as unknown.
const MAX_NAMES: usize = 512;

/// Bounds of the pause before a server that did not answer is asked again.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Why there is no answer.
enum NotRead {
    /// The server does not show its commands.
    Refused,
    /// The server may show them later.
    Failed,
}

impl From<ConnectionError> for NotRead {
    fn from(_: ConnectionError) -> Self {
        Self::Failed
    }
}

/// Asks the master until it answers or refuses, and stores the answer. Runs until its owner drops
/// it.
pub(crate) async fn run(
    service: Arc<str>,
    node: NodeAddr,
    dialled: SocketAddr,
    factory: Arc<ProberFactory>,
) {
    let login = factory.login.register(node.clone());
    let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
    let commands = loop {
        let timeout = factory.timeout();
        match tokio::time::timeout(timeout, ask(dialled, &login, timeout)).await {
            Ok(Ok(commands)) => break commands,
            Ok(Err(NotRead::Refused)) => break Vec::new(),
            Ok(Err(NotRead::Failed)) | Err(_) => tokio::time::sleep(backoff.pause()).await,
        }
    };
    let carried = factory.commands.store(&commands);
    if !commands.is_empty() {
        let names = carried.join(" ");
        let pinning = commands.iter().filter(|it| !it.is_stateless()).count();
        tracing::info!(
            service = &*service, target = %node, stateless = %names, pinning,
            "the server has commands that the built-in table lacks"
        );
    }
}

/// The server's commands that are not in the table.
async fn ask(
    addr: SocketAddr,
    login: &ServerLogin,
    timeout: Duration,
) -> Result<Vec<CommandInfo>, NotRead> {
    let mut connection =
        RespConnection::connect((addr, login.transport()), timeout, USER_TIMEOUT).await?;
    let mut request = BytesMut::new();
    let credentials = login.present().credentials;
    if let Some(credentials) = &credentials {
        put_command(&mut request, &credentials.auth());
    }
    put_command(&mut request, &["COMMAND", "LIST"]);
    connection.send(&request).await?;
    if credentials.is_some() && connection.next().await?.error().is_some() {
        return Err(NotRead::Failed);
    }
    let names = unlisted(&answer(connection.next().await?)?);
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let question: Vec<&str> =
        ["COMMAND", "INFO"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut request = BytesMut::new();
    put_command(&mut request, &question);
    connection.send(&request).await?;
    let mut commands = Vec::new();
    for entry in answer(connection.next().await?)? {
        read_entry(&entry, &mut commands);
    }
    Ok(commands)
}

/// The elements of an answer.
fn answer(reply: Reply) -> Result<Vec<Reply>, NotRead> {
    match reply {
        Reply::List(items) => Ok(items),
        Reply::Error(line) if line.starts_with("LOADING") || line.starts_with("BUSY") => {
            Err(NotRead::Failed)
        }
        _ => Err(NotRead::Refused),
    }
}

/// The names among these that are not in the table.
fn unlisted(names: &[Reply]) -> Vec<String> {
    let names = names.iter().filter_map(Reply::text).filter(|name| is_unlisted(name));
    names.take(MAX_NAMES).map(str::to_owned).collect()
}

/// Reads the entry of a command, with those of its subcommands. What is not an entry says nothing.
fn read_entry(entry: &Reply, into: &mut Vec<CommandInfo>) {
    let Some(fields) = entry.list() else { return };
    let Some(name) = fields.first().and_then(Reply::text) else { return };
    let words = |at: usize| fields.get(at).and_then(Reply::list).unwrap_or_default();
    let first_key = fields.get(3).and_then(Reply::number).unwrap_or_default();
    let flags = [2, 6].into_iter().flat_map(words).filter_map(Reply::text).map(str::to_owned);
    into.push(CommandInfo {
        name: name.to_owned(),
        has_keys: first_key != 0 || !words(8).is_empty(),
        flags: flags.collect(),
    });
    // A subcommand has none of its own.
    if !name.contains('|') {
        words(9).iter().for_each(|subcommand| read_entry(subcommand, into));
    }
}
