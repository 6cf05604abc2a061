//! Decides how many connections are allowed, so that neither memory nor open files run out.
//!
//! A configured number is kept or refused, with what would have to change. A default follows from
//! the memory limit and is lowered, with a warning, where the limit on open files is too low. It
//! never follows from the limit on open files as such: container runtimes allow a billion, and
//! programs that size themselves by that are killed for their memory use.

use crate::config::{Config, ConnectionLimits, ServiceConfig};
use crate::system::descriptors::{Files, TooFewFiles};
use crate::system::memory::Memory;

/// The number of connections, with warnings about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectionPlan {
    /// The limits.
    pub connections: ConnectionLimits,
    /// Messages for the operator.
    pub warnings: Vec<String>,
}

/// Computes the limits. `memory` is `None` if its limit is unknown.
///
/// # Errors
///
/// The limit on open files is too low for the configured numbers.
pub(crate) fn plan(
    config: &Config,
    memory: Option<&Memory>,
    files: Files,
) -> Result<ConnectionPlan, TooFewFiles> {
    let sides = tls_sides(config);
    let by_memory = memory.map_or(usize::MAX, |memory| memory.max_connections(sides));
    let mut warnings = Vec::new();
    let wanted = config.connections(by_memory);
    let connections = match files.suffice(wanted.total) {
        Ok(()) => wanted,
        Err(error) if config.min_connections() > error.fits() => return Err(error),
        Err(error) => {
            let fits = error.fits();
            warnings
                .push(format!("max_connections is {fits} instead of {}: {error}", wanted.total));
            config.connections(by_memory.min(fits))
        }
    };
    if let Some(memory) = memory.filter(|_| connections.total > by_memory) {
        let total = connections.total;
        warnings.push(format!(
            "max_connections is {total}, but the memory ({memory}) suffices for about \
             {by_memory}; raise the memory limit, or clients will be refused when memory runs out"
        ));
    }
    Ok(ConnectionPlan { connections, warnings })
}

/// Returns on how many sides a session may have TLS: that of clients and that of servers. The
/// services share the memory, so the one with the most counts.
fn tls_sides(config: &Config) -> u64 {
    let of = |service: &ServiceConfig| {
        let clients = service.addresses().iter().any(|[_, tls]| !tls.is_empty());
        u64::from(clients) + u64::from(service.redis_tls.enabled)
    };
    config.services.iter().map(of).max().unwrap_or_default()
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
                "[[service]]\nname=\"m{at}\"\nsentinels=[\"s\"]\nlisten=[\"0.0.0.0:{port}\"]\n\
                 max_connections={most}\n"
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

    fn planned_numbers(
        numbers: &[usize],
        total: usize,
        mib: u64,
        hard: u64,
    ) -> (Vec<usize>, usize, usize) {
        let plan = plan(&config(numbers, total), Some(&memory(mib)), files(hard)).unwrap();
        (plan.connections.services, plan.connections.total, plan.warnings.len())
    }

    const MANY: u64 = 1_000_000_000;

    #[test]
    fn derives_default_from_memory() {
        assert_eq!(planned_numbers(&[0], 0, 64 * 1024, MANY), (vec![10_000], 10_000, 0));
        assert_eq!(planned_numbers(&[0, 0], 0, 64 * 1024, MANY), (vec![10_000; 2], 20_000, 0));
        assert_eq!(planned_numbers(&[0], 0, 128, MANY), (vec![2304], 2304, 0));
        assert_eq!(planned_numbers(&[0, 0, 100], 0, 128, MANY), (vec![1102, 1102, 100], 2304, 0));
    }

    #[test]
    fn counts_memory_of_tls_on_each_side() {
        let mut config = config(&[0], 0);
        let most = |config: &Config| {
            plan(config, Some(&memory(128)), files(MANY)).unwrap().connections.total
        };
        // (96 - 24) MiB in parts of 32, 40 and 48 KiB.
        assert_eq!(most(&config), 2304);
        config.services[0].redis_tls.enabled = true;
        assert_eq!(most(&config), 1843);
        config.services[0].replica_tls_listen = config.services[0].listen.clone();
        assert_eq!(most(&config), 1536);
    }

    #[test]
    fn lowers_default_to_limit_on_open_files() {
        let plan = plan(&config(&[0], 0), Some(&memory(64 * 1024)), files(4096)).unwrap();
        assert_eq!(plan.connections.total, 1792);
        assert!(
            plan.warnings[0].starts_with("max_connections is 1792 instead of 10000: "),
            "{:?}",
            plan.warnings
        );
    }

    #[test]
    fn keeps_or_refuses_configured_number() {
        for (numbers, total) in [(&[3000][..], 0), (&[0], 3000), (&[1792, 0], 0)] {
            let error =
                plan(&config(numbers, total), Some(&memory(64 * 1024)), files(4096)).unwrap_err();
            assert_eq!(error.fits(), 1792);
        }
        assert_eq!(planned_numbers(&[1000, 0], 0, 64 * 1024, 4096), (vec![1000, 792], 1792, 1));
        // The kernel refuses files with certainty; what the memory allows is an estimate, so it
        // only warns.
        let plan = plan(&config(&[0], 5000), Some(&memory(128)), files(MANY)).unwrap();
        assert_eq!(plan.connections.total, 5000);
        assert!(plan.warnings[0].contains("suffices for about 2304"), "{:?}", plan.warnings);
    }

    #[test]
    fn uses_defaults_if_memory_is_unknown() {
        let plan = plan(&config(&[0], 0), None, files(MANY)).unwrap();
        assert_eq!((plan.connections.total, plan.warnings.len()), (10_000, 0));
    }
}
