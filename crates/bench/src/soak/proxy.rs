//! The proxy under test: its process, which may be another one after a step, and its logs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use harness::{Cluster, Launch, Process, Signal, http_get, pause, wait_until};

use super::books::Books;
use super::schedule::{Act, Fault};
use super::settings::Config;

const PATIENCE: Duration = Duration::from_secs(90);

/// The proxy.
#[derive(Debug)]
pub(super) struct Proxy {
    program: PathBuf,
    folder: PathBuf,
    pub(super) config: Config,
    pub(super) addr: SocketAddr,
    pub(super) admin: SocketAddr,
    number: usize,
    pub(super) process: Process,
}

impl Proxy {
    pub(super) fn start(program: &Path, cluster: &Cluster) -> Result<Self, String> {
        let folder = cluster.folder().join("soak");
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let (addr, admin) = (cluster.address().port(), cluster.address().port());
        let config = Config::write(&folder, cluster, addr, admin)?;
        let process = run(program, &folder, 0, false);
        let program = program.to_owned();
        let proxy = Self { program, folder, config, addr, admin, number: 0, process };
        proxy.wait_ready();
        Ok(proxy)
    }

    /// Replaces the process; the old one has ended, or hands over.
    fn replace(&mut self, takeover: bool) {
        self.number += 1;
        let new = run(&self.program, &self.folder, self.number, takeover);
        if takeover {
            let code = self.process.wait_exit(PATIENCE).code();
            assert_eq!(code, Some(0), "the predecessor: {}", self.process.tail());
        }
        self.process = new;
        self.wait_ready();
    }

    /// Brings a fault of the proxy about and waits until it serves again.
    ///
    /// # Panics
    /// If something does not happen in time.
    pub(super) fn perform(&mut self, act: &Act) {
        match act.fault {
            Fault::Takeover => self.replace(true),
            Fault::RestartProxy => {
                self.process.signal(Signal::TERM);
                let code = self.process.wait_exit(PATIENCE).code();
                assert_eq!(code, Some(0), "after SIGTERM: {}", self.process.tail());
                self.replace(false);
            }
            Fault::KillProxy => {
                self.process.kill();
                self.replace(false);
            }
            Fault::StopProxy => {
                self.process.signal(Signal::STOP);
                pause(act.hold);
                self.process.signal(Signal::CONT);
            }
            _ => {
                let reloads = || Books::read(self.admin).map(|it| it.reloads());
                let before = wait_until("an answer of the proxy", PATIENCE, reloads);
                self.process.signal(Signal::HUP);
                wait_until("the reload", PATIENCE, || reloads().is_ok_and(|it| it > before));
            }
        }
    }

    /// The command of an operator: `pointsman switchover`.
    pub(super) fn switchover(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("switchover").arg("--config").arg(self.folder.join("pointsman.toml"));
        command.env_clear();
        command
    }

    fn wait_ready(&self) {
        wait_until("the proxy to be ready", PATIENCE, || {
            assert!(self.process.is_running(), "the proxy ended: {}", self.process.tail());
            http_get(self.admin, "/ready").is_ok_and(|(code, _)| code == 200)
        });
    }

    /// Lines of all its logs that no fault may cause.
    pub(super) fn bad_lines(&self) -> Vec<String> {
        let logs =
            (0..=self.number).map(|number| self.folder.join(format!("{}.log", name(number))));
        let text: String =
            logs.map(|path| std::fs::read_to_string(path).unwrap_or_default()).collect();
        let bad = |line: &&str| ["panic", "internal_error"].iter().any(|it| line.contains(it));
        text.lines().filter(bad).map(str::to_owned).collect()
    }
}

fn name(number: usize) -> String {
    format!("pointsman-{number}")
}

fn run(program: &Path, folder: &Path, number: usize, takeover: bool) -> Process {
    let file = folder.join("pointsman.toml").into_os_string();
    let mut args = vec!["run".into(), "--config".into(), file];
    if takeover {
        args.push("--takeover".into());
    }
    Process::start(&Launch {
        name: name(number),
        program: program.to_owned(),
        args,
        env: Vec::new(),
        folder: folder.to_owned(),
    })
}
