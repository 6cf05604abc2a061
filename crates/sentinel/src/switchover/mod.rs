//! Planned switchover: promotes another replica on request, without losing acknowledged writes.
//!
//! A failover by command alone (`SENTINEL FAILOVER`) promotes a replica while traffic flows. Here
//! the gate closes first, so that nothing new is written through this process; then the replicas
//! get time to apply everything that was written, which takes a few round trips; only then is the
//! failover started. The resulting commit of discovery opens the gate.
//!
//! Writers that do not pass through this proxy are not stopped by default. Another proxy holds its
//! clients when Sentinel has selected a replica, at least 50 ms before the promotion, so that their
//! requests in flight are answered before it. With `pause_clients` the master's clients are stopped
//! by `CLIENT PAUSE … WRITE` from before the failover until after the commit. That protects writers
//! that use no proxy and listen to Sentinel; but a request that reaches the master during the pause
//! gets no reply, so clients of another proxy see errors.
//!
//! Where sentinels support it (Valkey 9), the failover is a coordinated one: the master stops
//! accepting writes, waits for the replica and hands over, so nothing is lost even by writers that
//! nobody holds. `handover` watches whether the master does that. Paused clients make it a plain
//! failover (`docs/decisions/discovery.md`).
//!
//! Everything before the failover command can be revoked, and is, at the first irregularity: the
//! gate opens to the same master and no replica was promoted. A guard does so even if this task is
//! dropped. `state_machine` decides; this module and `tasks` act.
//!
//! With `to` a named replica is promoted: `preference` makes it Sentinel's first choice before
//! traffic is held, and undoes that when a replica is selected, or at the end.

mod catch_up;
mod command_connection;
mod error;
mod handover;
mod leader;
mod leader_task;
mod participants;
mod pausing;
mod preference;
mod state_machine;
mod tasks;

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

pub use self::error::SwitchoverError;
use self::leader_task::FailoverLeader;
use self::participants::{Participants, select_participants};
use self::preference::Preference;
pub use self::preference::{PriorityChange, former_priority};
use self::state_machine::{Action, Input, SwitchoverMachine};
use self::tasks::{ReplicationNodes, ServerTasks};
use crate::NodeAddr;
use crate::clock;
use crate::discovery::handle::DiscoveryHandle;

/// Interval of reading the discovery snapshot.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Interval of checks before the start, while a node has not answered yet, and how long that is
/// waited for.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
const RETRY_FOR: Duration = Duration::from_millis(500);
/// How long a report is waited for that has to precede what it reports.
const REPORT_TIMEOUT: Duration = Duration::from_millis(500);

/// Options of a switchover.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SwitchoverOptions {
    /// Also pause the master's clients that do not pass through this proxy.
    pub pause_clients: bool,
    /// The replica to promote, as sentinels announce it or as it is dialled; `None` leaves the
    /// choice to Sentinel.
    pub to: Option<NodeAddr>,
}

/// A step of a switchover, reported when it is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchoverStep {
    /// Time since the start.
    pub after: Duration,
    /// A stable label: `check`, `prefer`, `hold`, `pause`, `catch-up`, `order`, `select`,
    /// `promote`, `restore`, `commit`, `abort`.
    pub step: &'static str,
    /// A description for operators.
    pub text: String,
}

/// The result of a successful switchover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchoverOutcome {
    /// The old master.
    pub from: NodeAddr,
    /// The new one.
    pub to: NodeAddr,
    /// The commit's generation.
    pub generation: u64,
    /// How long traffic was held.
    pub held: Duration,
    /// The part of it that Sentinel took: from the failover command to the commit.
    pub sentinel: Duration,
}

/// Reports steps to the one that requested the switchover.
#[derive(Debug, Clone)]
struct Reporter {
    steps: mpsc::Sender<SwitchoverStep>,
    start: Instant,
}

