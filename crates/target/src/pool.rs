//! A set of equivalent targets: the replicas that may serve readers.
//!
//! The writer publishes the whole set through one atomic pointer. A reader gets the member with the
//! fewest sessions. Sessions are counted on the target itself by the [`TargetRef`] that each
//! session holds, so the end of a session needs no message.
//!
//! A target leaves the set in one of two ways. One that is *worse* than the rest is drained: it
//! gets no new sessions, and its sessions leave at a command boundary or are carried to another
//! member. One that is *wrong*, because it is a master now or its role is unknown, is fenced like a
//! superseded master. If a target returns while sessions still use it, it is the same object: its
//! load is known, and the remaining sessions may stay.
//!
//! An empty set is a valid publication: readers then get the master or are rejected, depending on
//! [`EmptyPool`]. Before the first publication, readers wait. Sessions that were given the master
//! for lack of a replica are drained as soon as a replica is available.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;

use crate::balance::LoadBalancer;
use crate::gate::Gate;
use crate::lease::ClockReading;
use crate::{Destination, Generation, ReplicaStatus, Target, TargetReader, TargetRef};

/// What readers get while the pool has no usable replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmptyPool {
    /// Nothing: they are rejected immediately.
    Reject,
    /// The master, until a replica is available.
    Master,
}

/// The most recent publication.
#[derive(Debug, Default)]
struct PublishedSet {
    members: Vec<Arc<Target>>,
    /// The master, serving in place of the members.
    fallback_target: Option<Arc<Target>>,
}

/// The reader's side of a pool.
#[derive(Debug)]
pub struct Pool {
    /// `None` before the first publication.
    set: ArcSwapOption<PublishedSet>,
    gate: Arc<Gate>,
    master: Arc<TargetReader>,
    /// What readers get while it is empty; see [`EmptyPool`].
    master_when_empty: AtomicBool,
    /// Where the search begins, to spread ties.
    search_start: AtomicUsize,
}

/// The answer to a reader.
#[derive(Debug)]
pub(crate) enum Selection {
    Use(TargetRef),
    /// A target may become available.
    Wait,
    /// There is nothing to wait for.
    Nothing,
}

impl Pool {
    /// The least loaded member, or the master in place of the members.
    pub(crate) fn choose(&self) -> Selection {
        let Some(set) = self.set.load_full() else { return Selection::Wait };
        if self.gate.is_closed() {
            return Selection::Wait;
        }
        if let Some(member) = self.least_loaded(&set.members) {
            return Selection::Use(TargetRef::new(member));
        }
        let usable = |target: &&Arc<Target>| !target.is_closed() && !target.fence().is_raised();
        match (self.when_empty(), set.fallback_target.as_ref().filter(usable)) {
            (EmptyPool::Master, Some(master)) => Selection::Use(TargetRef::new(Arc::clone(master))),
            (EmptyPool::Master, None) => Selection::Wait,
            (EmptyPool::Reject, _) => Selection::Nothing,
        }
    }

    /// The member with the fewest sessions; members whose last connect failed recently come last.
    fn least_loaded(&self, members: &[Arc<Target>]) -> Option<Arc<Target>> {
        let search_start = self.search_start.fetch_add(1, Ordering::Relaxed);
        let (early, late) = members.split_at(search_start.checked_rem(members.len())?);
        let standing = late.iter().chain(early).filter(|target| !target.fence().is_raised());
        standing.min_by_key(|target| (target.is_deferred(), target.load())).cloned()
    }

    /// Whether there is a member, or the master in place of the members, whose last connect did not
    /// fail recently.
    pub(crate) fn has_undeferred(&self) -> bool {
        let untried = |target: &Arc<Target>| !target.is_deferred() && !target.fence().is_raised();
        self.set
            .load()
            .as_ref()
            .is_some_and(|set| set.members.iter().chain(&set.fallback_target).any(untried))
    }

    pub(crate) fn changed_notify(&self) -> &tokio::sync::Notify {
        &self.gate.changed_notify
    }

    /// The reader of the master, if the master may serve in place of replicas.
    pub(crate) fn fallback(&self) -> Option<&Arc<TargetReader>> {
        (self.when_empty() == EmptyPool::Master).then_some(&self.master)
    }

