//! When the next group of requests leaves on a connection on which writes are confirmed.
//!
//! While the confirmation of a group is awaited nothing can be sent, so requests gather, and are
//! confirmed together. When it has arrived, the clients of the group get their replies, and usually
//! send again at once. If the first of these requests left alone, all others would wait for its
//! confirmation and then for their own. So the next group waits until as many clients have requests
//! as the last one had, for at most a part of the time that the last confirmation has taken.

use std::task::Context;
use std::time::{Duration, Instant};

use crate::runtime::alarm::Alarm;

/// The part of a confirmation's time that the next group waits at most.
const PART: u32 = 4;

/// The longest wait. A confirmation that has failed may have taken seconds.
const MAX_WAIT: Duration = Duration::from_millis(20);

/// The groups of one connection. Does nothing where writes are not confirmed.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// Clients with requests in the group that is being sent.
    clients: usize,
    /// Since when the confirmation of a group is awaited, and how many clients that has.
    confirming: Option<(Instant, usize)>,
    /// Until when the next group waits, and for how many clients.
    wait: Option<(Instant, usize)>,
    /// Wakes the connection at the end of a wait.
    alarm: Option<Alarm>,
    is_set: bool,
}

impl Gathering {
    /// Requests of this many clients are sent.
    pub(super) fn sends(&mut self, clients: usize) {
        self.clients += clients;
    }

    /// To be called before and after anything is sent: whether a confirmation is awaited.
    pub(super) fn observe(&mut self, is_confirming: bool, now: impl Fn() -> Instant) {
        match (is_confirming, self.confirming) {
            (true, None) => self.confirming = Some((now(), std::mem::take(&mut self.clients))),
            (false, Some((since, clients))) => {
                let now = now();
                let most = (now.saturating_duration_since(since) / PART).min(MAX_WAIT);
                (self.confirming, self.wait) = (None, Some((now + most, clients)));
                (self.clients, self.is_set) = (0, false);
            }
            (true, Some(_)) => {}
            // What was sent only reads.
            (false, None) => self.clients = 0,
        }
    }

    /// Whether the next group waits for more than these clients. The task of `cx` is woken when it
    /// does not any more.
    pub(super) fn waits(
        &mut self,
        clients: usize,
        cx: &Context<'_>,
        now: impl Fn() -> Instant,
    ) -> bool {
        let Some((until, awaited)) = self.wait else { return false };
        let left = until.saturating_duration_since(now());
        if clients >= awaited || left.is_zero() || !self.wakes_after(left, cx) {
            self.wait = None;
            return false;
        }
        true
    }

    /// Has the task of `cx` woken, once per wait. False if that is impossible.
    fn wakes_after(&mut self, left: Duration, cx: &Context<'_>) -> bool {
        if self.is_set {
            return true;
        }
        if self.alarm.is_none() {
            self.alarm = Alarm::new().ok();
        }
        self.is_set = self.alarm.as_ref().is_some_and(|alarm| alarm.set(left, cx).is_ok());
        self.is_set
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::runtime::reactor::{self, Reactor};
    use crate::runtime::tasks::WorkerHandle;

    const MS: Duration = Duration::from_millis(1);

    /// Sends a group of this many clients, whose confirmation takes `span`. Returns when it ends.
    fn confirm(it: &mut Gathering, clients: usize, span: Duration) -> Instant {
        let begin = Instant::now();
        it.observe(false, || begin);
        it.sends(clients);
        it.observe(true, || begin);
        it.observe(false, || begin + span);
        begin + span
    }

    fn waits(it: &mut Gathering, clients: usize, now: Instant) -> bool {
        let home = WorkerHandle::new().unwrap();
        reactor::install(Reactor::new(home.wake_fd()).unwrap());
        it.waits(clients, &Context::from_waker(Waker::noop()), || now)
    }

    #[test]
    fn waits_for_as_many_clients_as_the_last_group_had() {
        let mut it = Gathering::default();
        assert!(!waits(&mut it, 1, Instant::now()));
        let end = confirm(&mut it, 3, 8 * MS);
        assert!(waits(&mut it, 1, end) && waits(&mut it, 2, end + MS));
        assert!(!waits(&mut it, 3, end + MS));
        // Nothing is waited for twice.
        assert!(!waits(&mut it, 1, end + MS));
    }

    #[test]
    fn waits_for_a_part_of_the_last_confirmation() {
        let mut it = Gathering::default();
        for (took, waited) in [(8, 2), (80, 20), (4000, 20)] {
            let end = confirm(&mut it, 2, took * MS);
            assert!(waits(&mut it, 1, end + waited * MS - MS / 10), "{took}");
            assert!(!waits(&mut it, 1, end + waited * MS), "{took}");
        }
    }

    #[test]
    fn waits_for_no_client_that_only_reads() {
        let mut it = Gathering::default();
        for _ in 0..100 {
            it.observe(false, Instant::now);
            it.sends(1);
        }
        let end = confirm(&mut it, 1, 8 * MS);
        assert!(!waits(&mut it, 1, end));
    }

    /// Nothing would wake the connection.
    #[test]
    fn waits_for_nobody_without_an_alarm() {
        let mut it = Gathering::default();
        let end = confirm(&mut it, 2, 8 * MS);
        let cx = Context::from_waker(Waker::noop());
        assert!(!it.waits(1, &cx, || end));
    }
}