impl Reporter {
    /// Never blocks: the switchover must not depend on how fast its steps are read.
    fn report(&self, step: &'static str, text: String) {
        let after = clock::since(self.start);
        // A receiver that was dropped is detected before the failover is started.
        let _ = self.steps.try_send(SwitchoverStep { after, step, text });
    }

    /// Waits until every report was taken, or its reader is too slow or gone.
    async fn taken(&self) {
        let all = self.steps.reserve_many(self.steps.max_capacity());
        let _in_time = tokio::time::timeout(REPORT_TIMEOUT, all).await;
    }
}

/// Switches the service of `handle` over to another master and reports each step to `steps`. If the
/// receiver of `steps` is dropped before the failover is started, no failover is started.
///
/// # Errors
///
/// Why there is no new master, or not as a result of this request.
pub async fn switchover(
    handle: &DiscoveryHandle,
    options: SwitchoverOptions,
    steps: mpsc::Sender<SwitchoverStep>,
) -> Result<SwitchoverOutcome, SwitchoverError> {
    if !handle.begin_switchover() {
        return Err(SwitchoverError::Busy);
    }
    let reporter = Reporter { steps, start: clock::now() };
    let run = Run { handle, pause_clients: options.pause_clients, reporter };
    let mut preference = None;
    let result = match &options.to {
        None => run.switch_to_any().await,
        Some(to) => run.switch_to(to, &mut preference).await,
    };
    let result = result.map_err(|reason| match reason {
        SwitchoverError::Abandoned => refusal(handle).unwrap_or(SwitchoverError::Abandoned),
        reason => reason,
    });
    if let Err(reason) = &result {
        run.reporter.report("abort", reason.to_string());
    }
    let Some(preference) = preference else { return result };
    let left = preference.settled().await;
    match result {
        Ok(SwitchoverOutcome { to, .. }) if !left.is_empty() => {
            Err(SwitchoverError::node(&to, format!("is the master, but {}", left.join("; "))))
        }
        result => result,
    }
}

/// Why no command may run now, if so.
fn refusal(handle: &DiscoveryHandle) -> Option<SwitchoverError> {
    if handle.is_process_stopping() {
        return Some(SwitchoverError::Stopping);
    }
    handle.is_stopping().then_some(SwitchoverError::ServiceRemoved)
}

/// The servers that take part, connected and checked.
struct Prepared {
    participants: Participants,
    nodes: ReplicationNodes,
    leader: FailoverLeader,
}

/// A switchover in progress. When it ends, another one may begin.
struct Run<'a> {
    handle: &'a DiscoveryHandle,
    pause_clients: bool,
    reporter: Reporter,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.handle.end_switchover();
    }
}

/// The hold of a switchover: dropping it opens the gate, however the switchover ends. If that is
/// refused before, the pause of an operator stays.
struct Held<'a>(&'a DiscoveryHandle);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.resume();
    }
}

