//! One child process: its log in a file, signals by its own id, and an end that comes for certain.
//!
//! A [`Process`] is killed and reaped when it is dropped. If that happens while a test fails, the
//! tail of its log is printed, since that is the next thing one would look for.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

use crate::spawner;
use crate::wait::wait_until;

/// How many lines of a log a failing test shows.
const TAIL: usize = 25;

/// What to start.
#[derive(Debug, Clone)]
pub struct Launch {
    /// What messages call it, and the name of its log file.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Environment variables in addition to ours.
    pub env: Vec<(String, String)>,
    /// The working folder, where the log file `NAME.log` is written too.
    pub folder: PathBuf,
}

/// A running or ended child.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: u32,
    child: Mutex<Child>,
    log: PathBuf,
}

impl Process {
    /// Starts it in a process group of its own, so that a Ctrl-C at the terminal reaches only us.
    ///
    /// # Panics
    /// If the program or its log file cannot be started or written.
    #[must_use]
    pub fn start(launch: &Launch) -> Self {
        Self::start_with(launch, Stdio::null())
    }

    /// The same, with this as its standard input.
    ///
    /// # Panics
    /// As [`start`](Self::start) does.
    #[must_use]
    pub fn start_with(launch: &Launch, stdin: Stdio) -> Self {
        let log = launch.folder.join(format!("{}.log", launch.name));
        let file = File::options().create(true).append(true).open(&log);
        let file = file.unwrap_or_else(|error| panic!("cannot write {}: {error}", log.display()));
        let mut command = match spawner::setpriv() {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL"]).arg(&launch.program);
                command
            }
            None => Command::new(&launch.program),
        };
        command
            .args(&launch.args)
            .envs(launch.env.iter().map(|(key, value)| (key, value)))
            .current_dir(&launch.folder)
            .process_group(0)
            .stdin(stdin)
            .stdout(file.try_clone().expect("a second handle of the log"))
            .stderr(file);
        let child = spawner::spawn(command).unwrap_or_else(|error| {
            panic!("cannot start {} ({}): {error}", launch.name, launch.program.display())
        });
        Self { name: launch.name.clone(), pid: child.id(), child: Mutex::new(child), log }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<ExitStatus> {
        self.child().try_wait().expect("the state of a child of ours")
    }

    /// Whether it has not ended yet; a stopped process still runs in this sense.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.ended().is_none()
    }

    /// Sends a signal; does nothing if the process has ended, since its id may be another's by now.
    pub fn signal(&self, signal: Signal) {
        // The lock is held until the signal is sent, so nobody reaps the child in between.
        let mut child = self.child();
        if child.try_wait().expect("the state of a child of ours").is_none() {
            kill_process(Pid::from_child(&child), signal)
                .unwrap_or_else(|error| panic!("cannot send {signal:?} to {}: {error}", self.name));
        }
    }

    /// Sets how many files it may open from now on.
    ///
    /// # Panics
    /// If the system does not let us.
    pub fn limit_files(&self, files: u64) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        // It was started by us, so its hard limit is ours.
        let limit = Rlimit { current: Some(files), maximum: getrlimit(Resource::Nofile).maximum };
        prlimit(pid, Resource::Nofile, limit)
            .unwrap_or_else(|error| panic!("prlimit on {}: {error}", self.name));
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// If it has not ended after `timeout`.
    #[track_caller]
    pub fn wait_exit(&self, timeout: Duration) -> ExitStatus {
        wait_until(&format!("the end of {}", self.name), timeout, || self.ended())
    }

    /// SIGKILL, and gone when this returns.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
        self.child().wait().expect("the end of a child of ours");
    }

    /// The file that holds what it wrote to its standard output and error.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// All that it wrote so far.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The last lines of its log, under a heading.
    #[must_use]
    pub fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let from = lines.len().saturating_sub(TAIL);
        format!(
            "--- {} (process {}), last lines ---\n{}",
            self.name,
            self.pid,
            lines[from..].join("\n")
        )
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Child> {
        // A panic under this lock leaves the child as it was; it still has to be killed.
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.tail());
        }
        let mut child = self.child();
        // Both fail only for a child that is gone already.
        let _ = child.kill();
        let _ = child.wait();
    }
}
