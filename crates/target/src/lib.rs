//! Where the next connection goes, and which connections have just become wrong.
//!
//! The points of a railway: one lever, many trains. A [`TargetReader`] holds the current [`Target`] behind
//! one atomic pointer, so that any number of workers read it without a lock while exactly one
//! writer, [`TargetWriter`], moves it. Every target carries its own [`Fence`]: a session that loaded a
//! target holds on to that target's fence, so when the points move there is no registry of sessions
//! to walk and no wake-up to lose. The gate of the route is the other half of safety: while it is
//! shut nobody starts towards the target and nobody forwards a byte to it, although the target
//! itself has not changed yet.
//!
//! The order of a commit is the whole point of this crate: **store the new target, then fence the
//! old one, then open the gate**. A reader that finds its fence fallen can therefore load the route
//! again and is certain to find something newer.
//!
//! Beside the points there may be a [`Pool`]: several targets that are as good as each other, for
//! readers. A session asks its [`TargetSource`] and need not know which of the two it is on.
//!
//! Deliberately absent: any idea of Redis, of Sentinel and of sockets; of time it knows only how
//! long the writer's word holds (`lease`). This crate cannot decide that a target is good; it can
//! only make the decision take effect everywhere at once.

mod balance;
mod fence;
mod gate;
mod lease;
mod look;
mod pool;
mod source;
mod target;
mod writer;

#[cfg(test)]
mod pool_tests;

pub use fence::Fence;
pub use gate::Replies;
pub use lease::Moment;
pub use look::{Cause, Look};
pub use pool::{Empty, Pool, PoolWriter};
pub use source::TargetSource;
pub use target::{Destination, Generation, Target, TargetRef};
pub use writer::{TargetReader, TargetWriter};
