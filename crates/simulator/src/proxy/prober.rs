//! Probe connections, modelled on `sentinel/src/prober/mod.rs`: one idle connection to each node,
//! one probe at a time, pauses after failures, and a probe that stays pending on its connection
//! when no answer arrives in time.

use sentinel::{Lineage, NodeAddr, NodeReport, ProbeFailure, Role};

use crate::net::{ConnId, Net};
use crate::wire::{Addr, Info, MS, Message, Micros, Pid, SECOND, hex};

/// A pending probe is abandoned, with its connection, after this time.
const GIVE_UP: Micros = 5 * SECOND;
const LOST_INTERVAL: Micros = 100 * MS;
const FAILED_MIN: Micros = 20 * MS;
const FAILED_MAX: Micros = SECOND;
const TIMEOUT: Micros = 250 * MS;

/// The meaning of an error line before the end of a new connection.
const AFTER_ERROR_LINE: ProbeFailure = ProbeFailure::ConnectionRejected;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbePhase {
    Idle,
    Paused(Micros),
    Dialling { token: u64, asked: Micros },
    Asking { until: Micros, was_idle: bool },
}

/// An event of a prober.
#[derive(Debug)]
pub(crate) enum ProbeEvent {
    Probed(NodeAddr, Micros, Result<NodeReport, ProbeFailure>),
    ConnectionLost(NodeAddr),
}

