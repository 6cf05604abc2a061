//! Limits the number of clients to what memory and the limit on open files allow, at the start and
//! while the process runs.

use std::time::Duration;

use proxy::ResourceShortage;
use tracing::{info, warn};

use crate::admin::effective_config::EffectiveConfig;
use crate::config::{Config, ConnectionLimits};
use crate::process::settings::workers;
use crate::system::cgroup;
use crate::system::connection_capacity;
use crate::system::descriptors::{self, Files, TooFewFiles};
use crate::system::memory::Memory;

/// How often memory use and the limit on open files are checked. A flood of clients that cost some
/// KiB each uses less than a tenth of the memory within this interval.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Decides how many connections are allowed, and raises the limit on open files accordingly.
pub(crate) fn reserve(
    config: &Config,
    memory: Option<&Memory>,
) -> Result<(ConnectionLimits, Files), TooFewFiles> {
    let files = Files::allowed(config, workers(config).get());
    let plan = connection_capacity::plan(config, memory, files)?;
    for warning in &plan.warnings {
        warn!("{warning}");
    }
    files.raise(plan.connections.total)?;
    if let Some(memory) = memory {
        info!(max_connections = plan.connections.total, %memory, "connection limit determined");
    }
    Ok((plan.connections, files))
}

/// Limits new clients to what memory and the limit on open files allow at the moment. Never
/// returns.
pub(crate) async fn watch(
    memory: Option<Memory>,
    effective: EffectiveConfig,
    scarcity: ResourceShortage,
) {
    let mut watch = descriptors::LimitWatch::default();
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let settings = effective.settings();
        if let Some((sessions, pipes)) = watch.check(settings.files, settings.max_connections) {
            scarcity.set_files(sessions, pipes);
        }
        if let Some(memory) = &memory {
            check_memory(memory, &scarcity);
        }
    }
}

/// Refuses new clients while memory is about to run out.
fn check_memory(memory: &Memory, scarcity: &ResourceShortage) {
    let was = scarcity.is_memory_low();
    let is = memory.is_scarce(&cgroup::read, was);
    if is != was {
        scarcity.set(is);
        if is {
            warn!(%memory, "memory is about to run out, refusing new clients");
        } else {
            info!("memory is available again, accepting new clients");
        }
    }
}
