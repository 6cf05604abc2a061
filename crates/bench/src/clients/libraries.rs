//! The client libraries and the programs that use them: what is installed or built, and where.
//!
//! Each program takes the same arguments (host, port, clients, seconds) and prints one line of JSON
//! with its results.
//!
//! Libraries come from their registries into a temporary folder; redis-rs, which takes minutes to
//! build, is kept in `target`. Only go-redis may be missing: Go modules come from a separate proxy.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::secured::Secured;
use super::{LIFE, SETTLE};

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
    fs::create_dir(&home).map_err(|error| format!("{}: {error}", home.display()))?;
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
    let home = PathBuf::from("target/clients/redis_rs");
    fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    for file in ["Cargo.toml", "main.rs"] {
        fs::copy(Path::new("benches/clients/redis_rs").join(file), home.join(file))
            .map_err(|error| format!("{file}: {error}"))?;
    }
    let cargo = || {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&home).env("CARGO_TARGET_DIR", "target");
        cargo
    };
    must(cargo().args(["build", "--quiet"]))?;
    let found = cargo()
        .args(["pkgid", "redis"])
        .output()
        .map_err(|error| format!("cargo pkgid: {error}"))?;
    let version = String::from_utf8_lossy(&found.stdout)
        .trim()
        .rsplit('@')
        .next()
        .unwrap_or_default()
        .to_owned();
    Ok(Library { program: home.join("target/debug/clients-redis-rs"), script: None, home, version })
}

/// go-redis: the program that was built elsewhere, or else built here.
///
/// # Errors
/// Why it is left out.
pub(super) fn go(built: Option<&Path>, home: &Path) -> Result<Library, String> {
    let library =
        |program| Library { program, script: None, home: PathBuf::new(), version: String::new() };
    if let Some(built) = built {
        let built = built.canonicalize().map_err(|error| format!("--go-redis: {error}"))?;
        return Ok(library(built));
    }
    let program = home.join("clients-go-redis");
    let mut go = Command::new("go");
    go.current_dir("benches/clients/go_redis")
        .args(["build", "-mod=readonly", "-o"])
        .arg(&program)
        .arg(".");
    let output =
        go.stdin(Stdio::null()).output().map_err(|error| format!("`go` does not run: {error}"))?;
    if output.status.success() {
        return Ok(library(program));
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(format!("`go build`: {}", why(&words)))
}

/// The most useful line of a failed build: the first that does not report progress.
fn why(words: &str) -> &str {
    let telling = |line: &&str| {
        !line.is_empty() && !line.starts_with("go: downloading") && !line.starts_with('#')
    };
    words.lines().map(str::trim).find(telling).unwrap_or("no word")
}

/// Runs a command that has to succeed.
pub(super) fn must(command: &mut Command) -> Result<(), String> {
    let status =
        command.stdin(Stdio::null()).status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{go, why};

    #[test]
    fn reports_reason_of_failed_build() {
        let words = "go: downloading github.com/redis/go-redis/v9 v9.22.0\n# clients-go-redis\n./main.go:1: no such thing\nmore\n";
        assert_eq!(why(words), "./main.go:1: no such thing");
        assert_eq!(why(""), "no word");
    }

    #[test]
    fn reports_missing_prebuilt_program() {
        let missing = go(Some(Path::new("/nowhere/at/all")), Path::new("/"));
        assert!(missing.is_err_and(|why| why.contains("--go-redis")));
    }
}
