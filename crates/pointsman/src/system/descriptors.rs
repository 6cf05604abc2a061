//! The limit on open files: raised at the start to what the connections need, and watched while the
//! process runs.
//!
//! A session needs two files. A reserve is never used for sessions, since no more sessions are
//! accepted than there are files for: listeners, links to sentinels, node probers, the admin server
//! and the log use it, whatever the number of clients. Pipes for large values are optional and get
//! at most an eighth of what the reserve leaves.
//!
//! The limit can change while the process runs (`prlimit`), so it is checked periodically. Clients
//! beyond it are refused with Redis's own error: otherwise they would wait in the kernel's queue
//! until other clients leave, which for Redis clients takes days, and time out without a reason.
//! Open sessions stay open when the limit falls below their number.
//!
//! The size of the reserve was measured in `/proc/PID/fd` of a process with two workers: 28 files
//! for the process, four per address, and one per sentinel and node.

use std::fmt;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

use crate::config::Config;

/// Files of the process itself: standard streams, event loops, signals, name lookups, the
/// configuration, `/proc`.
const PROCESS: usize = 64;
/// Files of a worker beside its listeners: its event loop and its waker, and clients that are being
/// refused.
const PER_WORKER: usize = 5;
/// Handles on each worker's listening socket: its own, one for reloads and takeovers, and one
/// during a takeover.
const PER_LISTENER: usize = 3;
/// Files of a service: a probe connection to each of its nodes, and new ones while old ones are
/// closed.
const PER_SERVICE: usize = 8;
/// Files of a sentinel: links, new and old at the same time, and commands.
const PER_SENTINEL: usize = 4;
/// Sentinels that are not in the configuration: further addresses of a name, and learned ones.
const MORE_SENTINELS: usize = 8;
/// Pipes get one part in this many of what the reserve leaves.
const PIPE_SHARE: u64 = 8;
/// Maximum number of files for the pipes of one worker.
const PIPE_FILES_PER_WORKER: u64 = 64;

/// The limit on open files is too low.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) struct TooFewFiles {
    needed: u64,
    reserve: u64,
    connections: usize,
    allowed: u64,
    fits: u64,
}

impl fmt::Display for TooFewFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needed, reserve, connections, allowed, fits } = self;
        if *fits == 0 {
            return write!(
                f,
                "{reserve} open files are needed before the first client, but the limit is \
                 {allowed}; raise it (ulimit -n, LimitNOFILE) to {reserve} plus two per client: \
                 {needed} for {connections}"
            );
        }
        write!(
            f,
            "{needed} open files are needed for {connections} connections, but the limit is \
             {allowed}; raise it (ulimit -n, LimitNOFILE) or lower max_connections to {fits}"
        )
    }
}

impl TooFewFiles {
    /// Returns how many connections the limit allows.
    pub(crate) fn fits(&self) -> usize {
        usize::try_from(self.fits).unwrap_or(usize::MAX)
    }
}

/// The limits on open files, and the part that is not for sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Files {
    /// The limit in force.
    pub soft: u64,
    /// The maximum to which it can be raised.
    pub hard: u64,
    /// Files that are not for sessions.
    pub reserve: u64,
    /// Number of workers; each has pipes.
    pub workers: u64,
}

impl Files {
    /// Returns the limits for a process with this configuration and number of workers.
    pub(crate) fn allowed(config: &Config, workers: usize) -> Self {
        let limit = getrlimit(Resource::Nofile);
        Self {
            soft: limit.current.unwrap_or(u64::MAX),
            hard: limit.maximum.unwrap_or(u64::MAX),
            reserve: reserve(config, workers) as u64,
            workers: workers as u64,
        }
    }

    /// Files of the pipes of all workers, under this limit.
    fn pipes(self, limit: u64) -> u64 {
        let most = self.workers.saturating_mul(PIPE_FILES_PER_WORKER);
        most.min(limit.saturating_sub(self.reserve) / PIPE_SHARE)
    }

    /// Number of pipes of one worker under this limit.
    pub(crate) fn pipes_per_worker(self, limit: u64) -> usize {
        usize::try_from(self.pipes(limit) / 2 / self.workers.max(1)).unwrap_or(usize::MAX)
    }

    /// Number of sessions that this limit allows.
    pub(crate) fn sessions(self, limit: u64) -> u64 {
        limit.saturating_sub(self.reserve).saturating_sub(self.pipes(limit)) / 2
    }

    fn needed(self, connections: usize) -> u64 {
        let pipes = self.workers.saturating_mul(PIPE_FILES_PER_WORKER);
        (connections as u64).saturating_mul(2).saturating_add(self.reserve).saturating_add(pipes)
    }

    fn too_few(self, connections: usize, allowed: u64) -> TooFewFiles {
        let (needed, fits) = (self.needed(connections), self.sessions(allowed));
        TooFewFiles { needed, reserve: self.reserve, connections, allowed, fits }
    }

    /// Whether this number of connections fits.
    ///
    /// # Errors
    ///
    /// If the hard limit is too low.
    pub(crate) fn suffice(self, connections: usize) -> Result<(), TooFewFiles> {
        if self.sessions(self.hard) >= connections as u64 {
            return Ok(());
        }
        Err(self.too_few(connections, self.hard))
    }

