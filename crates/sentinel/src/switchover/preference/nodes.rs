//! Reads and changes `replica-priority` on Redis nodes.

use std::net::SocketAddr;
use std::time::Duration;

use super::plan::{Candidate, PriorityChange};
use crate::NodeAddr;
use crate::link::auth::Denied;
use crate::link::login::Login;
use crate::link::reply::Reply;
use crate::switchover::command_connection::CommandConnection;
use crate::switchover::error::SwitchoverError;

const PRIORITY: &str = "replica-priority";
/// The configuration section that refusals refer to.
const AUTH: &str = "service.auth";
/// All rules that are needed beyond those of the probes.
const RULES: &str = "+config|get +config|set";

/// The result of setting a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SetReply {
    Done,
    /// The server refused it: nothing was changed.
    Refused(SwitchoverError),
    /// No reply: it may take effect.
    Unknown(SwitchoverError),
}

/// The result of an attempt to restore a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RestoreReply {
    /// The node reports the value from before.
    Restored {
        /// It has changed its role or master since, which includes a CONFIG REWRITE.
        is_rewritten: bool,
    },
    /// Neither that value nor the one that was set here.
    Other(u64),
    Failed(String),
}

/// How to log in to the nodes.
#[derive(Debug, Clone)]
pub(super) struct NodeAccess {
    pub(super) login: Login,
    pub(super) timeout: Duration,
}

impl NodeAccess {
    pub(super) async fn open(&self, dialled: SocketAddr) -> Result<CommandConnection, String> {
        CommandConnection::open(dialled, &self.login, AUTH, self.timeout).await
    }
}

/// A replica with its value.
#[derive(Debug)]
pub(super) struct OpenReplica {
    pub(super) candidate: Candidate,
    pub(super) connection: CommandConnection,
    /// Its role and master, to notice that they changed.
    pub(super) role: Option<String>,
}

impl OpenReplica {
    pub(super) async fn open(
        access: &NodeAccess,
        node: NodeAddr,
        dialled: SocketAddr,
    ) -> Result<Self, SwitchoverError> {
        let problem = |problem| SwitchoverError::Node { node: node.clone(), problem };
        let mut connection = access.open(dialled).await.map_err(problem)?;
        let priority = read(&mut connection).await.map_err(problem)?;
        let role = role(&mut connection).await;
        Ok(Self { candidate: Candidate { node, dialled, priority }, connection, role })
    }
}

/// The problem that an error reply reports.
fn refusal(reply: &Reply, command: &'static str) -> Result<(), String> {
    let Some(line) = reply.error() else { return Ok(()) };
    if let Some(denied) = Denied::read(line, command, RULES, AUTH) {
        return Err(denied.to_string());
    }
    if line.starts_with("ERR unknown command") {
        let command = command.split(' ').next().unwrap_or(command);
        return Err(format!("{command} is renamed or disabled there, and --to requires it"));
    }
    let line: String = line.chars().take(120).collect();
    Err(format!("{command} failed: {line}"))
}

async fn read(connection: &mut CommandConnection) -> Result<u64, String> {
    let reply = connection.ask(&["CONFIG", "GET", PRIORITY]).await?;
    refusal(&reply, "CONFIG GET")?;
    let value = reply.field(PRIORITY).and_then(|text| text.parse().ok());
    value.ok_or_else(|| "CONFIG GET returned no replica-priority".to_owned())
}

/// Sets the value of a change. The connection stays usable if there was an answer.
pub(super) async fn set(connection: &mut CommandConnection, change: &PriorityChange) -> SetReply {
    let problem = |problem| SwitchoverError::Node { node: change.node.clone(), problem };
    match connection.ask(&["CONFIG", "SET", PRIORITY, &change.to.to_string()]).await {
        Ok(reply) => match refusal(&reply, "CONFIG SET") {
            Ok(()) => SetReply::Done,
            Err(why) => SetReply::Refused(problem(why)),
        },
        Err(why) => SetReply::Unknown(problem(why)),
    }
}

/// The node's role and, of a replica, its master.
async fn role(connection: &mut CommandConnection) -> Option<String> {
    let reply = connection.ask(&["ROLE"]).await.ok()?;
    let items = reply.list()?;
    let (role, host) = (items.first()?.text()?, items.get(1).and_then(Reply::text));
    let port = items.get(2).and_then(Reply::number).unwrap_or_default();
    Some(format!("{role} {} {port}", host.unwrap_or_default()))
}

/// Restores the value if it is the one that was set, and reads it back. `before` is the role that
/// the node had when the value was set, if known.
pub(super) async fn restore(
    connection: &mut CommandConnection,
    change: &PriorityChange,
    before: Option<&str>,
) -> Result<RestoreReply, String> {
    let value = read(connection).await?;
    if value != change.from && value != change.to {
        return Ok(RestoreReply::Other(value));
    }
    if value == change.to {
        let command = ["CONFIG", "SET", PRIORITY, &change.from.to_string()];
        refusal(&connection.ask(&command).await?, "CONFIG SET")?;
        let value = read(connection).await?;
        if value != change.from {
            return Err(format!("it reports {value} after CONFIG SET"));
        }
    }
    // Sentinel changes the role and rewrites the file in one transaction. A role that is the same
    // after the value was restored means that a rewrite is still to come.
    let is_rewritten = match before {
        Some(before) => role(connection).await.is_none_or(|now| now != before),
        None => false,
    };
    Ok(RestoreReply::Restored { is_rewritten })
}
