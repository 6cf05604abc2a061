//! A network namespace for the whole measurement: nobody else's traffic, congestion control and
//! rules, and partitions can be made in it.
//!
//! A process with threads does not enter another namespace, so this one is replaced by `unshare`,
//! which starts it again inside. Nothing has a name and nothing has to be removed: the namespace
//! ends with its last process.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::find_in_path;

/// Starts this very command again in a namespace of its own, with `--namespaced` and the program to
/// measure. Returns only if that is not possible, with the reason.
pub(super) fn enter(program: &Path) -> String {
    let Some(unshare) = find_in_path("unshare") else { return "unshare is missing".to_owned() };
    // Root needs no more than a network; others become root of a user namespace, where the kernel
    // lets them.
    let ways: [&[&str]; 2] = [&["--net"], &["--map-root-user", "--net"]];
    let works = |way: &&&[&str]| {
        let mut trial = Command::new(&unshare);
        trial
            .args(**way)
            .arg("true")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        trial.status().is_ok_and(|status| status.success())
    };
    let Some(way) = ways.iter().find(works) else {
        return "the kernel gives this user no network namespace; root gets one".to_owned();
    };
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => return format!("this program does not find itself: {error}"),
    };
    let error =
        Command::new(&unshare).args(*way).arg("--").arg(own).args(arguments(program)).exec();
    format!("unshare cannot be started: {error}")
}

fn arguments(program: &Path) -> Vec<OsString> {
    let given = std::env::args_os().skip(1);
    // Given twice, the later one would be an error: the first is taken out.
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
