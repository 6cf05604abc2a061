//! The real driver against scripted sentinels and redis nodes: every fault that a real server cannot be made to show on
//! demand. Everything runs on loopback ports that the kernel chose, and every wait is for a condition.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "this is test code: a clear panic is how it reports"
)]

mod fake;
mod players;
mod stage;
mod wire;

mod disagreement;
mod golden;
mod links;
mod names;
mod nodes;
mod peers;
mod refusals;
mod storm;
mod swap;
