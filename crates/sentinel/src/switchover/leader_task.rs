//! Chooses the sentinel that starts the failover, and executes the commands for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::SwitchoverLimits;
use super::command_connection::CommandConnection;
use super::error::SwitchoverError;
use super::leader::{self, LeaderView, read_event, read_view};
use super::participants::Participants;
use super::steps::{FailoverKind, FailoverReply, Input};
use crate::NodeAddr;
use crate::discovery::handle::ConnectionSettings;
use crate::link::auth::Denied;
use crate::link::connection::{ConnectionError, RespConnection};
use crate::link::links::describe;
use crate::link::poll::{SENTINEL_AUTH, has_flag, read_tilt};
use crate::link::reply::Reply;
use crate::link::subscription;
use crate::net::resolve::Lookup;

/// Timeout for the other sentinels, since traffic is held while they are asked.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(100);

/// Commands for the leader.
#[derive(Debug, Clone, Copy)]
pub(super) enum LeaderCommand {
    StartFailover(FailoverKind),
    View,
}

/// The sentinel that starts the failover.
#[derive(Debug)]
pub(super) struct FailoverLeader {
    pub(super) addr: NodeAddr,
    pub(super) view: LeaderView,
    pub(super) connection: CommandConnection,
    /// The sentinels that do not start the failover.
    pub(super) others: Vec<(NodeAddr, CommandConnection)>,
    /// `None` if its ACL does not allow SUBSCRIBE: its answers say the same, later.
    pub(super) events: Option<RespConnection>,
}

impl FailoverLeader {
    /// The first sentinel that can start the failover, with a subscription to its events. All are
    /// asked, because none may be failing over already: two failovers at once can promote two
    /// replicas.
    pub(super) async fn choose(
        access: &ConnectionSettings,
        participants: &Participants,
        limits: SwitchoverLimits,
    ) -> Result<Self, SwitchoverError> {
        let mut problem = String::from("no sentinel is reachable");
        let (mut chosen, mut others): (Option<Self>, Vec<(NodeAddr, CommandConnection)>) =
            (None, Vec::new());
        for sentinel in &participants.sentinels {
            match Self::open(access, sentinel, limits).await {
                Ok(leader) if leader.view.failing_over => {
                    return Err(SwitchoverError::FailingOver(leader.addr));
                }
                Ok(leader) if chosen.is_some() => others.push((leader.addr, leader.connection)),
                Ok(leader) if leader.view.master != participants.master => {
                    problem = format!("{sentinel}: it names {} as the master", leader.view.master);
                }
                Ok(leader) if leader.view.down => {
                    problem = format!("{sentinel}: it considers the master down");
                }
                Ok(leader) => chosen = Some(leader),
                Err(why) => problem = format!("{sentinel}: {why}"),
            }
        }
        chosen.map(|leader| Self { others, ..leader }).ok_or(SwitchoverError::Refused(problem))
    }

    async fn open(
        access: &ConnectionSettings,
        sentinel: &NodeAddr,
        limits: SwitchoverLimits,
    ) -> Result<Self, String> {
        let login = access.sentinel_auth.load_full();
        let mut lookup = Lookup::new(&access.resolver, &sentinel.host, sentinel.port);
        let addr = lookup.address(limits.timeout).await.map_err(|error| error.to_string())?;
        login.transport().set_name(addr, &sentinel.host);
        // A sentinel does not answer while it writes its configuration to a slow disk.
        let mut connection =
            CommandConnection::open(addr, &login, SENTINEL_AUTH, limits.timeout * 2).await?;
        if read_tilt(&connection.ask(&["INFO", "sentinel"]).await?) {
            return Err("it is in TILT".to_owned());
        }
        let view = view(&mut connection, &access.master_name).await?;
        let events = subscribe(
            CommandConnection::open(addr, &login, SENTINEL_AUTH, limits.timeout).await?,
            limits.timeout,
        )
        .await?;
        let connection = patient(connection, limits);
        Ok(Self { addr: sentinel.clone(), view, connection, others: Vec::new(), events })
    }
}