    /// Raises the limit in force as far as this number of connections needs, and no further.
    ///
    /// # Errors
    ///
    /// If the system refuses and the limit in force is too low.
    pub(crate) fn raise(self, connections: usize) -> Result<(), TooFewFiles> {
        let wanted = self.needed(connections).min(self.hard);
        if self.soft >= wanted {
            return Ok(());
        }
        let maximum = getrlimit(Resource::Nofile).maximum;
        let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
        if raised.is_err() && self.sessions(self.soft) < connections as u64 {
            return Err(self.too_few(connections, self.soft));
        }
        Ok(())
    }
}

/// Computes the number of files that are not for sessions.
fn reserve(config: &Config, workers: usize) -> usize {
    let addresses = config.services.iter().flat_map(|it| it.addresses().into_iter().flatten());
    let addresses = addresses.fold(0, |sum: usize, listen| sum.saturating_add(listen.len()));
    let mut sentinels: Vec<_> =
        config.services.iter().flat_map(|service| &service.sentinels).collect();
    sentinels.sort_unstable();
    sentinels.dedup();
    let parts = [
        PROCESS,
        workers.saturating_mul(PER_WORKER),
        workers.saturating_mul(addresses).saturating_mul(PER_LISTENER),
        config.services.len().saturating_mul(PER_SERVICE),
        sentinels.len().saturating_add(MORE_SENTINELS).saturating_mul(PER_SENTINEL),
        (config.admin.listen.len() + config.admin.read_only_listen.len())
            .saturating_mul(PER_LISTENER),
        config.admin.max_connections,
    ];
    parts.into_iter().fold(0, usize::saturating_add)
}

/// Watches the limit in force.
#[derive(Debug, Default)]
pub(crate) struct LimitWatch {
    before: Option<(u64, u64)>,
}

impl LimitWatch {
    /// Returns the number of sessions, and of pipes per worker, that the limit allows, if it has
    /// changed, or the reserve has. `most` is the configured maximum of sessions.
    pub(crate) fn check(&mut self, files: Files, most: usize) -> Option<(usize, usize)> {
        // The kernel answers from memory, so this call is safe on the main thread.
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let before = self.before.replace((limit, files.reserve));
        if before == self.before {
            return None;
        }
        let sessions = usize::try_from(files.sessions(limit)).unwrap_or(usize::MAX);
        let reserve = files.reserve;
        if sessions < most {
            warn!(
                limit,
                reserve,
                sessions,
                "the limit on open files is too low for max_connections, refusing clients beyond it"
            );
        } else if before.is_some() {
            info!(limit, reserve, sessions, "the limit on open files suffices for max_connections");
        }
        Some((sessions, files.pipes_per_worker(limit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_two_files_per_connection_and_reserve() {
        let files = Files { soft: 1024, hard: 4096, reserve: 512, workers: 0 };
        assert_eq!(files.suffice(1792), Ok(()));
        let error = files.suffice(1793).expect_err("too few");
        assert_eq!(error.fits(), 1792);
        assert!(error.to_string().contains("lower max_connections to 1792"), "{error}");
        let error = Files { hard: 100, ..files }.suffice(1).expect_err("too few");
        assert_eq!(error.fits(), 0);
        let text = error.to_string();
        assert!(
            text.contains("512 open files are needed before the first client")
                && text.contains("514 for 1"),
            "{text}"
        );
    }

    #[test]
    fn limits_pipes_to_eighth_of_remaining_files() {
        let files = Files { soft: 0, hard: 0, reserve: 100, workers: 2 };
        assert_eq!(
            (files.sessions(100), files.sessions(260), files.sessions(10_100)),
            (0, 70, 4936)
        );
        assert_eq!((files.pipes_per_worker(260), files.pipes_per_worker(1 << 20)), (5, 32));
        for limit in 0..3000 {
            let (sessions, pipes) = (files.sessions(limit), files.pipes_per_worker(limit) as u64);
            let used = files.reserve + 2 * sessions + 2 * 2 * pipes;
            assert!(sessions == 0 || used <= limit, "{limit}: {used}");
        }
    }

    fn config(services: usize) -> Config {
        let service = |number: usize| {
            let port = number + 1;
            format!(
                "[[service]]\nname=\"m{number}\"\nsentinels=[\"s\"]\nlisten=[\"0.0.0.0:{port}\"]\n"
            )
        };
        let text: String = (0..services).map(service).collect();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pointsman.toml");
        std::fs::write(&file, text).unwrap();
        let flags = crate::config::Flags { config: Some(file), ..crate::config::Flags::default() };
        crate::config::load(&flags, []).config().unwrap()
    }

    #[test]
    fn reserves_files_of_services() {
        assert!(
            reserve(&config(1), 2) < 200,
            "a limit of 256 allows some clients: {}",
            reserve(&config(1), 2)
        );
        let many = reserve(&config(1000), 2);
        assert!((6000..16_000).contains(&many), "{many} for 1000 services with six files each");
    }

    #[test]
    fn keeps_sufficient_limit() {
        let before = getrlimit(Resource::Nofile);
        let files = Files {
            soft: before.current.unwrap_or(u64::MAX),
            hard: u64::MAX,
            reserve: 8,
            workers: 0,
        };
        assert_eq!(files.raise(1), Ok(()));
        assert_eq!(getrlimit(Resource::Nofile), before);
    }
}
