//! The event loop of a worker thread: readiness, tasks, timers, and the worker itself.
//!
//! Each worker has one epoll instance and runs its tasks on one thread, so that sessions need no
//! locks among themselves.

pub(crate) mod heartbeat;
pub(crate) mod reactor;
pub(crate) mod run_queue;
#[cfg(debug_assertions)]
pub(crate) mod stall;
pub(crate) mod tasks;
pub(crate) mod timer;
pub(crate) mod timer_thread;
pub(crate) mod watch;
pub(crate) mod worker;

#[cfg(test)]
mod reactor_tests;
