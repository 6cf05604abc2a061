//! The node prober: probes one Redis node and watches an idle connection to it.
//!
//! Promotion and reconfiguration make a node disconnect its clients, so the end of this connection
//! is the earliest sign of a failover. A probe without an answer stays pending on its connection
//! for as long as the kernel considers the connection alive: probing again on a new connection
//! would fill the accept queue of a server that is merely busy, and a server at `maxclients` would
//! reject it. The late answer counts with the time at which its probe was sent.
//!
//! The kernel ends the connection if the remote host is gone or another host took over its address,
//! but it knows only its direct peer: a proxy or a mesh in between may keep the connection alive to
//! a dead node. A probe that has been pending for long is therefore repeated on a new connection,
//! at growing intervals. The old connection is dropped only when the new one brings an answer, so
//! there are at most two connections, with one probe on each.
//!
//! A change of the credentials replaces the connection in the same way; see `link::renewal`.
//!
//! A node's name is looked up while its connection lasts: pods get new addresses, and give theirs
//! to others. If the name has other addresses now and a server answers there, it replaces the one
//! that answers on the connection, unless that is the process that the sentinels see. If that is
//! certainly not the one that answers, the other addresses of the name are tried. They are tried,
//! too, after failed dials, and there only the process that most sentinels see, or that was the
//! last to answer, is the node: the server at the other address may be a stranger. If the name has
//! no address, as of a pod that is not ready, the last one is dialled, and only the process that
//! was there before is the node.

pub(crate) mod probe_connection;
pub(crate) mod prober_set;
pub(crate) mod server_commands;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use resp::ServerCommands;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::link::Environment;
use crate::link::auth::Denied;
use crate::link::backoff::Backoff;
use crate::link::connection::{RespConnection, USER_TIMEOUT};
use crate::link::login::{Login, ServerLogin};
use crate::link::messages::{DriverMessage, ProbeEvent, ProbeProblem};
use crate::link::renewal::{Renewal, RenewalStep};
use crate::link::rotation::{CredentialsId, Presented};
use crate::machine::{Seen, SeenProcess};
use crate::net::allowlist::Allowlist;
use crate::net::resolve::Lookup;
use crate::prober::probe_connection::{ProbeConnection, ProbeError, ProbeResult};
use crate::{NodeAddr, NodeReport, PingReply, Probe, ProbeFailure, Role, Trust, Verify};

/// A probe that has been pending for this long is repeated on a new connection, and then at
/// intervals that grow up to the second bound.
const RETRY_MIN: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_secs(40);

/// Minimum interval between reports that the idle connection ended.
const LOST_INTERVAL: Duration = Duration::from_millis(100);

/// Bounds of the pause after a refused password; it grows with each refusal.
const REFUSED_MIN: Duration = Duration::from_millis(100);
const REFUSED_MAX: Duration = Duration::from_secs(1);

/// Bounds of the pause after a server rejected the connection. A slot may become free at any
/// moment, but each attempt costs a busy server something.
const REJECTED_MIN: Duration = Duration::from_millis(20);
const REJECTED_MAX: Duration = Duration::from_millis(100);

/// Bounds of the pause after a failed dial; it grows with each failure. An urgent probe ends it.
const FAILED_MIN: Duration = Duration::from_millis(20);
const FAILED_MAX: Duration = Duration::from_secs(1);

/// Requests a probe.
#[derive(Debug, Default)]
pub(crate) struct ProbeTrigger {
    ask: Notify,
    urgent: Notify,
    trust: ArcSwap<Trust>,
    seen: ArcSwap<Seen>,
}

impl ProbeTrigger {
    /// `urgent`: a decision waits for the answer, so a pause after failed dials is cut short.
    pub(crate) fn request(&self, urgent: bool, trust: Trust, seen: Seen) {
        if **self.trust.load() != trust {
            self.trust.store(Arc::new(trust));
        }
        if **self.seen.load() != seen {
            self.seen.store(Arc::new(seen));
        }
        if urgent {
            self.urgent.notify_one();
        }
        self.ask.notify_one();
    }
}

/// Why, and until when, a node is not dialled.
#[derive(Debug, Clone, Copy)]
enum DialPause {
    /// It refused the credentials: a server that counts failed attempts must not see many of them,
    /// however urgent the probe is.
    Refused(Instant),
    /// It could not be reached.
    Failed(Instant),
}

