//! Starts the real pointsman in front of a cluster.
//!
//! It is configured as a user would do it, by a file next to its log. The caller passes the path of
//! the program, because only the tests of its own package know it
//! (`env!("CARGO_BIN_EXE_pointsman")`).

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::binary::find_in_path;
use crate::certificates::CertificatePaths;
use crate::cgroup::Cgroup;
use crate::client::Client;
use crate::cluster::Cluster;
use crate::http::http_get;
use crate::process::{Launch, Process};
use crate::wait::wait_until;

/// How long it may take to become ready on a busy machine.
const READY: Duration = Duration::from_secs(60);

/// Collects the options; [`start`](Self::start) starts it.
#[derive(Debug, Clone)]
pub struct PointsmanBuilder<'a> {
    program: PathBuf,
    cluster: &'a Cluster,
    services: Option<Vec<String>>,
    sentinels: Option<Vec<String>>,
    logins: bool,
    service_lines: Vec<String>,
    lines: Vec<String>,
    under: Vec<OsString>,
    args: Vec<OsString>,
    env: Vec<(String, String)>,
    by_flags: bool,
    wait: bool,
    cgroup: Option<PathBuf>,
    hosts: Option<String>,
}

impl PointsmanBuilder<'_> {
    /// The names of the services, each with its own port. Default: all masters of the cluster.
    #[must_use]
    pub fn services(mut self, names: &[&str]) -> Self {
        self.services = Some(names.iter().map(|name| (*name).to_owned()).collect());
        self
    }

    /// The configured sentinels. Default: all of the cluster.
    #[must_use]
    pub fn sentinels(mut self, sentinels: &[String]) -> Self {
        self.sentinels = Some(sentinels.to_vec());
        self
    }

    /// Omits the cluster's passwords, for tests that set their own or wrong ones.
    #[must_use]
    pub fn without_logins(mut self) -> Self {
        self.logins = false;
        self
    }

    /// A line in every `[[service]]`, such as `connect_timeout = "1s"`.
    #[must_use]
    pub fn service_line(mut self, line: &str) -> Self {
        self.service_lines.push(line.to_owned());
        self
    }

    /// An address with TLS, and its certificate.
    #[must_use]
    pub fn tls_listen(self, addr: SocketAddr, certificate: &CertificatePaths) -> Self {
        let CertificatePaths { chain, key } = certificate;
        self.service_line(&format!("tls_listen = [\"{addr}\"]"))
            .service_line(&format!("tls.certificate_files = [{chain:?}]"))
            .service_line(&format!("tls.key_files = [{key:?}]"))
    }

    /// TLS to servers and sentinels, with the client certificate of a cluster that has TLS.
    #[must_use]
    pub fn tls_to_servers(mut self) -> Self {
        let folder = self.cluster.folder().join("tls");
        let files =
            [("ca_file", "ca.crt"), ("certificate_file", "client.crt"), ("key_file", "client.key")];
        for table in ["redis_tls", "sentinel_tls"] {
            self = self.service_line(&format!("{table}.enabled = true"));
            for (key, file) in files {
                self = self.service_line(&format!("{table}.{key} = {:?}", folder.join(file)));
            }
        }
        self
    }

    /// The command that executes the program, such as `setpriv` with its options.
    #[must_use]
    pub fn under(mut self, words: &[&str]) -> Self {
        self.under = words.iter().map(OsString::from).collect();
        self
    }

    /// Lines at the end of the file, after those of `[admin]`, such as a whole `[shutdown]` table.
    #[must_use]
    pub fn lines(mut self, lines: &str) -> Self {
        self.lines.push(lines.to_owned());
        self
    }

    /// An additional argument after `run`.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// An environment variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Configures it by flags instead of a file: one service, and no additional lines.
    #[must_use]
    pub fn by_flags(mut self) -> Self {
        self.by_flags = true;
        self
    }

    /// Starts it in a cgroup with limits.
    #[must_use]
    pub fn within(mut self, cgroup: &Cgroup) -> Self {
        self.cgroup = Some(cgroup.processes());
        self
    }

    /// Defines host names that only this process sees, each with all addresses given for it: a
    /// mount namespace with another `/etc/hosts`. Not together with [`within`](Self::within).
    #[must_use]
    pub fn hosts(mut self, hosts: &[(&str, IpAddr)]) -> Self {
        self.hosts = Some(hosts.iter().map(|(name, ip)| format!("{ip} {name}\n")).collect());
        self
    }

    /// Does not wait until it is ready, for tests in which it stays unready.
    #[must_use]
    pub fn without_waiting(mut self) -> Self {
        self.wait = false;
        self
    }

    /// Starts it and, by default, waits until `/ready` returns success.
    ///
    /// # Panics
    /// If it ends or is not ready in time; its log is printed then.
    #[must_use]
    #[track_caller]
    pub fn start(self) -> Pointsman {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let name = format!("pointsman-{}", COUNTER.fetch_add(1, Ordering::Relaxed));
        let folder = self.cluster.folder().join(&name);
        std::fs::create_dir(&folder)
            .unwrap_or_else(|error| panic!("cannot make {}: {error}", folder.display()));
        let all = || self.cluster.groups().iter().map(|group| group.name().to_owned()).collect();
        let names: Vec<String> = self.services.clone().unwrap_or_else(all);
        let services: Vec<_> =
            names.into_iter().map(|name| (name, self.cluster.address().port())).collect();
        let admin = self.cluster.address().port();
        let args = if self.by_flags {
            self.flags(&services, admin)
        } else {
            self.file(&folder, &services, admin)
        };
        let (program, args) = match &self.cgroup {
            // The shell enters the cgroup and executes the program, which keeps the process id.
            Some(processes) => {
                let enter = [
                    "-c".into(),
                    "echo $$ > \"$0\" && exec \"$@\"".into(),
                    processes.clone().into(),
                ];
                let whole = enter.into_iter().chain([self.program.clone().into()]).chain(args);
                (PathBuf::from("/bin/sh"), whole.collect())
            }
            None => match (&self.hosts, self.under.split_first()) {
                (Some(hosts), _) => self.with_hosts(&folder, hosts, args),
                (None, Some((first, rest))) => {
                    let own = [self.program.clone().into()];
                    let whole = rest.iter().cloned().chain(own).chain(args);
                    (PathBuf::from(first), whole.collect())
                }
                (None, None) => (self.program.clone(), args),
            },
        };
        let launch = Launch { name, program, args, env: self.env.clone(), folder };
        let process = Process::start(&launch);
        let pointsman = Pointsman { process, launch, services, admin };
        if self.wait {
            pointsman.wait_ready(READY);
        }
        pointsman
    }

    /// A command that executes the program under the same process id.
    fn with_hosts(
        &self,
        folder: &Path,
        hosts: &str,
        args: Vec<OsString>,
    ) -> (PathBuf, Vec<OsString>) {
        let file = folder.join("hosts");
        std::fs::write(&file, hosts)
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", file.display()));
        let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
        let enter = ["--mount", "--", "/bin/sh", "-c", script].map(OsString::from);
        let whole = enter.into_iter().chain([file.into(), self.program.clone().into()]).chain(args);
        (find_in_path("unshare").expect("unshare, of util-linux"), whole.collect())
    }

    fn seeds(&self) -> Vec<String> {
        let all = || self.cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
        self.sentinels.clone().unwrap_or_else(all)
    }

    fn flags(&self, services: &[(String, SocketAddr)], admin: SocketAddr) -> Vec<OsString> {
        let mut args: Vec<String> = vec!["run".to_owned()];
        for (name, listen) in services {
            args.extend([
                "--service".to_owned(),
                name.clone(),
                "--listen".to_owned(),
                listen.to_string(),
            ]);
        }
        for sentinel in self.seeds() {
            args.extend(["--sentinel".to_owned(), sentinel]);
        }
        args.extend(["--admin".to_owned(), admin.to_string()]);
        args.into_iter().map(OsString::from).chain(self.args.iter().cloned()).collect()
    }

    fn file(
        &self,
        folder: &Path,
        services: &[(String, SocketAddr)],
        admin: SocketAddr,
    ) -> Vec<OsString> {
        let file = folder.join("pointsman.toml");
        std::fs::write(&file, self.toml(services, admin))
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", file.display()));
        let args = ["run".into(), "--config".into(), file.into_os_string()];
        args.into_iter().chain(self.args.iter().cloned()).collect()
    }

    /// The mode of connections with which all tests are to be repeated, unless a test is about one
    /// mode.
    fn upstream_of_all(&self) -> Option<OsString> {
        let decides = |line: &String| {
            ["upstream =", "sessions =", "sentinel_listen"].iter().any(|key| line.contains(key))
        };
        let is_open = !self.service_lines.iter().chain(&self.lines).any(decides);
        std::env::var_os("HARNESS_UPSTREAM").filter(|_| is_open)
    }

    fn toml(&self, services: &[(String, SocketAddr)], admin: SocketAddr) -> String {
        let sentinels = self.seeds();
        let login = |node: Option<&crate::Node>| node.and_then(|node| node.login().cloned());
        let mut toml = String::new();
        for (name, listen) in services {
            let _ = writeln!(
                toml,
                "[[service]]\nname = {name:?}\nlisten = [\"{listen}\"]\nsentinels = {sentinels:?}"
            );
            if let Some(upstream) = self.upstream_of_all() {
                let _ = writeln!(toml, "upstream = {upstream:?}");
            }
            for line in &self.service_lines {
                let _ = writeln!(toml, "{line}");
            }
            let logins = [
                ("auth", login(self.cluster.nodes().first())),
                ("sentinel_auth", login(self.cluster.sentinels().first())),
            ];
            for (table, login) in logins {
                if let Some(login) = login.filter(|_| self.logins) {
                    let _ = writeln!(toml, "[service.{table}]\npassword = {:?}", login.password);
                }
            }
        }
        let _ = writeln!(toml, "[admin]\nlisten = [\"{admin}\"]");
        for lines in &self.lines {
            let _ = writeln!(toml, "{lines}");
        }
        toml
    }
}

