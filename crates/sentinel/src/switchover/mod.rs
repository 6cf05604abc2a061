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
//! Everything before the failover command can be revoked, and is, at the first irregularity: the
//! gate opens to the same master and no replica was promoted. A guard does so even if this task is
//! dropped. `state_machine` decides; this module and `tasks` act.
//!
//! Deliberately absent: authorization of the request, and the transport of the reports.

mod catch_up;
mod command_connection;
mod error;
mod failover;
mod leader;
mod leader_task;
mod participants;
mod pausing;
mod phase;
mod state_machine;
mod steps;
mod tasks;

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

pub use self::catch_up::{CatchUp, CatchUpStatus, ReplicationOffsets};
pub use self::error::SwitchoverError;
use self::leader_task::{FailoverLeader, LeaderCommand};
use self::participants::{Participants, select_participants};
use self::state_machine::SwitchoverMachine;
use self::steps::{Action, DiscoveryState, Input};
use self::tasks::{PauseCommand, ReplicationNodes, ServerTasks};
use crate::discovery::handle::DiscoveryHandle;
use crate::{NodeAddr, Pause};

/// Interval of reading the discovery snapshot.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Interval of checks before the start, while a node has not answered yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Time limits of the parts of a switchover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchoverLimits {
    /// For the replicas to catch up while the gate is closed.
    pub catch_up: Duration,
    /// From the failover command to the selection of a replica.
    pub begin: Duration,
    /// From the failover command to the verified new master.
    pub follow: Duration,
    /// For one command.
    pub timeout: Duration,
}

impl Default for SwitchoverLimits {
    fn default() -> Self {
        let (catch_up, begin, follow) =
            (Duration::from_secs(2), Duration::from_secs(2), Duration::from_secs(10));
        Self { catch_up, begin, follow, timeout: Duration::from_millis(500) }
    }
}

/// Options of a switchover.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SwitchoverOptions {
    /// Time limits of its parts.
    pub limits: SwitchoverLimits,
    /// Also pause the master's clients that do not pass through this proxy.
    pub pause_clients: bool,
}

/// A step of a switchover, reported when it is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchoverStep {
    /// Time since the start.
    pub after: Duration,
    /// A stable label: `check`, `hold`, `pause`, `catch-up`, `order`, `select`, `promote`,
    /// `commit`, `abort`.
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

/// Keeps the gate closed until it is dropped; a commit opens the gate, too.
struct HeldGate<'a>(&'a DiscoveryHandle);

impl HeldGate<'_> {
    fn shut(&self, since: Instant, until: Instant) {
        self.0.pause(Pause { since, until, ends_with_commit: true });
    }
}

impl Drop for HeldGate<'_> {
    fn drop(&mut self) {
        self.0.resume();
    }
}

/// Allows one switchover at a time per service.
struct ExclusiveSwitchover<'a>(&'a DiscoveryHandle);

impl Drop for ExclusiveSwitchover<'_> {
    fn drop(&mut self) {
        self.0.end_switchover();
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
    let _exclusive = ExclusiveSwitchover(handle);
    let run = Run { handle, options, steps, start: Instant::now() };
    match run.prepare().await {
        Ok((participants, tasks, leader)) => run.carry_out(participants, tasks, leader).await,
        Err(reason) => {
            run.report("abort", reason.to_string());
            Err(reason)
        }
    }
}

/// The sentinel that will start the failover, and its `down-after-milliseconds`.
type Ordered = (NodeAddr, Option<Duration>);

struct Run<'a> {
    handle: &'a DiscoveryHandle,
    options: SwitchoverOptions,
    steps: mpsc::Sender<SwitchoverStep>,
    start: Instant,
}

