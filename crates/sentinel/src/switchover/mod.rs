//! A planned switchover: another master by order, with nothing lost and nothing failed.
//!
//! A failover by order alone (`SENTINEL FAILOVER`) promotes a replica and lets the old master take writes for seconds more.
//! Here the order of things is turned round: first the gate shuts, so that nothing new is written; then the replicas are given
//! the time to apply all that was, which takes a few round trips; only then is the failover ordered. The commit that
//! discovery makes of it opens the gate. Writers that do not pass here are stopped by `CLIENT PAUSE … WRITE` where the probe
//! user may do that.
//!
//! Everything before the order can be taken back, and is, at the first thing that is not as it should be: the gate opens to the
//! same master and nobody was promoted. A guard does so even if this task is dropped. After the order only Sentinel decides; what
//! is left to do is to wait, for a bounded time.
//!
//! Deliberately absent: who may order it, and how that is told to them.

mod talk;
mod weigh;

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use self::talk::Talk;
use self::weigh::{Cast, cast, standing};
pub use self::weigh::{CatchUp, Reason, Standing, Verdict};
use crate::auth::Denied;
use crate::handle::Handle;
use crate::questions::SENTINEL_AUTH;
use crate::resolve::Lookup;
use crate::{NodeAddr, Pause};

/// Where redis nodes' refusals point to.
const AUTH: &str = "service.auth";

/// The pause between two looks at the offsets.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long the master's offset has to stand still behind the shut gate.
const STILL: Duration = Duration::from_millis(30);
/// Writers that do not pass here stay paused this long after the commit, for other proxies to follow.
const LINGER: Duration = Duration::from_secs(1);

/// How long the parts of a switchover may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For the replicas to catch up behind the shut gate.
    pub catch_up: Duration,
    /// From the order to the verified new master.
    pub follow: Duration,
    /// Of one question.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let (catch_up, follow) = (Duration::from_secs(2), Duration::from_secs(10));
        Self { catch_up, follow, patience: Duration::from_millis(500) }
    }
}

/// One step of a switchover, told as it is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Since the beginning.
    pub after: Duration,
    /// A stable word: `check`, `hold`, `pause`, `catch-up`, `order`, `commit`, `abort`.
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
struct Gate<'a>(&'a Handle);

impl<'a> Gate<'a> {
    fn shut(handle: &'a Handle, limits: &Limits) -> Self {
        let since = Instant::now();
        let until = since + limits.catch_up + limits.follow;
        handle.pause(Pause { since, until, ends_with_commit: true });
        Self(handle)
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        self.0.resume();
    }
}

/// One at a time for each service.
struct Turn<'a>(&'a Handle);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.end_switchover();
    }
}

/// Switches the service of `handle` over to another master, and tells each step to `tell`. If the other end of `tell` goes away
/// before the failover was ordered, nothing is ordered.
///
/// # Errors
///
/// Why the points did not move; unless it is [`Reason::NoCommit`], nothing was changed.
pub async fn switchover(handle: &Handle, limits: Limits, tell: mpsc::Sender<Told>) -> Result<Outcome, Reason> {
    if !handle.begin_switchover() {
        return Err(Reason::Busy);
    }
    let _turn = Turn(handle);
    let mut run = Run { handle, limits, tell, start: Instant::now() };
    let done = run.all().await;
    if let Err(reason) = &done {
        run.say("abort", reason.to_string()).await;
    }
    done
}

struct Run<'a> {
    handle: &'a Handle,
    limits: Limits,
    tell: mpsc::Sender<Told>,
    start: Instant,
}

