//! Publishes the target of new connections, and ends the connections to a superseded one.
//!
//! A [`TargetReader`] holds the current [`Target`] in one atomic pointer. Any number of workers
//! read it without a lock; exactly one [`TargetWriter`] changes it. Every target carries its own
//! [`Fence`]. A session keeps the target that it loaded and thereby its fence, so a change needs no
//! registry of sessions, and no wake-up can be lost. The gate is the other half of safety: while it
//! is closed, no session connects to the target or forwards a request to it, although the target
//! itself has not changed yet.
//!
//! The order of a commit is the central invariant: **store the new target, then raise the fence of
//! the old one, then open the gate**. A session that finds its fence raised can load the target
//! again and is certain to find a newer one.
//!
//! A [`Pool`] holds several equivalent targets for readers. A session asks its [`TargetSource`] and
//! need not know which of the two it uses.
//!
//! The crate knows neither Redis nor sockets, and of time only the lease of the writer (`lease`).
//! It cannot decide that a target is good; it only makes the decision take effect everywhere at
//! once.

mod balance;
mod gate;
mod lease;
mod networks;
mod pool;
mod replica_status;
mod source;
mod target;
mod writer;

#[cfg(test)]
mod pool_tests;

pub use gate::ReplyPolicy;
pub use lease::ClockReading;
pub use networks::{Network, Networks};
pub use pool::{EmptyPool, Pool, PoolWriter};
pub use replica_status::{CloseCause, ReplicaStatus};
pub use source::TargetSource;
pub use target::{Destination, Fence, Generation, Target, TargetRef};
pub use writer::{TargetReader, TargetWriter};
