//! A proxy under test: its configuration, its process, which may be another one after a step, and
//! its logs.
//!
//! Each proxy runs with a group of its own, by which the packet filter tells its packets from those
//! of other proxies.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use harness::{
    CertificatePaths, Clock, Cluster, Launch, Process, Signal, find_in_path, http_get, pause,
    wait_until,
};
use setup::files;

use super::Mode;
use super::schedule::{Act, Fault};
use crate::metrics;

const PATIENCE: Duration = Duration::from_secs(90);
/// The name of the socket for commands, which one process at a time holds.
const CONTROL_SOCKET: &str = "control.sock";
/// The first of the groups of proxies.
const GROUP: u32 = 42_000;

#[derive(Debug)]
pub(super) struct Proxy {
    program: PathBuf,
    folder: PathBuf,
    pub(super) group: u32,
    pub(super) addr: SocketAddr,
    pub(super) admin: SocketAddr,
    number: usize,
    clock: Clock,
    pub(super) process: Process,
}

impl Proxy {
    pub(super) fn start(
        program: &Path,
        cluster: &Cluster,
        index: u32,
        mode: Mode,
        certificate: Option<&CertificatePaths>,
    ) -> Result<Self, String> {
        let folder = cluster.folder().join(format!("proxy-{index}"));
        files::make(&folder)?;
        let (addr, admin) = (cluster.address().port(), cluster.address().port());
        let text = configuration(cluster, addr, admin, mode, certificate, &folder);
        files::write(folder.join("pointsman.toml"), text)?;
        let (group, clock) = (GROUP + index, Clock::new(&folder.join("clock")));
        let process = run(program, &folder, 0, group, &clock, false);
        let program = program.to_owned();
        let proxy = Self { program, folder, group, addr, admin, number: 0, clock, process };
        proxy.wait_ready();
        Ok(proxy)
    }

    fn launch(&mut self, takeover: bool) -> Process {
        self.number += 1;
        run(&self.program, &self.folder, self.number, self.group, &self.clock, takeover)
    }