/// From the order on, a sentinel is silent while it saves its state, as it does when a failover
/// begins, and a busy disk takes more than a second for that. It is lost only when its connection
/// ends, or when the failover should have begun. Before that, traffic would flow to a master that
/// is about to be superseded.
fn patient(connection: CommandConnection, limits: SwitchoverLimits) -> CommandConnection {
    connection.with_timeout(limits.begin)
}

pub(super) async fn view(
    connection: &mut CommandConnection,
    name: &str,
) -> Result<LeaderView, String> {
    let master = connection.ask(&["SENTINEL", "MASTER", name]).await?;
    let replicas = connection.ask(&["SENTINEL", "REPLICAS", name]).await?;
    for (reply, command, rule) in [
        (&master, "SENTINEL MASTER", "+sentinel|master"),
        (&replicas, "SENTINEL REPLICAS", "+sentinel|replicas"),
    ] {
        if let Some(denied) =
            reply.error().and_then(|line| Denied::read(line, command, rule, SENTINEL_AUTH))
        {
            return Err(denied.to_string());
        }
    }
    read_view(&master, &replicas)
        .ok_or_else(|| "SENTINEL MASTER and REPLICAS returned no usable view".to_owned())
}

/// Subscribes on a dedicated connection. `None` if the sentinel refuses.
async fn subscribe(
    connection: CommandConnection,
    timeout: Duration,
) -> Result<Option<RespConnection>, String> {
    let Some(mut connection) = connection.into_connection() else { return Ok(None) };
    let subscribing = async {
        let granted = subscription::subscribe(&mut connection, leader::CHANNELS).await?;
        Ok(granted.then_some(connection))
    };
    match tokio::time::timeout(timeout, subscribing).await {
        Ok(done) => done.map_err(|error: ConnectionError| describe(&error)),
        Err(_) => Err(format!("no answer to SUBSCRIBE within {} ms", timeout.as_millis())),
    }
}

/// Forwards events. When the connection ends, the answers to polls still show the progress.
pub(super) async fn listen(
    mut connection: RespConnection,
    name: Arc<str>,
    out: mpsc::Sender<Input>,
) {
    while let Ok(reply) = connection.next().await {
        let (Reply::List(items) | Reply::Push(items)) = reply else { continue };
        let [kind, channel, payload] = items.as_slice() else { continue };
        let (Some("message"), Some(channel), Some(payload)) =
            (kind.text(), channel.text(), payload.text())
        else {
            continue;
        };
        if let Some(event) = read_event(channel, payload, &name)
            && out.send(Input::Event(event)).await.is_err()
        {
            return;
        }
    }
}

pub(super) async fn answer(
    mut connection: CommandConnection,
    mut others: Vec<(NodeAddr, CommandConnection)>,
    name: Arc<str>,
    mut asked: mpsc::Receiver<LeaderCommand>,
    out: mpsc::Sender<Input>,
) {
    while let Some(question) = asked.recv().await {
        let input = match question {
            LeaderCommand::StartFailover(kind) => {
                Input::FailoverReply(match begun_elsewhere(&mut others, &name).await {
                    Some(other) => FailoverReply::Refused(SwitchoverError::FailingOver(other)),
                    None => order(&mut connection, &name, kind).await,
                })
            }
            LeaderCommand::View => {
                view(&mut connection, &name).await.map_or_else(Input::LeaderLost, Input::View)
            }
        };
        if out.send(input).await.is_err() {
            return;
        }
    }
}

/// The sentinel that has started a failover since it was first asked. One that does not answer in
/// time counts as not having started one.
async fn begun_elsewhere(
    others: &mut [(NodeAddr, CommandConnection)],
    name: &str,
) -> Option<NodeAddr> {
    let asking = async {
        for (sentinel, connection) in others {
            let reply = connection.ask(&["SENTINEL", "MASTER", name]).await;
            if reply.is_ok_and(|reply| has_flag(&reply, "failover_in_progress")) {
                return Some(sentinel.clone());
            }
        }
        None
    };
    tokio::time::timeout(OTHERS_TIMEOUT, asking).await.ok().flatten()
}

