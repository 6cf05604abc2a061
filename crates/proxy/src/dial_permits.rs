//! Dial permits: how many sessions of a worker may connect to a target at a time, and in which
//! order.
//!
//! A master that was just promoted receives ten thousand sessions at once, and each costs it a
//! connection and some commands. So only a bounded number connects at a time, and the next one
//! starts when one has finished: when the target has answered it, since an accepted connection
//! proves nothing.
//!
//! **Order.** Sessions with a waiting request go before idle ones. Every eighth permit goes to an
//! idle one even so, so that those never starve. Idle sessions hold at most half of the permits, so
//! a request that arrives later finds one.
//!
//! **Pace.** Permits are returned as fast as the target answers. After a failure all sessions of
//! the worker slow down: fewer permits at a time, and none before a pause that doubles. Each
//! success doubles the number of permits again. A session returns its permit before it pauses, so a
//! session that can never connect does not hold up others. Attempts that were under way together
//! count as one failure. A change of the target ends the pause.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::runtime::tasks;

/// Maximum sessions of one worker and service that connect at a time. A quarter of the connections
/// that Redis lets wait to be accepted (`tcp-backlog` is 511), because there are other workers and
/// other proxies.
const MAX_PERMITS: usize = 64;

/// Maximum sessions that connect at a time after a failure. More than one, so that a session that
/// cannot connect for reasons of its own does not hold up others for long.
const MAX_AFTER_FAILURE: usize = 8;

/// Consecutive permits for sessions with a request while idle ones wait, too.
const URGENT_IN_A_ROW: u8 = 7;

/// The first pause after a failure; each pause is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_millis(125);

/// Idle sessions that prepare to enter the queue in one round of the event loop.
const IDLE_PER_ROUND: usize = 256;

/// Maximum rounds of the event loop for which an idle session yields.
const MAX_ROUNDS: usize = 64;

/// The permits of one worker for one service.
#[derive(Debug)]
pub(crate) struct DialPermits {
    state: Mutex<PermitQueue>,
}

/// A permit, returned when dropped. A drop says nothing about the target.
#[derive(Debug)]
#[must_use]
pub(crate) struct DialPermit<'a> {
    permits: &'a DialPermits,
    permit: GrantedPermit,
}

/// The record of a permit that is out.
#[derive(Debug, Clone, Copy)]
struct GrantedPermit {
    urgent: bool,
    /// The number of failures counted when it was granted.
    failures: u64,
}

/// The queue of sessions, and the number and pace of permits.
#[derive(Debug, Default)]
struct PermitQueue {
    next: u64,
    urgent: BTreeMap<u64, Waker>,
    idle: BTreeMap<u64, Waker>,
    /// Sessions that left the queue with a permit and have not been polled since.
    granted: BTreeMap<u64, GrantedPermit>,
    /// The session whose timer ends the pause for all of them.
    timed: Option<u64>,
    out: usize,
    idle_out: usize,
    in_a_row: u8,
    most: usize,
    failures: u64,
    pause: Duration,
    /// The end of the pause.
    not_before: Option<Instant>,
    /// Idle sessions that yielded since the target last changed.
    yielded: usize,
    /// Sessions to wake after the change that is being made.
    called: Vec<Waker>,
}

impl Default for DialPermits {
    fn default() -> Self {
        let mut queue = PermitQueue::default();
        queue.reset();
        Self { state: Mutex::new(queue) }
    }
}

impl DialPermits {
    /// Waits for a permit, first come, first served among sessions with a request and among idle
    /// ones. Cancel safe.
    pub(crate) fn take(&self, urgent: bool) -> impl Future<Output = DialPermit<'_>> {
        PermitRequest { permits: self, urgent, id: None, timer: None }
    }

    /// Lets some rounds of the event loop pass before an idle session starts to connect. If all of
    /// them prepared in one round, sessions with a request, and their replies, would have to wait
    /// for its end.
    pub(crate) async fn yield_to_requests(&self) {
        let before = self.change(|state| {
            state.yielded += 1;
            state.yielded - 1
        });
        for _ in 0..(before / IDLE_PER_ROUND).min(MAX_ROUNDS) {
            tasks::yield_now().await;
        }
    }

    /// Forgets past failures, because the target has changed or may be used again.
    pub(crate) fn reset(&self) {
        self.change(PermitQueue::reset);
    }

    /// Changes the state and wakes the sessions that are called by that.
    fn change<T>(&self, change: impl FnOnce(&mut PermitQueue) -> T) -> T {
        // No code under the lock can panic half-way.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut state);
        let called = std::mem::take(&mut state.called);
        drop(state);
        called.into_iter().for_each(Waker::wake);
        result
    }
}

impl DialPermit<'_> {
    /// The target has answered the session.
    pub(crate) fn succeeded(self) {
        self.permits.change(PermitQueue::succeeded);
    }

    /// The target did not answer, or cannot serve at present.
    pub(crate) fn failed(self) {
        self.permits.change(|state| state.failed(self.permit));
    }
}

impl Drop for DialPermit<'_> {
    fn drop(&mut self) {
        self.permits.change(|state| state.give_back(self.permit));
    }
}

