//! The configuration of the proxy, and what a soak changes in it: the password for the servers, and
//! a second service.
//!
//! The servers accept two passwords, and the file names them in turn. If nothing else happens in
//! the step, the servers then refuse the former one until the step is over: the proxy must not need
//! it any more.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use harness::{Client, Cluster, Signal, pause, wait_until};

use super::books::Books;
use super::faults::Stage;

/// The master of the second service.
pub(super) const OTHER: &str = "other";
const USER: &str = "proxy";
const PASSWORDS: [&str; 2] = ["the-first-one", "the-second-one"];
const PATIENCE: Duration = Duration::from_secs(60);

/// The line of redis.conf with the user that the proxy is.
pub(super) fn user_line() -> String {
    let [one, two] = PASSWORDS;
    format!("user {USER} on >{one} >{two} ~* &* +@all")
}

/// The configuration file and the file of the password.
#[derive(Debug)]
pub(super) struct Config {
    folder: PathBuf,
    text: String,
    /// Whether the second of [`PASSWORDS`] is in force.
    second: bool,
}

impl Config {
    pub(super) fn write(
        folder: &Path,
        cluster: &Cluster,
        addr: SocketAddr,
        admin: SocketAddr,
    ) -> Result<Self, String> {
        let (control, secret) = (folder.join("control.sock"), folder.join("password"));
        let text = format!(
            "{}[service.auth]\nusername = {USER:?}\npassword_file = {secret:?}\n\
             [admin]\nlisten = [\"{admin}\"]\ncontrol = true\n\
             control_socket = {control:?}\n[process]\nstate_dir = {folder:?}\nworkers = 2\n\
             [shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"\n\
             drain_spread = \"0s\"\ndrain_timeout = \"5s\"\n",
            service(cluster, addr)
        );
        let config = Self { folder: folder.to_owned(), text, second: false };
        config.replace("password", PASSWORDS[0])?;
        config.replace("pointsman.toml", &config.text)?;
        Ok(config)
    }

    /// Writes the other password. Returns it.
    fn rotate(&mut self) -> Result<&'static str, String> {
        self.second = !self.second;
        let password = if self.second { PASSWORDS[1] } else { PASSWORDS[0] };
        self.replace("password", password)?;
        Ok(password)
    }

    /// Writes the configuration with this service before the others, or without it.
    fn with(&self, service: Option<&str>) -> Result<(), String> {
        let service = service.unwrap_or_default();
        self.replace("pointsman.toml", &format!("{service}{}", self.text))
    }

    /// Replaces a file by rename, as every tool should.
    fn replace(&self, name: &str, text: &str) -> Result<(), String> {
        let (path, next) = (self.folder.join(name), self.folder.join(format!("{name}.next")));
        std::fs::write(&next, text)
            .and_then(|()| std::fs::rename(&next, &path))
            .map_err(|error| format!("{}: {error}", path.display()))
    }
}

fn service(cluster: &Cluster, addr: SocketAddr) -> String {
    let sentinels: Vec<_> = cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
    format!(
        "[[service]]\nname = {:?}\nlisten = [\"{addr}\"]\nsentinels = {sentinels:?}\n",
        cluster.name()
    )
}

impl Stage {
    /// Rotates the password of the proxy. `strict` if the servers refuse the former one afterwards.
    pub(super) fn rotate_secret(&self, strict: bool) -> Result<(), String> {
        let admin = self.proxy().admin;
        let applied = || Books::read(admin).map(|it| it.applied_reloads());
        let before = wait_until("an answer of the proxy", PATIENCE, applied);
        let password = self.proxy().config.rotate()?;
        // The proxy notices by itself.
        wait_until("the new password", PATIENCE, || applied().is_ok_and(|it| it > before));
        if strict {
            self.allow(&["resetpass", &format!(">{password}")]);
        }
        Ok(())
    }

    /// Lets the servers accept both passwords, as they do after a restart.
    pub(super) fn allow_both_passwords(&self) {
        let both = PASSWORDS.map(|it| format!(">{it}"));
        self.allow(&both.each_ref().map(String::as_str));
    }

    fn allow(&self, rules: &[&str]) {
        let command: Vec<&str> = ["ACL", "SETUSER", USER].iter().chain(rules).copied().collect();
        for node in self.cluster.nodes() {
            let done = node.ask(&command);
            assert!(done.is_ok(), "{}: ACL SETUSER: {done:?}", node.name());
        }
    }

    /// Adds a service by a reload, uses it, and removes it by another reload.
    pub(super) fn change_services(&self, hold: Duration) -> Result<(), String> {
        let addr = self.other.address().port();
        let reload = |service: Option<&str>| {
            let proxy = self.proxy();
            proxy.config.with(service)?;
            proxy.process.signal(Signal::HUP);
            Ok::<(), String>(())
        };
        reload(Some(&service(&self.other, addr)))?;
        let mut client = wait_until("the added service", PATIENCE, || {
            let mut client = Client::connect(addr).map_err(|error| error.to_string())?;
            let reply = client.cmd(&["SET", "soak", "added"]).map_err(|error| error.to_string())?;
            if reply.text() == Some("OK") { Ok(client) } else { Err(format!("{reply}")) }
        });
        pause(hold);
        let reply = client.cmd(&["GET", "soak"]).map_err(|error| error.to_string())?;
        if reply.text() != Some("added") {
            return Err(format!("the added service replied {reply}"));
        }
        reload(None)?;
        wait_until("the end of its session", PATIENCE, || client.cmd(&["PING"]).is_err());
        wait_until("the end of its listener", PATIENCE, || Client::connect(addr).is_err());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_files_whole_and_in_turn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let mut config =
            Config { folder: path.clone(), text: "[admin]\n".to_owned(), second: false };
        let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
        assert_eq!(config.rotate(), Ok(PASSWORDS[1]));
        assert_eq!(read("password"), PASSWORDS[1]);
        assert_eq!(config.rotate(), Ok(PASSWORDS[0]));
        assert_eq!(read("password"), PASSWORDS[0]);
        config.with(Some("[[service]]\n")).unwrap();
        assert_eq!(read("pointsman.toml"), "[[service]]\n[admin]\n");
        config.with(None).unwrap();
        assert_eq!(read("pointsman.toml"), "[admin]\n");
    }
}
