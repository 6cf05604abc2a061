//! A redis node: its role, its history, its replicas and the connections that a promotion ends.
//!
//! A write is an entry of 100 bytes in the replication stream and one number in the data set, so
//! that what was acknowledged can be looked up in the end. A history has an ID (`replid`); a
//! promoted node begins a new one and remembers which one it continues (`replid2`).

mod replication;

use std::rc::Rc;

use crate::net::{ConnId, Input, Net};
use crate::wire::{Addr, Body, Info, MS, Pid, SECOND, Us};

/// Bytes that a write takes in the replication stream, and a keepalive.
const WRITE_BYTES: u64 = 100;
const PING_BYTES: u64 = 14;

const CRON: u64 = 1;
const KEEPALIVE: u64 = 2;
const SYNCS: u64 = 3;

/// The link of a replica to its master.
#[derive(Debug)]
struct Upstream {
    master: Addr,
    conn: Option<ConnId>,
    dialling: Option<u64>,
    up: bool,
    down_since: Us,
}

/// How a node comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comeback {
    /// With its data and its configuration as last rewritten.
    Kept,
    /// With its data, but with the role that it was first configured with.
    RoleLost,
    /// With nothing, as a master: a new pod without a volume.
    Empty,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Redis {
    pub(crate) pid: Pid,
    pub(crate) run_id: u64,
    pub(crate) writes: Rc<Vec<u32>>,
    pub(crate) replid: u64,
    replid2: u64,
    second_offset: i64,
    offset: u64,
    /// The stream since `backlog_from`: the offset after each entry, and the write.
    backlog: Vec<(u64, Option<u32>)>,
    backlog_from: u64,
    upstream: Option<Upstream>,
    configured: Option<Addr>,
    replicas: Vec<(ConnId, Addr)>,
    /// Those that wait for a whole copy.
    syncing: Vec<(ConnId, Addr, Us)>,
    clients: Vec<ConnId>,
    subscribers: Vec<ConnId>,
    pub(crate) full: bool,
    pub(crate) priority: u64,
    tokens: u64,
    /// When it was last promoted.
    pub(crate) promoted_at: Option<Us>,
}

impl Redis {
    pub(crate) fn new(pid: Pid, replid: u64, master: Option<Addr>, net: &mut Net) -> Self {
        let mut node = Self {
            pid,
            run_id: net.rng.next(),
            writes: Rc::default(),
            replid,
            replid2: 0,
            second_offset: -1,
            offset: 0,
            backlog: Vec::new(),
            backlog_from: 0,
            upstream: None,
            configured: master,
            replicas: Vec::new(),
            syncing: Vec::new(),
            clients: Vec::new(),
            subscribers: Vec::new(),
            full: false,
            priority: 100,
            tokens: 0,
            promoted_at: None,
        };
        node.upstream = master.map(|master| Upstream::new(master, 0));
        node.set_timers(net);
        node
    }

    fn set_timers(&mut self, net: &mut Net) {
        let (cron, keepalive) = (net.rng.range(0, 100 * MS), net.rng.range(SECOND, 10 * SECOND));
        net.timer(self.pid, net.now + cron, CRON);
        net.timer(self.pid, net.now + keepalive, KEEPALIVE);
    }

