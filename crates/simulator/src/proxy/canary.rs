//! Probe connections, as `sentinel/src/prober/mod.rs` keeps them: one idle connection to each node, one
//! question at a time, pauses after failures, and a question that stays open on its connection when
//! no answer comes in time.

use sentinel::{Lineage, NodeAddr, NodeReport, ProbeFailure, Role};

use crate::net::{ConnId, Net};
use crate::wire::{Addr, Body, Info, MS, Pid, SECOND, Us, hex};

/// A question without an answer is given up, with its connection, after this long.
const GIVE_UP: Us = 5 * SECOND;
const ENDED_EVERY: Us = 100 * MS;
const FAILED_MIN: Us = 20 * MS;
const FAILED_MAX: Us = SECOND;
const PATIENCE: Us = 250 * MS;

/// What an error line before the end of a new connection means.
const AFTER_ERROR_LINE: ProbeFailure = ProbeFailure::TurnedAway;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Paused(Us),
    Dialling { token: u64, asked: Us },
    Asking { until: Us, seasoned: bool },
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum ProbeEvent {
    Probed(NodeAddr, Us, Result<NodeReport, ProbeFailure>),
    Ended(NodeAddr),
}

#[derive(Debug)]
struct Canary {
    node: NodeAddr,
    addr: Addr,
    conn: Option<ConnId>,
    greeted: bool,
    open: Option<Us>,
    phase: Phase,
    rung: bool,
    need: bool,
    pause_until: Option<Us>,
    bound: Us,
    ended_at: Option<Us>,
    refused: bool,
}

/// The probe connections of one proxy.
#[derive(Debug)]
pub(crate) struct Canaries {
    pid: Pid,
    all: Vec<Canary>,
    tokens: u64,
}

/// Dial tokens of probe connections are above this.
pub(crate) const TOKENS: u64 = 1 << 40;

impl Canaries {
    pub(crate) fn new(pid: Pid, base: u64) -> Self {
        Self { pid, all: Vec::new(), tokens: TOKENS + base }
    }

    pub(crate) fn ask(
        &mut self,
        node: &NodeAddr,
        sure: bool,
        now: Us,
        net: &mut Net,
    ) -> Vec<ProbeEvent> {
        let Some(addr) = Addr::of(node) else { return Vec::new() };
        if self.all.iter().all(|it| it.node != *node) {
            self.all.push(Canary::new(node.clone(), addr));
        }
        let Some(at) = self.all.iter().position(|it| it.node == *node) else { return Vec::new() };
        self.all[at].need |= sure;
        self.all[at].rung = true;
        self.turn(at, now, net)
    }

    pub(crate) fn keep(&mut self, wanted: impl Fn(&NodeAddr) -> bool, net: &mut Net) {
        let pid = self.pid;
        self.all.retain(|it| {
            let kept = wanted(&it.node);
            if !kept {
                it.conn.into_iter().for_each(|conn| net.close(conn, pid));
            }
            kept
        });
    }

    pub(crate) fn next_due(&self) -> Us {
        let due = self.all.iter().filter_map(|it| match it.phase {
            Phase::Paused(until) | Phase::Asking { until, .. } => Some(until),
            Phase::Idle | Phase::Dialling { .. } => None,
        });
        due.min().unwrap_or(Us::MAX)
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: Us, net: &mut Net) -> Vec<ProbeEvent> {
        let mut songs = Vec::new();
        for at in 0..self.all.len() {
            let it = &mut self.all[at];
            if let Phase::Asking { until, .. } = it.phase
                && now >= until
            {
                it.phase = Phase::Idle;
                let asked = it.open.unwrap_or(now);
                songs.push(ProbeEvent::Probed(it.node.clone(), asked, Err(ProbeFailure::Silent)));
            }
            songs.extend(self.turn(at, now, net));
        }
        songs
    }

    /// Begins what was asked for, as far as it may begin now.
    fn turn(&mut self, at: usize, now: Us, net: &mut Net) -> Vec<ProbeEvent> {
        let pid = self.pid;
        let it = &mut self.all[at];
        match it.phase {
            Phase::Idle if it.rung => it.rung = false,
            Phase::Paused(until) if now >= until || it.need => {}
            _ => return Vec::new(),
        }
        if it.phase == Phase::Idle {
            if it.open.is_some_and(|asked| now - asked > GIVE_UP) {
                it.drop_conn(pid, net);
            }
            let seasoned = it.greeted && it.open.is_none() && it.conn.is_some();
            if it.conn.is_some() {
                it.begin_question(pid, seasoned, now, net);
                return Vec::new();
            }
            if let Some(until) = it.pause_until.take()
                && now < until
                && !it.need
            {
                it.phase = Phase::Paused(until);
                return Vec::new();
            }
        }
        it.need = false;
        self.dial(at, now, net);
        Vec::new()
    }

