//! Asks a master about commands of which it may know more than the built-in table.
//!
//! A server that is newer than this program has commands that the table does not know, and a
//! session that uses one would be pinned although the command leaves nothing on its connection.
//! Where writes are confirmed, so would be every command that is not known to read only. The names
//! come from `COMMAND LIST`, and what they do from `COMMAND INFO`, once per process of a master. A
//! server that refuses one of the two, or has no `LIST` (before Redis 7), leaves the built-in table
//! alone.
//!
//! The question follows an answer of the master to a probe, and is repeated after the next one if
//! it fails. So it goes to an address at which the committed process has just answered, and ends
//! with that. It has a connection of its own: no probe waits behind a large reply.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use resp::{CommandInfo, is_questionable, is_unlisted};
use tokio_util::task::AbortOnDropHandle;

use crate::NodeAddr;
use crate::link::auth::{Credentials, Denied};
use crate::link::connection::{ConnectionError, RespConnection, USER_TIMEOUT};
use crate::link::login::ServerLogin;
use crate::link::reply::Reply;
use crate::prober::ProberFactory;
use crate::prober::probe_connection::AUTH;

/// Maximum number of commands that are asked about. Of a server that lists more, the rest counts
/// as unknown.
const MAX_NAMES: usize = 512;

/// Why there is no answer.
enum NotRead {
    /// The server does not show its commands.
    Refused,
    /// The server may show them later.
    Failed,
}

impl From<ConnectionError> for NotRead {
    fn from(error: ConnectionError) -> Self {
        match error {
            // It would be as large, or as odd, the next time.
            ConnectionError::Malformed(_) => Self::Refused,
            _ => Self::Failed,
        }
    }
}

impl From<&str> for NotRead {
    /// From an error of the server.
    fn from(line: &str) -> Self {
        let denied = Denied::read(line, "COMMAND", "+command", AUTH);
        let is_full = denied.is_some_and(|it| it.is_server_wide());
        let is_busy = line.starts_with("LOADING") || line.starts_with("BUSY");
        if is_full || is_busy { Self::Failed } else { Self::Refused }
    }
}

/// The question to the process of a master. Dropping it ends it.
pub(crate) struct CommandsQuestion {
    dialled: SocketAddr,
    run_id: Option<Box<str>>,
    /// It was answered or refused.
    is_settled: Arc<AtomicBool>,
    attempt: Option<AbortOnDropHandle<()>>,
}

impl CommandsQuestion {
    /// The question to the process with this `run_id` at this address.
    pub(crate) fn new(dialled: SocketAddr, run_id: Option<&str>) -> Self {
        let run_id = run_id.map(Box::from);
        Self { dialled, run_id, is_settled: Arc::default(), attempt: None }
    }

    /// Whether it is the question to that process.
    pub(crate) fn is_to(&self, dialled: SocketAddr, run_id: Option<&str>) -> bool {
        self.dialled == dialled && self.run_id.as_deref() == run_id
    }

    /// Asks, unless that was answered or is under way.
    pub(crate) fn ask(
        &mut self,
        service: &Arc<str>,
        node: &NodeAddr,
        factory: &Arc<ProberFactory>,
    ) {
        let is_pending = self.attempt.as_ref().is_some_and(|it| !it.is_finished());
        if is_pending || self.is_settled.load(Ordering::Acquire) {
            return;
        }
        let (dialled, is_settled) = (self.dialled, Arc::clone(&self.is_settled));
        let (service, node, factory) = (Arc::clone(service), node.clone(), Arc::clone(factory));
        self.attempt = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let (login, timeout) = (factory.login.register(node.clone()), factory.timeout());
            match tokio::time::timeout(timeout, ask(dialled, &login, timeout)).await {
                Ok(Ok(commands)) => store(&service, &node, &factory, &commands),
                Ok(Err(NotRead::Refused)) => store(&service, &node, &factory, &[]),
                Ok(Err(NotRead::Failed)) | Err(_) => return,
            }
            is_settled.store(true, Ordering::Release);
        })));
    }
}

/// Stores what the server says, for the ledgers of the service.
fn store(service: &str, node: &NodeAddr, factory: &ProberFactory, commands: &[CommandInfo]) {
    let carried = factory.commands.store(commands);
    let unlisted = commands.iter().filter(|it| is_unlisted(&it.name));
    let pinning = unlisted.filter(|it| !it.is_stateless()).count();
    if !carried.is_empty() || pinning > 0 {
        let names = carried.join(" ");
        tracing::info!(
            service, target = %node, stateless = %names, pinning,
            "the server has commands that the built-in table lacks"
        );
    }
}

/// What the server says of its questionable commands.
async fn ask(
    addr: SocketAddr,
    login: &ServerLogin,
    timeout: Duration,
) -> Result<Vec<CommandInfo>, NotRead> {
    let mut connection =
        RespConnection::connect(addr, login.transport(), timeout, USER_TIMEOUT).await?;
    let credentials = login.present().credentials;
    let mut request: Vec<_> = credentials.iter().map(Credentials::auth).collect();
    request.push(vec!["COMMAND", "LIST"]);
    let mut replies = Vec::new();
    let asked = connection.ask(&request, &mut replies).await;
    // A server may refuse the credentials and end the connection.
    if let Some(line) = replies.first().and_then(Reply::error) {
        return Err(line.into());
    }
    asked?;
    let names = questionable(&answer(replies.pop().unwrap_or(Reply::Null))?);
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let question: Vec<&str> =
        ["COMMAND", "INFO"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut commands = Vec::new();
    for entry in answer(connection.ask_one(&question).await?)? {
        read_entry(&entry, &mut commands);
    }
    Ok(commands)
}

/// The elements of an answer.
fn answer(reply: Reply) -> Result<Vec<Reply>, NotRead> {
    match reply {
        Reply::List(items) => Ok(items),
        reply => Err(reply.error().map_or(NotRead::Refused, NotRead::from)),
    }
}

/// The names among these about which the server has to be asked.
fn questionable(names: &[Reply]) -> Vec<String> {
    let names = names.iter().filter_map(Reply::text).filter(|name| is_questionable(name));
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
