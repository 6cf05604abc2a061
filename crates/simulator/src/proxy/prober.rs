//! Probe connections, modelled on `sentinel/src/prober/mod.rs`: one idle connection to each node,
//! one probe at a time, pauses after failures, and a probe that stays pending on its connection
//! when no answer arrives in time.
//!
//! A probe that has been pending for long is repeated on a new connection. The old one is kept
//! until the new one brings an answer, or until the kernel ends it.

use sentinel::{Lineage, NodeAddr, NodeReport, PingReply, ProbeFailure, Role};

use crate::net::{ConnId, Net};
use crate::wire::{Addr, Info, MS, Message, Micros, Pid, SECOND, hex};

const TIMEOUT: Micros = 250 * MS;
const LOST_INTERVAL: Micros = 100 * MS;

/// A probe that has been pending for this long is repeated on a new connection.
const OVERDUE: Micros = 5 * SECOND;

/// The kernel ends a connection whose peer has not acknowledged anything for this long.
const USER_TIMEOUT: Micros = 3 * SECOND;
/// The kernel probes an idle peer at this interval; another host at its address answers with a
/// reset.
const KEEPALIVE: Micros = SECOND;

/// The meaning of an error line before the end of a new connection.
const AFTER_ERROR_LINE: ProbeFailure = ProbeFailure::ConnectionRejected;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbePhase {
    Idle,
    /// Waits before a dial.
    Paused(DialPause),
    Dialling {
        token: u64,
        asked: Micros,
    },
    Asking {
        until: Micros,
        was_idle: bool,
    },
}

/// A pause before the next dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DialPause {
    until: Micros,
    /// An urgent probe ends it. Not if the server rejected a connection.
    ends_if_urgent: bool,
}

impl DialPause {
    fn is_over(self, now: Micros, urgent: bool) -> bool {
        now >= self.until || (urgent && self.ends_if_urgent)
    }
}

/// Pauses that grow with each failure.
#[derive(Debug)]
struct Backoff {
    min: Micros,
    max: Micros,
    bound: Micros,
}

impl Backoff {
    fn new(min: Micros, max: Micros) -> Self {
        Self { min, max, bound: min }
    }

    fn pause(&mut self, net: &mut Net) -> Micros {
        let pause = (self.min / 2).max(net.rng.range(0, self.bound));
        self.bound = (self.bound * 2).min(self.max);
        pause
    }

    fn reset(&mut self) {
        self.bound = self.min;
    }
}

/// An event of a prober.
#[derive(Debug)]
pub(crate) enum ProbeEvent {
    Probed(NodeAddr, Micros, Result<NodeReport, ProbeFailure>),
    ConnectionLost(NodeAddr),
}

/// A connection with at most one pending probe.
#[derive(Debug)]
struct ProbeConnection {
    id: ConnId,
    handshake_sent: bool,
    /// When the pending probe was sent.
    pending: Option<Micros>,
    /// An error line arrived instead of the answer to the handshake.
    refused: bool,
    unacknowledged_since: Option<Micros>,
}

impl ProbeConnection {
    fn new(id: ConnId) -> Self {
        Self {
            id,
            handshake_sent: false,
            pending: None,
            refused: false,
            unacknowledged_since: None,
        }
    }

    /// Whether the kernel has ended it.
    fn is_dead(&mut self, (pid, addr): (Pid, Addr), now: Micros, net: &Net) -> bool {
        if net.is_acknowledged(self.id, pid) {
            self.unacknowledged_since = None;
            return false;
        }
        let limit = if net.answers(pid, addr) { KEEPALIVE } else { USER_TIMEOUT };
        now - *self.unacknowledged_since.get_or_insert(now) >= limit
    }
}

#[derive(Debug)]
struct NodeProber {
    node: NodeAddr,
    addr: Addr,
    connection: Option<ProbeConnection>,
    /// The connection whose probe is overdue, while the probe is repeated on another one; and since
    /// when it is.
    kept: Option<(ProbeConnection, Micros)>,
    phase: ProbePhase,
    requested: bool,
    urgent: bool,
    /// It may get the password.
    password: bool,
    pause: Option<DialPause>,
    /// Pauses after a failed dial, and after a rejected connection.
    failed: Backoff,
    rejected: Backoff,
    /// Pauses between repetitions of an overdue probe, and when the next one is allowed.
    retry: Backoff,
    retry_at: Option<Micros>,
    ended_at: Option<Micros>,
}

