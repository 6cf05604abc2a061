//! One server of a cluster, which can be killed, stopped and restarted.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::process::Signal;

use super::memory_folder::MemoryFolder;
use crate::binary::Binary;
use crate::client::{Client, Login};
use crate::clock::Clock;
use crate::process::{Launch, Process};
use crate::value::Value;
use crate::wait::wait_until;

/// The longest wait for a reply of a busy server.
const GIVE_UP: Duration = Duration::from_secs(30);
/// The longest wait for a reply to a repeated query; short, because a stopped server does not
/// answer.
const GLANCE: Duration = Duration::from_millis(500);

/// A redis-server or redis-sentinel. Its methods take `&self`, so several threads may use one
/// cluster.
#[derive(Debug)]
pub struct Node {
    launch: Launch,
    addr: SocketAddr,
    login: Option<Login>,
    /// The source address from which the harness connects, if not the usual one.
    source: Option<Ipv4Addr>,
    /// How the harness connects over TLS, if the server speaks nothing else.
    tls: Option<Arc<rustls::ClientConfig>>,
    clock: Option<Clock>,
    process: Mutex<Option<Process>>,
    /// The program after an upgrade.
    upgraded: OnceLock<PathBuf>,
    /// Removed after the process has ended.
    _memory: Option<MemoryFolder>,
}

impl Node {
    pub(super) fn new(launch: Launch, addr: SocketAddr, login: Option<Login>) -> Self {
        Self {
            _memory: MemoryFolder::behind(&launch.folder),
            launch,
            addr,
            login,
            source: None,
            tls: None,
            clock: None,
            process: Mutex::new(None),
            upgraded: OnceLock::new(),
        }
    }

    /// Connects from this source address.
    pub(super) fn reached_from(self, source: Ipv4Addr) -> Self {
        Self { source: Some(source), ..self }
    }

    /// Connects over TLS.
    pub(super) fn over_tls(self, tls: Option<Arc<rustls::ClientConfig>>) -> Self {
        Self { tls, ..self }
    }

    /// Has this wall clock.
    pub(super) fn with_clock(mut self, clock: Option<Clock>) -> Self {
        self.launch.env.extend(clock.iter().flat_map(Clock::env));
        Self { clock, ..self }
    }

    /// Sets its wall clock ahead by this many seconds; 0 makes it right. Does nothing if it has no
    /// [own one](super::Builder::own_clocks).
    pub fn set_clock(&self, ahead: i64) {
        if let Some(clock) = &self.clock {
            clock.set(ahead);
        }
    }

    /// Its name: `redis-GROUP-INDEX` or `sentinel-INDEX`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.launch.name
    }

    /// Its listen address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The credentials with which the harness authenticates.
    #[must_use]
    pub fn login(&self) -> Option<&Login> {
        self.login.as_ref()
    }

    /// Starts the process without waiting for it. Does nothing if it runs.
    pub fn start(&self) {
        let mut process = self.process();
        if !process.as_ref().is_some_and(Process::is_running) {
            let program = self.upgraded.get().unwrap_or(&self.launch.program).clone();
            *process = Some(Process::start(&Launch { program, ..self.launch.clone() }));
        }
    }

    /// Restarts it after a [`kill`](Self::kill), on the same port and with the configuration file
    /// it wrote, and waits until it answers.
    pub fn restart(&self) {
        self.start();
        self.wait_answers();
    }

    /// Stops it as an operator does, restarts it with the program that an upgrade leads to and the
    /// configuration file it wrote, and waits until it answers. Further restarts keep the program.
    ///
    /// # Panics
    /// If it does not stop or start in time.
    #[track_caller]
    pub fn upgrade(&self, binary: Binary) {
        self.signal(Signal::TERM);
        wait_until(&format!("the end of {}", self.name()), GIVE_UP, || !self.is_running());
        let folder = self.launch.folder.parent().unwrap_or(&self.launch.folder);
        let _ = self.upgraded.set(binary.newer_in_folder(folder));
        self.restart();
    }

    /// Sends SIGKILL and waits for the end of the process.
    pub fn kill(&self) {
        if let Some(process) = self.process().take() {
            process.kill();
        }
    }

    /// Sends SIGSTOP: the process keeps its connections and does nothing.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Sends SIGCONT.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends a signal.
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

    /// Its configuration file, which a sentinel writes itself.
    #[must_use]
    pub fn conf_path(&self) -> PathBuf {
        self.launch.folder.join(format!("{}.conf", self.launch.name))
    }

    /// Its log since the first start.
    #[must_use]
    pub fn log(&self) -> String {
        let path = self.launch.folder.join(format!("{}.log", self.launch.name));
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
    }

    /// An authenticated connection to it.
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

    /// Sends one command on a new connection and waits as long as a busy server may need.
    ///
    /// # Errors
    /// An error of the connection, or an error reply.
    pub fn ask(&self, args: &[&str]) -> io::Result<Value> {
        self.ask_within(GIVE_UP, args)
    }

    /// See [`Cluster::look_often`](super::Cluster::look_often). Servers before 7.0 do not have the
    /// command, and take longer.
    pub fn look_often(&self) {
        drop(self.ask(&["SENTINEL", "DEBUG", "info-period", "1000"]));
    }

    /// Like [`ask`](Self::ask) with a short timeout, for repeated queries to servers that may be
    /// stopped.
    ///
    /// # Errors
    /// Like [`ask`](Self::ask).
    pub fn ask_briefly(&self, args: &[&str]) -> io::Result<Value> {
        self.ask_within(GLANCE, args)
    }

    fn connect(&self, timeout: Duration) -> io::Result<Client> {
        let mut client = match self.source {
            Some(source) => Client::connect_from(source, self.addr)?,
            None => Client::connect_within(self.addr, timeout)?,
        };
        client.set_timeout(timeout)?;
        if let Some(tls) = &self.tls {
            client = client.over_tls(tls, &self.addr.ip().to_string())?;
        }
        client.log_in(self.login.as_ref())
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
    /// If it ends, or does not answer within half a minute.
    #[track_caller]
    pub fn wait_answers(&self) {
        wait_until(&format!("an answer of {}", self.name()), GIVE_UP, || {
            assert!(self.is_running(), "{} ended:\n{}", self.name(), self.log());
            self.ask_briefly(&["PING"]).map(|_| ())
        });
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        // A panic while the lock is held leaves a process or none; both are valid.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
