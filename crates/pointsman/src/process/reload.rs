//! A reload: the configuration is read again as at the start, checked as a whole, and what can
//! change is changed at once.
//!
//! The reading is done by `reader` on a thread of its own; here is what becomes of
//! its result.
//!
//! It begins with SIGHUP, or because the file has changed. The file is looked at every second
//! rather than watched by the kernel: a look sees exactly what a reader would see, through the
//! symbolic links that Kubernetes exchanges for a ConfigMap as well as on file systems that report
//! nothing, and it uses none of the machine's inotify instances, of which a Kubernetes node has
//! few. A file is read only once two looks agree, so one that is being written is left alone. One
//! that is gone is a reload that is refused: the process runs on, and its next start would fail.
//!
//! A fault leaves everything as it was. What needs a restart is named and waits for one.
//!
//! Deliberately absent: adding and removing services, and reading the standard input a second time.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use drain::Drain;
use proxy::{Running, Sockets};
use tokio::sync::Notify;
use tracing::{error, info, warn};

use crate::config::{self, CONFIG_VARIABLE, Config, Flags, PendingReads, ReloadPlan, Settings};
use crate::process::in_force::{Facts, InForce, Outcome};
use crate::process::listener_set;
use crate::process::run::{shutdown, workers};
use crate::system::connection_capacity;
use crate::system::descriptors::Files;
use crate::system::memory::Memory;
use crate::telemetry::LogSwitch;

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Where the configuration comes from, to be read again.
#[derive(Debug, Clone)]
pub struct Source {
    flags: Flags,
}

impl Source {
    /// From these flags, and the environment and file as they are at each reading.
    #[must_use]
    pub fn new(flags: Flags) -> Self {
        Self { flags }
    }

    /// Reads everything, on a thread that may block; `files` tells others what is being read.
    #[must_use]
    pub(crate) fn load(&self, files: &PendingReads) -> config::Loaded {
        config::load_tracked(&self.flags, std::env::vars_os(), files)
    }

    /// What the file looks like; the same bounds hold as for a read.
    pub(crate) fn look(&self) -> Look {
        self.file().filter(|_| !self.is_stdin()).and_then(|path| look(&path))
    }

    /// The file, if there is one.
    fn file(&self) -> Option<PathBuf> {
        let from_env = || {
            std::env::var_os(CONFIG_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
        };
        self.flags.config.clone().or_else(from_env)
    }

    pub(crate) fn is_stdin(&self) -> bool {
        self.file().as_deref() == Some(Path::new("-"))
    }
}

/// What a file is, as far as a look from outside tells.
pub(crate) type Look = Option<(u64, u64, u64, i64, i64)>;

fn look(path: &Path) -> Look {
    let found = std::fs::metadata(path).ok()?;
    Some((
        found.dev(),
        found.ino(),
        found.size(),
        found.mtime_nsec() ^ (found.mtime() << 20),
        found.ctime_nsec(),
    ))
}

/// Decides from looks whether it is time to read: when the file differs from what was read, and two
/// looks agree. A file that is gone, or in a folder that may not be looked into, is read as well:
/// that fails, once, and says why.
#[derive(Debug)]
struct Patience {
    read: Look,
    before: Look,
}

impl Patience {
    fn new(now: Look) -> Self {
        Self { read: now, before: now }
    }

    fn is_time(&mut self, now: Look) -> bool {
        let settled = now == self.before;
        self.before = now;
        let time = settled && now != self.read;
        if time {
            self.read = now;
        }
        time
    }
}

/// Rings `bell` whenever the configuration file has changed since it was read, when it looked like
/// `read`. Never returns; a look never blocks this thread.
pub(crate) async fn watch(source: Source, read: Look, bell: Arc<Notify>) {
    let Some(path) = source.file().filter(|_| !source.is_stdin()) else {
        return std::future::pending().await;
    };
    let mut patience = Patience::new(read);
    loop {
        tokio::time::sleep(LOOK).await;
        let path = path.clone();
        if let Ok(now) = tokio::task::spawn_blocking(move || look(&path)).await
            && patience.is_time(now)
        {
            bell.notify_one();
        }
    }
}

/// Everything that a reload can change.
pub struct Reloader {
    /// The values in force.
    pub running: Settings,
    /// What the reports say.
    pub in_force: InForce,
    /// The listening sockets.
    pub sockets: Arc<Mutex<Sockets>>,
    /// The memory, for the bounds on connections.
    pub memory: Option<Memory>,
    /// How much is logged.
    pub log: LogSwitch,
}

impl Reloader {
    /// Takes what was read, and says how it went.
    pub(crate) fn take(
        &mut self,
        why: &'static str,
        loaded: &config::Loaded,
        drain: &Drain,
        data_plane: &Running,
    ) {
        let change = match loaded.change(&self.running) {
            Ok(change) => change,
            Err(faults) => {
                self.refuse(why, faults.findings().iter().map(ToString::to_string).collect());
                return;
            }
        };
        match self.apply(&change, drain, data_plane) {
            Ok(()) => self.tell(why, &change),
            Err(fault) => self.refuse(why, vec![fault]),
        }
    }