/// Settings that all node probers of one service share.
#[derive(Debug)]
pub(crate) struct ProberFactory {
    pub(crate) login: Login,
    pub(crate) env: Environment,
    pub(crate) settings: ArcSwap<ProbeSettings>,
    /// Where is stored what the master says of its commands.
    pub(crate) commands: ServerCommands,
}

/// Settings that may change while the probers run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProbeSettings {
    pub(crate) verify: Verify,
    /// Timeout of a probe's dial, and of its answer.
    pub(crate) timeout: Duration,
    /// Announced address to the address to dial, for NAT.
    pub(crate) address_map: BTreeMap<NodeAddr, NodeAddr>,
    /// Where nodes and learned sentinels may be.
    pub(crate) nodes: Allowlist,
}

impl ProbeSettings {
    /// The address to dial for this node.
    pub(crate) fn dial<'a>(&'a self, node: &'a NodeAddr) -> &'a NodeAddr {
        self.address_map.get(node).unwrap_or(node)
    }

    /// Whether an announced or mapped address may be dialled. What the operator has mapped needs no
    /// further permission.
    pub(crate) fn permits(&self, addr: &NodeAddr) -> bool {
        self.nodes.permits(addr)
            || self.address_map.iter().any(|(announced, dial)| addr == announced || addr == dial)
    }
}

impl ProberFactory {
    fn verify(&self) -> Verify {
        self.settings.load().verify
    }

    fn timeout(&self) -> Duration {
        self.settings.load().timeout
    }
}

/// Runs until its owner drops it.
pub(crate) async fn run(
    service: usize,
    node: NodeAddr,
    factory: Arc<ProberFactory>,
    trigger: Arc<ProbeTrigger>,
) {
    let dial = factory.settings.load().dial(&node).clone();
    let login = factory.login.register(node.clone());
    let (mut changes, shared) = (login.changes(), Arc::clone(&factory));
    let triggered = Arc::clone(&trigger);
    let mut prober = NodeProber {
        node: node.clone(),
        lookup: Lookup::new(&factory.env.resolver, &dial.host, dial.port),
        factory,
        login,
        trigger,
        connection: None,
        others_untried: false,
        refused: Backoff::new(REFUSED_MIN, REFUSED_MAX),
        rejection: Backoff::new(REJECTED_MIN, REJECTED_MAX),
        failed: Backoff::new(FAILED_MIN, FAILED_MAX),
        pause: None,
        retry: (Backoff::new(RETRY_MIN, RETRY_MAX), None),
        lost_at: None,
        process: Box::default(),
        unrenewed: None,
    };
    let mut renewal = Renewal::new(false);
    loop {
        let over_tls = prober.login.is_over_tls();
        let event = tokio::select! {
            biased;
            () = triggered.ask.notified() => Some(prober.probe().await),
            event = prober.wait() => event,
            // An attempt rests while a probe is awaited: a decision may depend on the probe.
            step = renewal.next(&mut changes, over_tls) => match step {
                RenewalStep::Due => {
                    match prober.renewable() {
                        Some((dialled, newest)) => {
                            renewal.start(replace(Arc::clone(&shared), dialled, newest));
                        }
                        None => prober.unrenewed = None,
                    }
                    None
                }
                RenewalStep::Ended(replacement) => {
                    let event = prober.adopt(replacement);
                    if event.is_none() {
                        renewal.retry_later();
                    }
                    event
                }
            },
        };
        // The connection may be one on which the node refused the newest credentials.
        if !renewal.is_pending() && prober.is_outdated() {
            renewal.retry_later();
        }
        let Some(event) = event else { continue };
        let message = DriverMessage::NodeProber(service, node.clone(), event);
        if shared.env.out.send(message).await.is_err() {
            return;
        }
    }
}

/// A connection that is to replace another one, with when and how the node answered on it.
type Replacement = (CredentialsId, Result<(ProbeConnection, Instant, NodeReport), ProbeError>);