/// The node probers of one proxy.
#[derive(Debug)]
pub(crate) struct ProberSet {
    pid: Pid,
    all: Vec<NodeProber>,
    tokens: u64,
}

/// Dial tokens of probe connections are above this.
pub(crate) const TOKENS: u64 = 1 << 40;

impl ProberSet {
    pub(crate) fn new(pid: Pid, base: u64) -> Self {
        Self { pid, all: Vec::new(), tokens: TOKENS + base }
    }

    pub(crate) fn ask(
        &mut self,
        node: &NodeAddr,
        (urgent, password): (bool, bool),
        now: Micros,
        net: &mut Net,
    ) {
        let Some(addr) = Addr::of(node) else { return };
        if self.all.iter().all(|it| it.node != *node) {
            self.all.push(NodeProber::new(node.clone(), addr));
        }
        let Some(at) = self.all.iter().position(|it| it.node == *node) else { return };
        self.all[at].urgent |= urgent;
        self.all[at].password = password;
        self.all[at].requested = true;
        self.turn(at, now, net);
    }

    pub(crate) fn keep(&mut self, wanted: impl Fn(&NodeAddr) -> bool, net: &mut Net) {
        let pid = self.pid;
        self.all.retain_mut(|it| {
            let kept = wanted(&it.node);
            if !kept {
                it.drop_connection(pid, net);
                it.kept.take().into_iter().for_each(|(kept, _)| net.close(kept.id, pid));
            }
            kept
        });
    }

    pub(crate) fn next_due(&self) -> Micros {
        let due = self.all.iter().filter_map(|it| match it.phase {
            ProbePhase::Paused(DialPause { until, .. }) | ProbePhase::Asking { until, .. } => {
                Some(until)
            }
            ProbePhase::Idle | ProbePhase::Dialling { .. } => None,
        });
        due.min().unwrap_or(Micros::MAX)
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: Micros, net: &mut Net) -> Vec<ProbeEvent> {
        let (pid, mut events) = (self.pid, Vec::new());
        for at in 0..self.all.len() {
            for dead in self.all[at].dead_connections(pid, now, net) {
                net.close(dead, pid);
                events.extend(self.closed(dead, now, net).into_iter().flatten());
            }
            let it = &mut self.all[at];
            if let ProbePhase::Asking { until, .. } = it.phase
                && now >= until
            {
                events.push(it.unanswered(pid, now, net));
            }
            self.turn(at, now, net);
        }
        events
    }

    /// Starts a requested probe unless the prober is paused or busy.
    fn turn(&mut self, at: usize, now: Micros, net: &mut Net) {
        let pid = self.pid;
        let it = &mut self.all[at];
        match it.phase {
            ProbePhase::Idle if it.requested => it.requested = false,
            ProbePhase::Paused(pause) if pause.is_over(now, it.urgent) => {
                return self.dial(at, now, net);
            }
            _ => return,
        }
        it.set_overdue_aside(now);
        if let Some(connection) = &it.connection {
            let was_idle = connection.handshake_sent && connection.pending.is_none();
            return it.begin_question(pid, was_idle, now, net);
        }
        match it.pause.take().filter(|pause| !pause.is_over(now, it.urgent)) {
            Some(pause) => it.phase = ProbePhase::Paused(pause),
            None => self.dial(at, now, net),
        }
    }

    fn dial(&mut self, at: usize, now: Micros, net: &mut Net) {
        self.tokens += 1;
        let it = &mut self.all[at];
        it.urgent = false;
        it.phase = ProbePhase::Dialling { token: self.tokens, asked: now };
        net.dial(self.pid, it.addr, TIMEOUT, self.tokens);
    }

    pub(crate) fn dialled(
        &mut self,
        token: u64,
        connection: Option<ConnId>,
        now: Micros,
        net: &mut Net,
    ) -> Vec<ProbeEvent> {
        let pid = self.pid;
        let mine = |it: &&mut NodeProber| match it.phase {
            ProbePhase::Dialling { token: pending, .. } => pending == token,
            _ => false,
        };
        let Some(it) = self.all.iter_mut().find(mine) else {
            connection.into_iter().for_each(|connection| net.close(connection, pid));
            return Vec::new();
        };
        let ProbePhase::Dialling { asked, .. } = it.phase else { return Vec::new() };
        let Some(connection) = connection else {
            // No server, or the accept queue of a busy one is full.
            let timed_out = now - asked >= TIMEOUT;
            return vec![if timed_out && it.kept.is_some() {
                it.inconclusive(pid, now, net)
            } else {
                it.failed(asked, now, ProbeFailure::Unreachable, net)
            }];
        };
        it.connection = Some(ProbeConnection::new(connection));
        it.begin_question(pid, false, now, net);
        Vec::new()
    }