    /// Leaves everything as it is, and says why.
    pub(crate) fn refuse(&self, why: &'static str, faults: Vec<String>) {
        for fault in &faults {
            error!(why, "not reloaded: {fault}");
        }
        self.in_force.note(Outcome::Refused, faults);
    }

    fn tell(&mut self, why: &'static str, change: &ReloadPlan) {
        let outcome = if change.applied.is_empty() { Outcome::Unchanged } else { Outcome::Applied };
        self.running = change.settings.clone();
        self.in_force.note(outcome, Vec::new());
        info!(why, applied = ?change.applied, config = %change.config.hash, "configuration reloaded");
        if !change.pending.is_empty() {
            warn!(keys = ?change.pending, "changed, but only a restart will make it so");
        }
    }

    /// First what may fail, so that a failure leaves everything as it was.
    fn apply(
        &self,
        change: &ReloadPlan,
        drain: &Drain,
        data_plane: &Running,
    ) -> Result<(), String> {
        let config = &change.config;
        let files = Files::allowed(config, workers(config).get());
        let room = connection_capacity::plan(config, self.memory.as_ref(), files)
            .map_err(|error| error.to_string())?;
        files.raise(room.connections.total).map_err(|error| error.to_string())?;
        self.retune(config, &room.connections.services)?;
        for (number, _, options) in listener_set::options_of(config, &room.connections.services) {
            data_plane.tune(number, options);
        }
        data_plane.allow(room.connections.total);
        drain.configure(shutdown(config));
        self.log.set(&config.log);
        self.in_force.set(Facts::of(config, &room.connections, change.pending.clone()));
        Ok(())
    }

    fn retune(&self, config: &Config, limits: &[usize]) -> Result<(), String> {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, name, options) in listener_set::options_of(config, limits) {
            let retuned = sockets.retune(number, &options);
            retuned.map_err(|error| {
                format!("the listening sockets of {name} do not take it: {error}")
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_when_it_has_come_to_rest() {
        let at = |size| Some((1, 1, size, 0, 0));
        let mut patience = Patience::new(at(1));
        assert!(!patience.is_time(at(1)));
        assert!(!patience.is_time(at(2)), "it may still be written");
        assert!(!patience.is_time(at(3)));
        assert!(patience.is_time(at(3)));
        assert!(!patience.is_time(at(3)), "once is enough");
        assert!(!patience.is_time(None), "it may be in the middle of an exchange");
        assert!(patience.is_time(None) && !patience.is_time(None), "its absence is reported once");
        assert!(!patience.is_time(at(3)) && patience.is_time(at(3)), "it is back");
        assert!(
            !patience.is_time(None) && !patience.is_time(at(3)) && !patience.is_time(at(3)),
            "it was exchanged"
        );
    }

    #[test]
    fn an_exchanged_link_is_another_file() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let place = folder.path().join(name);
            std::fs::create_dir(&place).unwrap();
            std::fs::write(place.join("pointsman.toml"), "x = 1\n").unwrap();
        };
        make("one");
        make("two");
        let link = folder.path().join("..data");
        std::os::unix::fs::symlink("one", &link).unwrap();
        let path = link.join("pointsman.toml");
        let before = look(&path);
        std::os::unix::fs::symlink("two", folder.path().join("next")).unwrap();
        std::fs::rename(folder.path().join("next"), &link).unwrap();
        assert!(before.is_some() && look(&path).is_some() && look(&path) != before);
    }
}
