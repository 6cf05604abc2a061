//! One idle connection to one redis node: the bird in the mine, and the voice that answers probes.
//!
//! Promotion and re-pointing kill a node's clients, so the end of this connection is the earliest sign of a failover there is.
//! A question that is not answered stays on its connection: asking again on a new one would fill the accept queue of a server
//! that is merely busy. Its late answer counts with the time at which it was asked.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::auth::{Credentials, Denied};
use crate::backoff::Backoff;
use crate::conn::{Conn, USER_TIMEOUT};
use crate::discovery::Incoming;
use crate::loop_guard::leads_back;
use crate::perch::{Outcome, Perch, Trouble};
use crate::resolve::{Lookup, Resolver};
use crate::{NodeAddr, Probe, ProbeFailure, Report, Role, Verify};

/// A question without an answer is given up, with its connection, after this long.
const GIVE_UP: Duration = Duration::from_secs(5);

/// The end of the idle connection is told this often at most.
const ENDED_EVERY: Duration = Duration::from_millis(100);

/// A node that refused the password is left alone for a time between these two, growing with each refusal.
const REFUSED_MIN: Duration = Duration::from_millis(100);
const REFUSED_MAX: Duration = Duration::from_secs(1);

/// A node that could not be reached is left alone for a time between these two, growing with each failure, unless there is need.
const FAILED_MIN: Duration = Duration::from_millis(20);
const FAILED_MAX: Duration = Duration::from_secs(1);

/// Rung for a probe.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    ask: Notify,
    need: Notify,
}

impl Bell {
    /// `need`: the answer is waited for, whatever came of the last question.
    pub(crate) fn ring(&self, need: bool) {
        if need {
            self.need.notify_one();
        }
        self.ask.notify_one();
    }
}

/// Why, and until when, a node is not dialled.
#[derive(Debug, Clone, Copy)]
enum Pause {
    /// It refused us: whoever counts failed attempts must not see many.
    Refused(Instant),
    /// It could not be reached.
    Failed(Instant),
}

/// What all canaries of one group share.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) credentials: Option<Credentials>,
    pub(crate) verify: Verify,
    /// How long one probe waits for its connection, and how long for its answer.
    pub(crate) patience: Duration,
    /// Announced address to the address to dial, for NAT.
    pub(crate) address_map: BTreeMap<NodeAddr, NodeAddr>,
    /// Our own listeners, never to be dialled.
    pub(crate) own: Vec<SocketAddr>,
    /// For names.
    pub(crate) resolver: Resolver,
}

/// What a canary tells.
#[derive(Debug)]
pub(crate) enum Song {
    /// A probe was answered, or was not.
    Probed { probe: Box<Probe>, denied: Option<Denied> },
    /// The idle connection ended by itself.
    Ended,
}

/// Runs until its owner drops it.
pub(crate) async fn run(
    group: usize,
    node: NodeAddr,
    keeper: Arc<Keeper>,
    bell: Arc<Bell>,
    out: mpsc::Sender<Incoming>,
) {
    let dial = keeper.address_map.get(&node).unwrap_or(&node);
    let lookup = Lookup::new(&keeper.resolver, &dial.host, dial.port);
    let (refused, failed) = (Backoff::new(REFUSED_MIN, REFUSED_MAX), Backoff::new(FAILED_MIN, FAILED_MAX));
    let rung = Arc::clone(&bell);
    let mut canary = Canary { lookup, keeper, bell, perch: None, refused, failed, pause: None, ended_at: None };
    loop {
        let song = tokio::select! {
            () = rung.ask.notified() => Some(canary.probe().await),
            song = canary.listen() => song,
        };
        let Some(song) = song else { continue };
        if out.send(Incoming::Canary(group, node.clone(), song)).await.is_err() {
            return;
        }
    }
}

struct Canary {
    lookup: Lookup,
    keeper: Arc<Keeper>,
    bell: Arc<Bell>,
    perch: Option<Perch>,
    /// How long to leave a node alone that refused the password.
    refused: Backoff,
    /// How long to leave a node alone that could not be reached.
    failed: Backoff,
    pause: Option<Pause>,
    ended_at: Option<Instant>,
}

impl Canary {
    /// Listens to the idle connection: for its end, or for a late answer. Pending while there is none; safe to drop. `None`: it
    /// ended, and that was told a moment ago already.
    async fn listen(&mut self) -> Option<Song> {
        let Some(perch) = &mut self.perch else { return std::future::pending().await };
        let verify = self.keeper.verify;
        // Whatever is said out of turn ends the connection too: its answers could not be told from each other any more.
        if perch.listen(verify).await.is_some() {
            let (asked_at, outcome) = perch.judge(verify);
            return Some(self.tell(asked_at, outcome));
        }
        self.perch = None;
        let now = Instant::now();
        // A server that ends every connection at once would be asked without end.
        let told = self.ended_at.is_some_and(|at| now - at < ENDED_EVERY);
        self.ended_at = if told { self.ended_at } else { Some(now) };
        (!told).then_some(Song::Ended)
    }

