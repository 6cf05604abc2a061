//! Dial permits: how many sessions of a worker may be on their way to a target at a time, and in
//! which order.
//!
//! A master that was just promoted has ten thousand sessions coming over at once, and each costs it
//! a connection and some commands. So only so many are on their way at a time, and the next one
//! starts when one has arrived, which is when the target has answered it: an accepted connection
//! proves nothing.
//!
//! **Order.** Sessions with a request waiting go before idle ones; every eighth permit goes to an
//! idle one all the same, so that those never starve. Idle sessions hold at most half of the
//! permits, so a request that arrives later finds one.
//!
//! **Pace.** It is the target's own: as fast as it answers. After a failure it slows down for all
//! sessions here: few permits at a time, and none before a pause that doubles. Each session that
//! arrives doubles the number of permits again. A session gives its permit back before it pauses,
//! so one that can never arrive does not stand in the way of the others. Attempts that were under
//! way together count as one failure. A change of the target ends the pause.
//!
//! Deliberately absent: when a session gives up, and what a failure is.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::runtime::tasks;

/// Sessions of one worker and service on their way at a time. A quarter of what Redis lets wait to
/// be accepted (`tcp-backlog` is 511), since there are other workers and other proxies.
const MAX_PERMITS: usize = 64;

/// The same after a failure. More than one, so that a session that alone cannot arrive does not
/// hold up the others for long.
const MAX_AFTER_FAILURE: usize = 8;

/// Permits in a row for sessions with a request, if idle ones wait too.
const URGENT_IN_A_ROW: u8 = 7;

/// The first pause after a failure; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_millis(125);

/// Idle sessions that prepare to enter the line in one round of the event loop.
const IDLE_PER_ROUND: usize = 256;

/// Most rounds that an idle session stands back.
const MAX_ROUNDS: usize = 64;

/// Gives permits to the sessions of one worker and service.
#[derive(Debug, Default)]
pub(crate) struct DialPermits {
    state: Mutex<PermitQueue>,
    /// Idle sessions that came since the target last changed.
    idle: AtomicUsize,
}

/// A turn, given back when dropped. Dropped without a word it says nothing about the target.
#[derive(Debug)]
#[must_use]
pub(crate) struct DialPermit<'a> {
    permits: &'a DialPermits,
    permit: GrantedPermit,
}

/// What a session that is on its way holds.
#[derive(Debug, Clone, Copy)]
struct GrantedPermit {
    urgent: bool,
    /// How many failures had been counted when it was given.
    failures: u64,
}

/// The line of sessions, and how it moves.
#[derive(Debug)]
struct PermitQueue {
    next: u64,
    urgent: BTreeMap<u64, Waker>,
    idle: BTreeMap<u64, Waker>,
    /// Those that left the line with a permit and have not been polled since.
    granted: BTreeMap<u64, GrantedPermit>,
    /// The session whose timer ends the pause for all.
    timed: Option<u64>,
    out: usize,
    idle_out: usize,
    in_a_row: u8,
    most: usize,
    failures: u64,
    pause: Duration,
    /// The end of the pause.
    not_before: Option<Instant>,
}

impl Default for PermitQueue {
    fn default() -> Self {
        Self {
            next: 0,
            urgent: BTreeMap::new(),
            idle: BTreeMap::new(),
            granted: BTreeMap::new(),
            timed: None,
            out: 0,
            idle_out: 0,
            in_a_row: 0,
            most: MAX_PERMITS,
            failures: 0,
            pause: FIRST_PAUSE,
            not_before: None,
        }
    }
}

