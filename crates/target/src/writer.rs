//! The lever and what it moves: [`TargetWriter`] is the one writer, [`TargetReader`] is what everyone else
//! reads.
//!
//! A pure swap of a pointer would be enough to send new connections elsewhere. The rest of this
//! file is about the connections that exist: the gate that stops them before the swap, the fence
//! that ends them after it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;

use crate::gate::Gate;
use crate::lease::Moment;
use crate::{Destination, Generation, Replies, Target};

/// The reader's side: shared by every worker and every session of a service.
#[derive(Debug)]
pub struct TargetReader {
    current: ArcSwapOption<Target>,
    gate: Arc<Gate>,
}

impl TargetReader {
    /// The committed target, whether or not the gate is open. `None` before the first commit and
    /// while no master exists.
    #[must_use]
    pub fn current(&self) -> Option<Arc<Target>> {
        self.current.load_full()
    }

    /// Whether the gate is shut, or counts as shut because the writer's word has run out: nobody
    /// may dial, read from a client on behalf of, or write to the target. A session asks its target
    /// the same question, and what becomes of replies ([`Target::replies`]).
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.gate.is_shut()
    }

    /// The target, if one may be used right now.
    #[must_use]
    pub fn open_target(&self) -> Option<Arc<Target>> {
        if self.is_shut() {
            None
        } else {
            self.current().filter(|target| !target.fence().has_fallen())
        }
    }

    /// Waits at the gate until a target may be used. Unbounded: the caller brings the deadline.
    /// Safe to drop.
    pub async fn wait_open(&self) -> Arc<Target> {
        loop {
            // Created before the look, so that an opening between the look and the wait is not
            // lost.
            let bell = self.gate.bell.notified();
            if let Some(target) = self.open_target() {
                return target;
            }
            bell.await;
        }
    }

    /// Returns at the next move of the points: a commit, a shut or opened gate, a cleared target, a
    /// late renewal. Create the future, look, then await it, and no move is lost.
    pub fn moved(&self) -> impl Future<Output = ()> + '_ {
        self.gate.bell.notified()
    }
}

/// The writer's side. Not `Clone`: whoever owns it is the one who decides.
#[derive(Debug)]
pub struct TargetWriter {
    route: Arc<TargetReader>,
    commits: u64,
}

impl TargetWriter {
    /// A route that leads nowhere yet, with its gate open (there is nothing to guard).
    #[must_use]
    pub fn new() -> (Self, Arc<TargetReader>) {
        let route =
            Arc::new(TargetReader { current: ArcSwapOption::empty(), gate: Arc::new(Gate::new()) });
        (Self { route: Arc::clone(&route), commits: 0 }, route)
    }

    /// The reader's side of these points.
    #[must_use]
    pub fn route(&self) -> &Arc<TargetReader> {
        &self.route
    }

    /// Publishes `destination` as the next generation: stores it, fences every session of the one
    /// before, opens the gate.
    pub fn commit(&mut self, destination: Destination) -> Arc<Target> {
        let target = self.publish(destination);
        self.route.gate.set(false);
        target
    }

    /// The same behind a gate that stays shut, or shuts before the target can be seen: an operator
    /// wants no traffic now.
    pub fn commit_held(&mut self, destination: Destination) -> Arc<Target> {
        self.route.gate.set(true);
        let target = self.publish(destination);
        self.route.gate.bell.notify_waiters();
        target
    }

    fn publish(&mut self, destination: Destination) -> Arc<Target> {
        self.commits += 1;
        let target = Arc::new(Target::new(
            Generation::new(self.commits),
            destination,
            Arc::clone(&self.route.gate),
        ));
        let old = self.route.current.swap(Some(Arc::clone(&target)));
        if let Some(old) = old {
            old.fence().fall();
        }
        target
    }

    /// The process that was committed is reached at `addr` from now on: new connections are dialled
    /// there. The generation and its fence stay, so no session notices.
    pub fn redirect(&mut self, addr: SocketAddr) {
        if let Some(target) = self.route.current() {
            self.route.current.store(Some(Arc::new(target.at(addr))));
        }
    }

    /// Shuts the gate: from here on no byte goes to the present target, although it stays the
    /// target.
    pub fn hold(&mut self) {
        self.route.gate.set(true);
    }

