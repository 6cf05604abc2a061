//! Tasks that follow others: the tasks of shared connections.
//!
//! A session wakes its connection when it has a request, and the connection wakes its sessions when
//! replies have arrived. Each such wake-up would take another round, with a look at the sockets in
//! between, which costs a system call. So these tasks are polled before the other ones of a round,
//! which then write the replies that have arrived, and after them, when all requests of the round
//! have been read and leave in one write.
//!
//! A task that wakes itself is polled in the next round, like any other.

use super::{BYTES, LOCAL, NewTask, Panicked, Pending, Tasks, push_new};

/// Starts a task on this thread's worker that follows others.
pub(crate) fn spawn(future: impl Future<Output = ()> + 'static) {
    push_new(NewTask { future: Box::pin(future), essential: false, follows: true });
}

impl Tasks {
    /// Polls the tasks of this kind that are woken, each at most once.
    #[inline]
    pub(super) fn poll_following(&mut self) -> Result<(), Panicked> {
        if Pending::FOLLOWING.has() { self.poll_woken() } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn poll_woken(&mut self) -> Result<(), Panicked> {
        Pending::FOLLOWING.clear();
        let mut left = LOCAL.with_borrow(|local| local.following.len());
        while left > 0
            && let Some(key) = LOCAL.with_borrow_mut(|local| local.following.pop_front())
        {
            left -= 1;
            self.poll(key, false)?;
            if BYTES.get() > 0 {
                self.record_weight(key);
            }
        }
        // Those that woke themselves are polled in the next round.
        if LOCAL.with_borrow(|local| !local.following.is_empty()) {
            Pending::FOLLOWING.set();
        }
        Ok(())
    }
}
