//! Several targets that are as good as each other: the replicas that readers may be sent to.
//!
//! Where the [`TargetReader`](crate::TargetReader) has one lever, a pool has a yard full of tracks. The writer
//! publishes the whole set at once, behind one atomic pointer, and readers take the track with the
//! fewest trains on it; how many there are is counted on the target itself, by a guard that each
//! session holds, so nothing has to be told when a session ends.
//!
//! Two ways out of the set. A target that has become *worse* than the others is dismissed: it gets
//! nobody new, and those who are on it leave, carried over to another one or at a boundary of their
//! own. One that has become *wrong*, because it is a master now or nobody can say what it is, is
//! barred: its fence falls like that of a superseded master. A target that comes back is the same
//! one as before, for as long as somebody is on it, so its load is known and those who have not
//! left yet may stay.
//!
//! An empty set is an answer, too: the master in their place, or nobody. Before the first set there
//! is no answer, and readers wait. A reader who was given the master for want of a replica leaves
//! it again when there is one.
//!
//! Deliberately absent: what makes a target good enough, and any order among those that are.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;

use crate::balance::Balance;
use crate::gate::Gate;
use crate::lease::Moment;
use crate::{Destination, Generation, Look, Target, TargetReader, TargetRef};

/// What readers get where no replica may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Empty {
    /// Nothing: they are turned away at once.
    Reject,
    /// The master, until there is a replica again.
    Master,
}

/// What was published last.
#[derive(Debug, Default)]
struct Set {
    members: Vec<Arc<Target>>,
    /// The master in their place.
    instead: Option<Arc<Target>>,
}

/// The reader's side of a pool.
#[derive(Debug)]
pub struct Pool {
    /// `None` before the first publication.
    set: ArcSwapOption<Set>,
    gate: Arc<Gate>,
    master: Arc<TargetReader>,
    empty: Empty,
    /// Where the search begins, so that ties spread.
    turn: AtomicUsize,
}

/// What a pool has for a reader.
#[derive(Debug)]
pub(crate) enum Choice {
    TargetRef(TargetRef),
    /// It may come to something.
    Wait,
    /// There is nothing to wait for.
    Nothing,
}

impl Pool {
    /// The least loaded member, or whatever stands in its place.
    pub(crate) fn choose(&self) -> Choice {
        let Some(set) = self.set.load_full() else { return Choice::Wait };
        if self.gate.is_shut() {
            return Choice::Wait;
        }
        if let Some(member) = self.least_loaded(&set.members) {
            return Choice::TargetRef(TargetRef::new(member));
        }
        let usable = |target: &&Arc<Target>| !target.is_shut() && !target.fence().has_fallen();
        match (self.empty, set.instead.as_ref().filter(usable)) {
            (Empty::Master, Some(master)) => Choice::TargetRef(TargetRef::new(Arc::clone(master))),
            (Empty::Master, None) => Choice::Wait,
            (Empty::Reject, _) => Choice::Nothing,
        }
    }

    /// Members that nobody could reach a moment ago come last.
    fn least_loaded(&self, members: &[Arc<Target>]) -> Option<Arc<Target>> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let (early, late) = members.split_at(turn.checked_rem(members.len())?);
        let standing = late.iter().chain(early).filter(|target| !target.fence().has_fallen());
        standing.min_by_key(|target| (target.is_shunned(), target.load())).cloned()
    }

    /// Whether there is a member that was not tried in vain a moment ago, or the master in their
    /// place.
    pub(crate) fn has_untried(&self) -> bool {
        let untried = |target: &Arc<Target>| !target.is_shunned() && !target.fence().has_fallen();
        self.set
            .load()
            .as_ref()
            .is_some_and(|set| set.members.iter().chain(&set.instead).any(untried))
    }

    pub(crate) fn bell(&self) -> &tokio::sync::Notify {
        &self.gate.bell
    }

    /// The route whose master may stand in.
    pub(crate) fn stand_in(&self) -> Option<&Arc<TargetReader>> {
        (self.empty == Empty::Master).then_some(&self.master)
    }

    /// The members now, each with its load; `None` before the first publication.
    #[must_use]
    pub fn members(&self) -> Option<Vec<Arc<Target>>> {
        self.set.load().as_ref().map(|set| set.members.clone())
    }

    /// What readers get where no replica may be used.
    #[must_use]
    pub fn empty(&self) -> Empty {
        self.empty
    }
}

/// The writer's side. Not `Clone`: whoever owns it is the one who decides.
#[derive(Debug)]
pub struct PoolWriter {
    pool: Arc<Pool>,
    published: u64,
    /// Every target that is a member or may still have riders.
    known: Vec<Arc<Target>>,
    balance: Balance,
}

impl PoolWriter {
    /// A pool beside the points of `master`, of which nothing is known yet.
    #[must_use]
    pub fn new(master: &Arc<TargetReader>, empty: Empty) -> (Self, Arc<Pool>) {
        let pool = Arc::new(Pool {
            set: ArcSwapOption::empty(),
            gate: Arc::new(Gate::of_readers()),
            master: Arc::clone(master),
            empty,
            turn: AtomicUsize::new(0),
        });
        (
            Self {
                pool: Arc::clone(&pool),
                published: 0,
                known: Vec::new(),
                balance: Balance::default(),
            },
            pool,
        )
    }

    /// The reader's side of this pool.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The master that may stand in, if it may and there is one.
    #[must_use]
    pub fn master(&self) -> Option<Arc<Target>> {
        self.pool.stand_in().and_then(|route| route.current())
    }