    fn dial(&mut self, at: usize, now: Us, net: &mut Net) {
        self.tokens += 1;
        let it = &mut self.all[at];
        it.phase = Phase::Dialling { token: self.tokens, asked: now };
        net.dial(self.pid, it.addr, PATIENCE, self.tokens);
    }

    pub(crate) fn dialled(
        &mut self,
        token: u64,
        conn: Option<ConnId>,
        now: Us,
        net: &mut Net,
    ) -> Vec<ProbeEvent> {
        let pid = self.pid;
        let mine = |it: &&mut Canary| matches!(it.phase, Phase::Dialling { token: open, .. } if open == token);
        let Some(it) = self.all.iter_mut().find(mine) else {
            conn.into_iter().for_each(|conn| net.close(conn, pid));
            return Vec::new();
        };
        let Phase::Dialling { asked, .. } = it.phase else { return Vec::new() };
        let Some(conn) = conn else {
            return vec![it.failed(asked, now, ProbeFailure::Unreachable, net)];
        };
        (it.conn, it.open, it.greeted, it.refused) = (Some(conn), None, false, false);
        it.begin_question(pid, false, now, net);
        Vec::new()
    }

    /// `None`: not one of these connections.
    pub(crate) fn message(
        &mut self,
        conn: ConnId,
        body: &Body,
        now: Us,
        net: &mut Net,
    ) -> Option<Vec<ProbeEvent>> {
        let at = self.all.iter().position(|it| it.conn == Some(conn))?;
        let it = &mut self.all[at];
        match body {
            Body::Probed { info, .. } => {
                let asked = it.open.take().unwrap_or(now);
                (it.bound, it.pause_until) = (FAILED_MIN, None);
                it.phase = Phase::Idle;
                let mut songs =
                    vec![ProbeEvent::Probed(it.node.clone(), asked, Ok(report(it.addr, info)))];
                songs.extend(self.turn(at, now, net));
                Some(songs)
            }
            Body::TooMany => {
                it.refused = true;
                Some(Vec::new())
            }
            _ => Some(Vec::new()),
        }
    }

    pub(crate) fn closed(
        &mut self,
        conn: ConnId,
        now: Us,
        net: &mut Net,
    ) -> Option<Vec<ProbeEvent>> {
        let at = self.all.iter().position(|it| it.conn == Some(conn))?;
        let it = &mut self.all[at];
        (it.conn, it.greeted) = (None, false);
        let asked = it.open.take();
        match it.phase {
            Phase::Asking { seasoned: true, .. } => {
                // An idle connection that turns out to be dead says nothing about the server: only
                // a dial does.
                self.dial(at, now, net);
                Some(Vec::new())
            }
            Phase::Asking { .. } => {
                let failure = if it.refused { AFTER_ERROR_LINE } else { ProbeFailure::Unreachable };
                Some(vec![it.failed(asked.unwrap_or(now), now, failure, net)])
            }
            _ => {
                let told = it.ended_at.is_some_and(|at| now - at < ENDED_EVERY);
                if told {
                    return Some(Vec::new());
                }
                it.ended_at = Some(now);
                Some(vec![ProbeEvent::Ended(it.node.clone())])
            }
        }
    }
}

impl Canary {
    fn new(node: NodeAddr, addr: Addr) -> Self {
        Self {
            node,
            addr,
            conn: None,
            greeted: false,
            open: None,
            phase: Phase::Idle,
            rung: false,
            need: false,
            pause_until: None,
            bound: FAILED_MIN,
            ended_at: None,
            refused: false,
        }
    }

    fn drop_conn(&mut self, pid: Pid, net: &mut Net) {
        self.conn.take().into_iter().for_each(|conn| net.close(conn, pid));
        (self.open, self.greeted) = (None, false);
    }

    fn begin_question(&mut self, pid: Pid, seasoned: bool, now: Us, net: &mut Net) {
        self.phase = Phase::Asking { until: now + PATIENCE, seasoned };
        self.greeted = true;
        if let (None, Some(conn)) = (self.open, self.conn) {
            self.open = Some(now);
            net.send(conn, pid, Body::Probe { asked: now });
        }
    }

    fn failed(&mut self, asked: Us, now: Us, failure: ProbeFailure, net: &mut Net) -> ProbeEvent {
        self.phase = Phase::Idle;
        (self.conn, self.open, self.greeted) = (None, None, false);
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
