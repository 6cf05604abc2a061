//! Runs a test in its own process and network namespace.
//!
//! Some tests damage the network, or need ten thousand file descriptors. A process with threads
//! cannot enter another namespace, and the test runner has threads. So such a test starts the
//! runner again under `unshare --net` with its own name as the only test, and adopts the result.

use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::binary::find_in_path;
use crate::netns::loopback_up;

const INSIDE: &str = "HARNESS_ALONE";

/// Whether the caller should run its test here: `true` in the process that has its own namespace.
/// Otherwise the test has been run there and has passed, or no namespace can be created, which is
/// reported on standard error.
///
/// `test` is the full name of the calling test, as the runner lists it.
///
/// # Panics
/// If the test fails inside.
#[must_use]
#[track_caller]
pub fn alone(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some_and(|inside| inside == test) {
        loopback_up().expect("a loopback interface");
        return true;
    }
    let tools = ["ip", "nft", "tc"].iter().all(|tool| find_in_path(tool).is_some());
    let (Some(mut unshare), true) = (unshare(), tools) else {
        eprintln!(
            "{test} needs a network namespace of its own, with ip, nft and tc: not to be had here, so NOT TESTED"
        );
        return false;
    };
    let own = std::env::current_exe().expect("the path of this program");
    let output = unshare
        .arg("--")
        .arg(own)
        .args([test, "--exact", "--nocapture"])
        .env(INSIDE, test)
        .stdin(Stdio::null())
        .output()
        .expect("the test runner, started again");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "inside its namespace it failed:\n{said}");
    assert!(said.contains("1 passed"), "no test is called {test}:\n{said}");
    false
}

/// `unshare` into a network namespace of its own, without the command that it is to start; `None`
/// if it is missing or the kernel allows this user none.
#[must_use]
pub fn unshare() -> Option<Command> {
    let program = find_in_path("unshare")?;
    // Root needs only a network namespace; other users become root of a user namespace, if the
    // kernel allows that.
    let ways: [&[&str]; 2] = [&["--net"], &["--map-root-user", "--net"]];
    let command = |way: &&[&str]| {
        let mut command = Command::new(&program);
        command.args(*way);
        command
    };
    let works = |way: &&&[&str]| {
        let mut trial = command(way);
        trial.arg("true").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        trial.status().is_ok_and(|status| status.success())
    };
    ways.iter().find(works).map(command)
}

/// Raises the limit on open files of this process to its maximum and returns it.
#[must_use]
pub fn raise_files() -> usize {
    let limit = getrlimit(Resource::Nofile);
    // If it cannot be raised, the old limit is returned.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}
