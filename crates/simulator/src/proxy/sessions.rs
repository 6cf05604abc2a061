//! Clients that write through one proxy, and its data plane: gate, fence, generation and lease as
//! sessions observe them.
//!
//! Each client writes one number after another and waits for each reply. A session is one
//! connection to the target of a generation; it is closed when the target is superseded. Nothing is
//! sent while the gate is closed, and replies still flow.

use target::{Generation, ReplyPolicy};

use crate::net::{ConnId, Net, Observation};
use crate::proxy::observed::Observed;
use crate::wire::{MS, Message, Micros, Pid, SECOND};

/// Timers of clients have keys from here on.
pub(crate) const TIMERS: u64 = 1000;

/// Dial tokens of sessions are above this.
pub(crate) const TOKENS: u64 = 1 << 50;

const DIAL: Micros = SECOND;
const GIVE_UP: Micros = 10 * SECOND;

/// A reply: its connection, the number of its request, and when that was executed.
type Reply = (ConnId, u32, Micros);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionPhase {
    Thinking,
    /// It has a request and waits at the gate.
    Waiting,
    Dialling {
        token: u64,
        generation: Generation,
    },
    InFlight {
        id: u32,
    },
}

#[derive(Debug)]
struct Client {
    phase: SessionPhase,
    /// The connection to the target of a generation.
    connection: Option<(ConnId, Generation)>,
    /// Counts planned turns; an older timer is void.
    turn: u64,
    /// When its next turn is.
    due: Micros,
    /// A delayed reply, with its connection and the time of its execution.
    kept: Option<Reply>,
}

/// All clients of one proxy.
#[derive(Debug)]
pub(crate) struct Sessions {
    pid: Pid,
    clients: Vec<Client>,
    think: Micros,
    tokens: u64,
    /// The data plane noticed a problem: discovery should probe.
    pub(crate) hint: bool,
}

impl Sessions {
    pub(crate) fn new(pid: Pid, clients: usize, think: Micros, base: u64, net: &mut Net) -> Self {
        let client = |_| Client {
            phase: SessionPhase::Thinking,
            connection: None,
            turn: base,
            due: 0,
            kept: None,
        };
        let clients: Vec<Client> = (0..clients).map(client).collect();
        let mut sessions = Self { pid, clients, think, tokens: TOKENS + base, hint: false };
        for at in 0..sessions.clients.len() {
            sessions.think(at, think, net);
        }
        sessions
    }

    fn think(&mut self, at: usize, about: Micros, net: &mut Net) {
        let pause = net.rng.range(about / 2, about * 3 / 2);
        self.clients[at].phase = SessionPhase::Thinking;
        self.wake_at(at, net.now + pause, net);
    }

    /// Plans the next turn of a client.
    fn wake_at(&mut self, at: usize, due: Micros, net: &mut Net) {
        let client = &mut self.clients[at];
        (client.due, client.turn) = (due, client.turn + 1);
        net.timer(self.pid, due, TIMERS + at as u64 + client.turn * 1000);
    }

    fn by_connection(&self, connection: ConnId) -> Option<usize> {
        self.clients.iter().position(|it| it.connection.is_some_and(|(it, _)| it == connection))
    }

    /// The process continues, and its workers run before discovery does: they find the requests
    /// that arrived while it was stopped.
    pub(crate) fn continue_first(&mut self, observed: &Observed, net: &mut Net) {
        for at in 0..self.clients.len() {
            let client = &mut self.clients[at];
            if client.phase == SessionPhase::Thinking && client.due <= net.now {
                (client.phase, client.turn) = (SessionPhase::Waiting, client.turn + 1);
                self.advance(at, observed, net);
            }
        }
    }

    pub(crate) fn timer(&mut self, key: u64, observed: &Observed, net: &mut Net) {
        let (at, turn) = ((key % 1000) as usize, (key - TIMERS) / 1000);
        let Some(client) = self.clients.get_mut(at).filter(|it| it.turn == turn) else { return };
        match client.phase {
            SessionPhase::Thinking => {
                client.phase = SessionPhase::Waiting;
                self.advance(at, observed, net);
            }
            SessionPhase::InFlight { .. } => self.drop_session(at, net),
            _ => {}
        }
    }

