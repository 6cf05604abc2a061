//! A planned switchover: another master by order, with nothing lost and nothing failed.
//!
//! A failover by order alone (`SENTINEL FAILOVER`) promotes a replica while traffic flows. Here the
//! gate shuts first, so that nothing new is written through this process; then the replicas get the
//! time to apply all that was, which takes a few round trips; only then is the failover ordered.
//! The commit that discovery makes of it opens the gate.
//!
//! Writers that do not pass here are not stopped by default. Another proxy holds its clients when
//! Sentinel has selected a replica, 50 ms and more before the promotion, so that their requests are
//! answered before it. With `pause_clients` the master's clients are stopped by `CLIENT PAUSE …
//! WRITE` from before the order until after the commit. That protects writers that use no proxy and
//! listen to Sentinel; but a request that reaches the master during the pause gets no reply, so
//! clients of another proxy see errors.
//!
//! Everything before the order can be taken back, and is, at the first thing that is not as it
//! should be: the gate opens to the same master and nobody was promoted. A guard does so even if
//! this task is dropped. `course` decides; this and `peers` carry out.
//!
//! Deliberately absent: who may order it, and how that is told to them.

mod course;
mod failover;
mod leader;
mod pausing;
mod peers;
mod phase;
mod reason;
mod steps;
mod talk;
mod weigh;

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use self::course::Course;
use self::peers::{Clients, Leader, Nodes, Peers, Question};
pub use self::reason::Reason;
use self::steps::{Action, Input, Sight};
use self::weigh::{Cast, cast};
pub use self::weigh::{CatchUp, ReplicationOffsets, Verdict};
use crate::discovery::handle::DiscoveryHandle;
use crate::{NodeAddr, Pause};

/// Between two looks at what discovery shows.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Between two looks before the start, while a node has not answered yet.
const RETRY_EVERY: Duration = Duration::from_millis(5);

/// How long the parts of a switchover may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For the replicas to catch up behind the shut gate.
    pub catch_up: Duration,
    /// From the order to the selection of a replica.
    pub begin: Duration,
    /// From the order to the verified new master.
    pub follow: Duration,
    /// Of one question.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let (catch_up, begin, follow) =
            (Duration::from_secs(2), Duration::from_secs(2), Duration::from_secs(10));
        Self { catch_up, begin, follow, patience: Duration::from_millis(500) }
    }
}

/// How a switchover is to be made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Plan {
    /// How long its parts may take.
    pub limits: Limits,
    /// Stop the master's clients that do not pass here, too.
    pub pause_clients: bool,
}

/// One step of a switchover, told as it is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Since the beginning.
    pub after: Duration,
    /// A stable word: `check`, `hold`, `pause`, `catch-up`, `order`, `select`, `promote`, `commit`,
    /// `abort`.
    pub step: &'static str,
    /// What was done, for people.
    pub text: String,
}

/// What a switchover came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The old master.
    pub from: NodeAddr,
    /// The new one.
    pub to: NodeAddr,
    /// The commit's number.
    pub generation: u64,
    /// How long traffic was held.
    pub held: Duration,
    /// How much of that was Sentinel's own: from the order to the commit.
    pub sentinel: Duration,
}

/// The gate, held shut until this is dropped; a commit opens it, too.
struct Gate<'a>(&'a DiscoveryHandle);

impl Gate<'_> {
    fn shut(&self, since: Instant, until: Instant) {
        self.0.pause(Pause { since, until, ends_with_commit: true });
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        self.0.resume();
    }
}

/// One at a time for each service.
struct Turn<'a>(&'a DiscoveryHandle);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.end_switchover();
    }
}

/// Switches the service of `handle` over to another master, and tells each step to `tell`. If the
/// other end of `tell` goes away before the failover was ordered, nothing is ordered.
///
/// # Errors
///
/// Why there is no new master, or not by this order.
pub async fn switchover(
    handle: &DiscoveryHandle,
    plan: Plan,
    tell: mpsc::Sender<Told>,
) -> Result<Outcome, Reason> {
    if !handle.begin_switchover() {
        return Err(Reason::Busy);
    }
    let _turn = Turn(handle);
    let run = Run { handle, plan, tell, start: Instant::now() };
    match run.prepare().await {
        Ok((cast, peers, leader)) => run.carry_out(cast, peers, leader).await,
        Err(reason) => {
            run.say("abort", reason.to_string());
            Err(reason)
        }
    }
}

/// The sentinel that will be given the order, and its `down-after-milliseconds`.
type Ordered = (NodeAddr, Option<Duration>);

