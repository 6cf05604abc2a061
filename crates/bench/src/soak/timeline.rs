//! What happened when: deeds of the soak, observations of its clients, and what sentinels
//! published. A finding is printed with the ten seconds before it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use harness::{Events, Node};

use super::judge::Deed;
use super::schedule::Fault;
use super::switches::Sighting;

/// How far back a finding is explained.
const BEFORE: Duration = Duration::from_secs(10);
/// Notes of this many are kept, and lines of this many are printed with a finding.
const NOTES: usize = 4_000;
const LINES: usize = 150;

#[derive(Debug)]
pub(super) struct Timeline {
    start: Instant,
    notes: Mutex<VecDeque<(Instant, String)>>,
    deeds: Mutex<Vec<Deed>>,
    heard: Mutex<Vec<Events>>,
}

impl Timeline {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            notes: Mutex::default(),
            deeds: Mutex::default(),
            heard: Mutex::default(),
        }
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
        if notes.len() == NOTES {
            notes.pop_front();
        }
        notes.push_back((Instant::now(), what.to_owned()));
    }

    /// A fault begins; the number to end it with.
    pub(super) fn begin(&self, fault: Fault, node: Option<SocketAddr>) -> usize {
        let place = node.map(|node| format!(" ({node})")).unwrap_or_default();
        self.note(&format!("begin of: {}{place}", fault.name()));
        let mut deeds = lock(&self.deeds);
        deeds.push(Deed { fault, node, begin: Instant::now(), end: None });
        deeds.len() - 1
    }

    pub(super) fn end(&self, number: usize) {
        if let Some(deed) = lock(&self.deeds).get_mut(number) {
            deed.end = Some(Instant::now());
            self.note(&format!("end of: {}", deed.fault.name()));
        }
    }

    /// The fault turned out to be another one.
    pub(super) fn rename(&self, number: usize, fault: Fault) {
        if let Some(deed) = lock(&self.deeds).get_mut(number) {
            deed.fault = fault;
        }
    }

    /// Takes the deeds of the step that is over.
    pub(super) fn take_deeds(&self) -> Vec<Deed> {
        std::mem::take(&mut *lock(&self.deeds))
    }

    /// What sentinels published after `since`, in order.
    pub(super) fn sightings(&self, since: Instant) -> Vec<Sighting> {
        let heard = lock(&self.heard);
        let all = heard.iter().flat_map(Events::all).filter(|it| it.at >= since);
        let mut all: Vec<Sighting> = all
            .map(|it| Sighting {
                at: it.at,
                from: it.from,
                channel: it.channel,
                payload: it.payload,
            })
            .collect();
        all.sort_by_key(|it| it.at);
        all
    }

    /// The lines of the ten seconds before `at` and the second after it.
    pub(super) fn around(&self, at: Instant) -> Vec<String> {
        let (from, to) =
            (at.checked_sub(BEFORE).unwrap_or(self.start), at + Duration::from_secs(1));
        let mut lines: Vec<(Instant, String)> = lock(&self.notes).iter().cloned().collect();
        lines.extend(
            self.sightings(from)
                .into_iter()
                .map(|it| (it.at, format!("{}: {} {}", it.from, it.channel, it.payload))),
        );
        lines.retain(|(when, _)| (from..=to).contains(when));
        lines.sort_by_key(|(when, _)| *when);
        let skipped = lines.len().saturating_sub(LINES);
        let print = |(when, what): (Instant, String)| {
            format!("{:>9.3} s  {what}", when.saturating_duration_since(self.start).as_secs_f64())
        };
        lines.into_iter().skip(skipped).map(print).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_last_ten_seconds_only() {
        let timeline = Timeline::new();
        timeline.note("first");
        let number = timeline.begin(Fault::Reload, None);
        timeline.end(number);
        let now = Instant::now();
        let lines = timeline.around(now);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].ends_with("first") && lines[2].ends_with("end of: reload"));
        assert!(timeline.around(now + 2 * BEFORE).is_empty());
    }
}
