//! A pause of the whole fleet: the clients of this proxy by its gate, and all other writers,
//! through other proxies or without one, by `CLIENT PAUSE … WRITE` on the master.
//!
//! The gate closes first, so that the requests in flight through this proxy are answered. Only
//! writes are paused at the master: PING is answered, so that neither the probers of a proxy nor a
//! sentinel's new connection take the master for dead, and reads through other proxies continue.
//! `CLIENT PAUSE … ALL` would stop both.
//!
//! A sentinel's hello message is a PUBLISH, which waits at the paused master, and every later PING
//! on that connection waits as well. The sentinels would consider the master down after
//! `down-after-milliseconds`, so that a pause lasts for three quarters of it at most.
//!
//! `state_machine` decides; this module acts.

mod state_machine;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tracing::{info, warn};

use self::state_machine::{Action, Dialled, FleetPauseMachine, Input, SLICE};
use super::command_connection::CommandConnection;
use super::leader_task::view;
use super::participants::select_participants;
use crate::clock;
use crate::discovery::handle::{ConnectionSettings, DiscoveryHandle};
use crate::discovery::operations::FleetPauseStatus;
use crate::link::auth::Denied;
use crate::link::login::Login;
use crate::link::poll::SENTINEL_AUTH;
use crate::net::resolve::Lookup;
use crate::{NodeAddr, Pause};

/// For one command.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Requests that were forwarded before the gate closed are executed within this time.
const SETTLE_TIME: Duration = Duration::from_millis(30);
/// Discovery closes the gate in its next iteration.
const GATE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of reading the discovery snapshot: how late a new master is paused.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The configuration section that refusals by Redis nodes refer to.
const AUTH: &str = "service.auth";
const RULES: &str = "+client|pause +client|unpause";

/// Why the fleet is not paused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FleetPauseError {
    /// There is no settled master, or no majority.
    #[error(transparent)]
    Unsettled(#[from] super::SwitchoverError),
    /// The fleet is paused already.
    #[error("the fleet is paused already; resume it first")]
    Active,
    /// A switchover is in progress.
    #[error("a switchover of this service is in progress")]
    Switching,
    /// The sentinels would consider the master down.
    #[error(
        "down-after-milliseconds is {} ms, and sentinels get no answer from a master whose writes \
         are paused for that long: the fleet can be paused for {} ms at most",
        .down_after.as_millis(), .limit.as_millis()
    )]
    TooLong {
        /// The shortest setting of any sentinel.
        down_after: Duration,
        /// Three quarters of it.
        limit: Duration,
    },
    /// No sentinel answers.
    #[error("no sentinel reports down-after-milliseconds: {0}")]
    NoSentinel(String),
    /// Discovery does not respond.
    #[error("discovery did not respond; see /alive")]
    Stuck,
    /// The master refuses.
    #[error("writes at {node} cannot be paused: {problem}")]
    NotPaused {
        /// The master.
        node: NodeAddr,
        /// Why, for operators.
        problem: String,
    },
}

/// Pauses the fleet for `duration`, or for as long as the sentinels allow, up to `default`. Returns
/// the duration once all writes are held.
///
/// # Errors
///
/// Why they are not; then nothing is paused.
pub async fn pause_fleet(
    handle: &DiscoveryHandle,
    duration: Option<Duration>,
    default: Duration,
) -> Result<Duration, FleetPauseError> {
    if let Some(reason) = super::refusal(handle) {
        return Err(reason.into());
    }
    if !handle.begin_switchover() {
        return Err(FleetPauseError::Switching);
    }
    // No switchover begins until the pause is visible to it.
    let _exclusive = super::ExclusiveSwitchover(handle);
    if handle.operations_snapshot().fleet_pause.is_some() {
        return Err(FleetPauseError::Active);
    }
    let participants = select_participants(&handle.snapshot())?;
    let settings = handle.connection_settings();
    let down_after = shortest_down_after(settings, &participants.sentinels).await?;
    let limit = down_after * 3 / 4;
    let duration = duration.unwrap_or_else(|| default.min(limit));
    if duration > limit {
        return Err(FleetPauseError::TooLong { down_after, limit });
    }
    let since = clock::now();
    let until = since + duration;
    close_gate(handle, Pause { since, until, ends_with_commit: false }).await?;
    let node = (participants.master, participants.dialled);
    let status = FleetPauseStatus { since, until, node: None, problem: None };
    handle.operations().set_fleet_pause(Some(status.clone()));
    let (begun, first_answer) = oneshot::channel();
    let driver = FleetPauseDriver {
        handle: handle.clone(),
        connections: HashMap::new(),
        requests: JoinSet::new(),
        status,
        begun: Some(begun),
    };
    tokio::spawn(driver.run(node.clone()));
    let problem = match first_answer.await {
        Ok(Ok(())) => return Ok(duration),
        Ok(Err(problem)) => problem,
        Err(_) => "it ended before the first answer".to_owned(),
    };
    handle.resume();
    Err(FleetPauseError::NotPaused { node: node.0, problem })
}

