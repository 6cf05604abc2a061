//! What happened when, apart from operations: faults, notes, what sentinels published, and which
//! server was a master by its own account.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Instant;

use harness::{Events, Node};

use super::operation::Micros;
use super::schedule::Fault;
use super::switches::Sighting;
use crate::lock;

/// Notes that are kept of an epoch.
const NOTES: usize = 4_000;

/// A fault that was brought about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Injection {
    pub(super) fault: Fault,
    /// The server it was about; `None` for sentinels and proxies.
    pub(super) node: Option<SocketAddr>,
    pub(super) begin: Micros,
    pub(super) end: Option<Micros>,
}

/// A server that became or ceased to be a master by its own account, or began another history of
/// replication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RoleChange {
    pub(super) node: SocketAddr,
    /// When it was asked the last time before.
    pub(super) before: Micros,
    pub(super) at: Micros,
    pub(super) is_master: bool,
    pub(super) replication: String,
}

#[derive(Debug)]
pub(super) struct Timeline {
    start: Instant,
    notes: Mutex<Vec<(Micros, String)>>,
    faults: Mutex<Vec<Injection>>,
    roles: Mutex<Vec<RoleChange>>,
    heard: Mutex<Vec<Events>>,
}

impl Timeline {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            notes: Mutex::default(),
            faults: Mutex::default(),
            roles: Mutex::default(),
            heard: Mutex::default(),
        }
    }

    pub(super) fn now(&self) -> Micros {
        self.micros(Instant::now())
    }

    pub(super) fn instant(&self, at: Micros) -> Instant {
        self.start + std::time::Duration::from_micros(at)
    }

    fn micros(&self, at: Instant) -> Micros {
        at.saturating_duration_since(self.start).as_micros().try_into().unwrap_or(Micros::MAX)
    }

    /// Records the events of a sentinel; to be called again after its restart.
    ///
    /// # Panics
    /// If it cannot be reached.
    pub(super) fn listen(&self, sentinel: &Node) {
        let events = Events::of(sentinel);
        lock(&self.heard).push(events);
    }

    pub(super) fn note(&self, what: &str) {
        let mut notes = lock(&self.notes);
        if notes.len() < NOTES {
            notes.push((self.now(), what.to_owned()));
        }
    }

    /// A fault begins; the number to end it with.
    pub(super) fn begin(&self, fault: Fault, node: Option<SocketAddr>, place: &str) -> usize {
        self.note(&format!("begin of: {}{place}", fault.name()));
        let mut faults = lock(&self.faults);
        faults.push(Injection { fault, node, begin: self.now(), end: None });
        faults.len() - 1
    }

    pub(super) fn end(&self, number: usize) {
        if let Some(act) = lock(&self.faults).get_mut(number) {
            act.end = Some(self.now());
            self.note(&format!("end of: {}", act.fault.name()));
        }
    }

    /// The fault turned out to be another one.
    pub(super) fn rename(&self, number: usize, fault: Fault) {
        if let Some(act) = lock(&self.faults).get_mut(number) {
            act.fault = fault;
        }
    }

    pub(super) fn turn(&self, turn: RoleChange) {
        let RoleChange { node, is_master, replication, .. } = &turn;
        let role = if *is_master { "a master" } else { "no master" };
        let short: String = replication.chars().take(8).collect();
        self.note(&format!("{node} says that it is {role}, replication id {short}"));
        lock(&self.roles).push(turn);
    }

    pub(super) fn roles(&self) -> Vec<RoleChange> {
        lock(&self.roles).clone()
    }

    /// Takes the faults and notes of the epoch that is over.
    pub(super) fn take(&self) -> (Vec<Injection>, Vec<(Micros, String)>) {
        (std::mem::take(&mut *lock(&self.faults)), std::mem::take(&mut *lock(&self.notes)))
    }

    /// What sentinels published after `since`, in order.
    pub(super) fn sightings(&self, since: Micros) -> Vec<Sighting> {
        let heard = lock(&self.heard);
        let mut all: Vec<Sighting> = heard
            .iter()
            .flat_map(Events::all)
            .map(|it| Sighting {
                at: self.micros(it.at),
                from: it.from,
                channel: it.channel,
                payload: it.payload,
            })
            .filter(|it| it.at >= since)
            .collect();
        all.sort_by_key(|it| it.at);
        all
    }
}