    /// The current members, each with its load; `None` before the first publication.
    #[must_use]
    pub fn members(&self) -> Option<Vec<Arc<Target>>> {
        self.set.load().as_ref().map(|set| set.members.clone())
    }

    /// What readers get while the pool has no usable replica.
    #[must_use]
    pub fn when_empty(&self) -> EmptyPool {
        // Used only while there is no member; a publication follows each change.
        if self.master_when_empty.load(Ordering::Relaxed) {
            EmptyPool::Master
        } else {
            EmptyPool::Reject
        }
    }
}

/// The writer's side. Not `Clone`: there is one owner, and it decides.
#[derive(Debug)]
pub struct PoolWriter {
    pool: Arc<Pool>,
    published: u64,
    /// Every target that is a member or may still have sessions.
    targets: Vec<Arc<Target>>,
    balance: LoadBalancer,
}

impl PoolWriter {
    /// Creates a pool without a publication. `master` is used if the pool is empty.
    #[must_use]
    pub fn new(master: &Arc<TargetReader>, when_empty: EmptyPool) -> (Self, Arc<Pool>) {
        let pool = Arc::new(Pool {
            set: ArcSwapOption::empty(),
            gate: Arc::new(Gate::read_only(master.gate())),
            master: Arc::clone(master),
            master_when_empty: AtomicBool::new(when_empty == EmptyPool::Master),
            search_start: AtomicUsize::new(0),
        });
        (
            Self {
                pool: Arc::clone(&pool),
                published: 0,
                targets: Vec::new(),
                balance: LoadBalancer::default(),
            },
            pool,
        )
    }

    /// The reader's side of this pool.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Changes what readers get while the pool is empty. The next publication moves the sessions
    /// that it concerns.
    pub fn set_when_empty(&mut self, when_empty: EmptyPool) {
        let master = when_empty == EmptyPool::Master;
        if self.pool.master_when_empty.swap(master, Ordering::Relaxed) != master {
            // Those that wait for a master may have nothing to wait for now.
            self.pool.changed_notify().notify_waiters();
        }
    }

    /// The master that may serve in place of replicas, if that is allowed and there is one.
    #[must_use]
    pub fn master(&self) -> Option<Arc<Target>> {
        self.pool.fallback().and_then(|reader| reader.current())
    }

    /// Publishes exactly these members. To be called again after each change of the master's
    /// target, since the master may serve in place of replicas. Every target that is not published
    /// is drained.
    pub fn publish(&mut self, members: Vec<Destination>) {
        let members: Vec<Arc<Target>> = members.into_iter().map(|it| self.target(it)).collect();
        let master = self.master().filter(|_| members.is_empty());
        let fallback_target = master.map(|master| self.sharing_fence(&master));
        for target in &self.targets {
            let wanted = members.iter().chain(&fallback_target).any(|it| Arc::ptr_eq(it, target));
            target.set_draining(!wanted);
        }
        self.store(PublishedSet { members, fallback_target });
    }

    /// Removes the nodes at `addr` from the set and fences them.
    pub fn fence(&mut self, addr: SocketAddr) {
        let fenced = |target: &&Arc<Target>| target.addr() == addr && !self.is_fallback(target);
        let fenced: Vec<Arc<Target>> = self.targets.iter().filter(fenced).cloned().collect();
        if fenced.is_empty() {
            return;
        }
        let old = self.pool.set.load_full();
        let members = old
            .iter()
            .flat_map(|set| set.members.iter())
            .filter(|it| it.addr() != addr)
            .cloned()
            .collect();
        let fallback_target = old.as_ref().and_then(|set| set.fallback_target.clone());
        self.targets.retain(|target| !fenced.iter().any(|it| Arc::ptr_eq(it, target)));
        self.pool.set.store(Some(Arc::new(PublishedSet { members, fallback_target })));
        // Remove first, then raise the fence: a session woken by the fence finds the new set.
        fenced.iter().for_each(|target| target.fence().raise());
        self.pool.changed_notify().notify_waiters();
    }

    /// Closes or opens the gate of all members: while it is closed, requests wait and replies pass.
    /// Returns whether that is a change.
    pub fn hold(&mut self, closed: bool) -> bool {
        let change = self.pool.gate.is_held() != closed;
        if change {
            self.pool.gate.set(closed);
        }
        change
    }

