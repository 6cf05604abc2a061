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
//! traffic is held, and undoes that when a replica is selected.

mod catch_up;
mod command_connection;
mod error;
mod failover;
mod handover;
mod leader;
mod leader_task;
mod participants;
mod pausing;
mod phase;
mod preference;
mod state_machine;
mod steps;
mod tasks;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

pub use self::error::SwitchoverError;
use self::leader_task::{FailoverLeader, LeaderCommand};
use self::participants::{Participants, select_participants};
pub use self::preference::PriorityChange;
pub use self::preference::former_priority;
use self::preference::{Preference, Reporter, requested_replica};
use self::state_machine::SwitchoverMachine;
use self::steps::{Action, DiscoveryState, Input};
use self::tasks::{MasterCommand, ReplicationNodes, ServerTasks};
use crate::clock;
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SwitchoverOptions {
    /// Time limits of its parts.
    pub limits: SwitchoverLimits,
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
    let reporter = Reporter { steps, start: clock::now() };
    let run = Run { handle, options, reporter, is_abort_reported: AtomicBool::new(false) };
    let result = run.run().await.map_err(|reason| match reason {
        SwitchoverError::Abandoned => refusal(handle).unwrap_or(SwitchoverError::Abandoned),
        reason => reason,
    });
    if let Err(reason) = &result
        && !run.is_abort_reported.load(Ordering::Relaxed)
    {
        run.report("abort", reason.to_string());
    }
    result
}

/// Why no command may run now, if so.
fn refusal(handle: &DiscoveryHandle) -> Option<SwitchoverError> {
    let operations = handle.operations();
    if operations.is_process_stopping() {
        return Some(SwitchoverError::Stopping);
    }
    operations.is_stopping().then_some(SwitchoverError::ServiceRemoved)
}

struct Run<'a> {
    handle: &'a DiscoveryHandle,
    options: SwitchoverOptions,
    reporter: Reporter,
    /// The state machine has reported the end already.
    is_abort_reported: AtomicBool,
}

impl Run<'_> {
    fn report(&self, step: &'static str, text: String) {
        self.reporter.report(step, text);
    }

    async fn run(&self) -> Result<SwitchoverOutcome, SwitchoverError> {
        self.check_permitted()?;
        let Some(to) = &self.options.to else {
            let (participants, nodes, leader) = self.prepare().await?;
            return self.carry_out(participants, nodes, leader, None).await;
        };
        let mut preference = self.prefer(to).await?;
        let result = self.switch_to_preferred(&mut preference).await;
        let requested = preference.requested().clone();
        let left = preference.settled().await;
        let outcome = result?;
        if outcome.to != requested {
            return Err(SwitchoverError::OtherReplica { requested, to: outcome.to });
        }
        if left.is_empty() {
            return Ok(outcome);
        }
        let nodes: Vec<String> = left
            .iter()
            .map(|(it, problem)| {
                format!(
                    "replica-priority of {} is not restored ({problem}): {}",
                    it.node,
                    it.remedy()
                )
            })
            .collect();
        Err(SwitchoverError::NotRestored { to: outcome.to, nodes: nodes.join("; ") })
    }

    fn check_permitted(&self) -> Result<(), SwitchoverError> {
        if let Some(reason) = refusal(self.handle) {
            return Err(reason);
        }
        Ok(())
    }

    /// Starts to give the requested replica the lowest priority.
    async fn prefer(&self, to: &NodeAddr) -> Result<Preference, SwitchoverError> {
        let (participants, _nodes, leader) = self.prepare().await?;
        let node = requested_replica(&self.handle.snapshot(), &participants, to)?;
        let (timeout, reporter) = (self.options.limits.timeout, self.reporter.clone());
        let (leader, connection) = (leader.addr, leader.connection);
        let participants = &participants;
        Preference::start(self.handle, participants, leader, connection, node, timeout, reporter)
            .await
    }

    /// The switchover, once the leader reports the requested replica as its first choice. What
    /// was checked before that is checked again.
    async fn switch_to_preferred(
        &self,
        preference: &mut Preference,
    ) -> Result<SwitchoverOutcome, SwitchoverError> {
        tokio::select! {
            biased;
            established = preference.established() => established?,
            () = self.reporter.steps.closed() => return Err(SwitchoverError::Abandoned),
            () = self.handle.operations().stopped() => {
                return Err(refusal(self.handle).unwrap_or(SwitchoverError::Abandoned));
            }
        }
        let (participants, nodes, leader) = self.prepare().await?;
        preference.check(&leader.addr, &leader.view)?;
        self.carry_out(participants, nodes, leader, Some(preference)).await
    }

    /// Connects to every server that takes part, and checks whatever can be checked before traffic
    /// is held.
    async fn prepare(
        &self,
    ) -> Result<(Participants, ReplicationNodes, FailoverLeader), SwitchoverError> {
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
        Ok((participants, nodes, leader))
    }

    /// The nodes and sentinels that take part. Retries briefly while a node has not answered.
    async fn participants(&self) -> Result<Participants, SwitchoverError> {
        let since = clock::now();
        loop {
            match select_participants(&self.handle.snapshot()) {
                Err(SwitchoverError::Node { .. })
                    if clock::since(since) < self.options.limits.timeout =>
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
        nodes: ReplicationNodes,
        leader: FailoverLeader,
        preference: Option<&Preference>,
    ) -> Result<SwitchoverOutcome, SwitchoverError> {
        let (access, limits) = (self.handle.connection_settings(), self.options.limits);
        let (leader, down_after, mut tasks) = {
            let (addr, down_after) = (leader.addr.clone(), leader.view.down_after);
            (addr, down_after, ServerTasks::start(access, nodes, leader, limits))
        };
        let down_after = self.options.pause_clients.then(|| down_after.unwrap_or_default());
        let (mut machine, mut actions) =
            SwitchoverMachine::begin(clock::now(), participants, leader, limits, down_after)?;
        let gate = HeldGate(self.handle);
        loop {
            for action in actions {
                if let (Action::Selected(_), Some(preference)) = (&action, preference) {
                    preference.restore();
                }
                if let Some(done) = self.perform(action, &gate, &tasks) {
                    return done;
                }
            }
            let now = clock::now();
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
            let is_revoked =
                self.reporter.steps.is_closed() || self.handle.operations().is_stopping();
            inputs.extend(is_revoked.then_some(Input::Abandoned));
            inputs.push(Input::Tick);
            let now = clock::now();
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
            Action::Pause(span) => drop(tasks.master.try_send(MasterCommand::Pause(span))),
            Action::Unpause => drop(tasks.master.try_send(MasterCommand::Unpause)),
            Action::ReadHandover => drop(tasks.master.try_send(MasterCommand::ReadHandover)),
            Action::EndHandover => drop(tasks.master.try_send(MasterCommand::EndHandover)),
            Action::ReadOffsets => drop(tasks.look.try_send(())),
            Action::StartFailover(kind) => {
                let _ = tasks.leader.try_send(LeaderCommand::StartFailover(kind));
            }
            Action::PollLeader => drop(tasks.leader.try_send(LeaderCommand::View)),
            Action::ReportStep(step, text) => {
                if step == "abort" {
                    self.is_abort_reported.store(true, Ordering::Relaxed);
                }
                self.report(step, text);
            }
            Action::Selected(_) => {}
            Action::Done(result) => return Some(result),
        }
        None
    }
}
