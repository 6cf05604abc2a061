//! Chooses the sentinel that starts the failover, and executes the commands for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::command_connection::{CommandConnection, CommandError, TIMEOUT};
use super::error::SwitchoverError;
use super::leader::{self, LeaderView, read_event, read_view};
use super::participants::Participants;
use super::state_machine::{BEGIN, FailoverKind, Input, LeaderCommand};
use crate::NodeAddr;
use crate::discovery::handle::ConnectionSettings;
use crate::link::connection::RespConnection;
use crate::link::links::describe;
use crate::link::login::Login;
use crate::link::poll::{has_flag, read_tilt};
use crate::link::reply::Reply;
use crate::link::subscription;
use crate::net::resolve::Lookup;

/// Timeout for the other sentinels, since traffic is held while they are asked.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(100);

/// The sentinel that starts the failover.
#[derive(Debug)]
pub(super) struct FailoverLeader {
    pub(super) addr: NodeAddr,
    /// Sentinel's name of the master.
    name: Arc<str>,
    pub(super) view: LeaderView,
    connection: CommandConnection,
    /// The sentinels that do not start the failover.
    others: Vec<Self>,
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
    ) -> Result<Self, SwitchoverError> {
        let mut problem = String::from("no sentinel is reachable");
        let (mut chosen, mut others) = (None, Vec::new());
        for sentinel in &participants.sentinels {
            match Self::open(access, sentinel).await {
                Ok(leader) if leader.view.failing_over => {
                    return Err(SwitchoverError::FailingOver(leader.addr));
                }
                Ok(leader) if chosen.is_some() => others.push(leader),
                Ok(leader) if leader.view.master != participants.master.addr => {
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

    async fn open(access: &ConnectionSettings, sentinel: &NodeAddr) -> Result<Self, String> {
        let login = Login::clone(&access.sentinel_auth.load());
        let mut lookup = Lookup::new(&access.resolver, &sentinel.host, sentinel.port);
        let addr = lookup.address(TIMEOUT).await.map_err(|error| error.to_string())?;
        login.transport().set_name(addr, &sentinel.host);
        let mut connection = CommandConnection::to_sentinel(addr, login);
        if read_tilt(&connection.ask(&["INFO", "sentinel"]).await?) {
            return Err("it is in TILT".to_owned());
        }
        let name = Arc::clone(&access.master_name);
        let view = view(&mut connection, &name).await?;
        let events = subscribe(&mut connection).await?;
        // From the order on, a sentinel is silent while it saves its state, as it does when a
        // failover begins, and a busy disk takes more than a second for that. It is lost only when
        // its connection ends, or when the failover should have begun. Before that, traffic would
        // flow to a master that is about to be superseded.
        connection.timeout = BEGIN;
        Ok(Self { addr: sentinel.clone(), name, view, connection, others: Vec::new(), events })
    }

    /// Asks it again.
    pub(super) async fn look(&mut self) -> Result<LeaderView, String> {
        view(&mut self.connection, &self.name).await
    }

    pub(super) async fn serve(
        mut self,
        mut commands: mpsc::Receiver<LeaderCommand>,
        out: mpsc::Sender<Input>,
    ) {
        while let Some(command) = commands.recv().await {
            let input = match command {
                LeaderCommand::StartFailover(kind) => match self.begun_elsewhere().await {
                    Some(other) => Input::FailoverReply(Err(SwitchoverError::FailingOver(other))),
                    None => order(&mut self.connection, &self.name, kind).await,
                },
                LeaderCommand::View(after) => {
                    tokio::time::sleep(after).await;
                    self.look().await.map_or_else(Input::LeaderLost, Input::View)
                }
            };
            let _ = out.send(input).await;
        }
    }

    /// The sentinel that has started a failover since it was first asked. One that does not answer
    /// in time counts as not having started one.
    async fn begun_elsewhere(&mut self) -> Option<NodeAddr> {
        let asking = async {
            for it in &mut self.others {
                let reply = it.connection.ask(&["SENTINEL", "MASTER", &self.name]).await;
                if reply.is_ok_and(|reply| has_flag(&reply, "failover_in_progress")) {
                    return Some(it.addr.clone());
                }
            }
            None
        };
        tokio::time::timeout(OTHERS_TIMEOUT, asking).await.ok().flatten()
    }
}

async fn view(connection: &mut CommandConnection, name: &str) -> Result<LeaderView, String> {
    let (command, rule) = ("SENTINEL MASTER", "+sentinel|master");
    let master = connection.run(&["SENTINEL", "MASTER", name], command, rule).await?;
    let (command, rule) = ("SENTINEL REPLICAS", "+sentinel|replicas");
    let replicas = connection.run(&["SENTINEL", "REPLICAS", name], command, rule).await?;
    read_view(&master, &replicas)
        .ok_or_else(|| "SENTINEL MASTER and REPLICAS returned no usable view".to_owned())
}

/// Subscribes on a dedicated connection. `None` if the sentinel refuses.
async fn subscribe(to: &mut CommandConnection) -> Result<Option<RespConnection>, String> {
    let mut connection = to.connect().await?;
    let subscribing = subscription::subscribe(&mut connection, leader::CHANNELS);
    let Ok(granted) = tokio::time::timeout(TIMEOUT, subscribing).await else {
        return Err(format!("no answer to SUBSCRIBE within {} ms", TIMEOUT.as_millis()));
    };
    let granted = granted.map_err(|error| describe(&error))?;
    Ok(granted.then_some(connection))
}

/// Forwards events. When the connection ends, the answers to polls still show the progress.
pub(super) async fn listen(
    mut connection: RespConnection,
    name: Arc<str>,
    out: mpsc::Sender<Input>,
) {
    while let Ok(reply) = connection.next().await {
        let event = reply.message().and_then(|(channel, text)| read_event(channel, text, &name));
        if let Some(event) = event {
            let _ = out.send(Input::Event(event)).await;
        }
    }
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
async fn order(connection: &mut CommandConnection, name: &str, mut kind: FailoverKind) -> Input {
    let plain = ["SENTINEL", "FAILOVER", name];
    let mut reply = match kind {
        FailoverKind::Plain => connection.ask(&plain).await,
        FailoverKind::Coordinated => {
            connection.ask(&["SENTINEL", "FAILOVER", name, "COORDINATED"]).await
        }
    };
    if kind == FailoverKind::Coordinated && reply.as_ref().is_ok_and(lacks_coordination) {
        kind = FailoverKind::Plain;
        reply = connection.ask(&plain).await;
    }
    let (command, rule) = ("SENTINEL FAILOVER", "+sentinel|failover");
    match reply.and_then(|reply| connection.accepted(reply, command, rule)) {
        Ok(_) => Input::FailoverReply(Ok(kind)),
        Err(CommandError::NotExecuted(problem)) => {
            Input::FailoverReply(Err(SwitchoverError::Refused(problem)))
        }
        Err(CommandError::Unanswered(problem)) => Input::LeaderLost(problem),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::link::login::Access;

    /// A sentinel that accepts a failover after it has saved its state for so long.
    async fn order_with_delay(delay: Duration) -> Input {
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
        let mut connection = CommandConnection::to_sentinel(addr, login);
        connection.timeout = BEGIN;
        order(&mut connection, "mymaster", FailoverKind::Plain).await
    }

    #[tokio::test]
    async fn awaits_a_sentinel_that_saves_its_state() {
        let slow = order_with_delay(Duration::from_millis(1500)).await;
        assert!(matches!(slow, Input::FailoverReply(Ok(FailoverKind::Plain))), "{slow:?}");
        let lost = order_with_delay(Duration::from_millis(2500)).await;
        assert!(matches!(lost, Input::LeaderLost(_)), "{lost:?}");
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