    async fn probe(&mut self) -> Song {
        let (asked_at, outcome) = self.try_probe().await;
        self.tell(asked_at, outcome)
    }

    fn tell(&mut self, asked_at: Instant, outcome: Outcome) -> Song {
        let (outcome, denied) = match outcome {
            Ok(report) => {
                self.refused.reset();
                self.failed.reset();
                (Ok(report), None)
            }
            Err(Trouble::Failed(failure)) => {
                if failure != ProbeFailure::Silent {
                    self.perch = None;
                    self.pause = Some(Pause::Failed(Instant::now() + self.failed.pause()));
                }
                (Err(failure), None)
            }
            Err(Trouble::Denied(denied)) => {
                // A connection whose user may not run a command may be allowed to later; one without a user has to be made
                // anew, and a server that counts failed attempts must not see one of them every few milliseconds.
                if !matches!(denied, Denied::NotPermitted { .. }) {
                    self.perch = None;
                    self.pause = Some(Pause::Refused(Instant::now() + self.refused.pause()));
                }
                (Err(ProbeFailure::Denied), Some(denied))
            }
        };
        Song::Probed { probe: Box::new(Probe { asked_at: asked_at.into_std(), outcome }), denied }
    }

    /// Asks. The time that comes with the outcome is that of the question which it answers, or which nobody answered.
    async fn try_probe(&mut self) -> (Instant, Outcome) {
        let verify = self.keeper.verify;
        let spent = |asked_at: Instant| asked_at.elapsed() > GIVE_UP;
        let useless = |perch: &Perch| {
            // Where nothing may be asked, a fresh connection is all there is to learn from.
            verify == Verify::Tcp || perch.asked_at().is_some_and(spent) || perch.is_out_of_turn()
        };
        if self.perch.as_ref().is_some_and(useless) {
            self.perch = None;
        }
        let seasoned = self.perch.as_ref().is_some_and(Perch::is_idle);
        let (asked_at, outcome) = self.ask_once().await;
        if seasoned && matches!(outcome, Err(Trouble::Failed(ProbeFailure::Unreachable))) {
            // An idle connection that turns out to be dead says nothing about the server: only a dial does.
            self.perch = None;
            return self.ask_once().await;
        }
        (asked_at, outcome)
    }

    async fn ask_once(&mut self) -> (Instant, Outcome) {
        let (patience, verify) = (self.keeper.patience, self.keeper.verify);
        if self.perch.is_none() {
            match self.pause.take() {
                None => {}
                Some(Pause::Refused(at)) => tokio::time::sleep_until(at).await,
                Some(Pause::Failed(at)) => tokio::select! {
                    () = tokio::time::sleep_until(at) => {}
                    () = self.bell.need.notified() => {}
                },
            }
            let now = Instant::now();
            match self.connect().await {
                Ok(perch) => self.perch = Some(perch),
                Err(trouble) => return (now, Err(trouble)),
            }
            if let (Verify::Tcp, Some(perch)) = (verify, &self.perch) {
                let (dialled, role) = (perch.dialled(), Role::Unknown);
                let report = Report { dialled, role, pong: false, offset: None, lineage: None };
                return (now, Ok(report));
            }
        }
        let now = Instant::now();
        let Some(perch) = &mut self.perch else { return (now, Err(Trouble::Failed(ProbeFailure::Unreachable))) };
        let asking = perch.ask(verify, self.keeper.credentials.as_ref());
        let answered = tokio::time::timeout(patience, asking).await;
        let asked_at = perch.asked_at().unwrap_or(now);
        match answered {
            Err(_) => (asked_at, Err(Trouble::Failed(ProbeFailure::Silent))),
            Ok(Err(error)) => (asked_at, Err(error.into())),
            Ok(Ok(())) => perch.judge(verify),
        }
    }

    async fn connect(&mut self) -> Result<Perch, Trouble> {
        let unreachable = Trouble::Failed(ProbeFailure::Unreachable);
        let Ok(dialled) = self.lookup.address(self.keeper.patience).await else { return Err(unreachable) };
        if leads_back(dialled, &self.keeper.own) {
            return Err(Trouble::Failed(ProbeFailure::Rejected));
        }
        let connected = Conn::connect(dialled, self.keeper.patience, USER_TIMEOUT).await;
        let conn = connected.inspect_err(|_| self.lookup.failed())?;
        self.lookup.worked(dialled);
        Ok(Perch::new(conn, dialled))
    }
}
