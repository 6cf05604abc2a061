//! Reads, raises and restores `replica-priority` on one replica.
//!
//! A value counts as raised from the moment when its command is sent, because a server that hangs
//! executes it later. It is restored only if it is the one that was set here: one that somebody
//! else has set since is left alone and reported.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::plan::PriorityChange;
use crate::NodeAddr;
use crate::clock;
use crate::link::login::Login;
use crate::link::reply::Reply;
use crate::switchover::command_connection::{CommandConnection, CommandError};
use crate::switchover::error::SwitchoverError;

const PRIORITY: &str = "replica-priority";
/// All rules that are needed beyond those of the probes.
const RULES: &str = "+config|get +config|set";
/// How long a value is tried to restore. An attempt takes up to two seconds; a process that stops
/// waits for ten.
const RESTORE_FOR: Duration = Duration::from_secs(7);
/// First and longest interval between attempts.
const FIRST_RETRY: Duration = Duration::from_millis(10);
const LAST_RETRY: Duration = Duration::from_secs(1);
/// A command that was sent without an answer reaches the server within this time, or never: the
/// kernel gives up after `USER_TIMEOUT`.
const IN_FLIGHT: Duration = Duration::from_secs(4);

async fn read(connection: &mut CommandConnection) -> Result<u64, String> {
    let reply = connection.run(&["CONFIG", "GET", PRIORITY], "CONFIG GET", RULES).await?;
    let value = reply.field(PRIORITY).and_then(|text| text.parse().ok());
    value.ok_or_else(|| "CONFIG GET returned no replica-priority".to_owned())
}

async fn set(connection: &mut CommandConnection, value: u64) -> Result<(), CommandError> {
    let words = ["CONFIG", "SET", PRIORITY, &value.to_string()];
    connection.run(&words, "CONFIG SET", RULES).await.map(drop)
}

/// The node's role and, of a replica, its master.
async fn role(connection: &mut CommandConnection) -> Option<String> {
    let reply = connection.ask(&["ROLE"]).await.ok()?;
    let items = reply.list()?;
    let (role, host) = (items.first()?.text()?, items.get(1).and_then(Reply::text));
    let port = items.get(2).and_then(Reply::number).unwrap_or_default();
    Some(format!("{role} {} {port}", host.unwrap_or_default()))
}

/// A replica of the master, and what is changed.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) change: PriorityChange,
    connection: CommandConnection,
    /// Its role and master before, to notice that they changed.
    role: Option<String>,
    pub(super) is_raised: bool,
    /// A command without an answer may still change the value until then.
    in_flight_until: Option<Instant>,
}

impl Replica {
    pub(super) async fn open(
        login: &Login,
        node: &NodeAddr,
        dialled: SocketAddr,
    ) -> Result<Self, SwitchoverError> {
        let mut connection = CommandConnection::to_node(dialled, login.clone());
        let value = read(&mut connection).await;
        let value = value.map_err(|problem| SwitchoverError::node(node, problem))?;
        let role = role(&mut connection).await;
        let change = PriorityChange { node: node.clone(), dialled, from: value, to: value };
        Ok(Self { change, connection, role, is_raised: false, in_flight_until: None })
    }

    pub(super) async fn raise(&mut self) -> Result<(), SwitchoverError> {
        (self.is_raised, self.in_flight_until) = (true, Some(clock::now() + IN_FLIGHT));
        let Err(error) = set(&mut self.connection, self.change.to).await else {
            self.in_flight_until = None;
            return Ok(());
        };
        self.is_raised = matches!(error, CommandError::Unanswered(_));
        Err(SwitchoverError::node(&self.change.node, error))
    }

    /// Tries to restore the value for a few seconds. What to report, or why it may not be restored.
    pub(super) async fn restore(&mut self) -> Result<String, String> {
        let (until, mut pause) = (clock::now() + RESTORE_FOR, FIRST_RETRY);
        loop {
            let is_in_flight = self.in_flight_until.is_some_and(|until| clock::now() < until);
            let problem = match self.try_restore().await {
                Ok(text) if !is_in_flight => return Ok(text),
                Ok(_) => "a command without an answer may still arrive".to_owned(),
                Err(problem) => problem,
            };
            if clock::now() >= until {
                return Err(problem);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_RETRY);
        }
    }

