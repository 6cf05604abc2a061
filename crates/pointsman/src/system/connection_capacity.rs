//! Room for the connections: how many there may be, so that neither memory nor open files run out.
//!
//! A number that somebody configured is kept or refused, with what would have to change; a number
//! that nobody gave follows from the bound on memory and is lowered, with a warning, where too few
//! files may be opened. It never follows from the limit on open files as such: container runtimes
//! allow a billion, and programs that size themselves by that are killed for their memory.
//!
//! Deliberately absent: reading the limits ([`memory`](crate::system::memory)) and raising them
//! ([`descriptors`](crate::system::descriptors)).

use crate::config::{Config, ConnectionLimits};
use crate::system::descriptors::{Files, TooFewFiles};
use crate::system::memory::Memory;

/// How many connections there may be, and what to tell about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// The bounds.
    pub connections: ConnectionLimits,
    /// What a person should know.
    pub warnings: Vec<String>,
}

/// Decides. `memory` is `None` where its bound cannot be known.
///
/// # Errors
///
/// Too few open files are allowed for the numbers that somebody configured.
pub fn plan(config: &Config, memory: Option<&Memory>, files: Files) -> Result<Room, TooFewFiles> {
    let carried = memory.map_or(usize::MAX, Memory::carries);
    let mut warnings = Vec::new();
    let wanted = config.connections(carried);
    let connections = match files.suffice(wanted.total) {
        Ok(()) => wanted,
        Err(error) if config.min_connections() > error.fits() => return Err(error),
        Err(error) => {
            let fits = error.fits();
            warnings
                .push(format!("max_connections is {fits} instead of {}: {error}", wanted.total));
            config.connections(carried.min(fits))
        }
    };
    if let Some(memory) = memory.filter(|_| connections.total > carried) {
        let total = connections.total;
        warnings.push(format!(
            "max_connections is {total}, and the memory ({memory}) carries about {carried}; raise the limit on memory, or \
             clients will be refused when it runs short"
        ));
    }
    Ok(Room { connections, warnings })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A configuration of services with these numbers, 0 for none.
    fn config(numbers: &[usize], total: usize) -> Config {
        let service = |(at, most): (usize, &usize)| {
            let port = at + 1;
            format!(
                "[[service]]\nname=\"m{at}\"\nsentinels=[\"s\"]\nlisten=[\"0.0.0.0:{port}\"]\nmax_connections={most}\n"
            )
        };
        let services: String = numbers.iter().enumerate().map(service).collect();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pointsman.toml");
        std::fs::write(&file, format!("{services}[process]\nmax_connections={total}\n")).unwrap();
        let flags = crate::config::Flags { config: Some(file), ..crate::config::Flags::default() };
        crate::config::load(&flags, []).config().unwrap()
    }

    fn memory(mib: u64) -> Memory {
        let meminfo = format!("MemAvailable: {} kB\n", mib * 1024);
        Memory::find(&|path: &Path| (path == Path::new("/proc/meminfo")).then(|| meminfo.clone()))
            .unwrap()
    }

    fn files(hard: u64) -> Files {
        Files { soft: 1024, hard, reserve: 512, workers: 0 }
    }

    fn planned(numbers: &[usize], total: usize, mib: u64, hard: u64) -> (Vec<usize>, usize, usize) {
        let room = plan(&config(numbers, total), Some(&memory(mib)), files(hard)).unwrap();
        (room.connections.services, room.connections.total, room.warnings.len())
    }

    const MANY: u64 = 1_000_000_000;

    #[test]
    fn the_default_is_what_redis_takes_or_what_the_memory_carries() {
        assert_eq!(planned(&[0], 0, 64 * 1024, MANY), (vec![10_000], 10_000, 0));
        assert_eq!(planned(&[0, 0], 0, 64 * 1024, MANY), (vec![10_000; 2], 20_000, 0));
        assert_eq!(planned(&[0], 0, 128, MANY), (vec![2304], 2304, 0));
        assert_eq!(planned(&[0, 0, 100], 0, 128, MANY), (vec![1102, 1102, 100], 2304, 0));
    }

    #[test]
    fn a_default_gives_way_to_the_limit_on_open_files_and_says_so() {
        let room = plan(&config(&[0], 0), Some(&memory(64 * 1024)), files(4096)).unwrap();
        assert_eq!(room.connections.total, 1792);
        assert!(
            room.warnings[0].starts_with("max_connections is 1792 instead of 10000: "),
            "{:?}",
            room.warnings
        );
    }

    #[test]
    fn a_number_that_somebody_gave_is_kept_or_refused() {
        for (numbers, total) in [(&[3000][..], 0), (&[0], 3000), (&[1792, 0], 0)] {
            let error =
                plan(&config(numbers, total), Some(&memory(64 * 1024)), files(4096)).unwrap_err();
            assert_eq!(error.fits(), 1792);
        }
        assert_eq!(planned(&[1000, 0], 0, 64 * 1024, 4096), (vec![1000, 792], 1792, 1));
        // The kernel refuses files for certain; what memory carries is an estimate, so it only
        // warns.
        let room = plan(&config(&[0], 5000), Some(&memory(128)), files(MANY)).unwrap();
        assert_eq!(room.connections.total, 5000);
        assert!(room.warnings[0].contains("carries about 2304"), "{:?}", room.warnings);
    }

    #[test]
    fn where_nothing_is_known_of_the_memory_the_defaults_hold() {
        let room = plan(&config(&[0], 0), None, files(MANY)).unwrap();
        assert_eq!((room.connections.total, room.warnings.len()), (10_000, 0));
    }
}
