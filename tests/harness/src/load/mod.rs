//! Writers that record which writes were acknowledged, and can check later which of them are lost.
//!
//! Every write has its own key and is attempted once. So each key is either acknowledged (it must
//! exist later, or it was lost) or not (either is correct). A writer whose connection fails, or
//! that gets an error reply, counts the error and reconnects at once. All writers share one clock
//! of acknowledged writes, so the longest interval without any is the outage that a user sees.
//!
//! Readers ask for the write acknowledged last. The clients may also be those of another program,
//! which reports what happened to it on its output.

mod program;
mod reader;
mod tally;
mod verify;
mod writer;

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use tally::{Counts, Gap};
pub use verify::Verdict;

use crate::client::{Client, Login};
use crate::tls::Tls;
use program::Program;
use tally::{Entry, Tally};
use writer::{Plan, Writer};

/// The pause of a writer after a failure; short, because the outage is measured and not the
/// back-off.
const BACK_OFF: Duration = Duration::from_millis(5);
/// How long a client waits for a sentinel.
const ASKING: Duration = Duration::from_millis(500);

/// Collects the options; [`start`](Self::start) starts the writers.
#[derive(Debug, Clone)]
pub struct LoadBuilder {
    plan: Plan,
    writers: usize,
    readers: usize,
    rate: Option<u32>,
    journal: bool,
}

impl LoadBuilder {
    /// Number of writers, each with its own connection and thread. Default: 8.
    #[must_use]
    pub fn writers(mut self, count: usize) -> Self {
        self.writers = count;
        self
    }

    /// Writes per second of all writers together. Default: as fast as they are answered.
    #[must_use]
    pub fn rate(mut self, per_second: u32) -> Self {
        self.rate = Some(per_second);
        self
    }

    /// The prefix of all keys. Default: `load`.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.plan.prefix);
        self
    }

    /// The credentials of the writers and of the verification.
    #[must_use]
    pub fn login(mut self, login: Option<&Login>) -> Self {
        self.plan.login = login.cloned();
        self
    }

    /// Makes the writers speak TLS. The verification does not.
    #[must_use]
    pub fn tls(mut self, tls: &Tls) -> Self {
        self.plan.tls = Some(tls.clone());
        self
    }

    /// How long a writer waits for a connection and for each reply. Default: 5 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.plan.timeout = timeout;
        self
    }

    /// How long a client waits after a failure. Default: 5 ms.
    #[must_use]
    pub fn back_off(mut self, pause: Duration) -> Self {
        self.plan.back_off = pause;
        self
    }

    /// Keeps the time of every acknowledged write, for [`Load::kept`], and adds readers with
    /// connections of their own that ask for the write acknowledged last, fifty times per second.
    #[must_use]
    pub fn journal(mut self, readers: usize) -> Self {
        (self.journal, self.readers) = (true, readers);
        self
    }

    /// Starts the clients of another program instead. It reports each outcome in a line of its
    /// output: `ok WRITER NUMBER`, `err TEXT`, or `wrong` for a reply to a reader. It writes the
    /// keys `PREFIX:WRITER:NUMBER`, each once.
    ///
    /// # Errors
    /// A message for people, if it does not start.
    pub fn start_program(self, command: Command) -> Result<Load, String> {
        let tally = Arc::new(Tally::new(self.writers, 0, self.journal));
        let (program, thread) = Program::start(command, Arc::clone(&tally))?;
        let threads = vec![thread];
        let (prefix, login) = (self.plan.prefix, self.plan.login);
        Ok(Load { tally, threads, prefix, login, program: Some(program) })
    }

    /// Starts the writers without waiting for the first write; see [`Load::counts`].
    #[must_use]
    pub fn start(mut self) -> Load {
        let tally = Arc::new(Tally::new(self.writers, self.readers, self.journal));
        let writers = u32::try_from(self.writers).unwrap_or(u32::MAX);
        self.plan.interval = self.rate.map(|rate| Duration::from_secs(1) * writers / rate.max(1));
        let writers = (0..self.writers).map(|index| {
            let mut writer = Writer::new(index, self.plan.clone(), Arc::clone(&tally));
            std::thread::spawn(move || writer.run())
        });
        let readers = (0..self.readers).map(|index| {
            let (plan, tally) = (self.plan.clone(), Arc::clone(&tally));
            std::thread::spawn(move || reader::run(self.writers + index, &plan, &tally))
        });
        let threads = writers.chain(readers).collect();
        Load { tally, threads, prefix: self.plan.prefix, login: self.plan.login, program: None }
    }
}