/// Opens a connection with the newest credentials and probes the node on it once.
async fn replace(
    factory: Arc<ProberFactory>,
    dialled: SocketAddr,
    newest: Presented,
) -> Replacement {
    let (verify, timeout, id) = (factory.verify(), factory.timeout(), newest.id);
    let attempt = async {
        let transport = factory.login.transport();
        let connection = RespConnection::connect(dialled, transport, timeout, USER_TIMEOUT).await?;
        let mut connection = ProbeConnection::new(connection, dialled, newest);
        // The connection that it replaces sent credentials.
        let probing = tokio::time::timeout(timeout, connection.probe(verify, Trust::Committed));
        let unresponsive = |_| ProbeError::Failed(ProbeFailure::Unresponsive);
        match probing.await.map_err(unresponsive)? {
            Ok((asked_at, outcome)) => Ok((connection, asked_at, outcome?)),
            // A server that is full says so, and ends the connection.
            Err(error) => Err(match connection.rejection() {
                Some((_, denied)) => ProbeError::Denied(denied),
                None => error.into(),
            }),
        }
    };
    (id, factory.env.permit.clone().run(attempt).await)
}

struct NodeProber {
    node: NodeAddr,
    lookup: Lookup,
    factory: Arc<ProberFactory>,
    login: ServerLogin,
    trigger: Arc<ProbeTrigger>,
    connection: Option<ProbeConnection>,
    /// The node refused the credentials of the last connection, and there are others.
    others_untried: bool,
    /// The pause after a refused password.
    refused: Backoff,
    /// The pause after a rejected connection.
    rejection: Backoff,
    /// The pause after a failed dial.
    failed: Backoff,
    pause: Option<DialPause>,
    /// Interval between repetitions of a pending probe, and when the next one is allowed.
    retry: (Backoff, Option<Instant>),
    lost_at: Option<Instant>,
    /// The `run_id` of the process that answered last.
    process: Box<str>,
    /// Why new connections fail, while the present one works.
    unrenewed: Option<ProbeProblem>,
}

impl NodeProber {
    /// Waits for the end of the idle connection or for a late answer. Pending without a
    /// connection; cancel-safe. `None`: the connection ended shortly after a reported end.
    async fn wait(&mut self) -> Option<ProbeEvent> {
        let Some(connection) = &mut self.connection else { return std::future::pending().await };
        if let Some((asked_at, outcome)) = connection.wait().await {
            self.settle(&outcome);
            return Some(self.finish(asked_at, outcome));
        }
        self.connection = None;
        self.report_end()
    }

    /// The end of the idle connection. A server that closes every connection at once would be
    /// probed without end.
    fn report_end(&mut self) -> Option<ProbeEvent> {
        let now = Instant::now();
        let reported = self.lost_at.is_some_and(|at| now - at < LOST_INTERVAL);
        self.lost_at = if reported { self.lost_at } else { Some(now) };
        (!reported).then_some(ProbeEvent::ConnectionLost)
    }

    async fn probe(&mut self) -> ProbeEvent {
        self.drop_unusable();
        let has_answered = self.connection.as_ref().is_some_and(ProbeConnection::has_answered);
        let (mut asked_at, mut outcome) = self.try_probe().await;
        let unreachable = |error: &ProbeError| matches!(error.failure(), ProbeFailure::Unreachable);
        if has_answered && self.connection.is_none() && outcome.as_ref().is_err_and(unreachable) {
            // The end of a connection that has worked says nothing about the server; only a dial
            // does.
            if let Some(event) = self.report_end() {
                return event;
            }
            (asked_at, outcome) = self.ask_once().await;
        }
        // Refused credentials have ended the connection: others may be accepted.
        while std::mem::take(&mut self.others_untried) && self.connection.is_none() {
            (asked_at, outcome) = self.ask_once().await;
        }
        self.finish(asked_at, outcome)
    }

    /// Whether the connection was opened with older credentials.
    fn is_outdated(&self) -> bool {
        let newest = |it: &ProbeConnection| self.login.is_newest(it.credentials());
        self.replaceable().is_some_and(|connection| !newest(connection))
    }

    /// The connection, if what is sent to authenticate may be sent on another one.
    fn replaceable(&self) -> Option<&ProbeConnection> {
        // Without commands, nothing is sent to authenticate.
        let may_be_sent = self.trust() != Trust::Stranger && self.factory.verify() != Verify::Tcp;
        self.connection.as_ref().filter(|it| may_be_sent && it.is_authenticated())
    }

    fn trust(&self) -> Trust {
        **self.trigger.trust.load()
    }

    /// The address and the newest credentials, if the connection was opened with older ones, or if
    /// it does not show what a new one meets.
    fn renewable(&self) -> Option<(SocketAddr, Presented)> {
        let is_due = self.login.is_over_tls() || self.is_outdated();
        let connection = self.replaceable().filter(|_| is_due)?;
        Some((connection.dialled, self.login.newest()))
    }