impl Run<'_> {
    async fn switch_to_any(&self) -> Result<SwitchoverOutcome, SwitchoverError> {
        let prepared = self.prepare().await?;
        self.switch(prepared, None).await
    }

    /// A switchover to `to`. `preference` is set before a priority is changed.
    async fn switch_to<'a>(
        &'a self,
        to: &NodeAddr,
        preference: &mut Option<Preference<'a>>,
    ) -> Result<SwitchoverOutcome, SwitchoverError> {
        let mut prepared = self.prepare().await?;
        let (participants, leader) = (&prepared.participants, &prepared.leader.addr);
        let planned = Preference::plan(self, participants, leader, to);
        let preference = preference.insert(planned.await?);
        preference.raise().await?;
        loop {
            let awaited = prepared.leader.addr.clone();
            tokio::select! {
                biased;
                reported = preference.reported(prepared) => reported?,
                () = self.reporter.steps.closed() => return Err(SwitchoverError::Abandoned),
                () = self.handle.stopped() => return Err(SwitchoverError::Abandoned),
            }
            // What was checked before is checked again. Another sentinel may be the first to ask
            // now, such as one that has just connected: it is waited for, too.
            prepared = self.prepare().await?;
            match preference.check(&prepared.leader) {
                Err(reason) if prepared.leader.addr == awaited => return Err(reason),
                Err(_) => {}
                Ok(()) => break,
            }
        }
        let requested = preference.requested.clone();
        let outcome = self.switch(prepared, Some(preference)).await?;
        if outcome.to != requested {
            let problem = format!("became the master, not {requested}; traffic flows to it");
            return Err(SwitchoverError::node(&outcome.to, problem));
        }
        Ok(outcome)
    }

    /// Connects to every server that takes part, and checks whatever can be checked before traffic
    /// is held.
    async fn prepare(&self) -> Result<Prepared, SwitchoverError> {
        if let Some(reason) = refusal(self.handle) {
            return Err(reason);
        }
        let access = self.handle.connection_settings();
        let participants = self.participants().await?;
        let mut nodes = ReplicationNodes::new(&participants, &access.auth);
        let reading = nodes.look().await?;
        let leader = FailoverLeader::choose(access, &participants).await?;
        let text = format!(
            "{} is the master at offset {}, with {} replicas; sentinel {} can start the failover",
            participants.master.addr,
            reading.master.offset,
            reading.replicas.len(),
            leader.addr
        );
        self.reporter.report("check", text);
        Ok(Prepared { participants, nodes, leader })
    }

    /// The nodes and sentinels that take part. Retries briefly while a node has not answered.
    async fn participants(&self) -> Result<Participants, SwitchoverError> {
        let since = clock::now();
        loop {
            match select_participants(&self.handle.snapshot()) {
                Err(SwitchoverError::Node(..)) if clock::since(since) < RETRY_FOR => {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                decided => return decided,
            }
        }
    }

    /// The switchover, once everything is prepared.
    async fn switch(
        &self,
        prepared: Prepared,
        mut preference: Option<&mut Preference<'_>>,
    ) -> Result<SwitchoverOutcome, SwitchoverError> {
        let Prepared { participants, nodes, leader } = prepared;
        let down_after = leader.view.down_after.unwrap_or_default();
        let down_after = self.pause_clients.then_some(down_after);
        let addr = leader.addr.clone();
        let access = self.handle.connection_settings();
        let mut tasks = ServerTasks::start(access, &participants, nodes, leader);
        let mut machine = SwitchoverMachine::begin(clock::now(), participants, addr, down_after)?;
        let _held = Held(self.handle);
        let mut actions = machine.step(clock::now(), Input::Tick);
        loop {
            for action in actions {
                match action {
                    Action::Hold(pause) => {
                        self.handle.pause(pause);
                    }
                    Action::Release => {
                        self.handle.resume();
                    }
                    // Each channel has capacity for all commands that can be pending.
                    Action::ReadOffsets(after) => drop(tasks.look.try_send(after)),
                    Action::Master(command) => drop(tasks.master.try_send(command)),
                    Action::Leader(command) => drop(tasks.leader.try_send(command)),
                    Action::ReportStep(step, text) => self.reporter.report(step, text),
                    Action::Selected => preference.iter_mut().for_each(|it| it.restore()),
                    Action::Done(result) => return result,
                }
            }
            // After a stop of this process many inputs may be queued. The leader's events precede
            // the commit that they led to, and everything received precedes the deadlines that
            // passed meanwhile.
            let mut inputs = Vec::new();
            let received = tasks.inputs.recv_many(&mut inputs, usize::MAX);
            let _ = tokio::time::timeout(POLL_INTERVAL, received).await;
            let seen = self.handle.snapshot();
            let (holding, master) = (seen.holding, seen.master.clone());
            inputs.push(Input::Discovery { holding, master });
            let is_revoked = self.reporter.steps.is_closed() || self.handle.is_stopping();
            inputs.extend(is_revoked.then_some(Input::Abandoned));
            inputs.push(Input::Tick);
            let now = clock::now();
            actions = inputs.into_iter().flat_map(|input| machine.step(now, input)).collect();
        }
    }
}