    /// Brings a fault of the proxy about and waits until it serves again.
    ///
    /// # Panics
    /// If something does not happen in time.
    pub(super) fn perform(&mut self, act: &Act) {
        match act.fault {
            Fault::Takeover | Fault::Successor => {
                let takes_over = act.fault == Fault::Takeover;
                if !takes_over {
                    // The successor serves new clients while the old process serves its own.
                    self.process.signal(Signal::TERM);
                    let control = self.folder.join(CONTROL_SOCKET);
                    wait_until("the predecessor to leave its socket", PATIENCE, || {
                        UnixStream::connect(&control).is_err()
                    });
                }
                let new = self.launch(takes_over);
                let code = self.process.wait_exit(PATIENCE).code();
                assert_eq!(code, Some(0), "the predecessor: {}", self.process.tail());
                self.process = new;
            }
            Fault::KillProxy => {
                self.process.kill();
                self.process = self.launch(false);
            }
            Fault::StopProxy => {
                self.process.signal(Signal::STOP);
                pause(act.hold);
                self.process.signal(Signal::CONT);
            }
            Fault::ProxyClock => {
                self.clock.set(act.jump());
                pause(act.hold);
                self.clock.set(0);
            }
            _ => {
                let reloads = || self.sum("pointsman_config_reloads_total");
                let before = wait_until("an answer of the proxy", PATIENCE, reloads);
                self.process.signal(Signal::HUP);
                wait_until("the reload", PATIENCE, || reloads().is_ok_and(|it| it > before));
            }
        }
        self.wait_ready();
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

    /// The address of the master in force.
    pub(super) fn target(&self) -> Result<String, String> {
        let text = metrics::get(self.admin, "/metrics")?;
        let is_set = |it: &&str| it.starts_with("pointsman_target_info") && it.ends_with(" 1");
        let line = text.lines().find(is_set).ok_or("no target")?;
        let target = line.split("target=\"").nth(1).and_then(|it| it.split('"').next());
        target.map(str::to_owned).ok_or_else(|| line.to_owned())
    }

    /// What is wrong after all clients have left: open sessions, and lines that no fault explains.
    pub(super) fn leftovers(&self) -> Vec<String> {
        let mut found = Vec::new();
        for name in ["pointsman_sessions_open", "pointsman_sessions_waiting"] {
            let zero = || self.sum(name).is_ok_and(|it| it == 0);
            let later = || {
                pause(PATIENCE / 900);
                zero()
            };
            if !(zero() || (0..200).any(|_| later())) {
                found.push(format!("{name} is not 0 after all clients left"));
            }
        }
        let logs = (0..=self.number).map(|it| self.folder.join(format!("{}.log", name(it))));
        let text: String =
            logs.map(|path| std::fs::read_to_string(path).unwrap_or_default()).collect();
        let is_bad = |line: &&str| ["panic", "internal_error"].iter().any(|it| line.contains(it));
        found.extend(text.lines().filter(is_bad).map(str::to_owned));
        found
    }

    fn sum(&self, metric: &str) -> Result<u64, String> {
        metrics::get(self.admin, "/metrics").map(|text| metrics::sum(&text, metric))
    }
}

fn configuration(
    cluster: &Cluster,
    addr: SocketAddr,
    admin: SocketAddr,
    mode: Mode,
    certificate: Option<&CertificatePaths>,
    folder: &Path,
) -> String {
    let sentinels: Vec<_> = cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
    let upstream = if mode.shared { "shared" } else { "dedicated" };
    let listen = if mode.tls { "listen = []\ntls_listen" } else { "listen" };
    let mut text = format!(
        "[[service]]\nname = {:?}\n{listen} = [\"{addr}\"]\nsentinels = {sentinels:?}\n\
         upstream = \"{upstream}\"\n",
        cluster.name()
    );
    if let Some(CertificatePaths { chain, key }) = certificate {
        text += &format!("[service.tls]\ncertificate_files = [{chain:?}]\nkey_files = [{key:?}]\n");
    }
    if mode.servers_tls {
        let client = |ending: &str| cluster.folder().join("tls/client").with_extension(ending);
        let keys = format!(
            "enabled = true\nca_file = {:?}\ncertificate_file = {:?}\nkey_file = {:?}\n",
            cluster.certificates().ca_file(),
            client("crt"),
            client("key")
        );
        text += &format!("[service.redis_tls]\n{keys}[service.sentinel_tls]\n{keys}");
    }
    if mode.durable {
        text += "[service.durability]\nreplicas = 2\n";
    }
    let control = folder.join(CONTROL_SOCKET);
    text + &format!(
        "[admin]\nlisten = [\"{admin}\"]\ncontrol = true\ncontrol_socket = {control:?}\n\
         [process]\nstate_dir = {folder:?}\nworkers = 2\n\
         [shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"\n\
         drain_spread = \"0s\"\ndrain_timeout = \"3s\"\n"
    )
}

fn name(number: usize) -> String {
    format!("pointsman-{number}")
}

fn run(
    program: &Path,
    folder: &Path,
    number: usize,
    group: u32,
    clock: &Clock,
    takeover: bool,
) -> Process {
    let mut args: Vec<std::ffi::OsString> = vec![
        "--regid".into(),
        group.to_string().into(),
        "--clear-groups".into(),
        "--pdeathsig".into(),
        "KILL".into(),
        program.into(),
        "run".into(),
        "--config".into(),
        folder.join("pointsman.toml").into(),
    ];
    if takeover {
        args.push("--takeover".into());
    }
    Process::start(&Launch {
        name: name(number),
        program: find_in_path("setpriv").unwrap_or_else(|| "setpriv".into()),
        args,
        env: clock.env(),
        folder: folder.to_owned(),
    })
}