impl DialPermits {
    /// Waits for a turn, first come, first served among those of one kind. Safe to drop.
    pub(crate) fn take(&self, urgent: bool) -> impl Future<Output = DialPermit<'_>> {
        PermitRequest { permits: self, urgent, id: None, timer: None }
    }

    /// Lets some rounds of the event loop pass before an idle session does anything, so that not
    /// all of them prepare their way to a new target in one round: sessions with a request, and
    /// their replies, would have to wait for its end.
    pub(crate) async fn yield_to_requests(&self) {
        let before = self.idle.fetch_add(1, Ordering::Relaxed);
        for _ in 0..(before / IDLE_PER_ROUND).min(MAX_ROUNDS) {
            tasks::yield_now().await;
        }
    }

    /// The target has changed, or may be used again: what was learned of it does not count any
    /// more.
    pub(crate) fn reset(&self) {
        self.idle.store(0, Ordering::Relaxed);
        self.change(PermitQueue::reset);
    }

    /// Changes the state and wakes those that have got a permit by it.
    fn change<T>(&self, change: impl FnOnce(&mut PermitQueue, &mut Vec<Waker>) -> T) -> T {
        let mut wakers = Vec::new();
        let mut state = self.state();
        let result = change(&mut state, &mut wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    fn state(&self) -> MutexGuard<'_, PermitQueue> {
        // Nothing under the lock can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DialPermit<'_> {
    /// The session has arrived: the target has answered it.
    pub(crate) fn succeeded(self) {
        self.permits.change(|state, _| state.succeeded());
    }

    /// The target did not answer, or cannot serve at present.
    pub(crate) fn failed(self) {
        self.permits.change(|state, wakers| state.failed(self.permit, Instant::now(), wakers));
    }
}

impl Drop for DialPermit<'_> {
    fn drop(&mut self) {
        self.permits.change(|state, wakers| state.give_back(self.permit, Instant::now(), wakers));
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

    /// Gives out as many permits as may be out.
    fn grant(&mut self, now: Instant, wakers: &mut Vec<Waker>) {
        match self.not_before {
            Some(end) if now < end => return,
            // Whoever notices first ends it, be it not the one with the timer: that one may leave
            // with a permit now.
            _ => (self.not_before, self.timed) = (None, None),
        }
        while let Some(urgent) = self.next_kind() {
            let Some((id, waker)) = self.line(urgent).pop_first() else { return };
            self.in_a_row = if urgent { self.in_a_row.saturating_add(1) } else { 0 };
            self.out += 1;
            self.idle_out += usize::from(!urgent);
            self.granted.insert(id, GrantedPermit { urgent, failures: self.failures });
            wakers.push(waker);
        }
    }

    /// Whether the next permit goes to a session with a request; `None` if there is none to give or
    /// nobody to get it.
    fn next_kind(&self) -> Option<bool> {
        let any = self.out < self.most;
        let idle = any && !self.idle.is_empty() && self.idle_out < (self.most / 2).max(1);
        let urgent = any && !self.urgent.is_empty();
        (urgent || idle).then_some(urgent && !(idle && self.in_a_row >= URGENT_IN_A_ROW))
    }

    fn give_back(&mut self, permit: GrantedPermit, now: Instant, wakers: &mut Vec<Waker>) {
        self.out = self.out.saturating_sub(1);
        self.idle_out = self.idle_out.saturating_sub(usize::from(!permit.urgent));
        self.grant(now, wakers);
    }

    /// The permit is given back afterwards, which gives out those that have become free.
    fn succeeded(&mut self) {
        self.most = (self.most * 2).min(MAX_PERMITS);
        self.end_pause();
    }

    fn failed(&mut self, permit: GrantedPermit, now: Instant, wakers: &mut Vec<Waker>) {
        if permit.failures != self.failures {
            // It was under way when another one failed: that is the same failure.
            return;
        }
        self.failures += 1;
        self.most = MAX_AFTER_FAILURE;
        self.not_before = Some(now + self.pause);
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        self.call_timed(wakers);
    }

    fn end_pause(&mut self) {
        (self.pause, self.not_before, self.timed) = (FIRST_PAUSE, None, None);
    }

    fn reset(&mut self, wakers: &mut Vec<Waker>) {
        self.failures += 1;
        self.most = MAX_PERMITS;
        self.end_pause();
        self.grant(Instant::now(), wakers);
    }

    /// Wakes a session to set its timer, if there is a pause and nobody has.
    fn call_timed(&self, wakers: &mut Vec<Waker>) {
        if self.not_before.is_some() && self.timed.is_none() {
            let first = self.urgent.values().next().or_else(|| self.idle.values().next());
            wakers.extend(first.cloned());
        }
    }

    /// The end of the pause if it is for the session with that number to wait for it.
    fn end_to_wait_for(&mut self, id: u64) -> Option<Instant> {
        let end = self.not_before?;
        if *self.timed.get_or_insert(id) == id { Some(end) } else { None }
    }

    /// A session with or without a permit does not wait any more.
    fn leave(&mut self, id: u64, urgent: bool, now: Instant, wakers: &mut Vec<Waker>) {
        if let Some(permit) = self.granted.remove(&id) {
            self.give_back(permit, now, wakers);
        }
        self.line(urgent).remove(&id);
        if self.timed == Some(id) {
            self.timed = None;
            self.call_timed(wakers);
        }
    }
}

/// A session in line.
struct PermitRequest<'a> {
    permits: &'a DialPermits,
    urgent: bool,
    /// Its number, once it is in line.
    id: Option<u64>,
    /// Set if it ends the pause for all.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<'a> Future for PermitRequest<'a> {
    type Output = DialPermit<'a>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<DialPermit<'a>> {
        let this = self.get_mut();
        let (permits, urgent) = (this.permits, this.urgent);
        loop {
            let (id, permit, end) = permits.change(|state, wakers| {
                let id = match this.id {
                    Some(id) => id,
                    None => {
                        let id = state.enter(urgent, cx.waker());
                        state.grant(Instant::now(), wakers);
                        id
                    }
                };
                let permit = state.granted.remove(&id);
                if permit.is_none() {
                    state.line(urgent).entry(id).and_modify(|it| it.clone_from(cx.waker()));
                }
                let end = if permit.is_none() { state.end_to_wait_for(id) } else { None };
                (id, permit, end)
            });
            this.id = Some(id);
            if let Some(permit) = permit {
                this.id = None;
                return Poll::Ready(DialPermit { permits, permit });
            }
            let Some(end) = end else {
                this.timer = None;
                return Poll::Pending;
            };
            let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
            if timer.deadline() != end {
                timer.as_mut().reset(end);
            }
            std::task::ready!(timer.as_mut().poll(cx));
            this.timer = None;
            permits.change(|state, wakers| state.grant(Instant::now(), wakers));
        }
    }
}

impl Drop for PermitRequest<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.permits
                .change(|state, wakers| state.leave(id, self.urgent, Instant::now(), wakers));
        }
    }
}
