//! A child process with a log file, signals by process id, and a guaranteed end.
//!
//! A [`Process`] is killed and reaped when it is dropped. If that happens while a test fails, the
//! last lines of its log are printed.

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

/// How many lines of a log are printed for a failing test.
const TAIL: usize = 25;

/// The program to start and its environment.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The name used in messages and for the log file.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Environment variables in addition to inherited ones.
    pub env: Vec<(String, String)>,
    /// The working folder, which also gets the log file `NAME.log`.
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
    /// Starts it in its own process group, so that Ctrl-C at the terminal does not reach it.
    ///
    /// # Panics
    /// If the program cannot be started or its log file cannot be written.
    #[must_use]
    pub fn start(launch: &Launch) -> Self {
        Self::start_with(launch, Stdio::null())
    }

    /// Like [`start`](Self::start), with a given standard input.
    ///
    /// # Panics
    /// Like [`start`](Self::start).
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

    /// Its name in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its exit status, if it has ended.
    #[must_use]
    pub fn ended(&self) -> Option<ExitStatus> {
        self.child().try_wait().expect("the state of a child of ours")
    }

    /// Whether it has not ended; a process stopped by a signal counts as running.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.ended().is_none()
    }

    /// Sends a signal. Does nothing if the process has ended, because its id may belong to another
    /// one.
    pub fn signal(&self, signal: Signal) {
        // The lock is held until the signal is sent, so that the child cannot be reaped in between.
        let mut child = self.child();
        if child.try_wait().expect("the state of a child of ours").is_none() {
            kill_process(Pid::from_child(&child), signal)
                .unwrap_or_else(|error| panic!("cannot send {signal:?} to {}: {error}", self.name));
        }
    }

    /// Sets its limit on open files.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn limit_files(&self, files: u64) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        // It inherited the hard limit of this process.
        let limit = Rlimit { current: Some(files), maximum: getrlimit(Resource::Nofile).maximum };
        prlimit(pid, Resource::Nofile, limit)
            .unwrap_or_else(|error| panic!("prlimit on {}: {error}", self.name));
    }

    /// Waits until it has ended.
    ///
    /// # Panics
    /// If it has not ended after `timeout`.
    #[track_caller]
    pub fn wait_exit(&self, timeout: Duration) -> ExitStatus {
        wait_until(&format!("the end of {}", self.name), timeout, || self.ended())
    }

    /// Sends SIGKILL and waits for its end.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
        self.child().wait().expect("the end of a child of ours");
    }

    /// The file with its standard output and standard error.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Its output so far.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The last lines of its log, with a heading.
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
        // After a panic under this lock the child is unchanged and still has to be killed.
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.tail());
        }
        let mut child = self.child();
        // Both fail only if the child has ended.
        let _ = child.kill();
        let _ = child.wait();
    }
}