impl PermitQueue {
    fn line(&mut self, urgent: bool) -> &mut BTreeMap<u64, Waker> {
        if urgent { &mut self.urgent } else { &mut self.idle }
    }

    fn enter(&mut self, urgent: bool, waker: &Waker) -> u64 {
        let id = self.next;
        self.next += 1;
        self.line(urgent).insert(id, waker.clone());
        id
    }

    /// Grants as many permits as may be out.
    fn grant(&mut self) {
        match self.not_before {
            Some(end) if Instant::now() < end => return,
            // The first session to notice ends the pause, even if another one has the timer: that
            // one may leave with a permit now.
            _ => (self.not_before, self.timed) = (None, None),
        }
        while let Some(urgent) = self.next_kind() {
            let Some((id, waker)) = self.line(urgent).pop_first() else { return };
            self.in_a_row = if urgent { self.in_a_row.saturating_add(1) } else { 0 };
            self.out += 1;
            self.idle_out += usize::from(!urgent);
            self.granted.insert(id, GrantedPermit { urgent, failures: self.failures });
            self.called.push(waker);
        }
    }

    /// Whether the next permit goes to a session with a request; `None` if there is no permit or no
    /// session for it.
    fn next_kind(&self) -> Option<bool> {
        let any = self.out < self.most;
        let idle = any && !self.idle.is_empty() && self.idle_out < (self.most / 2).max(1);
        let urgent = any && !self.urgent.is_empty();
        (urgent || idle).then_some(urgent && !(idle && self.in_a_row >= URGENT_IN_A_ROW))
    }

    fn give_back(&mut self, permit: GrantedPermit) {
        self.out = self.out.saturating_sub(1);
        self.idle_out = self.idle_out.saturating_sub(usize::from(!permit.urgent));
        self.grant();
    }

    /// The permit is returned afterwards, which grants the permits that have become free.
    fn succeeded(&mut self) {
        self.most = (self.most * 2).min(MAX_PERMITS);
        self.end_pause();
    }

    fn failed(&mut self, permit: GrantedPermit) {
        if permit.failures != self.failures {
            // It was under way when another attempt failed: that is the same failure.
            return;
        }
        self.failures += 1;
        self.most = MAX_AFTER_FAILURE;
        self.not_before = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        self.call_timed();
    }

    fn end_pause(&mut self) {
        (self.pause, self.not_before, self.timed) = (FIRST_PAUSE, None, None);
    }

    fn reset(&mut self) {
        self.yielded = 0;
        self.failures += 1;
        self.most = MAX_PERMITS;
        self.end_pause();
        self.grant();
    }

    /// Wakes a session to set its timer, if there is a pause and no session has a timer.
    fn call_timed(&mut self) {
        if self.not_before.is_some() && self.timed.is_none() {
            let first = self.urgent.values().next().or_else(|| self.idle.values().next());
            self.called.extend(first.cloned());
        }
    }

    /// The permit of a session that enters the queue if it has no `id`; otherwise the end of the
    /// pause, if it is the one to wait for it.
    fn poll(
        &mut self,
        id: &mut Option<u64>,
        urgent: bool,
        waker: &Waker,
    ) -> Result<GrantedPermit, Option<Instant>> {
        let number = *id.get_or_insert_with(|| {
            let id = self.enter(urgent, waker);
            self.grant();
            id
        });
        if let Some(permit) = self.granted.remove(&number) {
            *id = None;
            return Ok(permit);
        }
        self.line(urgent).entry(number).and_modify(|it| it.clone_from(waker));
        let end = self.not_before;
        Err(end.filter(|_| *self.timed.get_or_insert(number) == number))
    }

    /// Removes a session, with or without a permit.
    fn leave(&mut self, id: u64, urgent: bool) {
        if let Some(permit) = self.granted.remove(&id) {
            self.give_back(permit);
        }
        self.line(urgent).remove(&id);
        if self.timed == Some(id) {
            self.timed = None;
            self.call_timed();
        }
    }
}

/// A session in the queue.
struct PermitRequest<'a> {
    permits: &'a DialPermits,
    urgent: bool,
    /// Its number, once it is in the queue.
    id: Option<u64>,
    /// Set if it ends the pause for all sessions.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<'a> Future for PermitRequest<'a> {
    type Output = DialPermit<'a>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<DialPermit<'a>> {
        let this = self.get_mut();
        let (permits, urgent) = (this.permits, this.urgent);
        loop {
            let end = match permits.change(|it| it.poll(&mut this.id, urgent, cx.waker())) {
                Ok(permit) => return Poll::Ready(DialPermit { permits, permit }),
                Err(Some(end)) => end,
                Err(None) => {
                    this.timer = None;
                    return Poll::Pending;
                }
            };
            let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
            if timer.deadline() != end {
                timer.as_mut().reset(end);
            }
            std::task::ready!(timer.as_mut().poll(cx));
            this.timer = None;
            permits.change(PermitQueue::grant);
        }
    }
}

impl Drop for PermitRequest<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.permits.change(|state| state.leave(id, self.urgent));
        }
    }
}
