//! One server of a cluster, which can be killed, stopped and started again in its place.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;

use crate::client::{Client, Login};
use crate::process::{Launch, Process};
use crate::value::Value;
use crate::wait::wait_until;

/// After this nobody answers any more: a busy server is waited for.
const GIVE_UP: Duration = Duration::from_secs(30);
/// How long a question may take that is asked again and again; short, since a stopped server
/// answers nothing.
const GLANCE: Duration = Duration::from_millis(500);

/// A redis-server or redis-sentinel. Its methods take `&self`, so several threads may use one
/// cluster.
#[derive(Debug)]
pub struct Node {
    launch: Launch,
    addr: SocketAddr,
    login: Option<Login>,
    /// Where the harness dials it from, if not from the usual address.
    source: Option<Ipv4Addr>,
    process: Mutex<Option<Process>>,
}

impl Node {
    pub(super) fn new(launch: Launch, addr: SocketAddr, login: Option<Login>) -> Self {
        Self { launch, addr, login, source: None, process: Mutex::new(None) }
    }

    /// The same, dialled from this address by the harness.
    pub(super) fn reached_from(self, source: Ipv4Addr) -> Self {
        Self { source: Some(source), ..self }
    }

    /// What it is called: `redis-GROUP-INDEX` or `sentinel-INDEX`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.launch.name
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How the harness authenticates at it.
    #[must_use]
    pub fn login(&self) -> Option<&Login> {
        self.login.as_ref()
    }

    /// Starts it, without waiting; does nothing if it runs.
    pub fn start(&self) {
        let mut process = self.process();
        if !process.as_ref().is_some_and(Process::is_running) {
            *process = Some(Process::start(&self.launch));
        }
    }

    /// Starts it again after a [`kill`](Self::kill), on the same port and with the configuration
    /// that it wrote itself, and waits until it answers.
    pub fn restart(&self) {
        self.start();
        self.wait_answers();
    }

    /// SIGKILL; it is gone when this returns.
    pub fn kill(&self) {
        if let Some(process) = self.process().take() {
            process.kill();
        }
    }

    /// SIGSTOP: it keeps its connections and does nothing.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT: it goes on.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// Any signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(process) = self.process().as_ref() {
            process.signal(signal);
        }
    }

    /// Whether its process exists, stopped or not.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process().as_ref().is_some_and(Process::is_running)
    }

    /// Its process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().filter(|process| process.is_running()).map(Process::pid)
    }

    /// All that it logged since it was first started.
    #[must_use]
    pub fn log(&self) -> String {
        let path = self.launch.folder.join(format!("{}.log", self.launch.name));
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
    }

    /// A connection to it, authenticated.
    ///
    /// # Panics
    /// If it cannot be reached.
    #[must_use]
    #[track_caller]
    pub fn client(&self) -> Client {
        self.connect(GIVE_UP).unwrap_or_else(|error| {
            panic!("cannot reach {} at {}: {error}", self.name(), self.addr)
        })
    }

    /// Asks it one thing over a connection of its own, and waits as long for the answer as a busy
    /// server may need.
    ///
    /// # Errors
    /// Of the connection; an error reply is one too.
    pub fn ask(&self, args: &[&str]) -> io::Result<Value> {
        self.ask_within(GIVE_UP, args)
    }

    /// As [`ask`](Self::ask), but gives up soon: for looks that are repeated, at servers that may
    /// be stopped.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn ask_briefly(&self, args: &[&str]) -> io::Result<Value> {
        self.ask_within(GLANCE, args)
    }

    fn connect(&self, timeout: Duration) -> io::Result<Client> {
        match self.source {
            Some(source) => {
                let client = Client::connect_from(source, self.addr)?;
                client.set_timeout(timeout)?;
                Ok(client)
            }
            None => Client::connect_as(self.addr, self.login.as_ref(), timeout),
        }
    }

    fn ask_within(&self, timeout: Duration, args: &[&str]) -> io::Result<Value> {
        let mut client = self.connect(timeout)?;
        let value = client.cmd(args)?;
        match value.error() {
            Some(message) => Err(io::Error::other(format!("{}: {message}", self.name()))),
            None => Ok(value),
        }
    }

    /// A field of a section of INFO.
    ///
    /// # Errors
    /// Of the connection; `NotFound` if there is no such field.
    pub fn info(&self, section: &str, field: &str) -> io::Result<String> {
        let reply = self.ask(&["INFO", section])?;
        let text = reply.text().unwrap_or_default();
        text.lines()
            .find_map(|line| {
                line.strip_prefix(field)?.strip_prefix(':').map(|value| value.trim().to_owned())
            })
            .ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("{}: no {field} in INFO {section}", self.name()),
                )
            })
    }

    /// The first word of ROLE: `master`, `slave` or `sentinel`.
    ///
    /// # Errors
    /// Of the connection.
    pub fn role(&self) -> io::Result<String> {
        let reply = self.ask(&["ROLE"])?;
        Ok(reply.items().first().and_then(Value::text).unwrap_or_default().to_owned())
    }

    /// Waits until it answers PING with PONG.
    ///
    /// # Panics
    /// If it ends instead, or does not answer within half a minute.
    #[track_caller]
    pub fn wait_answers(&self) {
        wait_until(&format!("an answer of {}", self.name()), GIVE_UP, || {
            assert!(self.is_running(), "{} ended:\n{}", self.name(), self.log());
            self.ask_briefly(&["PING"]).map(|_| ())
        });
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        // A panic under this lock leaves a process or none, both of which are fine.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
