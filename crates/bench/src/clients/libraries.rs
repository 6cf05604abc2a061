//! The client libraries and the programs that use them: what is installed or built, and where.
//!
//! Each program takes the same arguments (host, port, clients, seconds) and prints one line of JSON
//! with its results.
//!
//! Libraries come from their registries into a temporary folder; redis-rs and go-redis are built
//! and kept below cargo's target folder. Only go-redis may be missing: it needs Debian's mirror.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use setup::{files, must};

use super::secured::Secured;
use super::{LIFE, SETTLE};
use crate::peers;

/// A client library and the program that uses it.
pub(super) struct Library {
    /// The program to start, and the arguments before the common ones.
    program: PathBuf,
    script: Option<PathBuf>,
    /// Its folder, and its version if the program does not report it.
    home: PathBuf,
    version: String,
}

impl Library {
    pub(super) fn start(
        &self,
        addr: SocketAddr,
        tls: Option<&Secured>,
        clients: u32,
    ) -> Result<Child, String> {
        let mut command = self.command(addr);
        command.args([clients.to_string(), LIFE.as_secs().to_string()]);
        if let Some(tls) = tls {
            tls.set(&mut command);
        }
        self.spawn(command)
    }

    /// The library with another program of benches/clients.
    pub(super) fn with_script(mut self, script: &str) -> Self {
        self.script = Some(Path::new("benches/clients").join(script));
        self
    }

    /// Starts a program that may ask for maintenance notifications. That of go-redis has another
    /// purpose without further arguments.
    pub(super) fn start_maintained(&self, addr: SocketAddr, on: bool) -> Result<Child, String> {
        let (mut command, life) = (self.command(addr), LIFE.as_secs().to_string());
        match self.script {
            Some(_) => command.arg(life),
            None => command.args(["4", &life, "maintenance"]),
        };
        command.args((!on).then_some("off")).env("CLIENTS_TIMEOUT", "1");
        self.spawn(command)
    }

    fn command(&self, addr: SocketAddr) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.script).args([addr.ip().to_string(), addr.port().to_string()]);
        command.env("CLIENTS_SETTLE", SETTLE.as_secs().to_string());
        command.env("CLIENTS_VERSION", &self.version).env("CLIENTS_HOME", &self.home);
        command.stdout(Stdio::piped());
        command
    }

    fn spawn(&self, mut command: Command) -> Result<Child, String> {
        command.spawn().map_err(|error| format!("{}: {error}", self.program.display()))
    }
}

/// A script that needs only Python and the programs that come with the servers.
fn with_python(script: &str) -> Library {
    let script = Some(Path::new("benches/clients").join(script));
    Library { program: "python3".into(), script, home: PathBuf::new(), version: String::new() }
}

/// redis-cli, which uses hiredis and comes with the servers.
pub(super) fn command_line() -> Library {
    with_python("redis_cli.py")
}

/// redis-benchmark, which uses hiredis too and is never idle.
pub(super) fn benchmark() -> Library {
    with_python("redis_benchmark.py")
}

pub(super) fn python(home: &Path) -> Result<Library, String> {
    let home = home.join("python");
    must(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    let runner = home.join("bin/python");
    must(Command::new(&runner).args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "redis",
    ]))?;
    Ok(Library {
        program: runner,
        script: Some("benches/clients/redis_py.py".into()),
        home,
        version: String::new(),
    })
}

pub(super) fn node(home: &Path, package: &str) -> Result<Library, String> {
    let home = home.join("node");
    files::make(&home)?;
    must(
        Command::new("npm")
            .args(["install", "--silent", "--no-fund", "--no-audit", "--prefix"])
            .arg(&home)
            .arg(package),
    )?;
    let script = Some("benches/clients/ioredis.mjs".into());
    Ok(Library { program: "node".into(), script, home, version: String::new() })
}

/// redis-rs, built outside of the workspace and kept, because that takes minutes.
pub(super) fn rust() -> Result<Library, String> {
    let (program, root) = built(peers::REDIS_RS)?;
    let version = peers::redis_rs_version(&root);
    Ok(Library { program, script: None, home: root, version })
}

/// go-redis, built with Debian's packages.
///
/// # Errors
/// Why it is left out.
pub(super) fn go() -> Result<Library, String> {
    let (program, home) = built(peers::GO_REDIS)?;
    Ok(Library { program, script: None, home, version: String::new() })
}

/// A program that is built here, and its folder.
fn built(source: peers::Source) -> Result<(PathBuf, PathBuf), String> {
    peers::fetch_sources(&[source]);
    let peers::Program { words, root } = peers::find_source(source)?;
    Ok((words.into_iter().next().unwrap_or_default().into(), root))
}
