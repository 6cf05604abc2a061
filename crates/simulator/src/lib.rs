//! Deterministic simulation of whole failovers with faults, from one seed: no socket, no thread, no
//! clock.
//!
//! Proxies run the real `Discovery` with its links, node probers, machine, replica publisher and
//! switchovers, each in a runtime with paused time, against sentinels that behave as
//! `redis:src/sentinel.c` does and Redis nodes with real replication histories, over a network that
//! cuts, delays and heals. The oracle knows the whole state and checks, at every step, what the
//! documentation promises. The same seed gives the same run, event for event, so a failure can be
//! read as a timeline and repeated.
//!
//! # How to use it
//!
//! - `cargo xtask simulate` runs 2000 seeds; `--seeds N` runs another number, `--keep-going` lists
//!   all failures instead of stopping at the first.
//! - `cargo xtask simulate --seed S` runs one seed and prints its timeline, the broken rule and the
//!   process at which it was broken. The output is the same on every machine.
//! - `--with KINDS` runs only seeds with these faults ([`FaultKind`]).
//! - `cargo xtask simulate --mutations` applies each patch of `mutations/`, which puts a known
//!   fault back into a copy of the product, and requires that the simulator finds it.
//!
//! # Where to find what
//!
//! - `plan` derives the cluster and its faults from the seed; `cluster` holds the processes,
//!   `faults` applies the faults to them, `world` runs all of it.
//! - `sentinel` and `redis` model the servers, `net` the network, the processes and the time.
//! - `hostile` has processes that lie: outsiders that join through hellos, and what configured
//!   sentinels say after they turned; `attack` begins and ends it.
//! - `proxy` runs discovery: `proxy/host.rs` is its host, with connections that carry RESP over
//!   `net`; `proxy/observed.rs` is what the oracle sees of it; `proxy/sessions.rs` models clients.
//! - `speech` answers in RESP as sentinels and nodes do, `resp` reads and writes it.
//! - `oracle` checks the rules of `report`; `trace` keeps the timeline.
//!
//! The approach is that of tigerbeetle's VOPR. Deliberately absent: TLS, threads and their
//! interleavings, which tests with real servers and model checking cover.
#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    reason = "the simulation creates both ends: a wrong index or command is a bug that panics"
)]

mod attack;
mod cluster;
mod faults;
mod hostile;
mod net;
mod oracle;
mod plan;
mod proxy;
mod redis;
mod report;
mod resp;
mod rng;
mod sentinel;
mod speech;
mod trace;
mod wire;
mod world;

#[cfg(test)]
mod tests;

pub use plan::FaultKind;
pub use report::{Rule, RunResult, Totals, Violation};

/// Runs one seed.
#[must_use]
pub fn run(seed: u64) -> RunResult {
    world::Simulation::new(seed, false).run().0
}

/// The faults of a seed, without running it.
#[must_use]
pub fn kinds(seed: u64) -> Vec<FaultKind> {
    plan::FaultPlan::new(&mut rng::Rng::new(seed)).kinds()
}

/// Runs one seed and returns its timeline, too.
#[must_use]
pub fn timeline(seed: u64) -> (RunResult, String) {
    world::Simulation::new(seed, true).run()
}
