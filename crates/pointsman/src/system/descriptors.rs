//! Open files: as many as the connections need, asked for at the start, and watched while the
//! process runs.
//!
//! A session needs two. A reserve beside them is never given to a session, since no more sessions
//! are let in than there are files for: from it the listeners, the links to sentinels, the probes
//! of nodes, the admin server and the log get theirs, however many clients there are. Pipes for
//! large values are a convenience and get at most an eighth of what the reserve leaves.
//!
//! The limit can change while the process runs (`prlimit`), so it is looked at again and again.
//! Clients beyond what it carries are refused with Redis's own words: they would wait in the
//! kernel's queue for as long as others stay, which for Redis clients is days, and time out without
//! a reason. Sessions that are there stay when the limit falls below them.
//!
//! What the reserve is made of was counted in `/proc/PID/fd` of a process with two workers: 28
//! files for the process, four for each address, and one for each sentinel and each node.

use std::fmt;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

use crate::config::Config;
use crate::process::listener_set;

/// Files of the process itself: standard streams, event loops, signals, name look-ups, the
/// configuration, `/proc`.
const PROCESS: usize = 64;
/// Files of a worker beside its listeners: its event loop and bell, and clients that are being
/// refused.
const A_WORKER: usize = 4;
/// Handles on each worker's listening socket: its own, one for reloads and takeovers, and one
/// during a takeover.
const A_LISTENER: usize = 3;
/// Files of a service: a probe connection for each of its nodes, and new ones while old ones are
/// closed.
const A_SERVICE: usize = 8;
/// Files of a sentinel: links, new and old at once, and commands.
const A_SENTINEL: usize = 4;
/// Sentinels that are not in the configuration: those behind a name, and those that are learned.
const MORE_SENTINELS: usize = 8;
/// Of what the reserve leaves, pipes get one part of so many.
const PIPES: u64 = 8;
/// Files of all the pipes that a worker may use.
const PIPES_OF_A_WORKER: u64 = 64;

/// The system does not allow enough open files.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub struct TooFewFiles {
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
                "{reserve} open files are needed before the first client, and the system allows {allowed}; raise the limit \
                 (ulimit -n, LimitNOFILE) to at least {reserve} and two for each client, which is {needed} for {connections}"
            );
        }
        write!(
            f,
            "{needed} open files are needed for {connections} connections, and the system allows {allowed}; raise the limit \
             (ulimit -n, LimitNOFILE) or lower max_connections to {fits}"
        )
    }
}

impl TooFewFiles {
    /// How many connections the system's limit does carry.
    #[must_use]
    pub fn fits(&self) -> usize {
        usize::try_from(self.fits).unwrap_or(usize::MAX)
    }
}

/// What the process may open, and what of it is not for sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Files {
    /// The limit in force.
    pub soft: u64,
    /// As far as it can be raised.
    pub hard: u64,
    /// Not for sessions.
    pub reserve: u64,
    /// Workers, which have pipes.
    pub workers: u64,
}

impl Files {
    /// What the system allows a process with this configuration and so many workers.
    #[must_use]
    pub fn allowed(config: &Config, workers: usize) -> Self {
        let limit = getrlimit(Resource::Nofile);
        Self {
            soft: limit.current.unwrap_or(u64::MAX),
            hard: limit.maximum.unwrap_or(u64::MAX),
            reserve: reserve(config, workers) as u64,
            workers: workers as u64,
        }
    }

    /// Files of pipes, all workers together, under this limit.
    fn pipes(self, limit: u64) -> u64 {
        let most = self.workers.saturating_mul(PIPES_OF_A_WORKER);
        most.min(limit.saturating_sub(self.reserve) / PIPES)
    }

    /// Pipes of one worker under this limit.
    #[must_use]
    pub fn pipes_of_a_worker(self, limit: u64) -> usize {
        usize::try_from(self.pipes(limit) / 2 / self.workers.max(1)).unwrap_or(usize::MAX)
    }

    /// How many sessions this limit carries.
    #[must_use]
    pub fn sessions(self, limit: u64) -> u64 {
        limit.saturating_sub(self.reserve).saturating_sub(self.pipes(limit)) / 2
    }

