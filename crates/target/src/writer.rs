//! The target handle of a service: [`TargetWriter`] publishes, [`TargetReader`] is what everything
//! else reads.
//!
//! Swapping a pointer is enough to redirect new connections. The rest of this file deals with the
//! existing ones: the gate stops them before the swap, the fence ends them after it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;

use crate::gate::Gate;
use crate::lease::ClockReading;
use crate::{Destination, Generation, ReplyPolicy, Target};

/// The reader's side: shared by every worker and every session of a service.
#[derive(Debug)]
pub struct TargetReader {
    current: ArcSwapOption<Target>,
    gate: Arc<Gate>,
}

impl TargetReader {
    /// The committed target, whether or not the gate is open. `None` before the first commit and
    /// while there is no master.
    #[must_use]
    pub fn current(&self) -> Option<Arc<Target>> {
        self.current.load_full()
    }

    /// Whether the gate is closed, or counts as closed because the lease has expired. While it is,
    /// no session connects to the target, reads from a client on its behalf or writes to it. A
    /// session asks its target the same, and what to do with replies ([`Target::reply_policy`]).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.gate.is_closed()
    }

    /// The target, if it may be used now.
    #[must_use]
    pub fn usable_target(&self) -> Option<Arc<Target>> {
        if self.is_closed() {
            None
        } else {
            self.current().filter(|target| !target.fence().is_raised())
        }
    }

    /// Waits until there is a target that may be used. Unbounded: the caller brings the deadline.
    /// Cancel-safe.
    pub async fn wait_usable(&self) -> Arc<Target> {
        loop {
            // Created before the check, so that an opening in between is not lost.
            let changed_notify = self.gate.changed_notify.notified();
            if let Some(target) = self.usable_target() {
                return target;
            }
            changed_notify.await;
        }
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Returns at the next change: a commit, a closed or opened gate, a cleared target, a late
    /// renewal of the lease. Create the future, check, then await it, and no change is lost.
    pub fn changed(&self) -> impl Future<Output = ()> + '_ {
        self.gate.changed_notify.notified()
    }
}

/// The writer's side. Not `Clone`: there is one owner, and it decides.
#[derive(Debug)]
pub struct TargetWriter {
    reader: Arc<TargetReader>,
    commits: u64,
}

impl TargetWriter {
    /// Creates a pair without a target. The gate is open, since there is nothing to protect.
    #[must_use]
    pub fn new() -> (Self, Arc<TargetReader>) {
        let reader =
            Arc::new(TargetReader { current: ArcSwapOption::empty(), gate: Arc::new(Gate::new()) });
        (Self { reader: Arc::clone(&reader), commits: 0 }, reader)
    }

    /// The reader's side.
    #[must_use]
    pub fn reader(&self) -> &Arc<TargetReader> {
        &self.reader
    }

    /// Publishes `destination` as the next generation: stores it, fences every session of the
    /// previous generation, opens the gate.
    pub fn commit(&mut self, destination: Destination) -> Arc<Target> {
        let target = self.publish(destination);
        self.reader.gate.set(false);
        target
    }

    /// Like [`commit`](Self::commit), with a gate that is closed before the target becomes visible
    /// and stays closed: an operator has paused the service.
    pub fn commit_held(&mut self, destination: Destination) -> Arc<Target> {
        self.reader.gate.set(true);
        let target = self.publish(destination);
        self.reader.gate.changed_notify.notify_waiters();
        target
    }

    fn publish(&mut self, destination: Destination) -> Arc<Target> {
        self.commits += 1;
        let target = Arc::new(Target::new(
            Generation::new(self.commits),
            destination,
            Arc::clone(&self.reader.gate),
        ));
        let old = self.reader.current.swap(Some(Arc::clone(&target)));
        if let Some(old) = old {
            old.fence().raise();
        }
        target
    }

    /// The next commit leads to other data: sessions of earlier targets are not carried to it.
    pub fn begin_lineage(&mut self) {
        self.reader.gate.begin_lineage();
    }

    /// New connections to the committed node, now announced as `name`, use `addr` from now on. Its
    /// generation and fence stay, so no session notices.
    pub fn redirect(&mut self, addr: SocketAddr, name: Box<str>) {
        if let Some(target) = self.reader.current() {
            self.reader.current.store(Some(Arc::new(target.at(addr, name))));
        }
    }

    /// Closes the gate: no byte goes to the current target from now on, although it stays the
    /// target.
    pub fn hold(&mut self) {
        self.reader.gate.set(true);
    }

    /// Sets what to do with the current target's replies while the gate is closed; closes the gate
    /// if it is open. Opening the gate, or closing it with [`hold`](Self::hold), lets replies pass
    /// again.
    pub fn set_reply_policy(&mut self, replies: ReplyPolicy) {
        self.reader.gate.set_reply_policy(replies);
    }

