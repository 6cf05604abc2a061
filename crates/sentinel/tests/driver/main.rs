//! The real driver against scripted sentinels and redis nodes: every fault that a real server cannot be made to show on
//! demand. Everything runs on loopback ports that the kernel chose, and every wait is for a condition.

mod fake;
mod players;
mod stage;
mod wire;

mod golden;
