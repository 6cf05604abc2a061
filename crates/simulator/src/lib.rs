//! Whole failovers, with faults, from one seed: no socket, no thread, no clock.
//!
//! Proxies run the real discovery machine, the real replica eligibility and the real judgement of
//! who has caught up, against sentinels that behave as `redis:src/sentinel.c` does and redis nodes
//! with real replication histories, over a network that cuts, delays and heals. The oracle knows
//! the whole truth and checks, at every step, what the documentation promises. The same seed gives
//! the same run, event for event, so that a failure can be read as a timeline and repeated.
//!
//! The model is tigerbeetle's VOPR. Deliberately absent: bytes on sockets, threads and their
//! interleavings (tests with real servers and model checking are for these).
#![allow(
    clippy::indexing_slicing,
    reason = "indices are of the simulation's own making: a wrong one is a fault to be seen, not to be survived"
)]

mod faults;
mod net;
mod oracle;
mod plan;
mod proxy;
mod redis;
mod report;
mod rng;
mod sentinel;
mod trace;
mod wire;
mod world;

#[cfg(test)]
mod tests;

pub use plan::Kind;
pub use report::{Rule, Run, Totals, Violation};

/// Runs one seed. What breaks only ignored rules goes on, so that what they would hide is found.
#[must_use]
pub fn run(seed: u64, ignored: &[Rule]) -> Run {
    world::World::new(seed, false, ignored).run().0
}

/// The faults of a seed, without running it.
#[must_use]
pub fn kinds(seed: u64) -> Vec<Kind> {
    plan::Plan::new(&mut rng::Rng::new(seed)).kinds()
}

/// Runs one seed again and gives its timeline.
#[must_use]
pub fn timeline(seed: u64, ignored: &[Rule]) -> (Run, String) {
    world::World::new(seed, true, ignored).run()
}
