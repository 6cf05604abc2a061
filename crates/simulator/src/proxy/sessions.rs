//! Clients that write through one proxy, and its data plane: gate, fence, generation and lease as
//! sessions see them.
//!
//! Each client writes one number after another and waits for each reply. A session is one
//! connection to the target of a generation; it is closed when the target is superseded, and
//! nothing is sent while the gate is shut, while replies still flow.

use target::ReplyPolicy;

use crate::net::{ConnId, Fact, Net};
use crate::proxy::driver::Driver;
use crate::proxy::mono;
use crate::wire::{Body, MS, Pid, SECOND, Us};

/// Timers of clients have keys from here on.
pub(crate) const TIMERS: u64 = 1000;

/// Dial tokens of sessions are above this.
pub(crate) const TOKENS: u64 = 1 << 50;

const DIAL: Us = SECOND;
const GIVE_UP: Us = 10 * SECOND;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Thinking,
    /// It has something to write and waits at the gate.
    Waiting,
    Dialling {
        token: u64,
        generation: u64,
    },
    InFlight {
        id: u32,
        sent: Us,
    },
}

#[derive(Debug)]
struct Client {
    phase: Phase,
    /// The connection to the target of a generation.
    conn: Option<(ConnId, u64)>,
    /// How often a turn was planned; an older timer is void.
    turn: u64,
    /// A reply that waits, with its connection and the time of its execution.
    kept: Option<(ConnId, u32, Us)>,
}

/// All clients of one proxy.
#[derive(Debug)]
pub(crate) struct Sessions {
    pid: Pid,
    clients: Vec<Client>,
    think: Us,
    tokens: u64,
    /// The data plane noticed something; discovery is to look again.
    pub(crate) hint: bool,
}

impl Sessions {
    pub(crate) fn new(pid: Pid, clients: usize, think: Us, base: u64, net: &mut Net) -> Self {
        let client = |_| Client { phase: Phase::Thinking, conn: None, turn: base, kept: None };
        let clients: Vec<Client> = (0..clients).map(client).collect();
        let mut sessions = Self { pid, clients, think, tokens: TOKENS + base, hint: false };
        for at in 0..sessions.clients.len() {
            sessions.think(at, think, net);
        }
        sessions
    }

    fn think(&mut self, at: usize, about: Us, net: &mut Net) {
        let pause = net.rng.range(about / 2, about * 3 / 2);
        let client = &mut self.clients[at];
        (client.phase, client.turn) = (Phase::Thinking, client.turn + 1);
        let key = TIMERS + at as u64 + client.turn * 1000;
        net.timer(self.pid, net.now + pause, key);
    }

    pub(crate) fn timer(&mut self, key: u64, driver: &Driver, now: Us, net: &mut Net) {
        let (at, turn) = ((key % 1000) as usize, (key - TIMERS) / 1000);
        let Some(client) = self.clients.get_mut(at).filter(|it| it.turn == turn) else { return };
        match client.phase {
            Phase::Thinking => {
                client.phase = Phase::Waiting;
                self.advance(at, driver, now, net);
            }
            Phase::InFlight { sent, .. } if net.now >= sent + GIVE_UP => self.drop_session(at, net),
            _ => {}
        }
    }

    /// The route may have changed: cuts what is fenced, and lets go what may go.
    pub(crate) fn pump(&mut self, driver: &Driver, now: Us, net: &mut Net) {
        let generation = driver.route.target.as_ref().map(|it| it.generation);
        for at in 0..self.clients.len() {
            let client = &self.clients[at];
            if client.conn.is_some_and(|(_, of)| Some(of) != generation) {
                self.drop_session(at, net);
            }
            if let Some(kept) = self.clients[at].kept.take() {
                self.reply(at, kept, driver, net);
            }
            if self.clients[at].phase == Phase::Waiting {
                self.advance(at, driver, now, net);
            }
        }
    }

