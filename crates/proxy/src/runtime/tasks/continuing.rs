//! Tasks that continue as another future.
//!
//! A session is one task for all its life: its key is the number by which an operator lists and
//! ends it. But it needs the memory of its phases one after the other, and not that of the largest
//! plus that of the current one. So each phase is a future of its own, and takes the place of the
//! former, which is freed.
//!
//! What a task has registered stays until it registers something else.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

use super::{Polled, TaskFuture, TaskKey, Tasks};

thread_local! {
    /// What the task that is being polled continues as.
    static NEXT: Cell<Option<TaskFuture>> = const { Cell::new(None) };
}

/// The task that is being polled continues as `next`, if the future that it is returns in this
/// poll. `next` is polled at once, so a visit or a wake-up finds no task between two futures.
pub(crate) fn continue_as(next: impl Future<Output = ()> + 'static) {
    NEXT.set(Some(Box::pin(next)));
}

impl Tasks {
    /// Lets a task that has returned continue as the next future, if it has one, and polls that.
    /// Returns the last result, which is `Pending` unless the task has ended.
    pub(super) fn continue_task(&mut self, key: TaskKey, mut polled: Polled) -> Polled {
        while let Some(next) = NEXT.take() {
            let (unneeded, task) =
                match self.task(key).filter(|_| matches!(polled, Ok(Poll::Ready(())))) {
                    Some(task) => (std::mem::replace(&mut task.future, next), Some(task)),
                    None => (next, None),
                };
            // It may panic when it is dropped, which changes nothing for the task.
            let _dropped = catch_unwind(AssertUnwindSafe(|| drop(unneeded)));
            match task {
                Some(task) => polled = task.poll(key),
                None => break,
            }
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::poll_fn;
    use std::rc::Rc;

    use super::*;
    use crate::runtime::tasks::visits::{self, Visit};
    use crate::runtime::tasks::{self, WorkerHandle};

    /// The tasks of this thread.
    fn tasks() -> Tasks {
        Tasks::new(WorkerHandle::new().unwrap())
    }

    /// Runs rounds while any task is ready.
    fn run(tasks: &mut Tasks) {
        for _ in 0..10 {
            tasks.run_round().unwrap();
        }
        assert!(!tasks.is_busy());
    }

    struct LogsDrop(Rc<RefCell<Vec<&'static str>>>, &'static str);

    impl Drop for LogsDrop {
        fn drop(&mut self) {
            self.0.borrow_mut().push(self.1);
        }
    }

    #[test]
    fn continues_in_its_slot_and_frees_former_future() {
        let (mut tasks, log) = (tasks(), Rc::default());
        let (first, second) =
            (LogsDrop(Rc::clone(&log), "first"), LogsDrop(Rc::clone(&log), "second"));
        let wakes = Rc::new(RefCell::new(None));
        let stored = Rc::clone(&wakes);
        tasks::spawn(async move {
            let _kept = first;
            continue_as(async move {
                second.0.borrow_mut().push("continues");
                let mut polls = 0;
                poll_fn(|cx| {
                    polls += 1;
                    stored.replace(Some(cx.waker().clone()));
                    if polls < 2 { Poll::Pending } else { Poll::Ready(()) }
                })
                .await;
                drop(second);
            });
        });
        run(&mut tasks);
        assert_eq!(*log.borrow(), ["first", "continues"]);
        assert_eq!((tasks.slots(), tasks.generation(0), tasks.worker.tasks()), (1, Some(0), 1));
        let waker = wakes.take().unwrap();
        waker.wake();
        run(&mut tasks);
        assert_eq!(*log.borrow(), ["first", "continues", "second"]);
        assert_eq!((tasks.generation(0), tasks.worker.tasks()), (None, 0));
    }

    /// An order that arrives when a task is about to continue reaches the next future.
    #[test]
    fn passes_visit_to_next_future() {
        let (mut tasks, log) = (tasks(), Rc::new(RefCell::new(Vec::new())));
        let seen = Rc::clone(&log);
        tasks::spawn(poll_fn(move |_| {
            if visits::current().is_none() {
                return Poll::Pending;
            }
            let seen = Rc::clone(&seen);
            continue_as(poll_fn(move |_| {
                seen.borrow_mut().push(visits::current());
                visits::accept_end();
                Poll::Ready(())
            }));
            Poll::Ready(())
        }));
        run(&mut tasks);
        tasks.visit(0, Visit::End);
        assert_eq!((*log.borrow()).as_slice(), [Some(Visit::End)]);
        assert_eq!(tasks.generation(0), None);
    }

    #[test]
    fn does_not_continue_after_panic() {
        let (mut tasks, log) = (tasks(), Rc::default());
        let next = LogsDrop(Rc::clone(&log), "dropped");
        tasks::spawn(async move {
            continue_as(async move {
                next.0.borrow_mut().push("continues");
            });
            panic!("a test's panic");
        });
        run(&mut tasks);
        assert_eq!(*log.borrow(), ["dropped"]);
        assert_eq!((tasks.generation(0), tasks.worker.tasks()), (None, 0));
    }

    #[test]
    fn drops_what_former_future_fails_to_drop() {
        struct PanicsOnDrop;
        impl Drop for PanicsOnDrop {
            fn drop(&mut self) {
                panic!("a test's panic");
            }
        }
        let (mut tasks, log) = (tasks(), Rc::new(RefCell::new(Vec::new())));
        let (next, kept) = (Rc::clone(&log), PanicsOnDrop);
        tasks::spawn(poll_fn(move |_| {
            let _kept = &kept;
            let next = Rc::clone(&next);
            continue_as(async move { next.borrow_mut().push("continues") });
            Poll::Ready(())
        }));
        run(&mut tasks);
        assert_eq!(*log.borrow(), ["continues"]);
    }
}
