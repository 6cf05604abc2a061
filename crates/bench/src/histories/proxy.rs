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

use harness::{CertificatePaths, Clock, Cluster, Pointsman, Signal, pause, wait_until};
use setup::files;

use super::Mode;
use super::schedule::{Act, Fault};
use crate::metrics;

const PATIENCE: Duration = Duration::from_secs(90);
/// The first of the groups of proxies.
const GROUP: u32 = 42_000;
const SETTINGS: &str = "workers = 2\n\
                        [shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\n\
                        accept_max = \"0s\"\ndrain_spread = \"0s\"\ndrain_timeout = \"3s\"";

#[derive(Debug)]
pub(super) struct Proxy {
    program: PathBuf,
    /// Where its socket for commands is, which one process at a time holds.
    control: PathBuf,
    pub(super) group: u32,
    pub(super) addr: SocketAddr,
    clock: Clock,
    pub(super) pointsman: Pointsman,
}

impl Proxy {
    pub(super) fn start(
        program: &Path,
        cluster: &Cluster,
        index: u32,
        mode: Mode,
        certificate: Option<&CertificatePaths>,
    ) -> Result<Self, String> {
        let state = cluster.folder().join(format!("proxy-{index}"));
        files::make(&state)?;
        let (group, clock) = (GROUP + index, Clock::new(&state.join("clock")));
        let (control, secured) = (state.join("control.sock"), cluster.address().port());
        let upstream = if mode.shared { "shared" } else { "dedicated" };
        let setpriv = format!("setpriv --regid {group} --clear-groups --pdeathsig KILL");
        let mut builder = Pointsman::builder(program, cluster)
            .under(&setpriv.split(' ').collect::<Vec<_>>())
            .service_line(&format!("upstream = \"{upstream}\""))
            .lines(&format!("control = true\ncontrol_socket = {control:?}"))
            .lines(&format!("[process]\nstate_dir = {state:?}\n{SETTINGS}"));
        for (key, value) in clock.env() {
            builder = builder.env(&key, &value);
        }
        if let Some(certificate) = certificate {
            builder = builder.tls_listen(secured, certificate);
        }
        if mode.servers_tls {
            builder = builder.tls_to_servers();
        }
        if mode.durable {
            builder = builder.service_line("durability.replicas = 2");
        }
        let pointsman = builder.start();
        let addr = if mode.tls { secured } else { pointsman.addr() };
        Ok(Self { program: program.to_owned(), control, group, addr, clock, pointsman })
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
                    self.pointsman.sigterm();
                    wait_until("the predecessor to leave its socket", PATIENCE, || {
                        UnixStream::connect(&self.control).is_err()
                    });
                }
                let more: &[&str] = if takes_over { &["--takeover"] } else { &[] };
                let old = self.pointsman.start_again(more);
                let code = old.wait_exit(PATIENCE).code();
                assert_eq!(code, Some(0), "the predecessor: {}", old.tail());
            }
            Fault::KillProxy => {
                self.pointsman.process().kill();
                self.pointsman.start_again(&[]);
            }
            Fault::StopProxy => {
                self.pointsman.process().signal(Signal::STOP);
                pause(act.hold);
                self.pointsman.process().signal(Signal::CONT);
            }
            Fault::ProxyClock => {
                self.clock.set(act.jump());
                pause(act.hold);
                self.clock.set(0);
            }
            _ => {
                let reloads = || self.sum("pointsman_config_reloads_total");
                let before = wait_until("an answer of the proxy", PATIENCE, reloads);
                self.pointsman.process().signal(Signal::HUP);
                wait_until("the reload", PATIENCE, || reloads().is_ok_and(|it| it > before));
            }
        }
        self.pointsman.wait_ready(PATIENCE);
    }

    /// The command of an operator: `pointsman switchover`.
    pub(super) fn switchover(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("switchover").arg("--config").arg(self.pointsman.config());
        command.env_clear();
        command
    }

    /// The address of the master in force.
    pub(super) fn target(&self) -> Result<String, String> {
        let text = metrics::get(self.pointsman.admin(), "/metrics")?;
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
        let is_bad = |line: &&str| ["panic", "internal_error"].iter().any(|it| line.contains(it));
        // All processes of this proxy have written to it.
        found.extend(self.pointsman.process().log().lines().filter(is_bad).map(str::to_owned));
        found
    }

    fn sum(&self, metric: &str) -> Result<u64, String> {
        metrics::get(self.pointsman.admin(), "/metrics").map(|text| metrics::sum(&text, metric))
    }
}