    /// Says what becomes of the present target's replies while the gate is shut; shuts it if it is
    /// open. Opening the gate in any way, and shutting it anew, lets them pass again.
    pub fn set_replies(&mut self, replies: Replies) {
        self.route.gate.set_replies(replies);
    }

    /// From here on a reply of the present target is no acknowledgement any more, since another
    /// node has been promoted: sessions drop it and end. Shuts the gate if it is open.
    pub fn drop_replies(&mut self) {
        self.set_replies(Replies::Drop);
    }

    /// Opens the gate again towards the present target.
    pub fn release(&mut self) {
        self.route.gate.set(false);
    }

    /// There is no master: takes the target away and fences its sessions. New connections wait.
    pub fn clear(&mut self) {
        if let Some(old) = self.route.current.swap(None) {
            old.fence().fall();
        }
        self.route.gate.set(false);
    }

    /// Gives the writer's word for `span` from `looked` on: until then readers may believe what the
    /// points say. `looked` is a moment taken *before* the writer looked at the world, so that a
    /// writer that is stopped between its look and its word says nothing new. One that looks late
    /// must have shut the gate if it does not know better. Before the first call there is no end.
    pub fn renew(&mut self, looked: Moment, span: Duration) {
        self.route.gate.renew(looked, span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn to(port: u16) -> Destination {
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        Destination { addr, name: addr.to_string().into(), epoch: u64::from(port), run_id: None }
    }

    #[tokio::test]
    async fn a_commit_fences_the_generation_before_and_nothing_else() {
        let (mut points, route) = TargetWriter::new();
        let first = points.commit(to(1));
        let second = points.commit(to(2));
        assert!(first.fence().has_fallen());
        assert!(!second.fence().has_fallen());
        assert!(second.generation() > first.generation());
        assert_eq!(route.open_target().expect("open").addr(), second.addr());
        first.fence().fallen().await;
    }

    #[tokio::test]
    async fn a_reader_woken_by_its_fence_finds_a_newer_target() {
        let (mut points, route) = TargetWriter::new();
        let first = points.commit(to(1));
        let reader = {
            let (route, first) = (Arc::clone(&route), Arc::clone(&first));
            tokio::spawn(async move {
                first.fence().fallen().await;
                route.current().map(|target| target.generation())
            })
        };
        tokio::task::yield_now().await;
        let second = points.commit(to(2));
        assert_eq!(reader.await.expect("reader"), Some(second.generation()));
    }

    #[tokio::test]
    async fn the_gate_keeps_newcomers_out_until_it_opens() {
        let (mut points, route) = TargetWriter::new();
        points.commit(to(1));
        points.hold();
        assert!(route.open_target().is_none());
        assert!(route.current().is_some());
        let waiter = {
            let route = Arc::clone(&route);
            tokio::spawn(async move { route.wait_open().await.addr().port() })
        };
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        points.commit(to(2));
        assert_eq!(waiter.await.expect("waiter"), 2);
    }

    #[tokio::test]
    async fn redirect_keeps_generation_fence_and_gate() {
        let (mut points, route) = TargetWriter::new();
        let first = points.commit(to(1));
        points.hold();
        points.redirect(to(2).addr);
        assert!(route.open_target().is_none(), "the gate stays shut");
        points.release();
        let second = route.open_target().expect("open");
        assert_eq!((second.addr().port(), second.generation()), (2, first.generation()));
        assert!(!first.fence().has_fallen());
        points.commit(to(3));
        assert!(first.fence().has_fallen() && second.fence().has_fallen(), "one fence for both");
    }

    #[tokio::test]
    async fn a_commit_behind_a_shut_gate_fences_and_lets_nobody_through() {
        let (mut points, route) = TargetWriter::new();
        let first = points.commit(to(1));
        let second = points.commit_held(to(2));
        assert!(first.fence().has_fallen() && !second.fence().has_fallen());
        assert!(route.open_target().is_none());
        points.release();
        assert_eq!(route.open_target().expect("open").generation(), second.generation());
    }

    #[tokio::test]
    async fn a_word_that_ran_out_shuts_the_gate_until_it_is_given_again() {
        let (mut points, route) = TargetWriter::new();
        points.commit(to(1));
        points.renew(Moment::now(), Duration::ZERO);
        let mut looks = 0_u32;
        while !route.is_shut() {
            // The coarse clock ticks every few milliseconds.
            tokio::time::sleep(Duration::from_millis(1)).await;
            looks += 1;
            assert!(looks < 5000, "the word never ran out");
        }
        assert!(route.open_target().is_none());
        let waiter = {
            let route = Arc::clone(&route);
            tokio::spawn(async move { route.wait_open().await.addr().port() })
        };
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        points.renew(Moment::now(), Duration::from_secs(60));
        assert_eq!(waiter.await.expect("waiter"), 1);
    }

    #[tokio::test]
    async fn says_what_becomes_of_replies_until_the_gate_opens() {
        let (mut points, route) = TargetWriter::new();
        let first = points.commit(to(1));
        points.hold();
        assert_eq!(
            first.replies(),
            Replies::Pass,
            "a planned failover that is only announced drops nothing"
        );
        let undo: [fn(&mut TargetWriter); 3] =
            [TargetWriter::release, TargetWriter::hold, |it| it.renew(Moment::now(), MINUTE)];
        for (number, undo) in undo.into_iter().enumerate() {
            for replies in [Replies::Wait, Replies::Drop] {
                points.release();
                points.set_replies(replies);
                assert_eq!(
                    (first.replies(), route.is_shut()),
                    (replies, true),
                    "it shuts the gate by itself"
                );
                undo(&mut points);
                let after = if number == 2 { replies } else { Replies::Pass };
                assert_eq!(
                    first.replies(),
                    after,
                    "renewing the word undoes nothing, and {number} does"
                );
            }
        }
        assert!(route.is_shut());
    }

    #[tokio::test]
    async fn drops_the_replies_of_a_superseded_target_and_no_others() {
        for held in [false, true] {
            let (mut points, route) = TargetWriter::new();
            let first = points.commit(to(1));
            points.drop_replies();
            let second = if held { points.commit_held(to(2)) } else { points.commit(to(2)) };
            assert_eq!((first.replies(), second.replies()), (Replies::Drop, Replies::Pass));
            assert_eq!(route.is_shut(), held);
            assert!(!first.takes_requests() && !first.expects_requests());
            assert_eq!((second.takes_requests(), second.expects_requests()), (!held, !held));
            points.clear();
            assert_eq!(second.replies(), Replies::Drop);
        }
    }

    #[tokio::test]
    async fn sends_nothing_and_waits_with_replies_when_the_word_has_run_out() {
        let (mut points, _route) = TargetWriter::new();
        let target = points.commit(to(1));
        points.renew(Moment::now(), MINUTE);
        assert!(target.takes_requests() && target.replies() == Replies::Pass);
        points.renew(Moment::now(), Duration::ZERO);
        let begin = std::time::Instant::now();
        while target.takes_requests() || target.replies() == Replies::Pass {
            assert!(begin.elapsed() < MINUTE, "the word never ran out");
        }
        assert_eq!((target.takes_requests(), target.replies()), (false, Replies::Wait));
        assert!(target.expects_requests(), "reading is not what the word is about");
        // Evidence counts for more than the word.
        points.drop_replies();
        assert_eq!(target.replies(), Replies::Drop);
    }

    #[tokio::test]
    async fn only_the_first_use_of_a_target_is_noted_and_the_next_target_has_its_own() {
        let (mut points, route) = TargetWriter::new();
        let first = points.commit(to(1));
        assert_eq!(first.first_use(), None);
        route.open_target().expect("open").note_use();
        let noted = first.first_use().expect("a use");
        while std::time::Instant::now() == noted {}
        first.note_use();
        assert_eq!(first.first_use(), Some(noted), "a later use is not the first");
        assert_eq!(points.commit(to(1)).first_use(), None);
    }

    #[tokio::test]
    async fn a_cleared_route_leads_nowhere_and_cuts_its_sessions() {
        let (mut points, route) = TargetWriter::new();
        let first = points.commit(to(1));
        points.clear();
        assert!(first.fence().has_fallen());
        assert!(route.current().is_none() && route.open_target().is_none());
    }

    #[tokio::test]
    async fn release_after_a_hold_leads_to_the_same_generation() {
        let (mut points, route) = TargetWriter::new();
        let first = points.commit(to(1));
        points.hold();
        points.release();
        assert_eq!(route.open_target().expect("open").generation(), first.generation());
        assert!(!first.fence().has_fallen());
    }
}