    /// Makes exactly these the members. To be called again whenever the master's points have moved,
    /// because the master may stand in. Whoever is on a target that is none of these is asked to
    /// leave.
    pub fn publish(&mut self, members: Vec<Destination>) {
        let members: Vec<Arc<Target>> = members.into_iter().map(|it| self.target(it)).collect();
        let master = self.master().filter(|_| members.is_empty());
        let instead = master.map(|master| self.beside(&master));
        for target in &self.known {
            let wanted = members.iter().chain(&instead).any(|it| Arc::ptr_eq(it, target));
            target.set_dismissed(!wanted);
        }
        self.store(Set { members, instead });
    }

    /// The nodes behind `addr` are members no longer, and not a byte more goes there.
    pub fn bar(&mut self, addr: SocketAddr) {
        let barred = |target: &&Arc<Target>| target.addr() == addr && !self.is_instead(target);
        let barred: Vec<Arc<Target>> = self.known.iter().filter(barred).cloned().collect();
        if barred.is_empty() {
            return;
        }
        let old = self.pool.set.load_full();
        let members = old
            .iter()
            .flat_map(|set| set.members.iter())
            .filter(|it| it.addr() != addr)
            .cloned()
            .collect();
        let instead = old.as_ref().and_then(|set| set.instead.clone());
        self.known.retain(|target| !barred.iter().any(|it| Arc::ptr_eq(it, target)));
        self.pool.set.store(Some(Arc::new(Set { members, instead })));
        // First out of the set, then the fence: whoever is woken by it finds something else.
        barred.iter().for_each(|target| target.fence().fall());
        self.pool.bell().notify_waiters();
    }

    /// Shuts or opens the gate before all members: from here on requests wait, and replies pass.
    /// Whether that is a change.
    pub fn hold(&mut self, shut: bool) -> bool {
        let change = self.pool.gate.is_held() != shut;
        if change {
            self.pool.gate.set(shut);
        }
        change
    }

    /// As [`TargetWriter::renew`](crate::TargetWriter::renew), for what this pool says.
    pub fn renew(&mut self, looked: Moment, span: Duration) {
        self.pool.gate.renew(looked, span);
    }

    /// Passes on what is known of the node that was announced as `name`, for the sessions that are
    /// on it. `run_id`: the process that answers there now; one that was replaced by it is silent.
    /// `silent`: see [`Target::is_silent`].
    pub fn note(&mut self, name: &str, run_id: Option<&str>, look: Look, silent: bool) {
        let mut changed = false;
        for target in
            self.known.iter().filter(|it| *it.destination().name == *name && !self.is_instead(it))
        {
            let then = target.destination().run_id.as_deref();
            let replaced = then.zip(run_id).is_some_and(|(then, now)| then != now);
            target.set_look(look);
            changed |= target.set_silent(silent || replaced);
        }
        if changed {
            self.pool.bell().notify_waiters();
        }
    }

    /// Lets the members that have more sessions than others give up some, at most so many per
    /// second. To be called a few times per second; `calm`: nothing else moves sessions.
    pub fn balance(&mut self, now: Instant, most: usize, calm: bool) {
        let Some(set) = self.pool.set.load_full() else { return };
        let usable = |target: &&Arc<Target>| !target.fence().has_fallen() && !target.is_shunned();
        let members: Vec<&Arc<Target>> = set.members.iter().filter(usable).collect();
        let loads: Vec<_> =
            members.iter().map(|target| (target.generation(), target.load())).collect();
        let left = members.iter().map(|target| target.moves()).sum();
        let Some(moves) =
            self.balance.step(now, &loads, (most, calm && !self.pool.gate.is_shut()), left)
        else {
            return;
        };
        // A target that is no member any more has nothing to give up.
        self.known.iter().for_each(|target| target.set_moves(0));
        members.iter().zip(&moves).for_each(|(target, count)| target.set_moves(*count));
        if moves.iter().any(|count| *count > 0) {
            self.pool.bell().notify_waiters();
        }
    }

    /// Targets that are members or may still have riders.
    #[must_use]
    pub fn known(&self) -> &[Arc<Target>] {
        &self.known
    }

    /// Whether this is the master, standing in: its fence is the route's.
    fn is_instead(&self, target: &Arc<Target>) -> bool {
        !Arc::ptr_eq(target.gate(), &self.pool.gate)
    }

    fn store(&mut self, set: Set) {
        self.pool.set.store(Some(Arc::new(set)));
        // Whoever is about to ride holds the target, or the set in which it was found. So nobody is
        // ever on a target that is forgotten here, and that could not be barred any more.
        self.known.retain(|target| Arc::strong_count(target) > 1 && !target.fence().has_fallen());
        self.pool.bell().notify_waiters();
    }

    /// The target for a destination: the one there is, while it stands.
    fn target(&mut self, destination: Destination) -> Arc<Target> {
        let same = |target: &&Arc<Target>| {
            let known = target.destination();
            known.addr == destination.addr
                && known.run_id == destination.run_id
                && !self.is_instead(target)
        };
        if let Some(known) = self.known.iter().find(same) {
            return Arc::clone(known);
        }
        let target = Target::new(self.next(), destination, Arc::clone(&self.pool.gate));
        self.remember(target)
    }

    fn beside(&mut self, master: &Target) -> Arc<Target> {
        if let Some(known) = self.known.iter().find(|target| target.is_beside(master)) {
            return Arc::clone(known);
        }
        let target = master.beside(self.next());
        self.remember(target)
    }

    fn remember(&mut self, target: Target) -> Arc<Target> {
        let target = Arc::new(target);
        self.known.push(Arc::clone(&target));
        target
    }

    fn next(&mut self) -> Generation {
        self.published += 1;
        Generation::new(self.published)
    }
}
