//! Runs a measurement in its own network namespace: no foreign traffic, congestion control or
//! rules, and partitions are possible.
//!
//! A process with threads cannot enter another namespace, so it executes `unshare`, which starts it
//! again inside. Nothing has to be removed: the namespace ends with its last process.

use std::ffi::OsString;
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
    let error = unshare.arg("--").arg(own).args(arguments(program)).exec();
    format!("unshare cannot be started: {error}")
}

fn arguments(program: &Path) -> Vec<OsString> {
    let given = std::env::args_os().skip(1);
    // A repeated option would be an error, so the first one is removed.
    let mut kept = Vec::new();
    let mut skip = false;
    for arg in given {
        if std::mem::take(&mut skip) {
            continue;
        }
        skip = arg == "--program";
        if !skip && !arg.to_string_lossy().starts_with("--program=") {
            kept.push(arg);
        }
    }
    kept.extend(["--namespaced".into(), "--program".into(), program.as_os_str().to_owned()]);
    kept
}
