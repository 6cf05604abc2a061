//! A Redis node: its role, its history, its replicas and the connections that a promotion ends.
//!
//! A write is an entry of 100 bytes in the replication stream and one number in the data set, so
//! that acknowledged writes can be looked up at the end. A history has an ID (`replid`); a promoted
//! node begins a new one and remembers which one it continues (`replid2`).

mod replication;

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::net::{ConnId, Net, ProcessInput};
use crate::speech::answer_as_node;
use crate::wire::{Addr, Info, MS, Message, Micros, Pid, SECOND};

/// Size of a write in the replication stream, and of a keepalive.
const WRITE_BYTES: u64 = 100;
const PING_BYTES: u64 = 14;

const CRON: u64 = 1;
const KEEPALIVE: u64 = 2;
const SYNCS: u64 = 3;

/// The link of a replica to its master.
#[derive(Debug, Default)]
struct Upstream {
    master: Addr,
    connection: Option<ConnId>,
    dialling: Option<u64>,
    up: bool,
    down_since: Micros,
    /// Since when the master's host has not acknowledged anything.
    silent_since: Option<Micros>,
    /// It has to become the master first: this node hands over to it.
    succeeds: bool,
}

/// A handover to a replica.
#[derive(Debug)]
struct Handover {
    to: Addr,
    /// The replica's connection.
    link: ConnId,
    until: Micros,
    /// The writes of clients that wait meanwhile.
    held: Vec<(ConnId, u32)>,
}

/// The state in which a node restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestartMode {
    /// With its data and its configuration as last rewritten.
    Kept,
    /// With its data, but with its initially configured role.
    RoleLost,
    /// Empty, as a master: a new pod without a volume.
    Empty,
}

/// A Redis node. See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Redis {
    pub(crate) pid: Pid,
    pub(crate) run_id: u64,
    pub(crate) writes: Rc<Vec<u32>>,
    pub(crate) replid: u64,
    pub(crate) replid2: u64,
    second_offset: i64,
    offset: u64,
    /// The stream since `backlog_from`: the offset after each entry, and the write.
    backlog: Vec<(u64, Option<u32>)>,
    backlog_from: u64,
    upstream: Option<Upstream>,
    configured: Option<Addr>,
    replicas: Vec<(ConnId, Addr)>,
    /// Replicas that wait for a full copy.
    syncing: Vec<(ConnId, Addr, Micros)>,
    clients: Vec<ConnId>,
    subscribers: Vec<ConnId>,
    /// Proxies that sent the password.
    authenticated: BTreeSet<ConnId>,
    pub(crate) has_password: bool,
    pub(crate) full: bool,
    pub(crate) priority: u64,
    handover: Option<Handover>,
    tokens: u64,
    /// When it was last promoted.
    pub(crate) promoted_at: Option<Micros>,
    /// When it last became a replica, other than at the start.
    demoted_at: Option<Micros>,
}

impl Redis {
    pub(crate) fn new(pid: Pid, replid: u64, master: Option<Addr>, net: &mut Net) -> Self {
        let mut node = Self {
            pid,
            run_id: net.rng.next(),
            replid,
            second_offset: -1,
            configured: master,
            upstream: master.map(|master| Upstream::new(master, 0)),
            priority: 100,
            ..Self::default()
        };
        node.set_timers(net);
        node
    }

    fn set_timers(&mut self, net: &mut Net) {
        let (cron, keepalive) = (net.rng.range(0, 100 * MS), net.rng.range(SECOND, 10 * SECOND));
        net.timer(self.pid, net.now + cron, CRON);
        net.timer(self.pid, net.now + keepalive, KEEPALIVE);
    }

