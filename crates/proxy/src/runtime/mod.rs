//! The event loop of a worker thread: socket readiness, tasks and timers.
//!
//! Each worker has one epoll instance and runs its tasks on one thread, so sessions need no locks
//! among themselves. The loop itself is in [`workers`](crate::workers).

pub(crate) mod alarm;
pub(crate) mod heartbeat;
pub(crate) mod reactor;
pub(crate) mod run_queue;
pub(crate) mod tasks;
pub(crate) mod timers;
pub(crate) mod wake_flag;

#[cfg(test)]
mod reactor_tests;