#[derive(Debug)]
struct NodeProber {
    node: NodeAddr,
    addr: Addr,
    connection: Option<ConnId>,
    handshake_sent: bool,
    pending: Option<Micros>,
    phase: ProbePhase,
    requested: bool,
    urgent: bool,
    pause_until: Option<Micros>,
    bound: Micros,
    ended_at: Option<Micros>,
    refused: bool,
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
        urgent: bool,
        now: Micros,
        net: &mut Net,
    ) -> Vec<ProbeEvent> {
        let Some(addr) = Addr::of(node) else { return Vec::new() };
        if self.all.iter().all(|it| it.node != *node) {
            self.all.push(NodeProber::new(node.clone(), addr));
        }
        let Some(at) = self.all.iter().position(|it| it.node == *node) else { return Vec::new() };
        self.all[at].urgent |= urgent;
        self.all[at].requested = true;
        self.turn(at, now, net)
    }

    pub(crate) fn keep(&mut self, wanted: impl Fn(&NodeAddr) -> bool, net: &mut Net) {
        let pid = self.pid;
        self.all.retain(|it| {
            let kept = wanted(&it.node);
            if !kept {
                it.connection.into_iter().for_each(|connection| net.close(connection, pid));
            }
            kept
        });
    }

    pub(crate) fn next_due(&self) -> Micros {
        let due = self.all.iter().filter_map(|it| match it.phase {
            ProbePhase::Paused(until) | ProbePhase::Asking { until, .. } => Some(until),
            ProbePhase::Idle | ProbePhase::Dialling { .. } => None,
        });
        due.min().unwrap_or(Micros::MAX)
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: Micros, net: &mut Net) -> Vec<ProbeEvent> {
        let mut events = Vec::new();
        for at in 0..self.all.len() {
            let it = &mut self.all[at];
            if let ProbePhase::Asking { until, .. } = it.phase
                && now >= until
            {
                it.phase = ProbePhase::Idle;
                let asked = it.pending.unwrap_or(now);
                events.push(ProbeEvent::Probed(
                    it.node.clone(),
                    asked,
                    Err(ProbeFailure::Unresponsive),
                ));
            }
            events.extend(self.turn(at, now, net));
        }
        events
    }

    /// Starts a requested probe unless the prober is paused or busy.
    fn turn(&mut self, at: usize, now: Micros, net: &mut Net) -> Vec<ProbeEvent> {
        let pid = self.pid;
        let it = &mut self.all[at];
        match it.phase {
            ProbePhase::Idle if it.requested => it.requested = false,
            ProbePhase::Paused(until) if now >= until || it.urgent => {}
            _ => return Vec::new(),
        }
        if it.phase == ProbePhase::Idle {
            if it.pending.is_some_and(|asked| now - asked > GIVE_UP) {
                it.drop_conn(pid, net);
            }
            let was_idle = it.handshake_sent && it.pending.is_none() && it.connection.is_some();
            if it.connection.is_some() {
                it.begin_question(pid, was_idle, now, net);
                return Vec::new();
            }
            if let Some(until) = it.pause_until.take()
                && now < until
                && !it.urgent
            {
                it.phase = ProbePhase::Paused(until);
                return Vec::new();
            }
        }
        it.urgent = false;
        self.dial(at, now, net);
        Vec::new()
    }

    fn dial(&mut self, at: usize, now: Micros, net: &mut Net) {
        self.tokens += 1;
        let it = &mut self.all[at];
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
            return vec![it.failed(asked, now, ProbeFailure::Unreachable, net)];
        };
        (it.connection, it.pending, it.handshake_sent, it.refused) =
            (Some(connection), None, false, false);
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
        let at = self.all.iter().position(|it| it.connection == Some(connection))?;
        let it = &mut self.all[at];
        match body {
            Message::Probed { info, .. } => {
                let asked = it.pending.take().unwrap_or(now);
                (it.bound, it.pause_until) = (FAILED_MIN, None);
                it.phase = ProbePhase::Idle;
                let mut events =
                    vec![ProbeEvent::Probed(it.node.clone(), asked, Ok(report(it.addr, info)))];
                events.extend(self.turn(at, now, net));
                Some(events)
            }
            Message::TooMany => {
                it.refused = true;
                Some(Vec::new())
            }
            _ => Some(Vec::new()),
        }
    }

    pub(crate) fn closed(
        &mut self,
        connection: ConnId,
        now: Micros,
        net: &mut Net,
    ) -> Option<Vec<ProbeEvent>> {
        let at = self.all.iter().position(|it| it.connection == Some(connection))?;
        let it = &mut self.all[at];
        (it.connection, it.handshake_sent) = (None, false);
        let asked = it.pending.take();
        match it.phase {
            ProbePhase::Asking { was_idle: true, .. } => {
                // The end of an idle connection says nothing about the server: only a dial does.
                self.dial(at, now, net);
                Some(Vec::new())
            }
            ProbePhase::Asking { .. } => {
                let failure = if it.refused { AFTER_ERROR_LINE } else { ProbeFailure::Unreachable };
                Some(vec![it.failed(asked.unwrap_or(now), now, failure, net)])
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
            handshake_sent: false,
            pending: None,
            phase: ProbePhase::Idle,
            requested: false,
            urgent: false,
            pause_until: None,
            bound: FAILED_MIN,
            ended_at: None,
            refused: false,
        }
    }

    fn drop_conn(&mut self, pid: Pid, net: &mut Net) {
        self.connection.take().into_iter().for_each(|connection| net.close(connection, pid));
        (self.pending, self.handshake_sent) = (None, false);
    }

    fn begin_question(&mut self, pid: Pid, was_idle: bool, now: Micros, net: &mut Net) {
        self.phase = ProbePhase::Asking { until: now + TIMEOUT, was_idle };
        self.handshake_sent = true;
        if let (None, Some(connection)) = (self.pending, self.connection) {
            self.pending = Some(now);
            net.send(connection, pid, Message::Probe { asked: now });
        }
    }

    fn failed(
        &mut self,
        asked: Micros,
        now: Micros,
        failure: ProbeFailure,
        net: &mut Net,
    ) -> ProbeEvent {
        self.phase = ProbePhase::Idle;
        (self.connection, self.pending, self.handshake_sent) = (None, None, false);
        let pause = (FAILED_MIN / 2).max(net.rng.range(0, self.bound));
        self.bound = (self.bound * 2).min(FAILED_MAX);
        self.pause_until = Some(now + pause);
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
        pong: true,
        offset: Some(info.offset),
        lineage: Some(lineage),
    }
}
