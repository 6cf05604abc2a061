//! One client connection from accept to close.
//!
//! A worker is a thread with a single-threaded runtime, its own listeners and its own sessions. A session accepts, waits at
//! the gate if it has to, dials, looks at the fence again, and then pumps: bytes are read into one large buffer that belongs
//! to the worker, followed by the ledger so that the session's boundaries are known, and written to the other side at once.
//! Only what the other side does not take at once is kept, in a buffer of the session's own, and nothing more is read in that
//! direction until it is gone. An idle session holds no buffer.
//!
//! What is promised, in this order: no byte goes to a master once its fence has fallen or while the gate is shut; nothing is
//! lost, changed or reordered in either direction; one session's fault ends that session; everything is bounded.
//!
//! Deliberately absent: discovery (only [`route`] is known here), metrics and configuration (plain counters and plain
//! options), and any change of the bytes.

mod accept;
mod bind;
mod close;
mod dial;
mod flow;
mod gate;
mod limits;
mod linger;
mod listener;
mod options;
mod pump;
mod session;
mod stats;
mod worker;

#[cfg(test)]
mod pump_tests;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod testing;

pub use bind::{BindError, Bound};
pub use close::Reason;
pub use options::{Hints, Options, Service};
pub use stats::{Stats, Traffic};
pub use worker::{Heartbeat, Running, ServeError, worker_count};
