//! Measures when the CPU cores ran none of our threads, so that tests can subtract it from
//! deadlines.
//!
//! A promise in milliseconds can be checked only for the time that the program was given. On a
//! shared host a core may be taken away for tens of milliseconds, and threads due on it wait. One
//! thread per core sleeps for a millisecond at a time and records how late it woke up. A chain of
//! processes that wake each other may wait that long on each core in turn. On a quiet machine the
//! sum is zero, so an assertion that subtracts it is as strict as one that does not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::wait::pause;

const TURN: Duration = Duration::from_millis(1);
/// How late a timer may be on an idle machine.
const USUAL: Duration = Duration::from_millis(2);

/// The intervals during which a core was away.
type Kept = Arc<Mutex<Vec<(Instant, Instant)>>>;

/// Watches the cores until it is dropped.
#[derive(Debug)]
pub struct Absences {
    over: Arc<AtomicBool>,
    cores: Vec<Kept>,
    watchers: Vec<JoinHandle<()>>,
}

impl Absences {
    /// Starts to watch every core that this process may use.
    ///
    /// # Panics
    /// If the system does not report the cores, or a thread cannot be started.
    #[must_use]
    pub fn watch() -> Self {
        let allowed = sched_getaffinity(None).expect("the cores of this process");
        let over = Arc::<AtomicBool>::default();
        let (mut cores, mut watchers) = (Vec::new(), Vec::new());
        for core in (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)) {
            let (kept, over) = (Kept::default(), Arc::clone(&over));
            cores.push(Arc::clone(&kept));
            let body = move || {
                let mut only = CpuSet::new();
                only.set(core);
                sched_setaffinity(None, &only).expect("a core that is allowed");
                while !over.load(Ordering::Relaxed) {
                    let due = Instant::now() + TURN;
                    pause(TURN);
                    let woke = Instant::now();
                    if woke.saturating_duration_since(due) > USUAL {
                        kept.lock().unwrap_or_else(PoisonError::into_inner).push((due, woke));
                    }
                }
            };
            let watcher = std::thread::Builder::new().stack_size(64 * 1024).spawn(body);
            watchers.push(watcher.expect("a thread"));
        }
        Self { over, cores, watchers }
    }

    /// The total time that cores were away between two instants.
    #[must_use]
    pub fn between(&self, from: Instant, to: Instant) -> Duration {
        self.all(from, to).iter().sum()
    }

    /// The longest time that a core was away between two instants.
    #[must_use]
    pub fn longest(&self, from: Instant, to: Instant) -> Duration {
        self.all(from, to).into_iter().max().unwrap_or_default()
    }

    /// How often a core was away for at least `least` between two instants.
    #[must_use]
    pub fn longer_than(&self, least: Duration, from: Instant, to: Instant) -> usize {
        self.all(from, to).iter().filter(|away| **away >= least).count()
    }

    /// Every absence that overlaps the interval between the two instants, with its begin and end.
    #[must_use]
    pub fn within(&self, from: Instant, to: Instant) -> Vec<(Instant, Instant)> {
        // A core that was away until now has not recorded it yet.
        pause(TURN * 2);
        let overlaps = |(left, back): &(Instant, Instant)| *left < to && *back > from;
        let of = |core: &Kept| -> Vec<(Instant, Instant)> {
            let kept = core.lock().unwrap_or_else(PoisonError::into_inner);
            kept.iter().copied().filter(overlaps).collect()
        };
        self.cores.iter().flat_map(of).collect()
    }

    /// The length of every absence, clipped to the interval between the two instants.
    fn all(&self, from: Instant, to: Instant) -> Vec<Duration> {
        let within = self.within(from, to).into_iter();
        within.map(|(left, back)| back.min(to).saturating_duration_since(left.max(from))).collect()
    }
}

impl Drop for Absences {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for watcher in self.watchers.drain(..) {
            let _ = watcher.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clips_absences_to_the_interval() {
        let watch = Absences::watch();
        let start = Instant::now() + Duration::from_secs(3600);
        let at = |ms| start + Duration::from_millis(ms);
        watch.cores[0].lock().unwrap().extend([(at(0), at(100)), (at(200), at(210))]);
        assert_eq!(watch.between(at(50), at(205)), Duration::from_millis(55));
        assert_eq!(watch.between(at(110), at(190)), Duration::ZERO);
        let count =
            |least, from, to| watch.longer_than(Duration::from_millis(least), at(from), at(to));
        assert_eq!(
            (count(10, 0, 300), count(11, 0, 300), count(10, 95, 300), count(101, 0, 300)),
            (2, 1, 1, 0)
        );
        if let Some(second) = watch.cores.get(1) {
            second.lock().unwrap().push((at(60), at(140)));
            assert_eq!(watch.between(at(50), at(205)), Duration::from_millis(55 + 80));
        }
    }
}
