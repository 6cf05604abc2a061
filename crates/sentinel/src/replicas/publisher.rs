//! The readers' side of one service: carries out on the pool what the roster decides.
//!
//! It is driven by the service's group, after every step of the machine and a few times a second,
//! and asks nobody anything itself: the canaries that watch the nodes for the machine are the
//! roster's witnesses, too.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use target::{ClockReading, Destination, EmptyPool, Generation, PoolWriter, ReplicaStatus};
use tracing::{debug, info, warn};

use crate::discovery::snapshot::{ReplicaPoolSnapshot, ReplicaSnapshot};
use crate::rate_limiter::Hush;
use crate::replicas::eligibility::{
    Eligibility, Facts, Leader, Member, Pause, ReplicaState, Ruling, listed,
};
use crate::{Event, Lack, Machine, NodeAddr, Notice, ReplicaRules, State, View};

/// Sessions' hints make the replicas be asked again this often at most.
const HINTS_APART: Duration = Duration::from_millis(100);

/// What a service with readers needs.
#[derive(Debug)]
pub struct Replicas {
    /// Who may serve them.
    pub rules: ReplicaRules,
    /// What is published.
    pub writer: PoolWriter,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct ReplicaPublisher {
    roster: Eligibility,
    writer: PoolWriter,
    /// What was published last, with the master that may stand in.
    published: Option<(Vec<Member>, Option<Generation>)>,
    ejections: u64,
    readmissions: u64,
    /// A session noticed something that nobody has been asked about yet.
    hinted: bool,
    hint_after: Option<Instant>,
    /// A sentinel has announced that replicas are about to be re-pointed.
    announced: bool,
    pause: Pause,
    /// Sessions moved per second where shares are unequal, at most.
    rebalance: usize,
    /// Bounds what is logged about replicas.
    hush: Hush,
}

impl ReplicaPublisher {
    pub(crate) fn new(replicas: Replicas) -> Self {
        Self {
            rebalance: replicas.rules.rebalance,
            roster: Eligibility::new(replicas.rules),
            writer: replicas.writer,
            published: None,
            ejections: 0,
            readmissions: 0,
            hinted: false,
            hint_after: None,
            announced: false,
            pause: Pause::default(),
            hush: Hush::new(20, Duration::from_secs(5)),
        }
    }

    /// Nothing may go to this address as to a replica any more. Before the points lead there, not
    /// after it.
    pub(crate) fn bar(&mut self, dialled: SocketAddr) {
        self.writer.fence(dialled);
    }

    /// The process was stopped: what was said is not believed until the replicas have been asked
    /// again.
    pub(crate) fn wake(&mut self, now: Instant) {
        self.roster.wake(now);
    }

    /// Gives the word for what was published, unless it is in doubt.
    pub(crate) fn renew(&mut self, looked: ClockReading, span: Duration) {
        if self.roster.sees() {
            self.writer.renew(looked, span);
        }
    }

    /// A session noticed something.
    pub(crate) fn hint(&mut self) {
        self.hinted = true;
    }

    /// Takes note of what a sentinel announces, before the machine is told.
    pub(crate) fn hear(&mut self, event: &Event) {
        if let Event::Notice {
            from: Some(_),
            notice: Notice::Promoted { .. } | Notice::ReplicaDone,
        } = event
        {
            self.announced = true;
        }
    }

    /// When a step is due for the replicas' sake: a hint that waits for its turn, or the end of a
    /// pause.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let hint = self.hint_after.filter(|_| self.hinted);
        hint.into_iter().chain(self.pause.deadline()).min()
    }

    /// The members to be asked again for that reason now. A hint that comes right after another
    /// waits for its turn: the answer to an older question would not say what the session has to
    /// know.
    pub(crate) fn take_hint(&mut self, now: Instant) -> Vec<NodeAddr> {
        if !self.hinted || self.hint_after.is_some_and(|at| now < at) {
            return Vec::new();
        }
        (self.hinted, self.hint_after) = (false, Some(now + HINTS_APART));
        let members = self.published.iter().flat_map(|(members, _)| members);
        members.map(|member| member.addr.clone()).collect()
    }

    /// Brings the pool in line with all that is known.
    pub(crate) fn turn(&mut self, now: Instant, service: &str, machine: &Machine) {
        let ruling = judge(&mut self.roster, now, machine);
        let failing_over = is_failing_over(machine);
        let members = ruling.members.as_ref().is_none_or(|members| !members.is_empty());
        // Without either, sessions that leave early are turned away, and the promotion may yet be
        // aborted.
        let others = members || self.writer.pool().when_empty() == EmptyPool::Master;
        // Before anybody is asked to leave: the sessions that are asked look how urgent it is.
        self.inform(now, failing_over, others);
        for dialled in &ruling.barred {
            self.writer.fence(*dialled);
        }
        if let Some(members) = ruling.members {
            let master = self.writer.master().map(|target| target.generation());
            let next = (members, master);
            if self.published.as_ref() != Some(&next) {
                self.publish(now, service, next);
                self.inform(now, failing_over, others);
            }
        }
        for (addr, from, to) in ruling.changes {
            self.tell(now, service, &addr, (from, to));
        }
        self.pause((now, service), failing_over, machine);
        let calm = !failing_over && *machine.state() == State::Stable && self.roster.sees();
        self.writer.balance(now, self.rebalance, calm);
    }