    /// Restarts after a crash.
    pub(crate) fn restart(&mut self, how: RestartMode, net: &mut Net) {
        (self.replicas, self.syncing, self.clients) = (Vec::new(), Vec::new(), Vec::new());
        (self.subscribers, self.authenticated) = (Vec::new(), BTreeSet::new());
        self.run_id = net.rng.next();
        (self.promoted_at, self.handover) = (None, None);
        self.demoted_at = Some(net.now);
        let master = match how {
            RestartMode::Kept => self.upstream.as_ref().map(|it| it.master),
            RestartMode::RoleLost => self.configured,
            RestartMode::Empty => None,
        };
        if how == RestartMode::Empty {
            self.writes = Rc::default();
            (self.offset, self.replid2, self.second_offset) = (0, 0, -1);
            self.replid = net.rng.next();
            (self.backlog, self.backlog_from) = (Vec::new(), 0);
            self.full = false;
        } else if master.is_none() {
            // A master's own file names the history that it continues.
            self.begin_history(net.rng.next());
        }
        self.upstream = master.map(|master| Upstream::new(master, net.now));
        self.set_timers(net);
    }

    pub(crate) fn is_master(&self) -> bool {
        self.upstream.is_none()
    }

    pub(crate) fn master(&self) -> Option<Addr> {
        self.upstream.as_ref().map(|it| it.master)
    }

    fn begin_history(&mut self, replid: u64) {
        self.replid2 = std::mem::replace(&mut self.replid, replid);
        self.second_offset = i64::try_from(self.offset).unwrap_or(i64::MAX - 1) + 1;
    }

    pub(crate) fn handle(&mut self, input: ProcessInput, net: &mut Net) {
        match input {
            ProcessInput::Accepted(connection) if self.full => {
                net.send(connection, self.pid, Message::TooMany);
                net.close(connection, self.pid);
            }
            ProcessInput::Accepted(connection) => self.clients.push(connection),
            ProcessInput::Closed(connection) => self.closed(connection, net),
            ProcessInput::Dialled(token, connection) => self.dialled(token, connection, net),
            ProcessInput::Timer(CRON) => {
                self.cron(net);
                net.timer(self.pid, net.now + 100 * MS, CRON);
            }
            ProcessInput::Timer(KEEPALIVE) => {
                if self.is_master() && !self.replicas.is_empty() {
                    self.append(None, PING_BYTES, net);
                }
                net.timer(self.pid, net.now + 10 * SECOND, KEEPALIVE);
            }
            ProcessInput::Timer(SYNCS) => self.send_copies(net),
            ProcessInput::Timer(_) | ProcessInput::Continued => {}
            ProcessInput::Message(connection, body) => self.message(connection, body, net),
        }
    }

    fn message(&mut self, connection: ConnId, body: Message, net: &mut Net) {
        let reply = match body {
            Message::Ping => Message::Pong,
            Message::Info => Message::InfoIs(Box::new(self.info(net))),
            Message::Subscribe => return self.subscribers.push(connection),
            Message::Publish(hello) => {
                let subscribers = self.subscribers.iter();
                return subscribers
                    .for_each(|it| net.send(*it, self.pid, Message::Hello(Rc::clone(&hello))));
            }
            Message::SlaveOf(master) => {
                self.slave_of(master, net);
                return self.kill_clients(connection, net);
            }
            Message::Request(commands) => {
                let (info, has_password) = (self.info(net), self.has_password);
                let known = &mut self.authenticated;
                answer_as_node(&commands, &info, has_password, known, connection)
            }
            Message::Failover { to, lasts } => return self.hand_over(to, lasts, net),
            Message::CatchUp => Message::CaughtUp,
            Message::CaughtUp => return self.end_handover(Some(connection), net),
            Message::Write { id } => return self.write(connection, id, net),
            Message::Psync { replid, offset, from, failover } => {
                if failover && replid == self.replid {
                    self.slave_of(None, net);
                }
                return self.sync_with(connection, replid, offset, from, net);
            }
            Message::Continue { replid } => return self.continued(connection, replid),
            Message::Full { replid, offset, writes } => {
                return self.copied(connection, replid, offset, writes);
            }
            Message::Stream { id, offset } => return self.streamed(connection, id, offset, net),
            Message::TooMany => {
                net.close(connection, self.pid);
                return self.closed(connection, net);
            }
            _ => return,
        };
        net.send(connection, self.pid, reply);
    }