/// A running or ended pointsman. Dropping it kills it.
#[derive(Debug)]
pub struct Pointsman {
    process: Process,
    launch: Launch,
    services: Vec<(String, SocketAddr)>,
    admin: SocketAddr,
}

impl Pointsman {
    /// A pointsman in front of a cluster, on ports of the cluster's address.
    #[must_use]
    pub fn builder(program: impl Into<PathBuf>, cluster: &Cluster) -> PointsmanBuilder<'_> {
        PointsmanBuilder {
            program: program.into(),
            cluster,
            services: None,
            sentinels: None,
            logins: true,
            service_lines: Vec::new(),
            lines: Vec::new(),
            under: Vec::new(),
            args: Vec::new(),
            env: Vec::new(),
            by_flags: false,
            wait: true,
            cgroup: None,
            hosts: None,
        }
    }

    /// The listen address of the first service.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.services[0].1
    }

    /// The listen address of a service.
    #[must_use]
    pub fn addr_of(&self, name: &str) -> Option<SocketAddr> {
        self.services.iter().find(|(known, _)| known == name).map(|(_, addr)| *addr)
    }

    /// The address of the admin server.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// A client of the first service.
    ///
    /// # Panics
    /// If it cannot connect.
    #[must_use]
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(self.addr())
            .unwrap_or_else(|error| panic!("cannot connect to pointsman: {error}"))
    }

    /// Sends GET for a path of the admin server.
    ///
    /// # Errors
    /// An error of the connection.
    pub fn get(&self, path: &str) -> std::io::Result<(u16, String)> {
        http_get(self.admin, path)
    }

    /// Waits until `/ready` returns success.
    ///
    /// # Panics
    /// If the process ends, or is not ready in time.
    #[track_caller]
    pub fn wait_ready(&self, timeout: Duration) {
        wait_until("pointsman to be ready", timeout, || {
            assert!(self.process.is_running(), "pointsman ended: {:?}", self.process.ended());
            match self.get("/ready") {
                Ok((200, _)) => Ok(()),
                Ok((status, body)) => Err(format!("/ready said {status}: {body}")),
                Err(error) => Err(format!("/ready: {error}")),
            }
        });
    }

    /// Starts a process with this configuration that takes the sessions over.
    #[must_use]
    pub fn taken_over_by(&self, program: &Path) -> Process {
        let args = ["run".into(), "--takeover".into(), "--config".into(), self.config().into()];
        Process::start(&Launch {
            name: "successor".to_owned(),
            program: program.to_owned(),
            args: args.to_vec(),
            env: Vec::new(),
            folder: self.launch.folder.clone(),
        })
    }

    /// Starts it again as it was started, with these arguments besides; the process until now.
    pub fn start_again(&mut self, more: &[&str]) -> Process {
        let args = self.launch.args.iter().cloned().chain(more.iter().map(OsString::from));
        let launch = Launch { args: args.collect(), ..self.launch.clone() };
        std::mem::replace(&mut self.process, Process::start(&launch))
    }

    /// Its configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.launch.folder.join("pointsman.toml")
    }

    /// Sends SIGTERM.
    pub fn sigterm(&self) {
        self.process.signal(Signal::TERM);
    }

    /// Waits until the process has ended.
    ///
    /// # Panics
    /// If it has not ended after `timeout`.
    #[track_caller]
    pub fn wait_exit(&self, timeout: Duration) -> ExitStatus {
        self.process.wait_exit(timeout)
    }

    /// Its process, for signals and the log.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }
}