/// The sentinel or the master does not support coordinated failovers.
fn lacks_coordination(reply: &Reply) -> bool {
    reply.error().is_some_and(|line| line.starts_with("ERR ") || line.starts_with("NOGOODPRIMARY"))
}

/// Sends the failover command. Whatever the answer, no other sentinel is asked: two failovers could
/// follow each other.
///
/// In a coordinated failover the master takes part: it stops accepting writes, waits until the
/// replica has everything and hands over. A sentinel before Valkey 9 refuses the option, and a
/// newer one refuses it for a master before 6.2, which has no such command.
async fn order(
    connection: &mut CommandConnection,
    name: &str,
    kind: FailoverKind,
) -> FailoverReply {
    let plain = ["SENTINEL", "FAILOVER", name];
    let (reply, kind) = match kind {
        FailoverKind::Plain => (connection.ask(&plain).await, kind),
        FailoverKind::Coordinated => {
            match connection.ask(&["SENTINEL", "FAILOVER", name, "COORDINATED"]).await {
                Ok(reply) if lacks_coordination(&reply) => {
                    (connection.ask(&plain).await, FailoverKind::Plain)
                }
                reply => (reply, kind),
            }
        }
    };
    match reply {
        Ok(reply) => match reply.error() {
            None => FailoverReply::Accepted(kind),
            Some(line) => {
                let denied =
                    Denied::read(line, "SENTINEL FAILOVER", "+sentinel|failover", SENTINEL_AUTH);
                let line = line.chars().take(120).collect();
                FailoverReply::Refused(SwitchoverError::Refused(
                    denied.map_or(line, |denied| denied.to_string()),
                ))
            }
        },
        Err(problem) => FailoverReply::Unknown(problem),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::link::login::{Access, Login};

    /// A sentinel that accepts a failover after it has saved its state for so long.
    async fn order_with_delay(delay: Duration) -> FailoverReply {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut received = [0; 256];
            for pause in [Duration::ZERO, delay] {
                let _read = stream.read(&mut received).await.unwrap();
                tokio::time::sleep(pause).await;
                stream.write_all(b"+OK\r\n").await.unwrap();
            }
        });
        let login = Login::new(Access { credentials: None, tls: None }, None);
        let limits = SwitchoverLimits::default();
        let connection =
            CommandConnection::open(addr, &login, SENTINEL_AUTH, limits.timeout * 2).await.unwrap();
        order(&mut patient(connection, limits), "mymaster", FailoverKind::Plain).await
    }

    #[tokio::test]
    async fn awaits_a_sentinel_that_saves_its_state() {
        let slow = order_with_delay(Duration::from_millis(1500)).await;
        assert!(matches!(slow, FailoverReply::Accepted(FailoverKind::Plain)), "{slow:?}");
        let lost = order_with_delay(Duration::from_millis(2500)).await;
        assert!(matches!(lost, FailoverReply::Unknown(_)), "{lost:?}");
    }

    #[test]
    fn asks_for_a_plain_failover_where_coordination_is_missing() {
        for (line, missing) in [
            ("ERR wrong number of arguments for 'sentinel|failover' command", true),
            ("NOGOODPRIMARY Primary does not support FAILOVER command", true),
            ("INPROG Failover already in progress", false),
            ("NOGOODSLAVE No suitable replica to promote", false),
            ("NOPERM this user has no permissions to run the 'sentinel|failover' command", false),
        ] {
            assert_eq!(lacks_coordination(&Reply::Error(line.into())), missing, "{line}");
        }
        assert!(!lacks_coordination(&Reply::Text("OK".into())));
    }
}
