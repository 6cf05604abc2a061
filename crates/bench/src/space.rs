//! Runs a measurement in its own network namespace: no foreign traffic, congestion control or
//! rules, and partitions are possible.
//!
//! A process with threads cannot enter another namespace, so it executes `unshare`, which starts it
//! again inside. Nothing has to be removed: the namespace ends with its last process.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

/// The variable that tells a command in its own namespace which program to measure.
const ENTERED: &str = "XTASK_NAMESPACED";

/// The program to measure, if this command was started again in its own namespace.
#[must_use]
pub fn entered() -> Option<PathBuf> {
    std::env::var_os(ENTERED).map(PathBuf::from)
}

/// Starts this command again in its own namespace, to measure this program. Returns only if that
/// fails, with the reason.
#[must_use]
pub fn enter(program: &Path) -> String {
    let Some(mut unshare) = harness::unshare() else {
        return "unshare is missing or gives this user no network namespace; root gets one".into();
    };
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => return format!("this program does not find itself: {error}"),
    };
    unshare.arg("--").arg(own).args(std::env::args_os().skip(1));
    format!("unshare cannot be started: {}", unshare.env(ENTERED, program).exec())
}
