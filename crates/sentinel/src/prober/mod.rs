//! One idle connection to one redis node: the bird in the mine, and the voice that answers probes.
//!
//! Promotion and re-pointing kill a node's clients, so the end of this connection is the earliest
//! sign of a failover there is. A question that is not answered stays on its connection, for as
//! long as the kernel holds that to be alive: asking again on a new one would fill the accept queue
//! of a server that is merely busy, and a server at `maxclients` would turn the new one away. Its
//! late answer counts with the time at which it was asked.
//!
//! The kernel ends the connection if the other host is gone, or another one has its address, but
//! knows only its own neighbour: a proxy or a mesh in between may keep it alive for nothing. So a
//! question that has waited for long is asked again beside it, on a new connection and ever more
//! seldom. The old connection goes only when the new one brings an answer. So there are two
//! connections at most, and one question on each.

pub(crate) mod probe_connection;
pub(crate) mod prober_set;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::discovery::messages::DriverMessage;
use crate::link::auth::{Credentials, Denied};
use crate::link::backoff::Backoff;
use crate::link::conn::{Conn, USER_TIMEOUT};
use crate::net::loop_guard::leads_back;
use crate::net::resolve::{Lookup, Resolver};
use crate::prober::probe_connection::{Outcome, ProbeConnection, Trouble};
use crate::{NodeAddr, NodeReport, Probe, ProbeFailure, Role, Verify};

/// A question that has been open for this long is asked again beside, and then after pauses that
/// grow up to the second.
const BESIDE_MIN: Duration = Duration::from_secs(5);
const BESIDE_MAX: Duration = Duration::from_secs(40);

/// The end of the idle connection is told this often at most.
const ENDED_EVERY: Duration = Duration::from_millis(100);

/// A node that refused the password is left alone for a time between these two, growing with each
/// refusal.
const REFUSED_MIN: Duration = Duration::from_millis(100);
const REFUSED_MAX: Duration = Duration::from_secs(1);

/// A node that turned us away is left alone for a time between these two. A place may be taken as
/// soon as it is free, but each attempt costs a busy server something.
const TURNED_AWAY_MIN: Duration = Duration::from_millis(20);
const TURNED_AWAY_MAX: Duration = Duration::from_millis(100);

/// A node that could not be reached is left alone for a time between these two, growing with each
/// failure, unless there is need.
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
    /// It refused us: whoever counts failed attempts must not see many, however much there is need.
    Refused(Instant),
    /// It could not be reached.
    Failed(Instant),
}

/// What all canaries of one group share.
#[derive(Debug)]
pub(crate) struct ProberFactory {
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
pub(crate) enum ProbeEvent {
    /// A probe was answered, or was not.
    Probed { probe: Box<Probe>, denied: Option<Denied> },
    /// The idle connection ended by itself.
    Ended,
}

/// Runs until its owner drops it.
pub(crate) async fn run(
    group: usize,
    node: NodeAddr,
    keeper: Arc<ProberFactory>,
    bell: Arc<Bell>,
    out: mpsc::Sender<DriverMessage>,
) {
    let dial = keeper.address_map.get(&node).unwrap_or(&node);
    let lookup = Lookup::new(&keeper.resolver, &dial.host, dial.port);
    let (refused, failed) =
        (Backoff::new(REFUSED_MIN, REFUSED_MAX), Backoff::new(FAILED_MIN, FAILED_MAX));
    let rung = Arc::clone(&bell);
    let turned_away = Backoff::new(TURNED_AWAY_MIN, TURNED_AWAY_MAX);
    let beside = (Backoff::new(BESIDE_MIN, BESIDE_MAX), None);
    let (perch, pause, ended_at) = (None, None, None);
    let mut canary = NodeProber {
        lookup,
        keeper,
        bell,
        perch,
        refused,
        turned_away,
        failed,
        pause,
        beside,
        ended_at,
    };
    loop {
        let song = tokio::select! {
            () = rung.ask.notified() => Some(canary.probe().await),
            song = canary.listen() => song,
        };
        let Some(song) = song else { continue };
        if out.send(DriverMessage::NodeProber(group, node.clone(), song)).await.is_err() {
            return;
        }
    }
}

struct NodeProber {
    lookup: Lookup,
    keeper: Arc<ProberFactory>,
    bell: Arc<Bell>,
    perch: Option<ProbeConnection>,
    /// How long to leave a node alone that refused the password.
    refused: Backoff,
    /// How long to leave a node alone that turned us away.
    turned_away: Backoff,
    /// How long to leave a node alone that could not be reached.
    failed: Backoff,
    pause: Option<Pause>,
    /// How long an open question is not asked beside, and until when now.
    beside: (Backoff, Option<Instant>),
    ended_at: Option<Instant>,
}

impl NodeProber {
    /// Listens to the idle connection: for its end, or for a late answer. Pending while there is
    /// none; safe to drop. `None`: it ended, and that was told a moment ago already.
    async fn listen(&mut self) -> Option<ProbeEvent> {
        let Some(perch) = &mut self.perch else { return std::future::pending().await };
        let verify = self.keeper.verify;
        if let Some((asked_at, outcome)) = perch.listen(verify).await {
            self.settle(&outcome);
            return Some(self.tell(asked_at, outcome));
        }
        self.perch = None;
        let now = Instant::now();
        // A server that ends every connection at once would be asked without end.
        let told = self.ended_at.is_some_and(|at| now - at < ENDED_EVERY);
        self.ended_at = if told { self.ended_at } else { Some(now) };
        (!told).then_some(ProbeEvent::Ended)
    }

