//! What a reload can change of what the reports say, and how the reloads went.
//!
//! One writer, the loop that reloads; the readers are the probe server's answers.
//!
//! Deliberately absent: the configuration as such.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::config::{Config, ConnectionLimits};

/// Most lines that are kept of a reload's faults.
const MOST_LINES: usize = 20;

/// Settings as the reports need them.
#[derive(Debug)]
pub struct Facts {
    /// The hash of the configuration in force.
    pub hash: String,
    /// Whether a process that leaves stays ready while it accepts.
    pub ready_while_leaving: bool,
    /// Whether a process whose masters are gone stays ready.
    pub ready_without_master: bool,
    /// For each service: the most connections, and how long a client may be held.
    pub services: Vec<(usize, Duration)>,
    /// The most client connections of all services together.
    pub max_connections: usize,
    /// Keys that are written otherwise than in force and need a restart.
    pub pending: Vec<String>,
}

impl Facts {
    /// Of a configuration with these bounds.
    #[must_use]
    pub fn of(config: &Config, connections: &ConnectionLimits, pending: Vec<String>) -> Self {
        let services = config.services.iter().zip(&connections.services);
        Self {
            hash: config.hash.clone(),
            ready_while_leaving: config.shutdown.ready_while_leaving,
            ready_without_master: config.admin.ready_without_master,
            services: services.map(|(service, limit)| (*limit, service.hold_timeout)).collect(),
            max_connections: connections.total,
            pending,
        }
    }
}

/// How a reload ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// What can be changed was changed.
    Applied,
    /// There was nothing new.
    Unchanged,
    /// There were faults; everything is as before.
    Refused,
}

impl Outcome {
    /// Every one, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Applied, Self::Unchanged, Self::Refused];

    /// A stable word, for metrics and status.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
        }
    }
}

/// The last reload.
#[derive(Debug, Clone)]
pub struct Last {
    /// When it ended.
    pub at: Instant,
    /// How it ended.
    pub outcome: Outcome,
    /// The faults, a line each.
    pub faults: Vec<String>,
}

#[derive(Debug, Default)]
struct History {
    counts: [u64; Outcome::ALL.len()],
    last: Option<Last>,
}

/// What is in force, and how it came to be. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct InForce {
    facts: Arc<ArcSwap<Facts>>,
    history: Arc<Mutex<History>>,
}

impl InForce {
    /// At the start.
    #[must_use]
    pub fn new(facts: Facts) -> Self {
        Self { facts: Arc::new(ArcSwap::from_pointee(facts)), history: Arc::default() }
    }

    /// At this moment.
    #[must_use]
    pub fn facts(&self) -> Arc<Facts> {
        self.facts.load_full()
    }

    /// Exchanges the facts.
    pub fn set(&self, facts: Facts) {
        self.facts.store(Arc::new(facts));
    }

    /// Notes the end of a reload.
    pub fn note(&self, outcome: Outcome, mut faults: Vec<String>) {
        faults.truncate(MOST_LINES);
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = history.counts.get_mut(outcome as usize) {
            *count += 1;
        }
        history.last = Some(Last { at: Instant::now(), outcome, faults });
    }

    /// How many reloads ended in each way, in the order of [`Outcome::ALL`], and the last one.
    #[must_use]
    pub fn reloads(&self) -> ([u64; Outcome::ALL.len()], Option<Last>) {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        (history.counts, history.last.clone())
    }
}