    /// Renews the lease of this pool; see [`TargetWriter::renew`](crate::TargetWriter::renew).
    pub fn renew(&mut self, since: ClockReading, span: Duration) {
        self.pool.gate.renew(since, span);
    }

    /// Publishes what is known about the node announced as `name` to the sessions that use it.
    /// `run_id` identifies the process that answers there now; a target of a replaced process
    /// counts as silent. `silent`: see [`Target::is_silent`].
    pub fn set_replica_status(
        &mut self,
        name: &str,
        run_id: Option<&str>,
        replica_status: ReplicaStatus,
        silent: bool,
    ) {
        let mut changed = false;
        for target in self
            .targets
            .iter()
            .filter(|it| *it.destination().name == *name && !self.is_fallback(it))
        {
            let then = target.destination().run_id.as_deref();
            let replaced = then.zip(run_id).is_some_and(|(then, now)| then != now);
            target.set_replica_status(replica_status);
            changed |= target.set_silent(silent || replaced);
        }
        if changed {
            self.pool.changed_notify().notify_waiters();
        }
    }

    /// Permits sessions to move from the most loaded members to the least loaded ones, at most
    /// `max_moves` per second. To be called several times per second. `calm`: nothing else is
    /// moving sessions.
    pub fn balance(&mut self, now: Instant, max_moves: usize, calm: bool) {
        let Some(set) = self.pool.set.load_full() else { return };
        let usable = |target: &&Arc<Target>| !target.fence().is_raised() && !target.is_deferred();
        let members: Vec<&Arc<Target>> = set.members.iter().filter(usable).collect();
        let loads: Vec<_> =
            members.iter().map(|target| (target.generation(), target.load())).collect();
        let left = members.iter().map(|target| target.moves()).sum();
        let Some(moves) =
            self.balance.step(now, &loads, max_moves, calm && !self.pool.gate.is_closed(), left)
        else {
            return;
        };
        // A target that is no longer a member keeps no permits.
        self.targets.iter().for_each(|target| target.set_move_permits(0));
        members.iter().zip(&moves).for_each(|(target, count)| target.set_move_permits(*count));
        if moves.iter().any(|count| *count > 0) {
            self.pool.changed_notify().notify_waiters();
        }
    }

    /// Targets that are members or may still have sessions.
    #[must_use]
    pub fn targets(&self) -> &[Arc<Target>] {
        &self.targets
    }

    /// Whether this is the master serving in place of replicas: it has the gate of the master.
    fn is_fallback(&self, target: &Arc<Target>) -> bool {
        !Arc::ptr_eq(target.gate(), &self.pool.gate)
    }

    fn store(&mut self, set: PublishedSet) {
        self.pool.set.store(Some(Arc::new(set)));
        // A session that is being placed holds the target, or the set that contains it. So no
        // target that is dropped here has sessions that could no longer be fenced.
        self.targets.retain(|target| Arc::strong_count(target) > 1 && !target.fence().is_raised());
        self.pool.changed_notify().notify_waiters();
    }

    /// The target for a destination: the existing one, unless it was fenced.
    fn target(&mut self, destination: Destination) -> Arc<Target> {
        let same = |target: &&Arc<Target>| {
            let targets = target.destination();
            targets.addr == destination.addr
                && targets.run_id == destination.run_id
                && target.lineage() == self.pool.gate.lineage()
                && !self.is_fallback(target)
        };
        if let Some(targets) = self.targets.iter().find(same) {
            return Arc::clone(targets);
        }
        let target = Target::new(self.next(), destination, Arc::clone(&self.pool.gate));
        self.remember(target)
    }

    fn sharing_fence(&mut self, master: &Target) -> Arc<Target> {
        if let Some(targets) = self.targets.iter().find(|target| target.shares_fence_with(master)) {
            return Arc::clone(targets);
        }
        let target = master.sharing_fence(self.next());
        self.remember(target)
    }

    fn remember(&mut self, target: Target) -> Arc<Target> {
        let target = Arc::new(target);
        self.targets.push(Arc::clone(&target));
        target
    }

    fn next(&mut self) -> Generation {
        self.published += 1;
        Generation::new(self.published)
    }
}