/// Ends the pause of the fleet, if there is one, and waits until writes are resumed.
///
/// # Errors
///
/// The master did not answer: its pause ends by itself.
pub async fn resume_fleet(handle: &DiscoveryHandle) -> Result<(), String> {
    let operations = handle.operations();
    let since = clock::now();
    while operations.snapshot().fleet_pause.is_some() {
        operations.end_fleet_pause();
        if clock::since(since) >= SLICE * 3 {
            return Err(format!(
                "the master did not answer CLIENT UNPAUSE; its pause ends by itself within {} ms",
                SLICE.as_millis()
            ));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// The shortest `down-after-milliseconds` of the sentinels that answer.
async fn shortest_down_after(
    settings: &ConnectionSettings,
    sentinels: &[NodeAddr],
) -> Result<Duration, FleetPauseError> {
    let (mut shortest, mut problem) = (None, String::new());
    for sentinel in sentinels {
        match down_after(settings, sentinel).await {
            Ok(span) => shortest = Some(shortest.map_or(span, |it: Duration| it.min(span))),
            Err(why) => problem = format!("{sentinel}: {why}"),
        }
    }
    shortest.ok_or(FleetPauseError::NoSentinel(problem))
}

async fn down_after(
    settings: &ConnectionSettings,
    sentinel: &NodeAddr,
) -> Result<Duration, String> {
    let mut lookup = Lookup::new(&settings.resolver, &sentinel.host, sentinel.port);
    let addr = lookup.address(TIMEOUT).await.map_err(|error| error.to_string())?;
    let login = settings.sentinel_auth.load_full();
    login.transport().set_name(addr, &sentinel.host);
    let mut connection = CommandConnection::open(addr, (&login, SENTINEL_AUTH), TIMEOUT).await?;
    let seen = view(&mut connection, &settings.master_name).await?;
    if seen.failing_over {
        return Err("it is failing over".to_owned());
    }
    seen.down_after.ok_or_else(|| "it does not report it".to_owned())
}

async fn close_gate(handle: &DiscoveryHandle, pause: Pause) -> Result<(), FleetPauseError> {
    let command = handle.pause(pause);
    let since = clock::now();
    while handle.is_pending(command) && clock::since(since) < GATE_TIMEOUT {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    if handle.cancel(command) {
        return Err(FleetPauseError::Stuck);
    }
    tokio::time::sleep(SETTLE_TIME).await;
    Ok(())
}

/// Executes the actions of the state machine.
struct FleetPauseDriver {
    handle: DiscoveryHandle,
    connections: HashMap<SocketAddr, CommandConnection>,
    requests: JoinSet<(Input, SocketAddr, Option<CommandConnection>)>,
    status: FleetPauseStatus,
    begun: Option<oneshot::Sender<Result<(), String>>>,
}

impl FleetPauseDriver {
    async fn run(mut self, node: Dialled) {
        let name = Arc::clone(&self.handle.connection_settings().name);
        info!(service = &*name, node = %node.0, "writes paused for the fleet");
        let (mut machine, mut actions) =
            FleetPauseMachine::begin(clock::now(), self.status.until, node);
        loop {
            for action in actions {
                if action == Action::Over {
                    self.handle.operations().set_fleet_pause(None);
                    info!(service = &*name, "writes resumed for the fleet");
                    return;
                }
                self.perform(action);
            }
            self.publish(&machine);
            let now = clock::now();
            let wake = machine.next_deadline().map_or(now + POLL_INTERVAL, |at| {
                at.min(now + POLL_INTERVAL).max(now + Duration::from_millis(1))
            });
            let input = tokio::select! {
                biased;
                Some(Ok((input, addr, connection))) = self.requests.join_next() => {
                    self.connections.extend(connection.map(|it| (addr, it)));
                    input
                }
                () = self.handle.operations().fleet_pause_ended() => Input::End,
                () = tokio::time::sleep_until(wake.into()) => {
                    let seen = self.handle.snapshot();
                    Input::Master(seen.master.as_ref().map(|it| (it.addr.clone(), it.dialled)))
                }
            };
            let now = clock::now();
            actions = machine.step(now, input);
            if self.handle.operations().is_stopping() {
                actions.extend(machine.step(now, Input::End));
            }
        }
    }

    /// Reports a problem once, and the state for the status document.
    fn publish(&mut self, machine: &FleetPauseMachine) {
        let (node, problem) = machine.status(clock::now());
        if self.status.node == node && self.status.problem == problem {
            return;
        }
        if let Some(problem) =
            problem.as_ref().filter(|it| self.status.problem.as_ref() != Some(it))
        {
            let service = &*self.handle.connection_settings().name;
            warn!(service, problem, "writes are not paused for the fleet");
        }
        (self.status.node, self.status.problem) = (node, problem);
        self.handle.operations().set_fleet_pause(Some(self.status.clone()));
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Pause(addr, span) => {
                let words = ["CLIENT", "PAUSE", &span.as_millis().max(1).to_string(), "WRITE"];
                self.request(addr, words.map(str::to_owned).to_vec(), Input::Paused);
            }
            Action::Unpause(addr) => {
                let words = ["CLIENT", "UNPAUSE"].map(str::to_owned).to_vec();
                self.request(addr, words, Input::Unpaused);
            }
            Action::Moved(from, to) => {
                let service = &*self.handle.connection_settings().name;
                warn!(service, %from, %to, "master changed while the fleet is paused");
            }
            Action::Begun(answer) => {
                if let Some(begun) = self.begun.take() {
                    let _ = begun.send(answer);
                }
            }
            Action::Over => {}
        }
    }

    fn request(
        &mut self,
        addr: SocketAddr,
        words: Vec<String>,
        input: fn(SocketAddr, Result<(), String>) -> Input,
    ) {
        let login = self.handle.connection_settings().auth.clone();
        let connection = self.connections.remove(&addr);
        self.requests.spawn(async move {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let (answer, connection) = ask((addr, &login), connection, &words).await;
            (input(addr, answer), addr, connection)
        });
    }
}

/// Sends a command on `connection`, or on a new one if that is broken.
async fn ask(
    (addr, login): (SocketAddr, &Login),
    connection: Option<CommandConnection>,
    words: &[&str],
) -> (Result<(), String>, Option<CommandConnection>) {
    let (mut current, mut problem) = (connection, String::new());
    for _ in 0..2 {
        let mut connection = match current.take() {
            Some(connection) => connection,
            None => match CommandConnection::open(addr, (login, AUTH), TIMEOUT).await {
                Ok(connection) => connection,
                Err(why) => return (Err(why), None),
            },
        };
        match connection.ask(words).await {
            Ok(reply) => {
                let denied = reply.error().map(|line| {
                    Denied::read(line, "CLIENT PAUSE", RULES, AUTH).map_or_else(
                        || "it does not support CLIENT PAUSE … WRITE (Redis 6.2)".to_owned(),
                        |it| it.to_string(),
                    )
                });
                return (denied.map_or(Ok(()), Err), Some(connection));
            }
            Err(why) => problem = why,
        }
    }
    (Err(problem), None)
}
