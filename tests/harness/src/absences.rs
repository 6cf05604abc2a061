//! When this machine was not there: for how long its cores ran nothing of ours between two moments.
//!
//! A promise in milliseconds can be held against the program only as far as the program was given
//! the time. On a shared host a core is gone for tens of milliseconds now and then, and what is to
//! be woken there waits. One thread a core sleeps for a millisecond again and again, and notes how
//! late it woke: what these watchers had to wait, a chain of processes that wake each other may
//! have had to wait, on each core in its turn. On a quiet machine the sum is nothing, and an
//! assertion that subtracts it is as strict as one that does not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::wait::pause;

const TURN: Duration = Duration::from_millis(1);
/// What a timer may be late on a machine that has nothing else to do.
const USUAL: Duration = Duration::from_millis(2);

/// From when to when a core was away.
type Kept = Arc<Mutex<Vec<(Instant, Instant)>>>;

/// Watches until it is dropped.
#[derive(Debug)]
pub struct Absences {
    over: Arc<AtomicBool>,
    cores: Vec<Kept>,
    watchers: Vec<JoinHandle<()>>,
}

impl Absences {
    /// Begins to watch every core that this process may use.
    ///
    /// # Panics
    /// If the system does not tell which these are, or gives no threads.
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

    /// How long the cores were away, added up, from one moment to another.
    #[must_use]
    pub fn between(&self, from: Instant, to: Instant) -> Duration {
        self.all(from, to).iter().sum()
    }

    /// How often one of the cores was away for at least so long, from one moment to another.
    #[must_use]
    pub fn longer_than(&self, least: Duration, from: Instant, to: Instant) -> usize {
        self.all(from, to).iter().filter(|away| **away >= least).count()
    }

    /// Every absence, as far as it lies between the two moments.
    fn all(&self, from: Instant, to: Instant) -> Vec<Duration> {
        // Who was away until now has not noted it yet.
        pause(TURN * 2);
        let within = |(left, back): &(Instant, Instant)| {
            (*back).min(to).saturating_duration_since((*left).max(from))
        };
        let of = |core: &Kept| -> Vec<Duration> {
            core.lock().unwrap_or_else(PoisonError::into_inner).iter().map(within).collect()
        };
        self.cores.iter().flat_map(of).collect()
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
    fn only_what_lies_between_the_two_moments_counts() {
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
