//! Runs a measurement in its own network namespace: no foreign traffic, congestion control or
//! rules, and partitions are possible.
//!
//! A process with threads cannot enter another namespace, so it executes `unshare`, which starts it
//! again inside. Nothing has to be removed: the namespace ends with its last process.

use std::os::unix::process::CommandExt as _;
use std::path::Path;

/// Starts this command again in its own namespace, with `--namespaced` and the program to measure.
/// Returns only if that fails, with the reason.
#[must_use]
pub fn enter(program: &Path) -> String {
    let Some(mut unshare) = harness::unshare() else {
        return "unshare is missing or gives this user no network namespace; root gets one".into();
    };
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => return format!("this program does not find itself: {error}"),
    };
    // The last `--program` counts.
    unshare.arg("--").arg(own).args(std::env::args_os().skip(1)).arg("--namespaced");
    let error = unshare.arg("--program").arg(program).exec();
    format!("unshare cannot be started: {error}")
}
