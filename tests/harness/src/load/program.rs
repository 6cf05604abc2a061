//! Clients that run in another program, such as those of a library in another language.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::lock;
use super::tally::Tally;
use crate::spawner;

/// A program whose output is counted. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Program {
    child: Mutex<Child>,
}

impl Program {
    /// Starts it, and the thread that reads its output.
    pub(super) fn start(
        command: Command,
        tally: Arc<Tally>,
    ) -> Result<(Self, JoinHandle<()>), String> {
        let mut started = match spawner::setpriv() {
            Some(setpriv) => {
                let mut wrapped = Command::new(setpriv);
                wrapped.args(["--pdeathsig", "KILL"]).arg(command.get_program());
                wrapped.args(command.get_args());
                let given = command.get_envs().filter_map(|(key, value)| Some((key, value?)));
                wrapped.envs(given);
                wrapped
            }
            None => command,
        };
        started.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let what = format!("{started:?}");
        let mut child = spawner::spawn(started).map_err(|error| format!("{what}: {error}"))?;
        let output = child.stdout.take().ok_or("a program without an output")?;
        let thread = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                match Line::of(&line) {
                    Some(Line::Acknowledged(writer, number)) => tally.acknowledge(writer, number),
                    Some(Line::Failed(text)) if !tally.stopped() => tally.fail(text.to_owned()),
                    Some(Line::Wrong) => tally.wrong(),
                    _ => {}
                }
            }
        });
        Ok((Self { child: Mutex::new(child) }, thread))
    }

    /// Ends it; its thread ends after the rest of its output.
    pub(super) fn stop(&self) {
        let mut child = lock(&self.child);
        // Fails only for a program that has ended.
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A line of its output.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Acknowledged(usize, u64),
    Failed(&'a str),
    Wrong,
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "ok" => {
                let (writer, number) = rest.split_once(' ')?;
                Some(Self::Acknowledged(writer.parse().ok()?, number.parse().ok()?))
            }
            "err" => Some(Self::Failed(rest)),
            "wrong" => Some(Self::Wrong),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lines_of_a_program() {
        assert_eq!(Line::of("ok 3 17"), Some(Line::Acknowledged(3, 17)));
        assert_eq!(Line::of("err reset by peer"), Some(Line::Failed("reset by peer")));
        assert_eq!(Line::of("wrong"), Some(Line::Wrong));
        for line in ["ok 3", "ok a 1", "", "warning: x"] {
            assert_eq!(Line::of(line), None, "{line}");
        }
    }

    #[test]
    fn counts_what_a_program_reports() {
        let tally = Arc::new(Tally::new(2, 0, true));
        let mut command = Command::new("sh");
        command.args(["-c", "echo ok 0 0; echo ok 1 0; echo wrong; echo err x"]);
        let (_program, thread) = Program::start(command, Arc::clone(&tally)).expect("a shell");
        thread.join().expect("no panic");
        let counts = tally.counts();
        assert_eq!((counts.acknowledged, counts.errors, counts.wrong), (2, 1, 1));
        assert_eq!(tally.newest().map(|it| (it.writer, it.number)), Some((1, 0)));
    }
}