    /// Restores the value if it is the one that was set, and reads it back.
    async fn try_restore(&mut self) -> Result<String, String> {
        let PriorityChange { node, dialled, from, to } = &self.change;
        let value = read(&mut self.connection).await?;
        if value != *from && value != *to {
            return Ok(format!(
                "replica-priority of {node} was {from}, was set to {to}, and is {value}: somebody \
                 else changed it, so that it stays"
            ));
        }
        if value == *to {
            set(&mut self.connection, *from).await?;
            let value = read(&mut self.connection).await?;
            if value != *from {
                return Err(format!("it reports {value} after CONFIG SET"));
            }
        }
        // Sentinel changes the role and rewrites the file in one transaction. A role that is the
        // same after the value was restored means that a rewrite is still to come.
        if self.role.is_none() || role(&mut self.connection).await == self.role {
            return Ok(format!("replica-priority of {node} is {from} again"));
        }
        Ok(format!(
            "replica-priority of {node} is {from} again; its configuration file may contain {to}: \
             run redis-cli -h {} -p {} CONFIG REWRITE",
            dialled.ip(),
            dialled.port()
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::link::login::Access;

    /// A server with this priority, which sentinels have made a replica of another master.
    async fn server(value: &Arc<AtomicU64>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (addr, value) = (listener.local_addr().unwrap(), Arc::clone(value));
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut received = [0; 256];
            while let Ok(length @ 1..) = stream.read(&mut received).await {
                let command = String::from_utf8_lossy(&received[..length]).into_owned();
                let reply = if command.contains("SET") {
                    let set = command.split_ascii_whitespace().last().unwrap();
                    value.store(set.parse().unwrap(), Ordering::Relaxed);
                    "+OK\r\n".to_owned()
                } else if command.contains("GET") {
                    format!("*2\r\n+replica-priority\r\n+{}\r\n", value.load(Ordering::Relaxed))
                } else if command.contains("ROLE") {
                    "*3\r\n+slave\r\n+10.0.0.9\r\n:1\r\n".to_owned()
                } else {
                    "+PONG\r\n".to_owned()
                };
                stream.write_all(reply.as_bytes()).await.unwrap();
            }
        });
        addr
    }

    /// Raised from 1.
    fn raised(dialled: SocketAddr) -> Replica {
        let login = Login::new(Access { credentials: None, tls: None }, None);
        let (from, to) = (1, 1_000_000_001);
        Replica {
            change: PriorityChange { node: dialled.into(), dialled, from, to },
            connection: CommandConnection::to_node(dialled, login),
            role: Some("slave 10.0.0.9 1".to_owned()),
            is_raised: true,
            in_flight_until: None,
        }
    }

    #[tokio::test]
    async fn restores_only_the_value_that_was_set() {
        let value = Arc::new(AtomicU64::new(1_000_000_001));
        let text = raised(server(&value).await).restore().await.unwrap();
        assert!(text.ends_with("is 1 again"), "{text}");
        assert_eq!(value.load(Ordering::Relaxed), 1);
        let value = Arc::new(AtomicU64::new(42));
        let text = raised(server(&value).await).restore().await.unwrap();
        assert!(text.contains("is 42"), "{text}");
        assert_eq!(value.load(Ordering::Relaxed), 42);
    }

    #[tokio::test]
    async fn advises_when_the_file_was_rewritten_before() {
        let value = Arc::new(AtomicU64::new(1_000_000_001));
        let mut replica = raised(server(&value).await);
        replica.role = Some("slave 10.0.0.8 1".to_owned());
        let text = replica.restore().await.unwrap();
        assert!(text.contains("may contain 1000000001"), "{text}");
        assert!(text.contains("CONFIG REWRITE"), "{text}");
    }

    /// The command that raises it is executed after the first attempt to restore it.
    #[tokio::test]
    async fn checks_again_when_a_command_may_still_arrive() {
        let value = Arc::new(AtomicU64::new(1));
        let mut replica = raised(server(&value).await);
        replica.in_flight_until = Some(clock::now() + Duration::from_millis(400));
        let late = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            value.store(1_000_000_001, Ordering::Relaxed);
        };
        let (restored, ()) = tokio::join!(replica.restore(), late);
        assert!(restored.unwrap().ends_with("is 1 again"));
        assert_eq!(value.load(Ordering::Relaxed), 1);
    }

    /// The address refuses connections.
    #[tokio::test(start_paused = true)]
    async fn gives_up_on_a_replica_that_stays_away() {
        let since = clock::now();
        let mut replica = raised(SocketAddr::from(([127, 0, 0, 1], 1)));
        assert!(replica.restore().await.is_err());
        let took = clock::since(since);
        assert!((RESTORE_FOR..RESTORE_FOR * 3 / 2).contains(&took), "{took:?}");
    }
}