    /// Uses the replacement if the node answered on it. `None` if the present connection stays.
    fn adopt(&mut self, replacement: Replacement) -> Option<ProbeEvent> {
        let (id, answered) = replacement;
        self.unrenewed = match &answered {
            Err(ProbeError::Tls(fault)) => Some(ProbeProblem::Tls(fault.clone())),
            Err(ProbeError::Failed(ProbeFailure::Unreachable) | ProbeError::DialTimedOut) => {
                Some(ProbeProblem::Unrenewed)
            }
            Err(ProbeError::Denied(denied)) => {
                self.login.refuse(id, denied);
                denied.is_server_wide().then(|| denied.clone().into())
            }
            _ => None,
        };
        let (connection, asked_at, report) = answered.ok()?;
        if !self.login.is_newest(id) {
            return None;
        }
        let outcome = Ok(report);
        self.connection = Some(connection);
        self.settle(&outcome);
        Some(self.finish(asked_at, outcome))
    }

    fn finish(&mut self, asked_at: Instant, outcome: ProbeResult) -> ProbeEvent {
        let (tls, problem) = match &outcome {
            Ok(report) => {
                self.refused.reset();
                self.rejection.reset();
                self.failed.reset();
                let tls = self.connection.as_ref().and_then(ProbeConnection::tls);
                let refusal = report.ping.refusal().map(ProbeProblem::Refuses);
                let no_role = report.role == Role::Unknown
                    && report.ping.is_ready()
                    && self.factory.verify() == Verify::Role;
                let problem = refusal.or_else(|| no_role.then_some(ProbeProblem::NoRole));
                (tls, problem.or_else(|| self.unrenewed.clone()))
            }
            Err(error) => (None, self.pause_after(error)),
        };
        let outcome = outcome.map_err(|error| error.failure());
        let probe = Box::new(Probe { asked_at: asked_at.into_std(), outcome });
        ProbeEvent::Probed { probe, problem, tls }
    }

    /// Sets the pause before the next dial, and returns what an operator has to know.
    fn pause_after(&mut self, error: &ProbeError) -> Option<ProbeProblem> {
        let now = Instant::now();
        match error {
            ProbeError::Failed(ProbeFailure::Unresponsive) => None,
            ProbeError::Failed(ProbeFailure::Busy) => {
                PingReply::Busy.refusal().map(ProbeProblem::Refuses)
            }
            ProbeError::Failed(_) | ProbeError::DialTimedOut | ProbeError::Tls(_) => {
                self.pause = Some(DialPause::Failed(now + self.failed.pause()));
                match error {
                    ProbeError::Tls(fault) => Some(ProbeProblem::Tls(fault.clone())),
                    _ => None,
                }
            }
            ProbeError::Denied(denied) => {
                if denied.is_server_wide() {
                    self.pause = Some(DialPause::Refused(now + self.rejection.pause()));
                } else if !matches!(denied, Denied::NotPermitted { .. } | Denied::PasswordWithheld)
                {
                    // A server that counts failed attempts must not see one every few milliseconds.
                    self.pause = Some(DialPause::Refused(now + self.refused.pause()));
                }
                Some(denied.clone().into())
            }
        }
    }

    /// Applies the result of a probe on the current connection to that connection and to the
    /// choice of the next address.
    fn settle(&mut self, outcome: &ProbeResult) {
        let Some(connection) = &self.connection else { return };
        let (dialled, credentials) = (connection.dialled, connection.credentials());
        self.others_untried = false;
        let unusable = match outcome {
            Ok(report) => {
                if let Some(lineage) = &report.lineage {
                    self.process.clone_from(&lineage.run_id);
                }
                self.retry.0.reset();
                self.retry.1 = None;
                self.lookup.worked(dialled);
                if self.factory.verify() != Verify::Tcp && connection.is_authenticated() {
                    self.login.accept(credentials);
                }
                false
            }
            Err(ProbeError::Denied(Denied::PasswordWithheld))
            | Err(ProbeError::Failed(ProbeFailure::Unresponsive | ProbeFailure::Busy)) => false,
            Err(ProbeError::Failed(_) | ProbeError::DialTimedOut | ProbeError::Tls(_)) => {
                // The end of a connection that has worked says nothing about its address; only a
                // dial does.
                if !connection.has_answered() || self.lookup.is_other(dialled) {
                    self.lookup.failed();
                }
                true
            }
            Err(ProbeError::Denied(denied)) => {
                self.others_untried = self.login.refuse(credentials, denied);
                if !self.others_untried {
                    self.lookup.refused(dialled);
                }
                // A missing ACL rule can be added while the connection lasts; everything else
                // requires a new one.
                self.others_untried || !matches!(denied, Denied::NotPermitted { .. })
            }
        };
        if unusable {
            self.connection = None;
        }
    }

