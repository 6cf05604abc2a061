//! Open files: as many as the connections need, asked for at the start, where a refusal can be told.
//!
//! A session needs two. A reserve beside them is never given to a session, since no more sessions are let in than were
//! counted with: from it the listeners, the links to sentinels, the probes of nodes, the admin server and the log get
//! theirs, however many clients there are.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;

/// The smallest reserve.
const LEAST_RESERVE: usize = 512;
/// Files of a worker beside its listeners: its event loop, and pipes for moving large values.
const A_WORKER: usize = 40;
/// Files of a service: links to its sentinels and connections to its nodes, old and new at once.
const A_SERVICE: usize = 64;

/// The system does not allow enough open files.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{needed} open files are needed for {connections} connections, and the system allows {allowed}; raise the limit (ulimit -n, \
     LimitNOFILE) or lower max_connections to {fits}"
)]
pub struct TooFewFiles {
    needed: u64,
    connections: usize,
    allowed: u64,
    fits: u64,
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
}

impl Files {
    /// What the system allows a process with this configuration and so many workers.
    #[must_use]
    pub fn allowed(config: &Config, workers: usize) -> Self {
        // Each with a second handle, for whoever takes over.
        let listeners: usize = config.services.iter().map(|service| 2 * service.listen.len()).sum();
        let workers = workers.saturating_mul(A_WORKER.saturating_add(listeners));
        let services = config.services.len().saturating_mul(A_SERVICE);
        let reserve = workers.saturating_add(services).saturating_add(config.admin.max_connections + 64);
        let limit = getrlimit(Resource::Nofile);
        Self {
            soft: limit.current.unwrap_or(u64::MAX),
            hard: limit.maximum.unwrap_or(u64::MAX),
            reserve: reserve.max(LEAST_RESERVE) as u64,
        }
    }

    fn needed(self, connections: usize) -> u64 {
        (connections as u64).saturating_mul(2).saturating_add(self.reserve)
    }

    /// Whether so many connections fit.
    ///
    /// # Errors
    ///
    /// If the hard limit is below the need.
    pub fn suffice(self, connections: usize) -> Result<(), TooFewFiles> {
        let needed = self.needed(connections);
        if needed <= self.hard {
            return Ok(());
        }
        let fits = self.hard.saturating_sub(self.reserve) / 2;
        Err(TooFewFiles { needed, connections, allowed: self.hard, fits })
    }

    /// Raises the limit in force as far as so many connections need, and no further.
    ///
    /// # Errors
    ///
    /// If the system does not let us.
    pub fn raise(self, connections: usize) -> Result<(), TooFewFiles> {
        let needed = self.needed(connections);
        if self.soft >= needed {
            return Ok(());
        }
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum }).map_err(|_| TooFewFiles {
            needed,
            connections,
            allowed: self.soft,
            fits: self.soft.saturating_sub(self.reserve) / 2,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_files_a_connection_and_the_reserve() {
        let files = Files { soft: 1024, hard: 4096, reserve: 512 };
        assert_eq!(files.suffice(1792), Ok(()));
        let error = files.suffice(1793).expect_err("too few");
        assert_eq!(error.fits(), 1792);
        assert!(error.to_string().contains("lower max_connections to 1792"), "{error}");
        assert_eq!(Files { hard: 100, ..files }.suffice(1).expect_err("too few").fits(), 0);
    }

    #[test]
    fn a_limit_that_is_high_enough_is_left_alone() {
        let before = getrlimit(Resource::Nofile);
        let files = Files { soft: before.current.unwrap_or(u64::MAX), hard: u64::MAX, reserve: 8 };
        assert_eq!(files.raise(1), Ok(()));
        assert_eq!(getrlimit(Resource::Nofile), before);
    }
}