    /// From now on a reply of the current target acknowledges nothing, since another node has been
    /// promoted: sessions discard it and close. Closes the gate if it is open.
    pub fn discard_replies(&mut self) {
        self.set_reply_policy(ReplyPolicy::Drop);
    }

    /// Opens the gate to the current target again.
    pub fn release(&mut self) {
        self.reader.gate.set(false);
    }

    /// Removes the target and fences its sessions: there is no master. New connections wait.
    pub fn clear(&mut self) {
        if let Some(old) = self.reader.current.swap(None) {
            old.fence().raise();
        }
        self.reader.gate.set(false);
    }

    /// Renews the lease until `span` after `since`. Readers may trust the target until then.
    /// `since` is a reading taken *before* discovery polled, so that a writer that was stopped
    /// between its poll and this call renews nothing. A writer that is late must have closed the
    /// gate unless it knows better. Without a first call the lease never expires.
    pub fn renew(&mut self, since: ClockReading, span: Duration) {
        self.reader.gate.renew(since, span);
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
    async fn fences_only_the_previous_generation_on_commit() {
        let (mut writer, reader) = TargetWriter::new();
        let first = writer.commit(to(1));
        let second = writer.commit(to(2));
        assert!(first.fence().is_raised());
        assert!(!second.fence().is_raised());
        assert!(second.generation() > first.generation());
        assert_eq!(reader.usable_target().expect("open").addr(), second.addr());
        first.fence().raised().await;
    }

    #[tokio::test]
    async fn finds_newer_target_when_woken_by_fence() {
        let (mut writer, reader) = TargetWriter::new();
        let first = writer.commit(to(1));
        let reader = {
            let (reader, first) = (Arc::clone(&reader), Arc::clone(&first));
            tokio::spawn(async move {
                first.fence().raised().await;
                reader.current().map(|target| target.generation())
            })
        };
        tokio::task::yield_now().await;
        let second = writer.commit(to(2));
        assert_eq!(reader.await.expect("reader"), Some(second.generation()));
    }

    #[test]
    fn separates_targets_of_another_lineage() {
        let (mut writer, reader) = TargetWriter::new();
        let (mut pool, _) = crate::PoolWriter::new(&reader, crate::EmptyPool::Reject);
        let (first, second) = (writer.commit(to(1)), writer.commit(to(2)));
        assert!(first.has_data_of(&second));
        pool.publish(vec![to(3)]);
        let replica = pool.pool().members().unwrap().remove(0);
        writer.begin_lineage();
        let other = writer.commit(to(1));
        writer.redirect(to(4).addr, to(4).name);
        assert!(!first.has_data_of(&other) && !replica.has_data_of(&other));
        assert!(reader.current().is_some_and(|moved| moved.has_data_of(&other)));
        pool.publish(vec![to(3)]);
        assert!(pool.pool().members().unwrap().remove(0).has_data_of(&other));
    }

    #[tokio::test]
    async fn waits_while_gate_is_closed() {
        let (mut writer, reader) = TargetWriter::new();
        writer.commit(to(1));
        writer.hold();
        assert!(reader.usable_target().is_none());
        assert!(reader.current().is_some());
        let waiter = {
            let reader = Arc::clone(&reader);
            tokio::spawn(async move { reader.wait_usable().await.addr().port() })
        };
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        writer.commit(to(2));
        assert_eq!(waiter.await.expect("waiter"), 2);
    }

    #[tokio::test]
    async fn keeps_generation_fence_and_gate_on_redirect() {
        let (mut writer, reader) = TargetWriter::new();
        let first = writer.commit(to(1));
        writer.hold();
        writer.redirect(to(2).addr, to(2).name);
        assert!(reader.usable_target().is_none(), "the gate stays closed");
        writer.release();
        let second = reader.usable_target().expect("open");
        assert_eq!((second.addr().port(), second.generation()), (2, first.generation()));
        assert!(!first.fence().is_raised());
        writer.commit(to(3));
        assert!(first.fence().is_raised() && second.fence().is_raised(), "one fence for both");
    }

    #[tokio::test]
    async fn fences_and_stays_closed_on_held_commit() {
        let (mut writer, reader) = TargetWriter::new();
        let first = writer.commit(to(1));
        let second = writer.commit_held(to(2));
        assert!(first.fence().is_raised() && !second.fence().is_raised());
        assert!(reader.usable_target().is_none());
        writer.release();
        assert_eq!(reader.usable_target().expect("open").generation(), second.generation());
    }

    #[tokio::test]
    async fn closes_gate_while_lease_is_expired() {
        let (mut writer, reader) = TargetWriter::new();
        writer.commit(to(1));
        writer.renew(ClockReading::now(), Duration::ZERO);
        let mut checks = 0_u32;
        while !reader.is_closed() {
            // The coarse clock ticks every few milliseconds.
            tokio::time::sleep(Duration::from_millis(1)).await;
            checks += 1;
            assert!(checks < 5000, "the lease never expired");
        }
        assert!(reader.usable_target().is_none());
        let waiter = {
            let reader = Arc::clone(&reader);
            tokio::spawn(async move { reader.wait_usable().await.addr().port() })
        };
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        writer.renew(ClockReading::now(), Duration::from_secs(60));
        assert_eq!(waiter.await.expect("waiter"), 1);
    }

    #[tokio::test]
    async fn keeps_reply_policy_until_gate_opens() {
        let (mut writer, reader) = TargetWriter::new();
        let first = writer.commit(to(1));
        writer.hold();
        assert_eq!(
            first.reply_policy(),
            ReplyPolicy::Pass,
            "an announced failover discards nothing"
        );
        let undo: [fn(&mut TargetWriter); 3] =
            [TargetWriter::release, TargetWriter::hold, |it| it.renew(ClockReading::now(), MINUTE)];
        for (number, undo) in undo.into_iter().enumerate() {
            for replies in [ReplyPolicy::Wait, ReplyPolicy::Drop] {
                writer.release();
                writer.set_reply_policy(replies);
                assert_eq!(
                    (first.reply_policy(), reader.is_closed()),
                    (replies, true),
                    "setting a policy closes the gate"
                );
                undo(&mut writer);
                let after = if number == 2 { replies } else { ReplyPolicy::Pass };
                assert_eq!(first.reply_policy(), after, "step {number} after {replies:?}");
            }
        }
        assert!(reader.is_closed());
    }

    #[tokio::test]
    async fn discards_replies_of_superseded_target_only() {
        for held in [false, true] {
            let (mut writer, reader) = TargetWriter::new();
            let first = writer.commit(to(1));
            writer.discard_replies();
            let second = if held { writer.commit_held(to(2)) } else { writer.commit(to(2)) };
            assert_eq!(
                (first.reply_policy(), second.reply_policy()),
                (ReplyPolicy::Drop, ReplyPolicy::Pass)
            );
            assert_eq!(reader.is_closed(), held);
            assert!(!first.accepts_requests() && !first.may_accept_requests());
            assert_eq!((second.accepts_requests(), second.may_accept_requests()), (!held, !held));
            writer.clear();
            assert_eq!(second.reply_policy(), ReplyPolicy::Drop);
        }
    }

    #[tokio::test]
    async fn holds_requests_and_replies_when_lease_expires() {
        let (mut writer, _route) = TargetWriter::new();
        let target = writer.commit(to(1));
        writer.renew(ClockReading::now(), MINUTE);
        assert!(target.accepts_requests() && target.reply_policy() == ReplyPolicy::Pass);
        writer.renew(ClockReading::now(), Duration::ZERO);
        let begin = std::time::Instant::now();
        while target.accepts_requests() || target.reply_policy() == ReplyPolicy::Pass {
            assert!(begin.elapsed() < MINUTE, "the lease never expired");
        }
        assert_eq!((target.accepts_requests(), target.reply_policy()), (false, ReplyPolicy::Wait));
        assert!(target.may_accept_requests(), "the lease does not stop reading");
        // Evidence of a promotion takes precedence over the lease.
        writer.discard_replies();
        assert_eq!(target.reply_policy(), ReplyPolicy::Drop);
    }

    #[tokio::test]
    async fn records_only_the_first_use_of_each_target() {
        let (mut writer, reader) = TargetWriter::new();
        let first = writer.commit(to(1));
        assert_eq!(first.first_use(), None);
        reader.usable_target().expect("open").record_use();
        let noted = first.first_use().expect("a use");
        while std::time::Instant::now() == noted {}
        first.record_use();
        assert_eq!(first.first_use(), Some(noted), "a later use was recorded");
        assert_eq!(writer.commit(to(1)).first_use(), None);
    }

    #[tokio::test]
    async fn has_no_target_and_fences_sessions_when_cleared() {
        let (mut writer, reader) = TargetWriter::new();
        let first = writer.commit(to(1));
        writer.clear();
        assert!(first.fence().is_raised());
        assert!(reader.current().is_none() && reader.usable_target().is_none());
    }

    #[tokio::test]
    async fn keeps_generation_on_release_after_hold() {
        let (mut writer, reader) = TargetWriter::new();
        let first = writer.commit(to(1));
        writer.hold();
        writer.release();
        assert_eq!(reader.usable_target().expect("open").generation(), first.generation());
        assert!(!first.fence().is_raised());
    }
}
