//! Open files: as many as the connections need, asked for at the start, where a refusal can be told.
//!
//! The need follows from `max_connections` and never the other way round: container runtimes allow a billion files, and
//! programs that size themselves by that are killed for their memory.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files beside the sessions' own: listeners, sentinels, canaries, the admin server, logs.
const RESERVE: u64 = 512;

/// The system does not allow enough open files.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{needed} open files are needed for {connections} connections, and the system allows {allowed}; raise the limit (ulimit -n, \
     LimitNOFILE) or lower process.max_connections to {fits}"
)]
pub struct TooFewFiles {
    needed: u64,
    connections: usize,
    allowed: u64,
    fits: u64,
}

/// What has to be done to the limit.
fn plan(connections: usize, limit: &Rlimit) -> Result<Option<u64>, TooFewFiles> {
    let needed = 2 * connections as u64 + RESERVE;
    let soft = limit.current.unwrap_or(u64::MAX);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    if soft >= needed {
        Ok(None)
    } else if hard >= needed {
        Ok(Some(needed))
    } else {
        Err(TooFewFiles { needed, connections, allowed: hard, fits: hard.saturating_sub(RESERVE) / 2 })
    }
}

impl TooFewFiles {
    /// How many connections the system's limit does carry.
    #[must_use]
    pub fn fits(&self) -> usize {
        usize::try_from(self.fits).unwrap_or(usize::MAX)
    }
}

/// Makes room for this many client connections.
///
/// # Errors
///
/// If the hard limit is below the need.
pub fn make_room(connections: usize) -> Result<(), TooFewFiles> {
    let limit = getrlimit(Resource::Nofile);
    match plan(connections, &limit)? {
        None => Ok(()),
        Some(needed) => setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: limit.maximum })
            .map_err(|_| TooFewFiles { needed, connections, allowed: limit.current.unwrap_or(0), fits: 0 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(current: u64, maximum: u64) -> Rlimit {
        Rlimit { current: Some(current), maximum: Some(maximum) }
    }

    #[test]
    fn the_limit_is_raised_only_as_far_as_needed() {
        assert_eq!(plan(10_000, &limit(1024, 1_000_000_000)), Ok(Some(20_512)));
        assert_eq!(plan(100, &limit(1024, 4096)), Ok(None));
        assert_eq!(plan(10_000, &Rlimit { current: None, maximum: None }), Ok(None));
    }

    #[test]
    fn too_low_a_hard_limit_says_what_would_fit() {
        let error = plan(10_000, &limit(1024, 4096)).expect_err("too few");
        assert!(error.to_string().contains("process.max_connections to 1792"), "{error}");
    }
}
