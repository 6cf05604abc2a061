//! Writers that count what was acknowledged, and can tell afterwards what of it is gone.
//!
//! Every write has a key of its own, tried once and never again: so each key is either acknowledged
//! (it must be there afterwards, or it was lost) or not (nobody may say). A writer whose connection
//! fails, or who gets an error reply, counts it and connects anew at once, as a good client does.
//! All writers share one clock of acknowledged writes, so the longest time without any is the
//! outage as a user sees it.

mod tally;
mod verify;
mod writer;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use tally::{Counts, Gap};
pub use verify::Verdict;

use crate::client::Login;
use tally::Tally;
use writer::{Plan, Writer};

/// Collects the options; [`start`](Self::start) starts the writers.
#[derive(Debug, Clone)]
pub struct LoadBuilder {
    plan: Plan,
    writers: usize,
    rate: Option<u32>,
}

impl LoadBuilder {
    /// How many writers, each with a connection and a thread of its own. Default: 8.
    #[must_use]
    pub fn writers(mut self, count: usize) -> Self {
        self.writers = count;
        self
    }

    /// Writes a second, all writers together. Default: as fast as they are answered.
    #[must_use]
    pub fn rate(mut self, per_second: u32) -> Self {
        self.rate = Some(per_second);
        self
    }

    /// What all keys start with. Default: `load`.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.plan.prefix);
        self
    }

    /// How the writers, and the verification, authenticate.
    #[must_use]
    pub fn login(mut self, login: Option<&Login>) -> Self {
        self.plan.login = login.cloned();
        self
    }

    /// How long a writer waits for a connection and for each reply. Default: 5 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.plan.timeout = timeout;
        self
    }

    /// Starts writing. Whether and when the first write succeeds is told by [`Load::counts`].
    #[must_use]
    pub fn start(mut self) -> Load {
        let tally = Arc::new(Tally::new(self.writers));
        let writers = u32::try_from(self.writers).unwrap_or(u32::MAX);
        self.plan.interval = self.rate.map(|rate| Duration::from_secs(1) * writers / rate.max(1));
        let threads = (0..self.writers)
            .map(|index| {
                let mut writer = Writer::new(index, self.plan.clone(), Arc::clone(&tally));
                std::thread::spawn(move || writer.run())
            })
            .collect();
        Load { tally, threads, prefix: self.plan.prefix, login: self.plan.login }
    }
}

/// Running or stopped writers and their count. Dropping it stops them.
#[derive(Debug)]
pub struct Load {
    tally: Arc<Tally>,
    threads: Vec<JoinHandle<()>>,
    prefix: String,
    login: Option<Login>,
}

impl Load {
    /// Writers that connect to one address, as clients of a proxy do.
    #[must_use]
    pub fn to(addr: SocketAddr) -> LoadBuilder {
        Self::to_whoever(move || Some(addr))
    }

    /// Writers that ask before each connecting where to connect, as clients do that know of
    /// Sentinel. `None` means nowhere at the moment and counts as an error.
    #[must_use]
    pub fn to_whoever(
        find: impl Fn() -> Option<SocketAddr> + Send + Sync + 'static,
    ) -> LoadBuilder {
        let plan = Plan {
            find: writer::Find(Arc::new(find)),
            prefix: "load".to_owned(),
            login: None,
            timeout: Duration::from_secs(5),
            interval: None,
        };
        LoadBuilder { plan, writers: 8, rate: None }
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.tally.counts()
    }

    /// Every time without an acknowledged write that was longer than 20 ms, in order; without the
    /// one that goes on now.
    #[must_use]
    pub fn gaps(&self) -> Vec<Gap> {
        self.tally.gaps()
    }

    /// How long ago the last write was acknowledged; since the start, if none was.
    #[must_use]
    pub fn since_last(&self) -> Duration {
        self.tally.since_last(Instant::now())
    }

    /// The last few distinct errors, newest last.
    #[must_use]
    pub fn errors(&self) -> Vec<String> {
        self.tally.errors()
    }

    /// Stops the writers; a write under way is waited for a second, and then cut off without being
    /// counted.
    pub fn stop(&mut self) {
        self.tally.stop.store(true, Ordering::Release);
        let deadline = Instant::now() + Duration::from_secs(1);
        while Instant::now() < deadline && self.threads.iter().any(|thread| !thread.is_finished()) {
            crate::wait::pause(Duration::from_millis(2));
        }
        self.tally.cut();
        for thread in self.threads.drain(..) {
            // A writer that panicked has told why already.
            let _ = thread.join();
        }
    }

    /// Looks for every acknowledged key on the server at `master`.
    ///
    /// # Errors
    /// Of the connection; the count is then unchanged and can be asked again.
    pub fn verify(&self, master: SocketAddr) -> std::io::Result<Verdict> {
        verify::verify(&self.tally.acknowledged(), &self.prefix, master, self.login.as_ref())
    }

    /// As [`verify`](Self::verify), but then forgets the keys that were looked for and removes them
    /// from the server, so that a load can run for hours without filling anyone's memory. What it
    /// finds missing it tells once.
    ///
    /// # Errors
    /// Of the connection; the keys are then not forgotten.
    pub fn settle(&self, master: SocketAddr) -> std::io::Result<Verdict> {
        let taken = self.tally.take_acknowledged();
        let verdict = verify::verify(&taken, &self.prefix, master, self.login.as_ref());
        match verdict {
            Ok(verdict) => {
                // What cannot be removed only takes room.
                let _ = verify::remove(&taken, &self.prefix, master, self.login.as_ref());
                Ok(verdict)
            }
            Err(error) => {
                self.tally.give_back(taken);
                Err(error)
            }
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Locks although a thread may have panicked: counts are whole at any time.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
