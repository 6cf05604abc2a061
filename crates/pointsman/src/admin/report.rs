//! The process's answers to the probe server: health, metrics and status, put together from what
//! everybody counts.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use admin_http::{Format, Reporter, Verdict};
use drain::Drain;
use proxy::{ListenAddr, ResourceShortage, Snapshot};

use crate::admin::health::{self, Full, Loop};
use crate::admin::metrics::Scraper;
use crate::admin::status::{self, Status};
use crate::config::PendingReads;
use crate::process::in_force::InForce;
use crate::system::memory::Memory;
use crate::telemetry::Unread;

/// One service, as far as a report needs it.
pub struct Watched {
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub listen: Vec<ListenAddr>,
    /// Where its readers are among the data plane's services, and their addresses.
    pub readers: Option<(usize, Vec<ListenAddr>)>,
    /// Its number.
    pub number: usize,
    /// What is in force, for all services.
    pub in_force: InForce,
    /// What discovery sees.
    pub discovery: sentinel::Handle,
}

impl Watched {
    /// The most connections it may have, and how long its clients may be held.
    pub(crate) fn bounds(&self) -> (usize, Duration) {
        self.in_force.facts().services.get(self.number).copied().unwrap_or_default()
    }

    /// What the listener for readers has counted, if there is one.
    pub(crate) fn reader_traffic<'a, T>(&self, planes: &'a [T]) -> Option<&'a T> {
        planes.get(self.readers.as_ref()?.0)
    }
}

/// Everything a report is made of.
pub struct Report {
    /// When the process started.
    pub start: Instant,
    /// What a reload can change.
    pub in_force: InForce,
    /// The files of the configuration that are being read.
    pub files: PendingReads,
    /// The services, in the order of the configuration.
    pub services: Vec<Watched>,
    /// The shutdown.
    pub drain: Drain,
    /// The data plane's counters.
    pub stats: proxy::Stats,
    /// Up while new clients are refused for want of memory.
    pub scarcity: ResourceShortage,
    /// The workers' heartbeats.
    pub workers: Vec<proxy::Heartbeat>,
    /// Discovery's heartbeat.
    pub discovery: sentinel::Heartbeat,
    /// Log lines that nobody will read.
    pub unread: Unread,
    /// What bounds our memory, where that is known.
    pub memory: Option<Memory>,
    /// What the admin server counts about itself.
    pub admin: admin_http::Stats,
    /// What is kept between scrapes. Locked by scrapes only, which the admin server makes one after
    /// the other.
    pub scraper: Mutex<Scraper>,
}

/// One file without anything from elsewhere, so that it works where there is no network.
const PAGE: &str = concat!(
    include_str!("page/head.html"),
    include_str!("page/page.css"),
    include_str!("page/body.html"),
    include_str!("page/tools.js"),
    include_str!("page/words.js"),
    include_str!("page/picture.js"),
    include_str!("page/story.js"),
    include_str!("page/page.js"),
    include_str!("page/foot.html"),
);

impl Report {
    pub(crate) fn loops(&self) -> Vec<Loop> {
        let (now, workers) = (Instant::now(), self.workers.iter().enumerate());
        let mut loops: Vec<Loop> = workers
            .map(|(number, it)| Loop { name: format!("worker {number}"), age: it.age(now) })
            .collect();
        loops.push(Loop { name: "discovery".to_owned(), age: self.discovery.age() });
        loops
    }

    /// How it stands in one line, for the service manager.
    #[must_use]
    pub fn line(&self) -> String {
        let with_master =
            self.services.iter().filter(|it| it.discovery.seen().master.is_some()).count();
        let open = self.drain.tally().open;
        let phase = self.drain.phase().name();
        format!("{phase}; {with_master} of {} masters known; {open} sessions", self.services.len())
    }

    fn config_status(&self, now: Instant) -> status::Config {
        let ([applied, unchanged, refused], last) = self.in_force.reloads();
        let facts = self.in_force.facts();
        status::Config {
            hash: facts.hash.clone(),
            reloads: BTreeMap::from([
                ("applied", applied),
                ("unchanged", unchanged),
                ("refused", refused),
            ]),
            last_reload: last.as_ref().map(|last| last.outcome.label()),
            last_reload_age_s: last
                .as_ref()
                .map(|last| now.saturating_duration_since(last.at).as_secs_f64()),
            faults: last.map(|last| last.faults).unwrap_or_default(),
            reading: self.files.oldest().map(|(path, time)| status::Reading {
                file: path.display().to_string(),
                for_s: time.as_secs_f64(),
            }),
            pending_restart: facts.pending.clone(),
        }
    }

    fn services(&self) -> Vec<health::Service> {
        let facts = |watched: &Watched| {
            let seen = watched.discovery.seen();
            health::Service {
                name: watched.name.clone(),
                stopped_for: seen.stopped_since.map(|at| at.elapsed()),
                had_master: seen.counts.commits > 0,
                hold_timeout: watched.bounds().1,
                replicas: seen.replicas.as_ref().and_then(|it| it.eligible).unwrap_or(0),
            }
        };
        self.services.iter().map(facts).collect()
    }
}

impl Reporter for Report {
    fn alive(&self) -> Verdict {
        health::alive(&self.loops())
    }

    fn ready(&self) -> Verdict {
        let open: u64 = self.stats.services().map(|(_, traffic)| traffic.open).sum();
        let full = if open >= self.in_force.facts().max_connections as u64 {
            Some(Full::Connections)
        } else if open >= self.scarcity.files() as u64 {
            Some(Full::Files)
        } else {
            self.scarcity.is_up().then_some(Full::Memory)
        };
        let facts = self.in_force.facts();
        let rules = health::Rules {
            while_leaving: facts.ready_while_leaving,
            without_master: facts.ready_without_master,
        };
        health::ready(self.drain.phase(), rules, full, &self.services())
    }

    fn started(&self) -> Verdict {
        // The probe server answers only once the workers serve: there is nothing left to wait for.
        Verdict::yes()
    }

    fn metrics(&self, format: Format) -> String {
        self.scraper.lock().unwrap_or_else(PoisonError::into_inner).scrape(self, format)
    }

    fn status(&self) -> String {
        let (now, ready, tally) = (Instant::now(), self.ready(), self.drain.tally());
        let traffic: Vec<Snapshot> = self.stats.services().map(|(_, traffic)| traffic).collect();
        let services = self.services.iter().zip(&traffic).map(|(watched, writers)| {
            let of = |listen: &[ListenAddr], traffic: &Snapshot| {
                let listen = listen.iter().map(ToString::to_string).collect();
                (listen, status::traffic(watched.bounds().0, traffic))
            };
            let readers = watched.readers.as_ref().zip(watched.reader_traffic(&traffic));
            let readers = readers.map(|((_, listen), traffic)| of(listen, traffic));
            status::service(&watched.discovery.seen(), of(&watched.listen, writers), readers, now)
        });
        let status = Status {
            schema: status::SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: self.start.elapsed().as_secs_f64(),
            phase: self.drain.phase().name(),
            ready: ready.ok,
            not_ready_because: ready.reasons,
            config_hash: self.in_force.facts().hash.clone(),
            config: self.config_status(now),
            drain: status::Drain {
                open: tally.open,
                left: tally.left,
                asked: tally.asked,
                cut: tally.cut,
            },
            services: services.collect(),
        };
        serde_json::to_string_pretty(&status)
            .unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }

    fn page(&self) -> Cow<'static, str> {
        Cow::Borrowed(PAGE)
    }
}
