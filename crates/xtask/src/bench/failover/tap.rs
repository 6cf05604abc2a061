//! Counts what is sent to the old master, on the network and not in the server: the only witness while the server is stopped or
//! cut off. Writes are told from everything else by their first bytes.
//!
//! Deliberately absent: a look for each write. Between the moment at which Pointsman shuts its gate and its commit lies most of a
//! second, so a few looks in it suffice; and whatever falls between two looks is counted rather than left out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use harness::{Counter, in_private_namespace, pause};

/// How a writer's SET begins.
const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n";
/// Between two looks.
const EVERY: Duration = Duration::from_millis(50);

type Looks = Vec<(Instant, u64)>;

/// Looks until it is dropped.
#[derive(Debug)]
pub(super) struct Tap {
    counter: Arc<Counter>,
    looks: Arc<Mutex<Looks>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Tap {
    /// Begins to look, if packets can be counted here.
    pub(super) fn start(port: u16) -> Result<Option<Self>, String> {
        if !in_private_namespace() {
            return Ok(None);
        }
        let counter = Arc::new(Counter::of(port, SET)?);
        let (looks, stop) = (Arc::<Mutex<Looks>>::default(), Arc::<AtomicBool>::default());
        let (theirs, seen, ended) = (Arc::clone(&counter), Arc::clone(&looks), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Acquire) {
                look(&theirs, &seen);
                pause(EVERY);
            }
        });
        Ok(Some(Self { counter, looks, stop, thread: Some(thread) }))
    }

    /// Packets that begin with a SET and were sent after `moment`, up to now.
    pub(super) fn after(&self, moment: Instant) -> Option<u64> {
        look(&self.counter, &self.looks);
        sent_after(&self.looks.lock().unwrap_or_else(PoisonError::into_inner), moment)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // One that panicked has told why already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The time is that after the look, so that a look from before a moment was one in any case.
fn look(counter: &Counter, looks: &Mutex<Looks>) {
    if let Ok(packets) = counter.packets() {
        looks.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), packets));
    }
}

/// From the last look before the moment to the last one of all: rather too many than too few. `None` if there is none before.
fn sent_after(looks: &[(Instant, u64)], moment: Instant) -> Option<u64> {
    let (_, before) = looks.iter().rev().find(|(at, _)| *at <= moment)?;
    let most = looks.iter().map(|(_, packets)| *packets).max()?;
    Some(most.saturating_sub(*before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_falls_between_two_looks_is_counted() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let looks = [(at(0), 10), (at(100), 40), (at(200), 40), (at(250), 47)];
        assert_eq!(sent_after(&looks, at(99)), Some(37));
        assert_eq!(sent_after(&looks, at(220)), Some(7));
        assert_eq!(sent_after(&looks, at(260)), Some(0));
        assert_eq!(sent_after(&looks[1..], at(50)), None);
    }
}
