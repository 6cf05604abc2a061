//! The settings that reports show and a reload can change, and the results of the reloads.
//!
//! The main loop is the only writer; the admin server reads.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::admin::certificates::ServedCertificate;
use crate::admin::health::ReadinessRules;
use crate::config::{Config, ServiceConfig, Upstream};
use crate::system::descriptors::Files;

/// Maximum number of fault lines kept of a reload.
const MAX_FAULTS: usize = 20;

/// The settings of one service that reports need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServiceSettings {
    /// The maximum number of connections.
    pub max_connections: usize,
    /// How long a client may be held.
    pub hold_timeout: Duration,
    /// Whether its clients share connections to Redis.
    pub shares_upstreams: bool,
}

impl ServiceSettings {
    /// The settings of a service with this connection limit.
    pub(crate) fn of(service: &ServiceConfig, max_connections: usize) -> Self {
        let shares_upstreams = service.upstream == Upstream::Shared;
        Self { max_connections, hold_timeout: service.hold_timeout, shares_upstreams }
    }
}

/// The settings that reports need.
#[derive(Debug)]
pub(crate) struct EffectiveSettings {
    /// The hash of the configuration in force.
    pub hash: String,
    /// The rules of readiness.
    pub readiness: ReadinessRules,
    /// The limits on open files.
    pub files: Files,
    /// The maximum number of client connections of all services together.
    pub max_connections: usize,
    /// Whether /metrics also contains the metrics of haproxy.
    pub haproxy_names: bool,
    /// The number of secret files that could not be read by the last reload.
    pub unread_secrets: usize,
    /// Keys whose configured value differs from the one in force until a restart.
    pub pending: Vec<String>,
    /// The certificates in use.
    pub certificates: Vec<ServedCertificate>,
}

impl EffectiveSettings {
    /// Collects the settings of a configuration with this limit on all connections.
    pub(crate) fn of(
        config: &Config,
        max_connections: usize,
        files: Files,
        certificates: Vec<ServedCertificate>,
    ) -> Self {
        Self {
            hash: config.hash.clone(),
            readiness: ReadinessRules {
                while_leaving: config.shutdown.ready_while_leaving,
                without_master: config.admin.ready_without_master,
            },
            files,
            max_connections,
            haproxy_names: config.metrics.haproxy_names,
            unread_secrets: 0,
            pending: Vec::new(),
            certificates,
        }
    }
}

/// How a reload ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReloadOutcome {
    /// At least one value was changed.
    Applied,
    /// No value differs.
    Unchanged,
    /// The configuration has faults; everything is as before.
    Refused,
    /// A secret file could not be read: its secret is as before, everything else was applied.
    Partial,
}

impl ReloadOutcome {
    /// All values, in the order of their numbers.
    pub(crate) const ALL: [Self; 4] =
        [Self::Applied, Self::Unchanged, Self::Refused, Self::Partial];

    /// Returns a stable label for metrics and status.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
            Self::Partial => "partial",
        }
    }
}

/// The last reload.
#[derive(Debug, Clone)]
pub(crate) struct LastReload {
    /// The time at which it ended.
    pub at: Instant,
    /// How it ended.
    pub outcome: ReloadOutcome,
    /// The faults, one per line.
    pub faults: Vec<String>,
}

#[derive(Debug, Default)]
struct ReloadHistory {
    counts: [u64; ReloadOutcome::ALL.len()],
    last: Option<LastReload>,
}

/// The effective settings and the reload history. Cheap to clone; all clones share one state.
#[derive(Debug, Clone)]
pub(crate) struct EffectiveConfig {
    settings: Arc<ArcSwap<EffectiveSettings>>,
    history: Arc<Mutex<ReloadHistory>>,
}

impl EffectiveConfig {
    /// Creates the state at the start.
    pub(crate) fn new(settings: EffectiveSettings) -> Self {
        Self { settings: Arc::new(ArcSwap::from_pointee(settings)), history: Arc::default() }
    }

    /// Returns the current settings.
    pub(crate) fn settings(&self) -> Arc<EffectiveSettings> {
        self.settings.load_full()
    }

    /// Replaces the settings.
    pub(crate) fn set(&self, settings: EffectiveSettings) {
        self.settings.store(Arc::new(settings));
    }

    /// Records the end of a reload.
    pub(crate) fn record(&self, outcome: ReloadOutcome, mut faults: Vec<String>) {
        faults.truncate(MAX_FAULTS);
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = history.counts.get_mut(outcome as usize) {
            *count += 1;
        }
        history.last = Some(LastReload { at: Instant::now(), outcome, faults });
    }

    /// Returns the number of reloads by outcome, in the order of [`ReloadOutcome::ALL`], and the
    /// last reload.
    pub(crate) fn reloads(&self) -> ([u64; ReloadOutcome::ALL.len()], Option<LastReload>) {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        (history.counts, history.last.clone())
    }
}