    fn needed(self, connections: usize) -> u64 {
        let pipes = self.workers.saturating_mul(PIPES_OF_A_WORKER);
        (connections as u64).saturating_mul(2).saturating_add(self.reserve).saturating_add(pipes)
    }

    fn too_few(self, connections: usize, allowed: u64) -> TooFewFiles {
        let (needed, fits) = (self.needed(connections), self.sessions(allowed));
        TooFewFiles { needed, reserve: self.reserve, connections, allowed, fits }
    }

    /// Whether so many connections fit.
    ///
    /// # Errors
    ///
    /// If the hard limit is below the need.
    pub fn suffice(self, connections: usize) -> Result<(), TooFewFiles> {
        if self.sessions(self.hard) >= connections as u64 {
            return Ok(());
        }
        Err(self.too_few(connections, self.hard))
    }

    /// Raises the limit in force as far as so many connections need, and no further.
    ///
    /// # Errors
    ///
    /// If the system does not let us.
    pub fn raise(self, connections: usize) -> Result<(), TooFewFiles> {
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

/// Open files that are not for sessions.
fn reserve(config: &Config, workers: usize) -> usize {
    let planes = listener_set::of(config);
    let addresses =
        planes.iter().fold(0, |sum: usize, plane| sum.saturating_add(plane.listen.len()));
    let mut sentinels: Vec<_> =
        config.services.iter().flat_map(|service| &service.sentinels).collect();
    sentinels.sort_unstable();
    sentinels.dedup();
    let parts = [
        PROCESS,
        workers.saturating_mul(A_WORKER),
        workers.saturating_mul(addresses).saturating_mul(A_LISTENER),
        config.services.len().saturating_mul(A_SERVICE),
        sentinels.len().saturating_add(MORE_SENTINELS).saturating_mul(A_SENTINEL),
        config.admin.listen.len().saturating_mul(A_LISTENER),
        config.admin.max_connections,
    ];
    parts.into_iter().fold(0, usize::saturating_add)
}

/// Follows the limit in force.
#[derive(Debug)]
pub(crate) struct Watch {
    files: Files,
    limit: Option<u64>,
}

impl Watch {
    pub(crate) fn new(files: Files) -> Self {
        Self { files, limit: None }
    }

    /// How many sessions, and pipes of each worker, the limit carries, if it has changed. `most`
    /// sessions are allowed anyhow.
    pub(crate) fn look(&mut self, most: usize) -> Option<(usize, usize)> {
        // Answered from the kernel's memory, so it may be asked on the main thread.
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let before = self.limit.replace(limit);
        if before == Some(limit) {
            return None;
        }
        let sessions = usize::try_from(self.files.sessions(limit)).unwrap_or(usize::MAX);
        let reserve = self.files.reserve;
        if sessions < most {
            warn!(
                limit,
                reserve,
                sessions,
                "open files allow fewer clients than max_connections: others are refused"
            );
        } else if before.is_some() {
            info!(limit, reserve, sessions, "open files suffice for max_connections");
        }
        Some((sessions, self.files.pipes_of_a_worker(limit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_files_a_connection_and_the_reserve() {
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
    fn pipes_take_an_eighth_of_what_is_left_at_most() {
        let files = Files { soft: 0, hard: 0, reserve: 100, workers: 2 };
        assert_eq!(
            (files.sessions(100), files.sessions(260), files.sessions(10_100)),
            (0, 70, 4936)
        );
        assert_eq!((files.pipes_of_a_worker(260), files.pipes_of_a_worker(1 << 20)), (5, 32));
        for limit in 0..3000 {
            let (sessions, pipes) = (files.sessions(limit), files.pipes_of_a_worker(limit) as u64);
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
    fn reserves_what_a_service_uses() {
        assert!(
            reserve(&config(1), 2) < 200,
            "256 files carry some clients: {}",
            reserve(&config(1), 2)
        );
        let many = reserve(&config(1000), 2);
        assert!((6000..16_000).contains(&many), "{many} for 1000 services with six files each");
    }

    #[test]
    fn a_limit_that_is_high_enough_is_left_alone() {
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
