//! Tests in a process of their own.

use std::process::Command;

/// Set in the process that [`run_alone`] starts.
const ALONE: &str = "POINTSMAN_TEST_ALONE";

/// Runs a test in a process of its own, since it limits or counts what all tests of a process
/// share. `name` is the test's path in this crate.
pub(crate) fn run_alone(name: &str, test: fn()) {
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    let mut alone = Command::new(std::env::current_exe().unwrap());
    let output = alone.args(["--exact", name]).env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "the test has another name: {text}");
}