    /// `None`: not one of these connections.
    pub(crate) fn message(
        &mut self,
        connection: ConnId,
        body: &Message,
        now: Micros,
        net: &mut Net,
    ) -> Option<Vec<ProbeEvent>> {
        let (pid, at) = (self.pid, self.find(connection)?);
        let it = &mut self.all[at];
        match body {
            Message::Probed { info, .. } => {
                let events = vec![it.answered(connection, pid, now, info, net)];
                self.turn(at, now, net);
                return Some(events);
            }
            Message::TooMany => {
                it.connection_mut(connection).into_iter().for_each(|it| it.refused = true);
            }
            _ => {}
        }
        Some(Vec::new())
    }

    fn find(&self, connection: ConnId) -> Option<usize> {
        self.all.iter().position(|it| it.connections().any(|it| it.id == connection))
    }

    /// A connection ended. `None`: not one of these.
    pub(crate) fn closed(
        &mut self,
        connection: ConnId,
        now: Micros,
        net: &mut Net,
    ) -> Option<Vec<ProbeEvent>> {
        let (pid, at) = (self.pid, self.find(connection)?);
        let it = &mut self.all[at];
        if it.kept.take_if(|(kept, _)| kept.id == connection).is_some() {
            // Only a new connection can bring an answer now; one that was being opened is dropped.
            it.drop_connection(pid, net);
            self.dial(at, now, net);
            return Some(Vec::new());
        }
        let ended = it.connection.take()?;
        match it.phase {
            ProbePhase::Asking { was_idle: true, .. } => {
                // The end of an idle connection says nothing about the server: only a dial does.
                self.dial(at, now, net);
                Some(Vec::new())
            }
            ProbePhase::Asking { .. } if ended.refused && it.kept.is_some() => {
                Some(vec![it.inconclusive(pid, now, net)])
            }
            _ if ended.refused && ended.pending.is_some() => {
                Some(vec![it.failed(ended.pending.unwrap_or(now), now, AFTER_ERROR_LINE, net)])
            }
            ProbePhase::Asking { .. } => {
                let (asked, failure) = (ended.pending.unwrap_or(now), ProbeFailure::Unreachable);
                Some(vec![it.failed(asked, now, failure, net)])
            }
            _ => {
                let reported = it.ended_at.is_some_and(|at| now - at < LOST_INTERVAL);
                if reported {
                    return Some(Vec::new());
                }
                it.ended_at = Some(now);
                Some(vec![ProbeEvent::ConnectionLost(it.node.clone())])
            }
        }
    }
}

impl NodeProber {
    fn new(node: NodeAddr, addr: Addr) -> Self {
        Self {
            node,
            addr,
            connection: None,
            kept: None,
            phase: ProbePhase::Idle,
            requested: false,
            urgent: false,
            password: false,
            pause: None,
            failed: Backoff::new(20 * MS, SECOND),
            rejected: Backoff::new(20 * MS, 100 * MS),
            retry: Backoff::new(OVERDUE, 8 * OVERDUE),
            retry_at: None,
            ended_at: None,
        }
    }

    fn connections(&self) -> impl Iterator<Item = &ProbeConnection> {
        self.connection.iter().chain(self.kept.iter().map(|(kept, _)| kept))
    }

    fn connection_mut(&mut self, id: ConnId) -> Option<&mut ProbeConnection> {
        let kept = self.kept.iter_mut().map(|(kept, _)| kept);
        self.connection.iter_mut().chain(kept).find(|it| it.id == id)
    }

    /// The connections that the kernel has ended.
    fn dead_connections(&mut self, pid: Pid, now: Micros, net: &Net) -> Vec<ConnId> {
        let peer = (pid, self.addr);
        let kept = self.kept.iter_mut().map(|(kept, _)| kept);
        let all = self.connection.iter_mut().chain(kept);
        all.filter_map(|it| it.is_dead(peer, now, net).then_some(it.id)).collect()
    }