    fn drop_unusable(&mut self) {
        // Without commands, a successful dial is the whole result.
        let verify = self.factory.verify();
        let unusable = |connection: &mut ProbeConnection| {
            let outdated =
                !connection.is_authenticated() && !self.login.is_newest(connection.credentials());
            verify == Verify::Tcp || connection.has_unsolicited_input() || outdated
        };
        drop(self.connection.take_if(unusable));
    }

    /// Probes the node. The time that comes with the result is that of the probe which it
    /// answers, or which was not answered.
    async fn try_probe(&mut self) -> (Instant, ProbeResult) {
        let is_overdue = |connection: &ProbeConnection| {
            connection.asked_at().is_some_and(|asked_at| asked_at.elapsed() > RETRY_MIN)
        };
        if self.retry.1.is_none_or(|at| at <= Instant::now())
            && let Some(kept) = self.connection.take_if(|connection| is_overdue(connection))
        {
            return self.retry_on_new_connection(kept).await;
        }
        let dialled = self.connection.as_ref().map(|connection| connection.dialled);
        let (seen, by_most) = (**self.trigger.seen.load()).clone();
        let is_there = seen != SeenProcess::NoOther;
        if let Some(dialled) = dialled
            && self.lookup.has_left(dialled, is_there, seen == SeenProcess::Third).await
            && let Some(kept) = self.connection.take()
        {
            let process = self.process.clone();
            let (at, outcome) = self.ask_once().await;
            // A server that refuses the credentials may be a stranger, and so may any other process
            // while the sentinels see this one.
            if outcome.is_ok() && (self.process == process || by_most.as_ref() != Some(&process)) {
                return (at, outcome);
            }
            (self.connection, self.process) = (Some(kept), process);
        }
        self.ask_once().await
    }

    /// The probe on `kept` has been pending for long: repeats it on a new connection and returns
    /// the first answer from either.
    async fn retry_on_new_connection(
        &mut self,
        mut kept: ProbeConnection,
    ) -> (Instant, ProbeResult) {
        let now = Instant::now();
        let asked_at = kept.asked_at().unwrap_or(now);
        let (at, outcome) = tokio::select! {
            biased;
            late = kept.wait() => {
                // Drops a new connection that is not needed, or the only one that there was.
                self.connection = None;
                let Some((at, outcome)) = late else { return self.ask_once().await };
                self.connection = Some(kept);
                self.settle(&outcome);
                return (at, outcome);
            }
            retry = self.ask_once() => retry,
        };
        match classify_retry(&outcome) {
            RetryOutcome::Answered => {}
            // Dialled again as often as any unreachable node, which costs little.
            RetryOutcome::Unreachable => self.connection = Some(kept),
            RetryOutcome::Inconclusive => {
                if let Err(ProbeError::Failed(ProbeFailure::Unresponsive)) = outcome {
                    // Another address of its name may work.
                    self.lookup.failed();
                }
                self.connection = Some(kept);
                self.retry.1 = Some(now + self.retry.0.pause());
                return (asked_at, Err(ProbeError::Failed(ProbeFailure::Unresponsive)));
            }
        }
        (at, outcome)
    }

    /// Probes on the current connection, or on a new one.
    async fn ask_once(&mut self) -> (Instant, ProbeResult) {
        let (asked_at, outcome) = self.ask().await;
        self.settle(&outcome);
        (asked_at, outcome)
    }

