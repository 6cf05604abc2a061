//! Commands that take minutes: their output goes into a file, and they are ended after a limit.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::pause;
use setup::files;

/// Lets a command write into a file; the file, for its errors.
///
/// # Errors
/// A message for people: the file cannot be written.
pub(crate) fn logged(command: &mut Command, log: &Path) -> Result<File, String> {
    log.parent().map_or(Ok(()), files::make)?;
    let words = |error: std::io::Error| format!("{}: {error}", log.display());
    let output = File::create(log).map_err(words)?;
    let errors = output.try_clone().map_err(words)?;
    command.stdin(Stdio::null()).stdout(output);
    Ok(errors)
}

/// Runs a command, and ends it after the limit. Whether it ended before by itself.
///
/// # Errors
/// A message for people: it cannot be started or ended.
pub(crate) fn ends_within(limit: Duration, command: &mut Command) -> Result<bool, String> {
    let name = format!("{:?}", command.get_program());
    let words = |error: std::io::Error| format!("{name}: {error}");
    let start = Instant::now();
    let mut child = command.spawn().map_err(words)?;
    while child.try_wait().map_err(words)?.is_none() {
        if start.elapsed() > limit {
            child.kill().and_then(|()| child.wait()).map_err(words)?;
            return Ok(false);
        }
        pause(Duration::from_millis(100));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_late_commands_and_keeps_their_output() {
        let folder = files::temporary().unwrap();
        let log = folder.path().join("inner/log");
        let mut command = Command::new("sh");
        let errors = logged(command.args(["-c", "echo said; exec sleep \"$0\""]), &log).unwrap();
        command.stderr(errors);
        let limit = Duration::from_secs(2);
        assert_eq!(ends_within(limit, command.arg("0")), Ok(true));
        assert_eq!(files::read(&log).unwrap(), "said\n");
        let mut command = Command::new("sleep");
        assert_eq!(ends_within(Duration::ZERO, command.arg("30")), Ok(false));
        assert!(ends_within(limit, &mut Command::new("no-such-program")).is_err());
    }
}