impl Run<'_> {
    /// Never blocks: the switchover must not depend on how fast its steps are read.
    fn report(&self, step: &'static str, text: String) {
        // A receiver that was dropped is detected before the failover is started.
        let _ = self.steps.try_send(SwitchoverStep { after: self.start.elapsed(), step, text });
    }

    /// Connects to every server that takes part, and checks whatever can be checked before traffic
    /// is held.
    async fn prepare(&self) -> Result<(Participants, ServerTasks, Ordered), SwitchoverError> {
        let (access, limits) = (self.handle.connection_settings(), self.options.limits);
        let participants = self.participants().await?;
        let mut nodes = ReplicationNodes::open(access, &participants, limits).await?;
        let (master, replicas) = nodes.look().await?;
        let leader = FailoverLeader::choose(access, &participants, limits).await?;
        self.report(
            "check",
            format!(
                "{} is the master at offset {}, with {} replicas; sentinel {} can start the \
                 failover",
                participants.master,
                master.offset,
                replicas.len(),
                leader.addr
            ),
        );
        let ordered = (leader.addr.clone(), leader.view.down_after);
        Ok((participants, ServerTasks::start(access, nodes, leader, limits), ordered))
    }

    /// The nodes and sentinels that take part. Retries briefly while a node has not answered.
    async fn participants(&self) -> Result<Participants, SwitchoverError> {
        loop {
            match select_participants(&self.handle.snapshot()) {
                Err(SwitchoverError::Node { .. })
                    if self.start.elapsed() < self.options.limits.timeout =>
                {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                decided => return decided,
            }
        }
    }

    async fn carry_out(
        &self,
        participants: Participants,
        mut tasks: ServerTasks,
        (leader, down_after): Ordered,
    ) -> Result<SwitchoverOutcome, SwitchoverError> {
        let down_after = self.options.pause_clients.then(|| down_after.unwrap_or_default());
        let begun = SwitchoverMachine::begin(
            Instant::now(),
            (participants, leader),
            self.options.limits,
            down_after,
        );
        let (mut machine, mut actions) = match begun {
            Ok(begun) => begun,
            Err(reason) => {
                self.report("abort", reason.to_string());
                return Err(reason);
            }
        };
        let gate = HeldGate(self.handle);
        loop {
            for action in actions {
                if let Some(done) = self.perform(action, &gate, &tasks) {
                    return done;
                }
            }
            let now = Instant::now();
            let wake_at = machine
                .next_deadline()
                .map_or(now + POLL_INTERVAL, |at| at.min(now + POLL_INTERVAL));
            let first = tokio::select! {
                biased;
                input = tasks.inputs.recv() => input,
                () = tokio::time::sleep_until(wake_at.into()) => None,
            };
            // After a stop of this process many inputs may be queued. The leader's events precede
            // the commit that they led to, and everything received precedes the deadlines that
            // passed meanwhile.
            let waiting = std::iter::from_fn(|| tasks.inputs.try_recv().ok());
            let mut inputs: Vec<Input> = first.into_iter().chain(waiting).collect();
            inputs.push(Input::Discovery(self.discovery()));
            inputs.extend(self.steps.is_closed().then_some(Input::Abandoned));
            inputs.push(Input::Tick);
            let now = Instant::now();
            actions = inputs.into_iter().flat_map(|input| machine.step(now, input)).collect();
        }
    }

    /// The state shown by discovery, once it has processed the latest command.
    fn discovery(&self) -> DiscoveryState {
        let seen = self.handle.snapshot();
        let master = seen.master.as_ref().map(|it| (it.addr.clone(), it.generation, it.epoch));
        DiscoveryState { holding: seen.holding, master }
    }

    /// Executes an action. Each task's channel has capacity for all commands that can be pending.
    fn perform(
        &self,
        action: Action,
        gate: &HeldGate<'_>,
        tasks: &ServerTasks,
    ) -> Option<Result<SwitchoverOutcome, SwitchoverError>> {
        match action {
            Action::Hold { since, until } => gate.shut(since, until),
            Action::Release => {
                self.handle.resume();
            }
            Action::Pause(span) => drop(tasks.clients.try_send(PauseCommand::Pause(span))),
            Action::Unpause => drop(tasks.clients.try_send(PauseCommand::Unpause)),
            Action::ReadOffsets => drop(tasks.look.try_send(())),
            Action::StartFailover => drop(tasks.leader.try_send(LeaderCommand::StartFailover)),
            Action::PollLeader => drop(tasks.leader.try_send(LeaderCommand::View)),
            Action::ReportStep(step, text) => self.report(step, text),
            Action::Done(result) => return Some(result),
        }
        None
    }
}