    async fn ask(&mut self) -> (Instant, ProbeResult) {
        let (timeout, verify) = (self.factory.timeout(), self.factory.verify());
        let trust = self.trust();
        if self.connection.is_none() {
            match self.pause.take() {
                None => {}
                Some(DialPause::Refused(at)) => tokio::time::sleep_until(at).await,
                Some(DialPause::Failed(at)) => tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(at) => {}
                    () = self.trigger.urgent.notified() => {}
                },
            }
            let now = Instant::now();
            match self.connect().await {
                Ok(connection) => self.connection = Some(connection),
                Err(error) => return (now, Err(error)),
            }
            self.unrenewed = None;
            if let (Verify::Tcp, Some(connection)) = (verify, &self.connection) {
                return (now, Ok(NodeReport::not_asked(connection.dialled)));
            }
        }
        let now = Instant::now();
        let Some(connection) = &mut self.connection else {
            return (now, Err(ProbeError::Failed(ProbeFailure::Unreachable)));
        };
        let answered = tokio::time::timeout(timeout, connection.probe(verify, trust)).await;
        let asked_at = connection.asked_at().unwrap_or(now);
        match answered {
            Err(_) => (asked_at, Err(ProbeError::Failed(ProbeFailure::Unresponsive))),
            Ok(Err(error)) => {
                let rejection =
                    connection.rejection().map(|(_, denied)| ProbeError::Denied(denied));
                (asked_at, Err(rejection.unwrap_or_else(|| error.into())))
            }
            Ok(Ok(answer)) => answer,
        }
    }

    async fn connect(&mut self) -> Result<ProbeConnection, ProbeError> {
        let unreachable = ProbeError::Failed(ProbeFailure::Unreachable);
        if !self.factory.settings.load().permits(&self.node) {
            return Err(ProbeError::Failed(ProbeFailure::OutsideNodes));
        }
        let timeout = self.factory.timeout();
        let Ok(dialled) = self.lookup.address(timeout).await else {
            return Err(unreachable);
        };
        if self.factory.env.own.contain(dialled) {
            self.lookup.failed();
            return Err(ProbeError::Failed(ProbeFailure::UnusableAddress));
        }
        let transport = self.factory.login.transport();
        transport.set_name(dialled, self.lookup.host());
        let connected = RespConnection::connect(dialled, transport, timeout, USER_TIMEOUT).await;
        let connection = connected.inspect_err(|_| self.lookup.failed())?;
        // At another address of the name than before, only what the sentinels see is this node.
        let is_other = self.lookup.is_other(dialled) && !self.process.is_empty();
        let seen = self.trigger.seen.load().1.clone().filter(|_| is_other);
        let only = if self.lookup.is_gone() { Some(self.process.clone()) } else { seen };
        let only = only.map(|it| [it, self.process.clone()]);
        Ok(ProbeConnection::new(connection, dialled, self.login.present()).only(only))
    }
}

/// The meaning of a result on a new connection while a probe is pending on an older connection that
/// is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RetryOutcome {
    /// The node answers on the new connection.
    Answered,
    /// The address accepts no connections any more.
    Unreachable,
    /// No news: the node may be busy, with a full accept queue or at `maxclients`. The older
    /// connection says more.
    Inconclusive,
}

fn classify_retry(outcome: &ProbeResult) -> RetryOutcome {
    match outcome {
        Ok(_) => RetryOutcome::Answered,
        Err(ProbeError::Denied(denied)) if !denied.is_server_wide() => RetryOutcome::Answered,
        Err(ProbeError::Failed(
            ProbeFailure::Unreachable | ProbeFailure::UnusableAddress | ProbeFailure::OutsideNodes,
        )) => RetryOutcome::Unreachable,
        // A fault of TLS is about certificates, and says nothing about the server's health.
        Err(_) => RetryOutcome::Inconclusive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_old_connection_unless_new_one_is_conclusive() {
        let failed = |failure| classify_retry(&Err(ProbeError::Failed(failure)));
        let denied = |denied| classify_retry(&Err(ProbeError::Denied(denied)));
        assert_eq!(failed(ProbeFailure::Unreachable), RetryOutcome::Unreachable);
        for inconclusive in [ProbeFailure::Unresponsive, ProbeFailure::Busy] {
            assert_eq!(failed(inconclusive), RetryOutcome::Inconclusive);
        }
        assert_eq!(classify_retry(&Err(ProbeError::DialTimedOut)), RetryOutcome::Inconclusive);
        for for_everybody in
            [Denied::TooManyClients, Denied::ProtectedMode, Denied::ConnectionRejected]
        {
            assert_eq!(denied(for_everybody), RetryOutcome::Inconclusive);
        }
        assert_eq!(denied(Denied::WrongPassword { setting: "x" }), RetryOutcome::Answered);
    }
}