    /// Reacts to a change of the target: closes fenced sessions, and resumes waiting ones.
    pub(crate) fn pump(&mut self, observed: &Observed, net: &mut Net) {
        let generation = observed.generation();
        for at in 0..self.clients.len() {
            let client = &self.clients[at];
            if client.connection.is_some_and(|(_, of)| Some(of) != generation) {
                self.drop_session(at, net);
            }
            if let Some(kept) = self.clients[at].kept.take() {
                self.reply(at, kept, observed, net);
            }
            if self.clients[at].phase == SessionPhase::Waiting {
                self.advance(at, observed, net);
            }
        }
    }

    /// Closes a session, with the request in flight.
    fn drop_session(&mut self, at: usize, net: &mut Net) {
        let client = &mut self.clients[at];
        client.kept = None;
        if let Some((connection, _)) = client.connection.take() {
            net.close(connection, self.pid);
        }
        if matches!(client.phase, SessionPhase::InFlight { .. }) {
            self.think(at, 20 * MS, net);
        }
    }

    /// Handles a reply: passes it on, delays it until discovery knows more, or drops it with its
    /// session.
    fn reply(&mut self, at: usize, reply: Reply, observed: &Observed, net: &mut Net) {
        let generation = self.clients[at].connection.map(|(_, generation)| generation);
        match generation.map_or(ReplyPolicy::Drop, |it| observed.replies(it, net)) {
            ReplyPolicy::Pass => {
                let (connection, id, executed) = reply;
                let (pid, node) = (self.pid, net.peer(connection, self.pid));
                net.observe(pid, Observation::Acked { node, id, executed });
                self.think(at, self.think, net);
            }
            ReplyPolicy::Wait => self.clients[at].kept = Some(reply),
            ReplyPolicy::Drop => self.drop_session(at, net),
        }
    }

    fn advance(&mut self, at: usize, observed: &Observed, net: &mut Net) {
        if observed.is_closed(net) {
            return;
        }
        let Some((addr, generation)) = observed.target().zip(observed.generation()) else { return };
        let client = &mut self.clients[at];
        match client.connection {
            Some((connection, _)) => {
                let id = net.new_write();
                client.phase = SessionPhase::InFlight { id };
                self.wake_at(at, net.now + GIVE_UP, net);
                if observed.unproven_since.is_some() {
                    let (pid, node) = (self.pid, net.peer(connection, self.pid));
                    net.observe(pid, Observation::ForwardedUnproven { node });
                }
                net.send(connection, self.pid, Message::Write { id });
            }
            None => {
                self.tokens += 1;
                client.phase = SessionPhase::Dialling { token: self.tokens, generation };
                net.dial(self.pid, addr, DIAL, self.tokens);
            }
        }
    }

    pub(crate) fn dialled(
        &mut self,
        token: u64,
        connection: Option<ConnId>,
        observed: &Observed,
        net: &mut Net,
    ) {
        let found = self.clients.iter().enumerate().find_map(|(at, it)| match it.phase {
            SessionPhase::Dialling { token: open, generation } if open == token => {
                Some((at, generation))
            }
            _ => None,
        });
        let Some((at, generation)) = found else {
            return connection.into_iter().for_each(|connection| net.close(connection, self.pid));
        };
        let Some(connection) = connection else {
            self.hint = true;
            return self.think(at, 50 * MS, net);
        };
        self.clients[at].phase = SessionPhase::Waiting;
        if observed.generation() == Some(generation) {
            self.clients[at].connection = Some((connection, generation));
        } else {
            net.close(connection, self.pid);
        }
        self.advance(at, observed, net);
    }

    pub(crate) fn message(
        &mut self,
        connection: ConnId,
        body: &Message,
        observed: &Observed,
        net: &mut Net,
    ) {
        let Some(at) = self.by_connection(connection) else { return };
        match body {
            Message::Written { id, at: executed }
                if self.clients[at].phase == (SessionPhase::InFlight { id: *id }) =>
            {
                self.reply(at, (connection, *id, *executed), observed, net);
            }
            Message::ReadOnly { .. } => {
                self.hint = true;
                self.think(at, 50 * MS, net);
            }
            Message::TooMany => self.drop_session(at, net),
            _ => {}
        }
    }

    pub(crate) fn closed(&mut self, connection: ConnId, net: &mut Net) {
        let Some(at) = self.by_connection(connection) else { return };
        self.hint = true;
        self.clients[at].connection = None;
        if matches!(self.clients[at].phase, SessionPhase::InFlight { .. }) {
            self.think(at, 50 * MS, net);
        }
    }
}