    fn drop_connection(&mut self, pid: Pid, net: &mut Net) {
        self.connection.take().into_iter().for_each(|it| net.close(it.id, pid));
    }

    /// Keeps a connection whose probe is overdue, and makes room for a new one.
    fn set_overdue_aside(&mut self, now: Micros) {
        let is_overdue = |it: &mut ProbeConnection| {
            it.pending.is_some_and(|asked| now.saturating_sub(asked) > OVERDUE)
        };
        if self.retry_at.is_none_or(|at| at <= now) {
            self.kept = self.connection.take_if(is_overdue).map(|it| (it, now));
        }
    }

    fn begin_question(&mut self, pid: Pid, was_idle: bool, now: Micros, net: &mut Net) {
        self.phase = ProbePhase::Asking { until: now + TIMEOUT, was_idle };
        let Some(connection) = &mut self.connection else { return };
        connection.handshake_sent = true;
        if connection.pending.is_none() {
            connection.pending = Some(now);
            net.send(connection.id, pid, Message::Probe { asked: now, password: self.password });
        }
    }

    /// An answer arrived, possibly a late one on the connection that was kept.
    fn answered(
        &mut self,
        on: ConnId,
        pid: Pid,
        now: Micros,
        info: &Info,
        net: &mut Net,
    ) -> ProbeEvent {
        if let Some((kept, _)) = self.kept.take() {
            let unneeded = if kept.id == on { self.connection.replace(kept) } else { Some(kept) };
            unneeded.into_iter().for_each(|it| net.close(it.id, pid));
        }
        let asked = self.connection.as_mut().and_then(|it| it.pending.take()).unwrap_or(now);
        self.failed.reset();
        self.rejected.reset();
        self.retry.reset();
        (self.retry_at, self.phase) = (None, ProbePhase::Idle);
        ProbeEvent::Probed(self.node.clone(), asked, Ok(report(self.addr, info)))
    }

    /// No answer arrived in time: the probe stays pending.
    fn unanswered(&mut self, pid: Pid, now: Micros, net: &mut Net) -> ProbeEvent {
        if self.kept.is_some() {
            return self.inconclusive(pid, now, net);
        }
        self.phase = ProbePhase::Idle;
        let asked = self.connection.as_ref().and_then(|it| it.pending).unwrap_or(now);
        ProbeEvent::Probed(self.node.clone(), asked, Err(ProbeFailure::Unresponsive))
    }

    /// The repetition says less than the connection that is kept: the node may be busy, with a full
    /// accept queue or without room for another client.
    fn inconclusive(&mut self, pid: Pid, now: Micros, net: &mut Net) -> ProbeEvent {
        self.drop_connection(pid, net);
        self.phase = ProbePhase::Idle;
        if let Some((kept, began)) = self.kept.take() {
            self.connection = Some(kept);
            self.retry_at = Some(began + self.retry.pause(net));
        }
        let asked = self.connection.as_ref().and_then(|it| it.pending).unwrap_or(now);
        ProbeEvent::Probed(self.node.clone(), asked, Err(ProbeFailure::Unresponsive))
    }

    fn failed(
        &mut self,
        asked: Micros,
        now: Micros,
        failure: ProbeFailure,
        net: &mut Net,
    ) -> ProbeEvent {
        self.phase = ProbePhase::Idle;
        self.connection = self.kept.take().map(|(kept, _)| kept);
        let rejected = failure == AFTER_ERROR_LINE;
        let pause = if rejected { self.rejected.pause(net) } else { self.failed.pause(net) };
        self.pause = Some(DialPause { until: now + pause, ends_if_urgent: !rejected });
        ProbeEvent::Probed(self.node.clone(), asked, Err(failure))
    }
}

fn report(addr: Addr, info: &Info) -> NodeReport {
    let role = match info.master {
        None => Role::Master,
        Some(master) => Role::Replica { master: master.node(), connected: info.link_up },
    };
    let lineage = Lineage {
        run_id: hex(info.run_id).into(),
        replid: hex(info.replid).into(),
        replid2: if info.second_offset < 0 {
            "0".repeat(40).into()
        } else {
            hex(info.replid2).into()
        },
        offset: info.offset,
        second_offset: info.second_offset,
    };
    NodeReport {
        dialled: addr.socket(),
        role,
        ping: PingReply::Pong,
        offset: Some(info.offset),
        lineage: Some(lineage),
        replicas: None,
    }
}
