//! The load generator, on one core: requests at full speed or at a fixed rate, new connections; and
//! a backend.
//!
//! The backend ("sink") runs in the same event loop as the clients. It answers every GET with the
//! same 64 bytes and costs less than a Redis, so that the proxy is the bottleneck. Between the
//! measurements the loop keeps serving it: a sentinel watches it like a master, and probes must
//! find it alive.
//!
//! Each job runs for a bounded time, checks the length and the beginning of every reply, and
//! returns the resources that the processes used in exactly the time in which it counted
//! ([`Window`]).
//!
//! It has one thread, because generator and backend share a core by design, does not retry, and
//! uses no crate under test.

mod churn;
mod client;
mod engine;
mod flow;
mod meter;
mod peer;
mod sink;
mod tally;
mod tls;
mod wire;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::set_current_timer_slack;

use crate::cores::pin;

pub use churn::Churn;
pub use engine::Engine;
pub(crate) use flow::pair;
pub use flow::{Cost, Flow, Measured, Pace, Reply, Target};
pub use meter::{Meter, Window, private_memory};
pub use tally::Latency;
pub use tls::{Handshake, Tls};
pub use wire::Workload;

type Job = Box<dyn FnOnce(&mut Engine) + Send>;

/// The longest time that the loop sleeps before it looks for a job.
const PATIENCE: Duration = Duration::from_millis(5);

/// The thread that runs the event loop. It ends when this is dropped.
#[derive(Debug)]
pub struct Loader {
    jobs: Option<Sender<Job>>,
    sink: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Starts the thread on a core, with the backend on a port of `ip` that the kernel chooses.
    ///
    /// # Errors
    /// If the core, a port or a thread is not available.
    pub fn start(core: usize, ip: IpAddr) -> io::Result<Self> {
        let (jobs, inbox) = channel::<Job>();
        let (said, heard) = channel();
        let thread = std::thread::Builder::new().name("load".to_owned()).spawn(move || {
            let made = settle_on(core).and_then(|()| Engine::new(SocketAddr::new(ip, 0)));
            let (engine, made) = made
                .map_or_else(|error| (None, Err(error)), |(engine, sink)| (Some(engine), Ok(sink)));
            // The caller waits for this message.
            let _ = said.send(made);
            if let Some(engine) = engine {
                serve(engine, &inbox);
            }
        })?;
        let sink = heard.recv().map_err(|_| io::Error::other("the thread for load ended"))??;
        Ok(Self { jobs: Some(jobs), sink, thread: Some(thread) })
    }

    /// The address of the backend.
    #[must_use]
    pub fn sink(&self) -> SocketAddr {
        self.sink
    }

    /// Runs a job on the event loop and returns its result.
    ///
    /// # Errors
    /// Those of the job.
    pub fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Engine) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let gone = || io::Error::other("the thread for load is gone");
        let (answer, result) = channel();
        let job: Job = Box::new(move |engine| {
            // The receiver waits; if it is gone, the result is not needed.
            let _ = answer.send(job(engine));
        });
        self.jobs.as_ref().ok_or_else(gone)?.send(job).map_err(|_| gone())?;
        result.recv().map_err(|_| gone())?
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}

/// Runs the loop until the sender of jobs is dropped.
fn serve(mut engine: Engine, inbox: &Receiver<Job>) {
    loop {
        match inbox.try_recv() {
            Ok(job) => job(&mut engine),
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                if engine.turn(PATIENCE).is_err() {
                    return;
                }
            }
        }
    }
}

/// Pins the thread to a core and switches off the rounding of timers to 50 µs.
fn settle_on(core: usize) -> io::Result<()> {
    pin(core).map_err(io::Error::other)?;
    set_current_timer_slack(NonZeroU64::new(1))?;
    Ok(())
}
