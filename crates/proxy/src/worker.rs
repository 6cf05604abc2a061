//! Workers: a thread, a single-threaded runtime, its listeners and their sessions. Nothing moves between workers.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use drain::{Drain, Phase};
use tracing::error;

use crate::bind::Bound;
use crate::limits::Limit;
use crate::listener::{self, Post};
use crate::stats::{Counters, Stats};

/// A worker beats this often.
const BEAT: Duration = Duration::from_millis(200);

/// How many workers this process should have: one for each core it may use, by affinity and the cgroup's quota.
#[must_use]
pub fn worker_count() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Why the workers do not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// No thread.
    #[error("cannot start the thread of worker {0}")]
    Thread(usize, #[source] io::Error),
}

/// Tells whether a worker's loop turns.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    start: Instant,
    beat_ms: Arc<AtomicU64>,
}

impl Heartbeat {
    fn new(start: Instant) -> Self {
        let heartbeat = Self { start, beat_ms: Arc::default() };
        heartbeat.beat();
        heartbeat
    }

    fn beat(&self) {
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.beat_ms.store(ms, Ordering::Relaxed);
    }

    /// How long ago the loop last turned; it turns every 200 ms at least.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.start.elapsed().saturating_sub(Duration::from_millis(self.beat_ms.load(Ordering::Relaxed)))
    }
}

/// The data plane at work.
pub struct Running {
    stats: Stats,
    heartbeats: Vec<Heartbeat>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    /// The counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats.clone()
    }

    /// One for each worker.
    #[must_use]
    pub fn heartbeats(&self) -> &[Heartbeat] {
        &self.heartbeats
    }

    /// Whether a worker's thread has ended, which none does before the drain has stopped.
    #[must_use]
    pub fn lost_a_worker(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Waits for the workers; they end when the drain has stopped. Blocks the calling thread.
    pub fn join(self) {
        for thread in self.threads {
            // A worker's panic has been reported by the panic hook.
            drop(thread.join());
        }
    }
}

impl Bound {
    /// Starts to serve. `total` bounds the client connections of all services together.
    ///
    /// # Errors
    ///
    /// [`ServeError`] if a thread cannot be started; those that were end with the drain.
    pub fn serve(self, drain: &Drain, total: usize) -> Result<Running, ServeError> {
        let total = Limit::new(total);
        let start = Instant::now();
        let mut per_worker: Vec<Vec<(Post, Vec<TcpListener>)>> = (0..self.workers).map(|_| Vec::new()).collect();
        let mut stats = Vec::new();
        for bound in self.services {
            let limit = Limit::new(bound.service.options.max_connections);
            let service = Arc::new(bound.service);
            let mut counters = Vec::with_capacity(self.workers);
            for (posts, sockets) in per_worker.iter_mut().zip(bound.sockets) {
                let own = Arc::new(Counters::default());
                counters.push(Arc::clone(&own));
                let post = Post {
                    service: Arc::clone(&service),
                    counters: own,
                    limit: Arc::clone(&limit),
                    total: Arc::clone(&total),
                    drain: drain.clone(),
                };
                posts.push((post, sockets));
            }
            stats.push((counters, limit));
        }
        let stats = Stats::new(stats, total);
        let (mut heartbeats, mut threads) = (Vec::new(), Vec::new());
        for (number, posts) in per_worker.into_iter().enumerate() {
            let heartbeat = Heartbeat::new(start);
            heartbeats.push(heartbeat.clone());
            let drain = drain.clone();
            let thread = std::thread::Builder::new()
                .name(format!("worker-{number}"))
                .spawn(move || work(number, posts, &drain, &heartbeat))
                .map_err(|error| ServeError::Thread(number, error))?;
            threads.push(thread);
        }
        Ok(Running { stats, heartbeats, threads })
    }
}

fn work(number: usize, posts: Vec<(Post, Vec<TcpListener>)>, drain: &Drain, heartbeat: &Heartbeat) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return error!(worker = number, "a worker has no runtime: {error}"),
    };
    runtime.block_on(async {
        for (post, sockets) in posts {
            let post = Arc::new(post);
            for socket in sockets {
                // The door is taken before the drain can find the house empty.
                let door = drain.door();
                tokio::spawn(listener::serve(socket, Arc::clone(&post), door));
            }
        }
        let mut beat = tokio::time::interval(BEAT);
        loop {
            tokio::select! {
                _ = beat.tick() => heartbeat.beat(),
                () = drain.reached(Phase::Stopped) => break,
            }
        }
    });
    // What is still there has had its time.
    runtime.shutdown_background();
}