    fn write(&mut self, connection: ConnId, id: u32, net: &mut Net) {
        if let Some(handover) = &mut self.handover {
            return handover.held.push((connection, id));
        }
        if !self.is_master() {
            return net.send(connection, self.pid, Message::ReadOnly { id });
        }
        Rc::make_mut(&mut self.writes).push(id);
        self.append(Some(id), WRITE_BYTES, net);
        net.send(connection, self.pid, Message::Written { id, at: net.now });
    }

    fn append(&mut self, id: Option<u32>, bytes: u64, net: &mut Net) {
        self.offset += bytes;
        self.backlog.push((self.offset, id));
        for (connection, _) in &self.replicas {
            net.send(*connection, self.pid, Message::Stream { id, offset: self.offset });
        }
    }

    pub(crate) fn info(&self, net: &Net) -> Info {
        let up = self.upstream.as_ref().is_none_or(|it| it.up);
        Info {
            run_id: self.run_id,
            master: self.master(),
            link_up: up,
            link_down_for: self
                .upstream
                .as_ref()
                .filter(|_| !up)
                .map_or(0, |it| net.now - it.down_since),
            hands_over: self.handover.is_some(),
            replicas: self.replicas.iter().map(|(_, addr)| *addr).collect(),
            priority: self.priority,
            offset: self.offset,
            replid: self.replid,
            replid2: self.replid2,
            second_offset: self.second_offset,
        }
    }

    /// Whether it has been a replica for longer than `long`.
    pub(crate) fn is_replica_for(&self, now: Micros, long: Micros) -> bool {
        !self.is_master() && self.demoted_at.is_none_or(|at| now - at > long)
    }

    /// `CONFIG SET requirepass`: the present connections stay.
    pub(crate) fn set_password(&mut self) {
        self.has_password = true;
        self.authenticated.extend(&self.clients);
    }

    /// `REPLICAOF`, from a sentinel or typed by an operator.
    pub(crate) fn slave_of(&mut self, master: Option<Addr>, net: &mut Net) {
        if self.master() == master {
            return;
        }
        let handover = self.handover.take();
        let upstream = self.upstream.as_ref().and_then(|it| it.connection).into_iter();
        let replicas = self.replicas.drain(..).map(|(connection, _)| connection);
        let syncing = self.syncing.drain(..).map(|(connection, ..)| connection);
        for connection in upstream.chain(replicas).chain(syncing) {
            net.close(connection, self.pid);
        }
        match master {
            Some(master) => {
                net.trace_line(self.pid, || format!("is now a replica of {master}"));
                self.upstream = Some(Upstream::new(master, net.now));
                self.demoted_at = Some(net.now);
                self.cron(net);
            }
            None => {
                net.trace_line(self.pid, || "PROMOTED: is now a master".to_owned());
                self.upstream = None;
                self.promoted_at = Some(net.now);
                self.begin_history(net.rng.next());
            }
        }
        self.resume(handover, net);
    }

    /// A sentinel sends `CLIENT KILL` for all clients with every change of role; its own connection
    /// stays.
    fn kill_clients(&mut self, but: ConnId, net: &mut Net) {
        let own = self.upstream.as_ref().and_then(|it| it.connection);
        let keep = |connection: &ConnId| *connection == but || own == Some(*connection);
        let (kept, killed): (Vec<ConnId>, Vec<ConnId>) =
            self.clients.iter().partition(|connection| keep(connection));
        self.clients = kept;
        self.subscribers.retain(|connection| *connection == but);
        for connection in killed {
            net.close(connection, self.pid);
        }
    }

    fn closed(&mut self, connection: ConnId, net: &mut Net) {
        if self.handover.as_ref().is_some_and(|it| it.link == connection) {
            self.end_handover(None, net);
        }
        self.clients.retain(|it| *it != connection);
        self.authenticated.remove(&connection);
        self.subscribers.retain(|it| *it != connection);
        self.replicas.retain(|(it, _)| *it != connection);
        self.syncing.retain(|(it, ..)| *it != connection);
        if let Some(upstream) =
            self.upstream.as_mut().filter(|it| it.connection == Some(connection))
        {
            (upstream.connection, upstream.down_since) = (None, net.now);
            upstream.up = false;
        }
    }
}

impl Upstream {
    fn new(master: Addr, down_since: Micros) -> Self {
        Self { master, down_since, ..Self::default() }
    }
}