    /// Lets requests wait while replicas are about to be re-pointed. An announcement is believed
    /// while a failover is under way.
    fn pause(&mut self, (now, service): (Instant, &str), failing_over: bool, machine: &Machine) {
        let next = match machine.state() {
            State::Armed { candidate, .. } => candidate.as_ref(),
            State::Committing { addr, .. } => Some(addr),
            _ => machine.committed().map(|it| &it.addr),
        };
        let members = self.published.as_ref().map_or(&[][..], |(members, _)| members);
        let serves = |addr: &NodeAddr| members.iter().any(|member| member.addr == *addr);
        let signs = self.roster.signs(now).filter(|sign| serves(sign.addr));
        let signs: Vec<_> =
            signs.map(|sign| (sign.repointed_at, next.is_some() && sign.follows == next)).collect();
        let announced = std::mem::take(&mut self.announced) && failing_over;
        let waits = self.pause.step(now, announced, signs.iter().copied());
        if self.writer.hold(waits) {
            debug!(service, waits, "requests of readers wait while replicas are re-pointed");
        }
    }

    /// Tells the sessions on the replicas what is known of them.
    fn inform(&mut self, now: Instant, failing_over: bool, others: bool) {
        for sign in self.roster.signs(now) {
            let (asked_at, repointed_at) = (sign.asked_at, sign.repointed_at);
            let look = ReplicaStatus {
                asked_at,
                repointed_at,
                failing_over,
                about_to_end: sign.candidate && others,
            };
            self.writer.set_replica_status(&sign.addr.to_string(), sign.run_id, look, sign.silent);
        }
    }

    fn publish(&mut self, now: Instant, service: &str, next: (Vec<Member>, Option<Generation>)) {
        let had = self.published.as_ref().map(|(members, _)| members.len());
        let (has, mut to) = (next.0.len(), Vec::with_capacity(next.0.len()));
        for Member { addr, dialled, run_id } in &next.0 {
            to.push(Destination {
                addr: *dialled,
                name: addr.to_string().into(),
                epoch: 0,
                run_id: run_id.clone(),
            });
        }
        self.writer.publish(to);
        self.published = Some(next);
        if has == 0 && had != Some(0) {
            let Some(unsaid) = self.hush.speak(now) else { return };
            let instead = match self.writer.pool().when_empty() {
                EmptyPool::Reject => "readers are turned away",
                EmptyPool::Master => "readers go to the master",
            };
            warn!(service, unsaid, "no replica may serve readers: {instead}");
        }
    }

    fn tell(
        &mut self,
        now: Instant,
        service: &str,
        addr: &NodeAddr,
        (from, to): (ReplicaState, ReplicaState),
    ) {
        let (left, came) = (from == ReplicaState::Eligible, to == ReplicaState::Eligible);
        self.ejections += u64::from(left);
        self.readmissions += u64::from(came && from == ReplicaState::Recovering);
        if !left && !came {
            return;
        }
        let Some(unsaid) = self.hush.speak(now) else { return };
        let replicas = self.published.as_ref().map_or(0, |(members, _)| members.len());
        let (was, is) = (from.label(), to.label());
        info!(service, unsaid, replica = %addr, was, is, replicas, "a replica for readers came or went");
    }

    /// What is seen of it now.
    pub(crate) fn seen(&self) -> ReplicaPoolSnapshot {
        let members = self.published.as_ref().map(|(members, _)| members.len());
        let sessions = |dialled: Option<SocketAddr>| {
            let there =
                self.writer.targets().iter().filter(|target| Some(target.addr()) == dialled);
            there.map(|target| target.load()).sum()
        };
        let replicas = self.roster.standings().map(|it| ReplicaSnapshot {
            addr: it.addr.clone(),
            standing: it.standing,
            lag: it.lag,
            sessions: sessions(it.dialled),
        });
        ReplicaPoolSnapshot {
            eligible: members,
            stands_in: self.writer.pool().when_empty() == EmptyPool::Master,
            replicas: replicas.collect(),
            ejections: self.ejections,
            readmissions: self.readmissions,
        }
    }
}

/// Whether a failover is under way by what is known now, to the moment when the last replica
/// follows the new master.
fn is_failing_over(machine: &Machine) -> bool {
    let announced = matches!(machine.state(), State::Armed { .. } | State::Committing { .. });
    announced || machine.views().any(|(_, member, view, _)| member && view.failing_over)
}

/// What the roster makes of all that the machine knows now.
pub fn judge(roster: &mut Eligibility, now: Instant, machine: &Machine) -> Ruling {
    let committed = machine.committed();
    let leader = committed.map(|it| {
        let history = it.lineage.as_ref();
        Leader {
            addr: &it.addr,
            dialled: it.dialled,
            replid: history.map_or("", |lineage| &*lineage.replid),
            replid2: history.map_or("", |lineage| &*lineage.replid2),
        }
    });
    let candidate = match machine.state() {
        State::Armed { candidate, .. } => candidate.as_ref(),
        State::Committing { addr, .. } => Some(addr),
        _ => None,
    };
    let views: Vec<&View> =
        machine.views().filter(|(_, member, ..)| *member).map(|(_, _, view, _)| view).collect();
    let facts = Facts {
        leader,
        candidate,
        calm: *machine.state() == State::Stable,
        cut_off: matches!(machine.state(), State::NoMaster { lack: Lack::Minority, .. }),
        listed: leader.and_then(|leader| listed(leader.addr, views.iter().copied())),
    };
    let answers = machine.nodes().filter_map(|(addr, probe)| Some((addr, probe?)));
    roster.judge(now, &facts, answers)
}