    async fn probe(&mut self) -> ProbeEvent {
        let (asked_at, outcome) = self.try_probe().await;
        self.tell(asked_at, outcome)
    }

    fn tell(&mut self, asked_at: Instant, outcome: Outcome) -> ProbeEvent {
        let (outcome, denied) = match outcome {
            Ok(report) => {
                self.refused.reset();
                self.turned_away.reset();
                self.failed.reset();
                (Ok(report), None)
            }
            Err(Trouble::Failed(ProbeFailure::Silent)) => (Err(ProbeFailure::Silent), None),
            Err(Trouble::Failed(failure)) => {
                self.pause = Some(Pause::Failed(Instant::now() + self.failed.pause()));
                (Err(failure), None)
            }
            Err(Trouble::DialTimedOut) => {
                self.pause = Some(Pause::Failed(Instant::now() + self.failed.pause()));
                (Err(ProbeFailure::Unreachable), None)
            }
            Err(Trouble::Denied(denied)) if denied.is_for_everybody() => {
                self.pause = Some(Pause::Refused(Instant::now() + self.turned_away.pause()));
                (Err(ProbeFailure::TurnedAway), Some(denied))
            }
            Err(Trouble::Denied(denied)) => {
                // A server that counts failed attempts must not see one of them every few
                // milliseconds.
                if !matches!(denied, Denied::NotPermitted { .. }) {
                    self.pause = Some(Pause::Refused(Instant::now() + self.refused.pause()));
                }
                (Err(ProbeFailure::Denied), Some(denied))
            }
        };
        ProbeEvent::Probed {
            probe: Box::new(Probe { asked_at: asked_at.into_std(), outcome }),
            denied,
        }
    }

    /// What the outcome of a question on the present connection means for that connection, and for
    /// its address.
    fn settle(&mut self, outcome: &Outcome) {
        let Some(perch) = &self.perch else { return };
        let (dialled, has_answered) = (perch.dialled(), perch.has_answered());
        let useless = match outcome {
            Ok(_) => {
                self.beside.0.reset();
                self.beside.1 = None;
                self.lookup.worked(dialled);
                false
            }
            Err(Trouble::Failed(ProbeFailure::Silent)) => false,
            Err(Trouble::Failed(_) | Trouble::DialTimedOut) => {
                // The end of a connection that has worked says nothing about its address: only a
                // dial does.
                if !has_answered {
                    self.lookup.failed();
                }
                true
            }
            Err(Trouble::Denied(denied)) => {
                self.lookup.worked(dialled);
                // A missing ACL rule can be added while the connection stands; everything else
                // needs a new one.
                !matches!(denied, Denied::NotPermitted { .. })
            }
        };
        if useless {
            self.perch = None;
        }
    }

    /// Asks. The time that comes with the outcome is that of the question which it answers, or
    /// which nobody answered.
    async fn try_probe(&mut self) -> (Instant, Outcome) {
        let verify = self.keeper.verify;
        // Where nothing may be asked, a fresh connection is all there is to learn from.
        let useless = |perch: &ProbeConnection| verify == Verify::Tcp || perch.is_out_of_turn();
        if self.perch.as_ref().is_some_and(useless) {
            self.perch = None;
        }
        let waits_long = |perch: &ProbeConnection| {
            perch.asked_at().is_some_and(|asked_at| asked_at.elapsed() > BESIDE_MIN)
        };
        if self.beside.1.is_none_or(|at| at <= Instant::now())
            && let Some(kept) = self.perch.take_if(|perch| waits_long(perch))
        {
            return self.ask_beside(kept).await;
        }
        let seasoned = self.perch.as_ref().is_some_and(ProbeConnection::is_idle);
        let (asked_at, outcome) = self.ask_once().await;
        if seasoned && matches!(outcome, Err(Trouble::Failed(ProbeFailure::Unreachable))) {
            // An idle connection that turns out to be dead says nothing about the server: only a
            // dial does.
            return self.ask_once().await;
        }
        (asked_at, outcome)
    }