struct Run<'a> {
    handle: &'a DiscoveryHandle,
    plan: Plan,
    tell: mpsc::Sender<Told>,
    start: Instant,
}

impl Run<'_> {
    /// Never waits: nothing of the course may depend on how fast its steps are read.
    fn say(&self, step: &'static str, text: String) {
        // A listener that has left is noticed before the order.
        let _ = self.tell.try_send(Told { after: self.start.elapsed(), step, text });
    }

    /// Connects to everything that takes part, and finds out what can be found out before anything
    /// is held.
    async fn prepare(&self) -> Result<(Cast, Peers, Ordered), Reason> {
        let (reach, limits) = (self.handle.connection_settings(), self.plan.limits);
        let cast = self.cast().await?;
        let mut nodes = Nodes::open(reach, &cast, limits).await?;
        let (master, replicas) = nodes.look().await?;
        let leader = Leader::choose(reach, &cast, limits).await?;
        self.say(
            "check",
            format!(
                "{} is the master at offset {}, with {} replicas; sentinel {} can be given the order",
                cast.master,
                master.offset,
                replicas.len(),
                leader.addr
            ),
        );
        let ordered = (leader.addr.clone(), leader.view.down_after);
        Ok((cast, Peers::start(reach, nodes, leader, limits), ordered))
    }

    /// The nodes and sentinels that take part. A node that has not answered yet, or not this time,
    /// has a moment for it.
    async fn cast(&self) -> Result<Cast, Reason> {
        loop {
            match cast(&self.handle.snapshot()) {
                Err(Reason::Node { .. }) if self.start.elapsed() < self.plan.limits.patience => {
                    tokio::time::sleep(RETRY_EVERY).await;
                }
                decided => return decided,
            }
        }
    }

    async fn carry_out(
        &self,
        cast: Cast,
        mut peers: Peers,
        (leader, down_after): Ordered,
    ) -> Result<Outcome, Reason> {
        let down_after = self.plan.pause_clients.then(|| down_after.unwrap_or_default());
        let begun = Course::begin(Instant::now(), (cast, leader), self.plan.limits, down_after);
        let (mut course, mut actions) = match begun {
            Ok(begun) => begun,
            Err(reason) => {
                self.say("abort", reason.to_string());
                return Err(reason);
            }
        };
        let gate = Gate(self.handle);
        loop {
            for action in actions {
                if let Some(done) = self.perform(action, &gate, &peers) {
                    return done;
                }
            }
            let now = Instant::now();
            let wake_at =
                course.next_deadline().map_or(now + LOOK_EVERY, |at| at.min(now + LOOK_EVERY));
            let first = tokio::select! {
                biased;
                input = peers.inputs.recv() => input,
                () = tokio::time::sleep_until(wake_at.into()) => None,
            };
            // After a stop of this process much may wait at once. What the leader said comes before
            // the commit that it led to, and all that happened before the time that ran out
            // meanwhile.
            let waiting = std::iter::from_fn(|| peers.inputs.try_recv().ok());
            let mut inputs: Vec<Input> = first.into_iter().chain(waiting).collect();
            inputs.push(Input::DiscoverySnapshot(self.sight()));
            inputs.extend(self.tell.is_closed().then_some(Input::Abandoned));
            inputs.push(Input::Tick);
            let now = Instant::now();
            actions = inputs.into_iter().flat_map(|input| course.step(now, input)).collect();
        }
    }

    /// What discovery shows, once it has carried out the latest order.
    fn sight(&self) -> Sight {
        let seen = self.handle.snapshot();
        let master = seen.master.as_ref().map(|it| (it.addr.clone(), it.generation, it.epoch));
        Sight { holding: seen.holding, master }
    }

    /// Carries out an action. Each task has room for all commands that can be under way.
    fn perform(
        &self,
        action: Action,
        gate: &Gate<'_>,
        peers: &Peers,
    ) -> Option<Result<Outcome, Reason>> {
        match action {
            Action::Hold { since, until } => gate.shut(since, until),
            Action::Release => {
                self.handle.resume();
            }
            Action::Pause(span) => drop(peers.clients.try_send(Clients::Pause(span))),
            Action::Unpause => drop(peers.clients.try_send(Clients::Unpause)),
            Action::Look => drop(peers.look.try_send(())),
            Action::Order => drop(peers.leader.try_send(Question::Order)),
            Action::Ask => drop(peers.leader.try_send(Question::View)),
            Action::Tell(step, text) => self.say(step, text),
            Action::Done(result) => return Some(result),
        }
        None
    }
}