/// Running or stopped writers and their counts. Dropping it stops them.
#[derive(Debug)]
pub struct Load {
    tally: Arc<Tally>,
    threads: Vec<JoinHandle<()>>,
    prefix: String,
    login: Option<Login>,
    program: Option<Program>,
}

impl Load {
    /// Writers that connect to one address, like clients of a proxy.
    #[must_use]
    pub fn to(addr: SocketAddr) -> LoadBuilder {
        Self::to_resolved(move || Some(addr))
    }

    /// Writers that resolve the address before each connection, like clients that support Sentinel.
    /// `None` means no address at the moment and counts as an error.
    #[must_use]
    pub fn to_resolved(
        find: impl Fn() -> Option<SocketAddr> + Send + Sync + 'static,
    ) -> LoadBuilder {
        let plan = Plan {
            find: writer::Find(Arc::new(find)),
            prefix: "load".to_owned(),
            login: None,
            tls: None,
            timeout: Duration::from_secs(5),
            interval: None,
            back_off: BACK_OFF,
        };
        LoadBuilder { plan, writers: 8, readers: 0, rate: None, journal: false }
    }

    /// Writers that ask the first sentinel that answers before each connection.
    #[must_use]
    pub fn to_named_by(sentinels: Vec<SocketAddr>, name: &str) -> LoadBuilder {
        let name = name.to_owned();
        Self::to_resolved(move || sentinels.iter().find_map(|it| named_by(*it, &name)))
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.tally.counts()
    }

    /// Every interval over 20 ms without an acknowledged write, in order, without the current one.
    #[must_use]
    pub fn gaps(&self) -> Vec<Gap> {
        self.tally.gaps()
    }

    /// When each acknowledged write of the journal that `verdict` found was acknowledged, in order.
    #[must_use]
    pub fn kept(&self, verdict: &Verdict) -> Vec<Instant> {
        let journal = self.tally.journal();
        let is_kept = |it: &&Entry| !verdict.lost.contains(&(it.writer, it.number));
        journal.iter().filter(is_kept).map(|it| it.at).collect()
    }

    /// Time since the last acknowledged write, or since the start if there was none.
    #[must_use]
    pub fn since_last(&self) -> Duration {
        self.tally.since_last(Instant::now())
    }

    /// The last few distinct errors, newest last.
    #[must_use]
    pub fn errors(&self) -> Vec<String> {
        self.tally.errors()
    }

    /// Stops the clients. A write in flight gets one second; then it is cancelled and not counted.
    pub fn stop(&mut self) {
        self.tally.stop.store(true, Ordering::Release);
        self.program.iter().for_each(Program::stop);
        let deadline = Instant::now() + Duration::from_secs(1);
        while Instant::now() < deadline && self.threads.iter().any(|thread| !thread.is_finished()) {
            crate::wait::pause(Duration::from_millis(2));
        }
        self.tally.cut();
        for thread in self.threads.drain(..) {
            // A writer that panicked has printed the reason already.
            let _ = thread.join();
        }
    }

    /// Looks up every acknowledged key on the server at `master`.
    ///
    /// # Errors
    /// An error of the connection; the counts are unchanged and the check can be repeated.
    pub fn verify(&self, master: SocketAddr) -> std::io::Result<Verdict> {
        self.verify_on(self.client(master)?)
    }

    /// Looks up every acknowledged key on the server of this client.
    ///
    /// # Errors
    /// An error of the connection.
    pub fn verify_on(&self, client: Client) -> std::io::Result<Verdict> {
        verify::verify(&self.tally.acknowledged(), &self.prefix, client)
    }

    fn client(&self, addr: SocketAddr) -> std::io::Result<Client> {
        Client::connect_as(addr, self.login.as_ref(), Duration::from_secs(10))
    }

    /// Like [`verify`](Self::verify), and then forgets the checked keys and deletes them from the
    /// server, so that a load can run for hours in bounded memory. Missing keys are reported once.
    ///
    /// # Errors
    /// An error of the connection; the keys are then kept.
    pub fn settle(&self, master: SocketAddr) -> std::io::Result<Verdict> {
        let taken = self.tally.take_acknowledged();
        let verdict = self.client(master).and_then(|it| verify::verify(&taken, &self.prefix, it));
        match verdict {
            Ok(verdict) => {
                // Keys that cannot be deleted only use memory.
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

/// The master that a sentinel names.
fn named_by(sentinel: SocketAddr, name: &str) -> Option<SocketAddr> {
    let mut client = Client::connect_within(sentinel, ASKING).ok()?;
    let reply = client.cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name]).ok()?;
    let [host, port] = reply.items() else { return None };
    Some(SocketAddr::new(host.text()?.parse().ok()?, port.int()?.try_into().ok()?))
}

/// Locks even if a thread panicked: the counts are consistent at any time.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
