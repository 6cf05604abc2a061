//! The counts that all writers share.
//!
//! Acknowledged keys are kept as ranges of numbers, one list per writer. Nearly all numbers are
//! consecutive, so the memory grows with the errors and not with the writes.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::lock;

/// Shorter intervals without an acknowledged write are not recorded.
const NOTED: Duration = Duration::from_millis(20);
/// The longest list of intervals.
const MAX_GAPS: usize = 10_000;
/// The longest list of error texts.
const MAX_ERRORS: usize = 8;

/// The results of the writers and readers so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Writes answered with `+OK`.
    pub acknowledged: u64,
    /// Failed connections, broken ones, timeouts and error replies.
    pub errors: u64,
    /// Connections that were opened.
    pub connections: u64,
    /// Replies to readers that lacked a write acknowledged before the read, or were no value.
    pub wrong: u64,
    /// The longest interval between two acknowledged writes of any writers.
    pub longest_gap: Duration,
}

/// An interval without acknowledged writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The last acknowledged write before.
    pub from: Instant,
    /// The first acknowledged write after.
    pub to: Instant,
}

impl Gap {
    /// Its length.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.to.saturating_duration_since(self.from)
    }
}

/// An acknowledged write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) at: Instant,
    pub(super) writer: usize,
    pub(super) number: u64,
}

/// Numbers of acknowledged keys, one list of ranges per writer.
pub(super) type Ranges = Vec<Vec<Range<u64>>>;

#[derive(Debug)]
pub(super) struct Tally {
    pub(super) stop: AtomicBool,
    start: Instant,
    acknowledged: AtomicU64,
    errors: AtomicU64,
    connections: AtomicU64,
    wrong: AtomicU64,
    journal: Option<Mutex<Vec<Entry>>>,
    rhythm: Mutex<Rhythm>,
    texts: Mutex<VecDeque<String>>,
    writers: Vec<Mutex<Vec<Range<u64>>>>,
    streams: Vec<Mutex<Option<TcpStream>>>,
}

/// When writes were acknowledged.
#[derive(Debug, Default)]
struct Rhythm {
    last: Option<Instant>,
    longest: Duration,
    gaps: Vec<Gap>,
}

impl Rhythm {
    fn beat(&mut self, at: Instant) {
        if let Some(from) = self.last {
            let gap = Gap { from, to: at };
            self.longest = self.longest.max(gap.length());
            if gap.length() > NOTED && self.gaps.len() < MAX_GAPS {
                self.gaps.push(gap);
            }
        }
        self.last = self.last.max(Some(at));
    }
}

impl Tally {
    /// `readers` have connections, too. With a journal, every acknowledged write is kept with its
    /// time, so the load may not run for hours.
    pub(super) fn new(writers: usize, readers: usize, journal: bool) -> Self {
        Self {
            stop: AtomicBool::new(false),
            start: Instant::now(),
            acknowledged: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            journal: journal.then(Mutex::default),
            rhythm: Mutex::default(),
            texts: Mutex::default(),
            writers: (0..writers).map(|_| Mutex::default()).collect(),
            streams: (0..writers + readers).map(|_| Mutex::default()).collect(),
        }
    }

    pub(super) fn connected(&self, writer: usize, stream: &TcpStream) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        *lock(&self.streams[writer]) = stream.try_clone().ok();
    }

    pub(super) fn acknowledge(&self, writer: usize, number: u64) {
        let at = Instant::now();
        lock(&self.rhythm).beat(at);
        if let Some(journal) = &self.journal {
            lock(journal).push(Entry { at, writer, number });
        }
        if let Some(ranges) = self.writers.get(writer) {
            extend(&mut lock(ranges), number);
        }
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
    }

    /// The write acknowledged last, if there is a journal.
    pub(super) fn newest(&self) -> Option<Entry> {
        self.journal.as_ref().and_then(|journal| lock(journal).last().copied())
    }

    pub(super) fn journal(&self) -> Vec<Entry> {
        self.journal.as_ref().map(|journal| lock(journal).clone()).unwrap_or_default()
    }

    /// Counts a wrong reply to a reader.
    pub(super) fn wrong(&self) {
        self.wrong.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn fail(&self, text: String) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let mut texts = lock(&self.texts);
        texts.retain(|known| *known != text);
        texts.push_back(text);
        if texts.len() > MAX_ERRORS {
            texts.pop_front();
        }
    }

    /// Ends every read and write in progress.
    pub(super) fn cut(&self) {
        for stream in self.streams.iter().filter_map(|stream| lock(stream).take()) {
            // Fails only for a closed stream.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            acknowledged: self.acknowledged.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            connections: self.connections.load(Ordering::Relaxed),
            wrong: self.wrong.load(Ordering::Relaxed),
            longest_gap: lock(&self.rhythm).longest,
        }
    }

    pub(super) fn gaps(&self) -> Vec<Gap> {
        lock(&self.rhythm).gaps.clone()
    }

    pub(super) fn since_last(&self, now: Instant) -> Duration {
        now.saturating_duration_since(lock(&self.rhythm).last.unwrap_or(self.start))
    }

    pub(super) fn errors(&self) -> Vec<String> {
        lock(&self.texts).iter().cloned().collect()
    }

    pub(super) fn acknowledged(&self) -> Ranges {
        self.writers.iter().map(|ranges| lock(ranges).clone()).collect()
    }

    pub(super) fn take_acknowledged(&self) -> Ranges {
        self.writers.iter().map(|ranges| std::mem::take(&mut *lock(ranges))).collect()
    }

    pub(super) fn give_back(&self, taken: Ranges) {
        for (ranges, mut taken) in self.writers.iter().zip(taken) {
            let mut ranges = lock(ranges);
            taken.append(&mut ranges);
            *ranges = taken;
        }
    }
}

fn extend(ranges: &mut Vec<Range<u64>>, number: u64) {
    match ranges.last_mut() {
        Some(last) if last.end == number => last.end += 1,
        _ => ranges.push(number..number + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_consecutive_numbers() {
        let mut ranges = Vec::new();
        for number in [0, 1, 2, 5, 6, 9] {
            extend(&mut ranges, number);
        }
        assert_eq!(ranges, [0..3, 5..7, 9..10]);
    }

    #[test]
    fn measures_longest_gap_of_all_writers() {
        let start = Instant::now();
        let mut rhythm = Rhythm::default();
        for ms in [0, 5, 305, 310, 360] {
            rhythm.beat(start + Duration::from_millis(ms));
        }
        assert_eq!(rhythm.longest, Duration::from_millis(300));
        assert_eq!(
            rhythm.gaps.iter().map(Gap::length).collect::<Vec<_>>(),
            [300, 50].map(Duration::from_millis)
        );
    }

    #[test]
    fn puts_returned_ranges_first() {
        let tally = Tally::new(1, 0, false);
        tally.acknowledge(0, 0);
        let taken = tally.take_acknowledged();
        tally.acknowledge(0, 1);
        tally.give_back(taken);
        assert_eq!(tally.acknowledged(), [vec![0..1, 1..2]]);
    }
}