impl Run<'_> {
    async fn say(&self, step: &'static str, text: String) {
        // Whoever does not listen any more is noticed before the order.
        let _ = self.tell.send(Told { after: self.start.elapsed(), step, text }).await;
    }

    async fn all(&mut self) -> Result<Outcome, Reason> {
        let cast = self.cast().await?;
        let mut master = self.redis(&cast.master, cast.dialled).await?;
        let mut replicas = Vec::new();
        for (node, dialled) in &cast.replicas {
            replicas.push((node.clone(), self.redis(node, *dialled).await?));
        }
        // A user that may not run INFO is found out before anything is held up.
        let first = look(&cast.master, &mut master).await?;
        let lag = replicas.len();
        self.say("check", format!("{} is the master at offset {}, with {lag} replicas", cast.master, first.offset))
            .await;
        let gate = Gate::shut(self.handle, &self.limits);
        let held = Instant::now();
        self.gate_is_shut(held).await?;
        self.say("hold", "traffic is held; requests under way are answered".to_owned()).await;
        tokio::time::sleep(STILL).await;
        let paused = self.pause_others(&mut master).await;
        let ordered = self.catch_up(&cast, &mut master, &mut replicas).await;
        let ordered = match ordered {
            Ok(()) => self.order(&cast).await,
            Err(reason) => Err(reason),
        };
        if let Err(reason) = ordered {
            // Others first: the gate is ours and opens at once.
            if paused {
                self.unpause(&cast).await;
            }
            return Err(reason);
        }
        let at = Instant::now();
        let done = self.follow(&cast, at).await;
        drop(gate);
        let (held, sentinel) = (held.elapsed(), at.elapsed());
        if let Ok((to, _)) = &done {
            let (held, sentinel) = (held.as_millis(), sentinel.as_millis());
            let text = format!(
                "{to} is the master; traffic was held for {held} ms, {sentinel} ms of them by Sentinel's own promotion"
            );
            self.say("commit", text).await;
        }
        if paused {
            tokio::time::sleep(LINGER).await;
            self.unpause(&cast).await;
        }
        let (to, generation) = done?;
        Ok(Outcome { from: cast.master, to, generation, held, sentinel })
    }

    /// Who takes part. A node that has not answered yet, or not this time, has a moment for it.
    async fn cast(&self) -> Result<Cast, Reason> {
        loop {
            match cast(&self.handle.seen()) {
                Err(Reason::Node { .. }) if self.start.elapsed() < self.limits.patience => {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                decided => return decided,
            }
        }
    }

    async fn redis(&self, node: &NodeAddr, dialled: std::net::SocketAddr) -> Result<Talk, Reason> {
        let credentials = self.handle.reach().auth.as_ref();
        let talk = Talk::open(dialled, (credentials, AUTH), self.limits.patience).await;
        talk.map_err(|problem| Reason::Node { node: node.clone(), problem })
    }

    /// Waits until discovery has shut the gate. A failover that began by itself meanwhile is left alone.
    async fn gate_is_shut(&self, since: Instant) -> Result<(), Reason> {
        while !self.handle.seen().holding {
            if since.elapsed() > self.limits.patience {
                return Err(Reason::Unsettled);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Lets the writers go on that do not pass here. On a connection of its own, since the one in use may have broken; and if it
    /// fails, the pause ends by itself.
    async fn unpause(&self, cast: &Cast) {
        if let Ok(mut talk) = self.redis(&cast.master, cast.dialled).await {
            let _ = talk.ask(&["CLIENT", "UNPAUSE"]).await;
        }
    }

    /// Stops the writers that do not pass here, if we may. Whether they may be stopped now: without an answer, they may.
    async fn pause_others(&self, master: &mut Talk) -> bool {
        let millis = (self.limits.catch_up + self.limits.follow + LINGER).as_millis().to_string();
        let refusal = |line: &str| {
            let denied = Denied::read(line, "CLIENT PAUSE", "+client|pause +client|unpause", AUTH);
            denied.map_or_else(|| "it does not know CLIENT PAUSE … WRITE".to_owned(), |denied| denied.to_string())
        };
        let problem = match master.ask(&["CLIENT", "PAUSE", &millis, "WRITE"]).await {
            Ok(reply) => reply.error().map(|line| (refusal(line), false)),
            Err(problem) => Some((problem, true)),
        };
        let text = match &problem {
            None => "writers that do not pass here wait at the master".to_owned(),
            Some((problem, _)) => format!("writers that do not pass here are not held: {problem}"),
        };
        self.say("pause", text).await;
        problem.is_none_or(|(_, perhaps)| perhaps)
    }

    async fn catch_up(&self, cast: &Cast, master: &mut Talk, replicas: &mut [(NodeAddr, Talk)]) -> Result<(), Reason> {
        let mut waiting = CatchUp::new(Instant::now() + self.limits.catch_up, STILL);
        loop {
            if self.tell.is_closed() {
                return Err(Reason::Abandoned);
            }
            // Replicas after the master: what they have by then is compared with what it had written before.
            let wrote = look(&cast.master, master).await?;
            let mut have = Vec::with_capacity(replicas.len());
            for (node, talk) in replicas.iter_mut() {
                have.push((node.clone(), look(node, talk).await?));
            }
            match waiting.weigh(Instant::now(), wrote, &have) {
                Verdict::Wait => tokio::time::sleep(LOOK_EVERY).await,
                Verdict::Ready { offset } => {
                    self.say("catch-up", format!("every replica has all of the master's {offset} bytes")).await;
                    return Ok(());
                }
                Verdict::Abort(reason) => return Err(reason),
            }
        }
    }

    /// Has a sentinel start the failover. The first that can be asked decides; an answer of no is final.
    async fn order(&self, cast: &Cast) -> Result<(), Reason> {
        // The last moment at which nothing has been changed.
        if self.tell.is_closed() {
            return Err(Reason::Abandoned);
        }
        let reach = self.handle.reach();
        let mut problem = String::from("none can be reached");
        for sentinel in &cast.sentinels {
            let mut lookup = Lookup::new(&reach.resolver, &sentinel.host, sentinel.port);
            let Ok(addr) = lookup.address(self.limits.patience).await else { continue };
            let auth = (reach.sentinel_auth.as_ref(), SENTINEL_AUTH);
            let mut talk = match Talk::open(addr, auth, self.limits.patience).await {
                Ok(talk) => talk,
                Err(why) => {
                    problem = format!("{sentinel}: {why}");
                    continue;
                }
            };
            // Where it is known, the master takes part and stops taking writes by itself.
            let coordinated = talk.ask(&["SENTINEL", "FAILOVER", &reach.name, "COORDINATED"]).await;
            let reply = match coordinated {
                Ok(reply) if reply.error().is_some_and(|line| line.starts_with("ERR ")) => {
                    talk.ask(&["SENTINEL", "FAILOVER", &reach.name]).await
                }
                reply => reply,
            };
            match reply {
                Ok(reply) => match reply.error() {
                    None => {
                        self.say("order", format!("sentinel {sentinel} starts the failover")).await;
                        return Ok(());
                    }
                    Some(line) => {
                        let rule = "+sentinel|failover";
                        let denied = Denied::read(line, "SENTINEL FAILOVER", rule, SENTINEL_AUTH);
                        let line = line.chars().take(120).collect();
                        return Err(Reason::Refused(denied.map_or(line, |denied| denied.to_string())));
                    }
                },
                // It may have taken the order: asking another one could start a second failover.
                Err(why) => return Err(Reason::Refused(format!("{sentinel}: {why}"))),
            }
        }
        Err(Reason::Refused(problem))
    }

    /// Waits for the commit.
    async fn follow(&self, cast: &Cast, since: Instant) -> Result<(NodeAddr, u64), Reason> {
        loop {
            let seen = self.handle.seen();
            if let Some(master) = seen.master.as_ref().filter(|master| master.generation > cast.generation) {
                return Ok((master.addr.clone(), master.generation));
            }
            if since.elapsed() > self.limits.follow {
                return Err(Reason::NoCommit);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Asks a node where it stands.
async fn look(node: &NodeAddr, talk: &mut Talk) -> Result<Standing, Reason> {
    let problem = |problem: String| Reason::Node { node: node.clone(), problem };
    let reply = talk.ask(&["INFO", "replication"]).await.map_err(problem)?;
    if let Some(denied) = reply.error().and_then(|line| Denied::read(line, "INFO", "+info", AUTH)) {
        return Err(problem(denied.to_string()));
    }
    let read = reply.text().and_then(standing);
    read.ok_or_else(|| problem("INFO replication tells no offset".to_owned()))
}
