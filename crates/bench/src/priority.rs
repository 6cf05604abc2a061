//! When a thread of a measurement runs beside others on its core.
//!
//! rustix has no call for it. `chrt` of util-linux is on every system.

use std::process::Command;

use rustix::thread::gettid;

/// Lets this thread run only while nothing else on its core wants to.
///
/// # Errors
/// A message for people, if it may not.
pub(crate) fn give_way() -> Result<(), String> {
    set("--idle", "0")
}

/// Lets this thread run whenever it wants to.
///
/// # Errors
/// A message for people, if it may not: that needs root.
pub(crate) fn precede_others() -> Result<(), String> {
    set("--fifo", "1")
}

fn set(policy: &str, priority: &str) -> Result<(), String> {
    let thread = gettid().to_string();
    setup::run(Command::new("chrt").args([policy, "--pid", priority, &thread])).map(drop)
}