    /// Starts again after a crash.
    pub(crate) fn restart(&mut self, how: Comeback, net: &mut Net) {
        (self.replicas, self.syncing, self.clients) = (Vec::new(), Vec::new(), Vec::new());
        self.subscribers = Vec::new();
        self.run_id = net.rng.next();
        self.promoted_at = None;
        let master = match how {
            Comeback::Kept => self.upstream.as_ref().map(|it| it.master),
            Comeback::RoleLost => self.configured,
            Comeback::Empty => None,
        };
        if how == Comeback::Empty {
            self.writes = Rc::default();
            (self.offset, self.replid2, self.second_offset) = (0, 0, -1);
            self.replid = net.rng.next();
            (self.backlog, self.backlog_from) = (Vec::new(), 0);
            self.full = false;
        } else if master.is_none() {
            // A master's own file names the history that it continues.
            self.begin_history(net);
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

    fn begin_history(&mut self, net: &mut Net) {
        self.replid2 = self.replid;
        self.second_offset = i64::try_from(self.offset).unwrap_or(i64::MAX - 1) + 1;
        self.replid = net.rng.next();
    }

    pub(crate) fn handle(&mut self, input: Input, net: &mut Net) {
        match input {
            Input::Accepted(conn) if self.full => {
                net.send(conn, self.pid, Body::TooMany);
                net.close(conn, self.pid);
            }
            Input::Accepted(conn) => self.clients.push(conn),
            Input::Closed(conn) => self.closed(conn, net),
            Input::Dialled(token, conn) => self.dialled(token, conn, net),
            Input::Timer(CRON) => {
                self.cron(net);
                net.timer(self.pid, net.now + 100 * MS, CRON);
            }
            Input::Timer(KEEPALIVE) => {
                if self.is_master() && !self.replicas.is_empty() {
                    self.append(None, PING_BYTES, net);
                }
                net.timer(self.pid, net.now + 10 * SECOND, KEEPALIVE);
            }
            Input::Timer(SYNCS) => self.send_copies(net),
            Input::Timer(_) | Input::Continued => {}
            Input::Message(conn, body) => self.message(conn, body, net),
        }
    }

    fn message(&mut self, conn: ConnId, body: Body, net: &mut Net) {
        let reply = match body {
            Body::Ping => Some(Body::Pong),
            Body::Info => Some(Body::InfoIs(Box::new(self.info(net)))),
            Body::Subscribe => {
                self.subscribers.push(conn);
                None
            }
            Body::Publish(hello) => {
                for subscriber in self.subscribers.clone() {
                    net.send(subscriber, self.pid, Body::Hello(Rc::clone(&hello)));
                }
                None
            }
            Body::SlaveOf(master) => {
                self.slave_of(master, net);
                self.kill_clients(conn, net);
                None
            }
            Body::Probe { asked } => Some(Body::Probed { asked, info: Box::new(self.info(net)) }),
            Body::Write { id } => Some(self.write(id, net)),
            Body::Psync { replid, offset, from } => {
                self.sync_with(conn, replid, offset, from, net);
                None
            }
            Body::Continue { replid } => {
                self.continued(conn, replid);
                None
            }
            Body::Full(copy) => {
                self.copied(conn, &copy);
                None
            }
            Body::Stream { id, offset } => {
                self.streamed(conn, id, offset, net);
                None
            }
            Body::TooMany => {
                net.close(conn, self.pid);
                self.closed(conn, net);
                None
            }
            _ => None,
        };
        if let Some(reply) = reply {
            net.send(conn, self.pid, reply);
        }
    }

    fn write(&mut self, id: u32, net: &mut Net) -> Body {
        if !self.is_master() {
            return Body::ReadOnly { id };
        }
        Rc::make_mut(&mut self.writes).push(id);
        self.append(Some(id), WRITE_BYTES, net);
        Body::Written { id, at: net.now }
    }

    fn append(&mut self, id: Option<u32>, bytes: u64, net: &mut Net) {
        self.offset += bytes;
        self.backlog.push((self.offset, id));
        for (conn, _) in &self.replicas {
            net.send(*conn, self.pid, Body::Stream { id, offset: self.offset });
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
            replicas: self.replicas.iter().map(|(_, addr)| *addr).collect(),
            priority: self.priority,
            offset: self.offset,
            replid: self.replid,
            replid2: self.replid2,
            second_offset: self.second_offset,
        }
    }

    fn slave_of(&mut self, master: Option<Addr>, net: &mut Net) {
        if self.master() == master {
            return;
        }
        if let Some(conn) = self.upstream.as_ref().and_then(|it| it.conn) {
            net.close(conn, self.pid);
        }
        for (conn, ..) in std::mem::take(&mut self.replicas) {
            net.close(conn, self.pid);
        }
        for (conn, ..) in std::mem::take(&mut self.syncing) {
            net.close(conn, self.pid);
        }
        match master {
            Some(master) => {
                net.say(self.pid, || format!("is now a replica of {master}"));
                self.upstream = Some(Upstream::new(master, net.now));
                self.cron(net);
            }
            None => {
                net.say(self.pid, || "PROMOTED: is now a master".to_owned());
                self.upstream = None;
                self.promoted_at = Some(net.now);
                self.begin_history(net);
            }
        }
    }

    /// A sentinel sends `CLIENT KILL` for all clients with every change of role; its own connection
    /// stays.
    fn kill_clients(&mut self, but: ConnId, net: &mut Net) {
        let own = self.upstream.as_ref().and_then(|it| it.conn);
        let keep = |conn: &ConnId| *conn == but || own == Some(*conn);
        let (kept, killed): (Vec<ConnId>, Vec<ConnId>) =
            self.clients.iter().partition(|conn| keep(conn));
        self.clients = kept;
        self.subscribers.retain(|conn| *conn == but);
        for conn in killed {
            net.close(conn, self.pid);
        }
    }

    fn closed(&mut self, conn: ConnId, net: &Net) {
        self.clients.retain(|it| *it != conn);
        self.subscribers.retain(|it| *it != conn);
        self.replicas.retain(|(it, _)| *it != conn);
        self.syncing.retain(|(it, ..)| *it != conn);
        if let Some(upstream) = self.upstream.as_mut().filter(|it| it.conn == Some(conn)) {
            (upstream.conn, upstream.down_since) = (None, net.now);
            upstream.up = false;
        }
    }
}

impl Upstream {
    fn new(master: Addr, down_since: Us) -> Self {
        Self { master, conn: None, dialling: None, up: false, down_since }
    }
}