    /// The question on `kept` has been open for long: asks it again on a new connection, and takes
    /// whichever answer comes first.
    async fn ask_beside(&mut self, mut kept: ProbeConnection) -> (Instant, Outcome) {
        let (verify, now) = (self.keeper.verify, Instant::now());
        let asked_at = kept.asked_at().unwrap_or(now);
        let (at, outcome) = tokio::select! {
            biased;
            late = kept.listen(verify) => {
                // With it goes a new connection that was not needed, or all that there was.
                self.perch = None;
                let Some((at, outcome)) = late else { return self.ask_once().await };
                self.perch = Some(kept);
                self.settle(&outcome);
                return (at, outcome);
            }
            beside = self.ask_once() => beside,
        };
        match beside_means(&outcome) {
            Beside::Answer => {}
            // As often as any node that cannot be reached: nobody is kept busy by it.
            Beside::Nobody => self.perch = Some(kept),
            Beside::Nothing => {
                if matches!(outcome, Err(Trouble::Failed(ProbeFailure::Silent))) {
                    // Another address of its name may be the better one.
                    self.lookup.failed();
                }
                self.perch = Some(kept);
                self.beside.1 = Some(now + self.beside.0.pause());
                return (asked_at, Err(Trouble::Failed(ProbeFailure::Silent)));
            }
        }
        (at, outcome)
    }

    /// Asks on the present connection, or on a new one.
    async fn ask_once(&mut self) -> (Instant, Outcome) {
        let (asked_at, outcome) = self.ask().await;
        self.settle(&outcome);
        (asked_at, outcome)
    }

    async fn ask(&mut self) -> (Instant, Outcome) {
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
                let report = NodeReport { dialled, role, pong: false, offset: None, lineage: None };
                return (now, Ok(report));
            }
        }
        let now = Instant::now();
        let Some(perch) = &mut self.perch else {
            return (now, Err(Trouble::Failed(ProbeFailure::Unreachable)));
        };
        let asking = perch.ask(verify, self.keeper.credentials.as_ref());
        let answered = tokio::time::timeout(patience, asking).await;
        let asked_at = perch.asked_at().unwrap_or(now);
        match answered {
            Err(_) => (asked_at, Err(Trouble::Failed(ProbeFailure::Silent))),
            Ok(Err(error)) => {
                let turned_away = perch.turned_away().map(|(_, denied)| Trouble::Denied(denied));
                (asked_at, Err(turned_away.unwrap_or_else(|| error.into())))
            }
            Ok(Ok(())) => perch.judge(verify),
        }
    }

    async fn connect(&mut self) -> Result<ProbeConnection, Trouble> {
        let unreachable = Trouble::Failed(ProbeFailure::Unreachable);
        let Ok(dialled) = self.lookup.address(self.keeper.patience).await else {
            return Err(unreachable);
        };
        if leads_back(dialled, &self.keeper.own) {
            self.lookup.failed();
            return Err(Trouble::Failed(ProbeFailure::Rejected));
        }
        let connected = Conn::connect(dialled, self.keeper.patience, USER_TIMEOUT).await;
        let conn = connected.inspect_err(|_| self.lookup.failed())?;
        Ok(ProbeConnection::new(conn, dialled))
    }
}

/// What the outcome on a new connection says while an older one is alive, on which a question has
/// been open for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// It answers here.
    Answer,
    /// Nobody takes connections there any more.
    Nobody,
    /// As before: it may be busy, with no room in its queue or among its clients. The older
    /// connection says more.
    Nothing,
}

fn beside_means(outcome: &Outcome) -> Beside {
    match outcome {
        Ok(_) => Beside::Answer,
        Err(Trouble::Denied(denied)) if !denied.is_for_everybody() => Beside::Answer,
        Err(Trouble::Failed(ProbeFailure::Unreachable | ProbeFailure::Rejected)) => Beside::Nobody,
        Err(Trouble::Failed(_) | Trouble::DialTimedOut | Trouble::Denied(_)) => Beside::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_a_new_connection_only_if_it_says_more() {
        let failed = |failure| beside_means(&Err(Trouble::Failed(failure)));
        let denied = |denied| beside_means(&Err(Trouble::Denied(denied)));
        assert_eq!(failed(ProbeFailure::Unreachable), Beside::Nobody);
        assert_eq!(failed(ProbeFailure::Silent), Beside::Nothing);
        assert_eq!(beside_means(&Err(Trouble::DialTimedOut)), Beside::Nothing);
        for for_everybody in [Denied::TooManyClients, Denied::ProtectedMode, Denied::TurnedAway] {
            assert_eq!(denied(for_everybody), Beside::Nothing);
        }
        assert_eq!(denied(Denied::WrongPassword { setting: "x" }), Beside::Answer);
    }
}