    /// Ends a session, with whatever is in flight on it.
    fn drop_session(&mut self, at: usize, net: &mut Net) {
        let client = &mut self.clients[at];
        client.kept = None;
        if let Some((conn, _)) = client.conn.take() {
            net.close(conn, self.pid);
        }
        if matches!(client.phase, Phase::InFlight { .. }) {
            self.think(at, 20 * MS, net);
        }
    }

    /// What became of a reply: passed on, kept until discovery knows more, or dropped with its
    /// session.
    fn reply(
        &mut self,
        at: usize,
        (conn, id, executed): (ConnId, u32, Us),
        driver: &Driver,
        net: &mut Net,
    ) {
        let now = mono(self.pid, net);
        let generation = self.clients[at].conn.map_or(0, |(_, generation)| generation);
        match driver.replies(generation, now) {
            ReplyPolicy::Pass => {
                let (pid, node) = (self.pid, net.peer(conn, self.pid));
                net.fact(Fact::Acked { pid, node, id, executed });
                self.think(at, self.think, net);
            }
            ReplyPolicy::Wait => self.clients[at].kept = Some((conn, id, executed)),
            ReplyPolicy::Drop => self.drop_session(at, net),
        }
    }

    fn advance(&mut self, at: usize, driver: &Driver, now: Us, net: &mut Net) {
        if driver.is_closed(now) {
            return;
        }
        let Some(target) = &driver.route.target else { return };
        let client = &mut self.clients[at];
        match client.conn {
            Some((conn, _)) => {
                let id = net.new_write();
                client.phase = Phase::InFlight { id, sent: net.now };
                client.turn += 1;
                let key = TIMERS + at as u64 + client.turn * 1000;
                net.timer(self.pid, net.now + GIVE_UP, key);
                net.send(conn, self.pid, Body::Write { id });
            }
            None => {
                self.tokens += 1;
                client.phase =
                    Phase::Dialling { token: self.tokens, generation: target.generation };
                net.dial(self.pid, target.addr, DIAL, self.tokens);
            }
        }
    }

    pub(crate) fn dialled(
        &mut self,
        token: u64,
        conn: Option<ConnId>,
        driver: &Driver,
        now: Us,
        net: &mut Net,
    ) {
        let mine =
            |it: &Client| matches!(it.phase, Phase::Dialling { token: open, .. } if open == token);
        let Some(at) = self.clients.iter().position(mine) else {
            return conn.into_iter().for_each(|conn| net.close(conn, self.pid));
        };
        let Phase::Dialling { generation, .. } = self.clients[at].phase else { return };
        let Some(conn) = conn else {
            self.hint = true;
            return self.think(at, 50 * MS, net);
        };
        self.clients[at].phase = Phase::Waiting;
        if driver.route.target.as_ref().is_some_and(|it| it.generation == generation) {
            self.clients[at].conn = Some((conn, generation));
        } else {
            net.close(conn, self.pid);
        }
        self.advance(at, driver, now, net);
    }

    /// `false`: not one of these connections.
    pub(crate) fn message(
        &mut self,
        conn: ConnId,
        body: &Body,
        driver: &Driver,
        net: &mut Net,
    ) -> bool {
        let Some(at) = self.clients.iter().position(|it| it.conn.is_some_and(|(it, _)| it == conn))
        else {
            return false;
        };
        match body {
            Body::Written { id, at: executed } => {
                if matches!(self.clients[at].phase, Phase::InFlight { id: open, .. } if open == *id)
                {
                    self.reply(at, (conn, *id, *executed), driver, net);
                }
            }
            Body::ReadOnly { .. } => {
                self.hint = true;
                self.think(at, 50 * MS, net);
            }
            Body::TooMany => self.drop_session(at, net),
            _ => {}
        }
        true
    }

    /// `false`: not one of these connections.
    pub(crate) fn closed(&mut self, conn: ConnId, net: &mut Net) -> bool {
        let Some(at) = self.clients.iter().position(|it| it.conn.is_some_and(|(it, _)| it == conn))
        else {
            return false;
        };
        self.hint = true;
        self.clients[at].conn = None;
        if matches!(self.clients[at].phase, Phase::InFlight { .. }) {
            self.think(at, 50 * MS, net);
        }
        true
    }
}
