//! Import of haproxy configurations, by the real program: samples in the styles found in the field
//! (`*.cfg` beside this file), each with its expected result, and configurations from a model.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests report by a clear panic"
)]

mod model;
mod samples;

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The variables that samples refer to.
const ENV: &[(&str, &str)] = &[
    ("AUTH", "correct-horse-battery"),
    ("REDIS_PASSWORD", "correct-horse-battery"),
    ("SENTINELAUTH", "of-the-sentinels"),
    ("MASTER_NAME", "sessions"),
    ("REDIS_HOST_1", "10.0.0.11"),
];

fn run(args: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
    command
        .args(args)
        .env_clear()
        .envs(ENV.iter().copied())
        .current_dir(folder)
        .stdin(Stdio::null());
    command.output().expect("pointsman")
}

/// Writes the files that samples name in `certs/`: an authority, and certificates with their keys
/// in the same file.
fn write_certificates(folder: &Path) {
    let folder = folder.join("certs");
    let certificates = harness::Certificates::new(&folder);
    for name in ["redis", "other"] {
        let files = certificates.issue(name, &["redis.example"]);
        let parts = [files.certificate, files.key].map(|it| std::fs::read(it).expect("a file"));
        std::fs::write(folder.join(format!("{name}.pem")), parts.concat()).expect("a file");
    }
}

/// Checks that `pointsman check` accepts the configuration.
fn check(name: &str, toml: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    write_certificates(folder.path());
    std::fs::write(folder.path().join("pointsman.toml"), toml).expect("a file");
    let checked = run(&["check", "--config", "pointsman.toml"], folder.path());
    let (shown, toml) = (String::from_utf8_lossy(&checked.stderr), String::from_utf8_lossy(toml));
    assert_eq!(checked.status.code(), Some(0), "{name}: {shown}\n{toml}");
}
