//! Visits to tasks that have lasted for a while, once each.
//!
//! Some of what a session needs, it needs only if it lasts: options that the kernel keeps for its
//! connection, each of which takes a system call. Most sessions of some applications end within a
//! few milliseconds. So a task asks for a visit when it begins, and gets it [`SETTLING_TIME`]
//! later, or up to three times that, if it still runs.
//!
//! A timer per task would cost as much as the system calls that this saves.

use std::collections::VecDeque;
use std::time::Duration;

use super::visits::Visit;
use super::{TaskKey, Tasks};

/// The least time between the request and the visit.
pub(crate) const SETTLING_TIME: Duration = Duration::from_millis(100);

/// Visits before other tasks and the event loop run: about as long as a few requests take, since
/// each visit makes several system calls.
const VISITS_PER_TURN: usize = 8;

/// The tasks that have asked, in order. Bounded by the sessions that begin within twice
/// [`SETTLING_TIME`], and those that wait for their turn.
#[derive(Debug, Default)]
pub(super) struct Settling {
    asked: VecDeque<TaskKey>,
    /// How many of them, at the beginning, had asked before the last turn.
    due: usize,
    /// When the next turn begins.
    next: Duration,
    /// The last visits have left some of these.
    is_behind: bool,
}

impl Settling {
    pub(super) fn ask(&mut self, key: TaskKey) {
        self.asked.push_back(key);
    }

    /// The next task to visit.
    fn next_due(&mut self) -> Option<TaskKey> {
        self.due = self.due.checked_sub(1)?;
        self.asked.pop_front()
    }
}

impl Tasks {
    /// Whether [`visit_settled`](Self::visit_settled) has left some that are due.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.settling.is_behind
    }

    /// Visits tasks that are due, though only some of them. `now` is the time on any monotonic
    /// clock, also that of the last tick; to be called at each tick, and in every turn while it [is
    /// behind](Self::is_behind).
    #[cold]
    pub(crate) fn visit_settled(&mut self, now: Duration) {
        if now < self.settling.next {
            return;
        }
        let mut left = VISITS_PER_TURN;
        while left > 0 {
            let Some(key) = self.settling.next_due() else {
                self.settling.due = self.settling.asked.len();
                self.settling.next = now + SETTLING_TIME;
                self.settling.is_behind = false;
                return;
            };
            if self.generation(key.index()) == Some(key.generation()) {
                self.visit(key.index(), Visit::Settle);
                left -= 1;
            }
        }
        self.settling.is_behind = true;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::rc::Rc;
    use std::task::Poll;

    use super::*;
    use crate::runtime::tasks::groups::TaskGroup;
    use crate::runtime::tasks::{WorkerHandle, spawn, visits};
    use crate::runtime::wake_flag::WakeFlag;

    /// A task that asks for a visit, counts its visits, and ends when it is polled and `done` is
    /// set.
    fn settler(visited: &Rc<Cell<usize>>, done: &Rc<Cell<bool>>) {
        let (visited, done) = (Rc::clone(visited), Rc::clone(done));
        let mut begun = false;
        spawn(poll_fn(move |cx| {
            if !std::mem::replace(&mut begun, true) {
                visits::register(&WakeFlag::new(cx.waker()), TaskGroup::default(), true);
            }
            if visits::current() == Some(Visit::Settle) {
                visited.set(visited.get() + 1);
            }
            if done.get() { Poll::Ready(()) } else { Poll::Pending }
        }));
    }

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn visits_each_lasting_task_once() {
        let mut tasks = Tasks::new(WorkerHandle::new().unwrap());
        let (visited, done) = (Rc::default(), Rc::default());
        tasks.visit_settled(at(0));
        settler(&visited, &done);
        assert!(tasks.run_round().is_ok());
        for now in [1, 99, 100, 199] {
            tasks.visit_settled(at(now));
            assert_eq!(visited.get(), 0, "{now}");
        }
        for now in [200, 300, 400, 500] {
            tasks.visit_settled(at(now));
            assert_eq!(visited.get(), 1, "{now}");
        }
    }

    #[test]
    fn visits_no_task_that_has_ended() {
        let mut tasks = Tasks::new(WorkerHandle::new().unwrap());
        let (visited, done) = (Rc::default(), Rc::new(Cell::new(true)));
        settler(&visited, &done);
        assert!(tasks.run_round().is_ok());
        // Another task has its slot.
        let (other, goes_on) = (Rc::default(), Rc::default());
        tasks.visit_settled(at(0));
        settler(&other, &goes_on);
        assert!(tasks.run_round().is_ok());
        tasks.visit_settled(at(100));
        assert_eq!((visited.get(), other.get()), (0, 0));
        tasks.visit_settled(at(200));
        assert_eq!((visited.get(), other.get()), (0, 1));
    }

    #[test]
    fn visits_many_tasks_in_several_turns() {
        let mut tasks = Tasks::new(WorkerHandle::new().unwrap());
        let (visited, done) = (Rc::default(), Rc::default());
        for _ in 0..VISITS_PER_TURN + 1 {
            settler(&visited, &done);
        }
        assert!(tasks.run_round().is_ok());
        tasks.visit_settled(at(0));
        tasks.visit_settled(at(100));
        assert_eq!(visited.get(), VISITS_PER_TURN);
        assert!(tasks.is_busy(), "it would wait for the next tick");
        tasks.visit_settled(at(100));
        assert_eq!(visited.get(), VISITS_PER_TURN + 1);
        assert!(!tasks.is_busy());
    }
}
