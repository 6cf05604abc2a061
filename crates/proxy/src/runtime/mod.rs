//! The event loop of a worker thread: readiness, tasks, timers, and the worker itself.
//!
//! Each worker has one epoll instance and runs its tasks on one thread, so that sessions need no
//! locks among themselves.

pub(crate) mod heartbeat;
pub(crate) mod reactor;
pub(crate) mod run_queue;
pub(crate) mod tasks;
pub(crate) mod timers;
pub(crate) mod wake_flag;

#[cfg(test)]
mod reactor_tests;
