//! A sentinel that behaves as `redis:src/sentinel.c` of 7.0 does, as far as its peers and clients
//! can see it.
//!
//! One monitored master. The timer, the links, the hellos, the votes and the failover are modelled
//! step by step with their own constants, since what a proxy has to survive is in their order and
//! in their delays. Deliberately absent: scripts, ACLs, host names.

mod failover;
mod hello;
mod info;
mod instance;
mod serve;
mod tick;
mod votes;

use std::rc::Rc;

pub(crate) use instance::{Instance, Kind, Reconf};

use crate::net::{ConnId, Input, Net};
use crate::wire::{Addr, Body, MS, Pid, SENTINEL, hex};

/// What the master is called.
pub(crate) const NAME: &str = "mymaster";

/// Periods and limits of Sentinel, in milliseconds.
pub(crate) const INFO_PERIOD: i64 = 10_000;
pub(crate) const PING_PERIOD: i64 = 1000;
pub(crate) const ASK_PERIOD: i64 = 1000;
pub(crate) const PUBLISH_PERIOD: i64 = 2000;
pub(crate) const TILT_TRIGGER: i64 = 2000;
pub(crate) const TILT_PERIOD: i64 = 30_000;
pub(crate) const MIN_RECONNECT: i64 = 15_000;
pub(crate) const ELECTION_TIMEOUT: i64 = 10_000;
pub(crate) const RECONF_RETRY: i64 = 10_000;
pub(crate) const MAX_DESYNC: u64 = 1000;

const TICK: u64 = 1;

/// What the operator configured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) quorum: usize,
    pub(crate) down_after: i64,
    pub(crate) failover_timeout: i64,
}

/// The steps of a failover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    None,
    WaitStart,
    SelectSlave,
    SendSlaveOfNoOne,
    WaitPromotion,
    ReconfSlaves,
    UpdateConfig,
}

/// What a sentinel keeps in its configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) id: u64,
    pub(crate) current_epoch: u64,
    pub(crate) config_epoch: u64,
    pub(crate) leader_epoch: u64,
    pub(crate) master: Addr,
    pub(crate) replicas: Vec<Addr>,
    pub(crate) peers: Vec<(u64, Addr)>,
}

impl File {
    /// As an operator, or an init container, writes it.
    pub(crate) fn fresh(id: u64, master: Addr) -> Self {
        let (replicas, peers) = (Vec::new(), Vec::new());
        Self { id, current_epoch: 0, config_epoch: 0, leader_epoch: 0, master, replicas, peers }
    }
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Sentinel {
    pub(crate) pid: Pid,
    pub(crate) id: u64,
    pub(crate) current_epoch: u64,
    pub(crate) config_epoch: u64,
    settings: Settings,
    pub(crate) master: Instance,
    pub(crate) replicas: Vec<Instance>,
    pub(crate) peers: Vec<Instance>,
    tilt_since: Option<i64>,
    previous: i64,
    // The vote and the failover.
    leader: Option<u64>,
    leader_epoch: u64,
    failover_epoch: u64,
    pub(crate) step: Step,
    step_at: i64,
    failover_at: i64,
    pub(crate) promoted: Option<Addr>,
    forced: bool,
    pub(crate) failing_over: bool,
    /// Connections of proxies that listen for events.
    subscribers: Vec<ConnId>,
    /// The last files that were written; the newest at the end.
    pub(crate) files: Vec<File>,
    tokens: u64,
    /// Failovers that this one brought to their end.
    pub(crate) switched: u64,
}

impl Sentinel {
    pub(crate) fn new(pid: Pid, file: &File, settings: Settings, net: &mut Net) -> Self {
        let now = net.wall_ms(pid);
        let instance = |kind, addr, id| Instance::new(kind, addr, id, now);
        let mut sentinel = Self {
            pid,
            id: file.id,
            current_epoch: file.current_epoch,
            config_epoch: file.config_epoch,
            settings,
            master: instance(Kind::Master, file.master, None),
            replicas: file
                .replicas
                .iter()
                .map(|addr| instance(Kind::Replica, *addr, None))
                .collect(),
            peers: file
                .peers
                .iter()
                .map(|(id, addr)| instance(Kind::Sentinel, *addr, Some(*id)))
                .collect(),
            tilt_since: None,
            previous: now,
            leader: None,
            leader_epoch: file.leader_epoch,
            failover_epoch: 0,
            step: Step::None,
            step_at: 0,
            failover_at: 0,
            promoted: None,
            forced: false,
            failing_over: false,
            subscribers: Vec::new(),
            files: Vec::new(),
            tokens: 0,
            switched: 0,
        };
        sentinel.flush();
        let first = net.rng.range(0, 100 * MS);
        net.timer(pid, net.now + first, TICK);
        sentinel
    }

    /// Starts again from a file; `None`: from the one that was written last.
    pub(crate) fn restart(&mut self, file: Option<File>, net: &mut Net) {
        let file = file.or_else(|| self.files.last().cloned());
        let files = std::mem::take(&mut self.files);
        if let Some(file) = file {
            let (switched, tokens) = (self.switched, self.tokens);
            *self = Self::new(self.pid, &file, self.settings, net);
            (self.switched, self.tokens) = (switched, tokens + 1000);
        }
        if self.files.is_empty() {
            self.files = files;
        }
    }

    pub(crate) fn handle(&mut self, input: Input, net: &mut Net) {
        match input {
            Input::Timer(TICK) => {
                self.tick(net);
                let hz = net.rng.range(10, 20);
                net.timer(self.pid, net.now + 1000 * MS / hz, TICK);
            }
            Input::Dialled(token, conn) => self.dialled(token, conn, net),
            Input::Closed(conn) => {
                self.subscribers.retain(|it| *it != conn);
                self.instances().for_each(|it| it.closed(conn));
            }
            Input::Message(conn, body) => self.message(conn, body, net),
            Input::Accepted(_) | Input::Timer(_) | Input::Continued => {}
        }
    }

    fn message(&mut self, conn: ConnId, body: Body, net: &mut Net) {
        let now = net.wall_ms(self.pid);
        match body {
            Body::Ping => net.send(conn, self.pid, Body::Pong),
            Body::Pong => {
                if let Some(it) = self.by_conn(conn) {
                    it.pong(now);
                }
            }
            Body::InfoIs(info) => self.info_came(conn, &info, net),
            Body::Publish(hello) | Body::Hello(hello) => {
                self.instances()
                    .filter(|it| it.pc == Some(conn))
                    .for_each(|it| it.pc_activity = now);
                self.hello(&hello, net);
            }
            Body::IsMasterDown { addr, epoch, candidate } => {
                let answer = self.is_master_down(addr, epoch, candidate, net);
                net.send(conn, self.pid, answer);
            }
            Body::MasterDown { down, leader, leader_epoch } => {
                if let Some(it) = self.by_conn(conn) {
                    (it.master_down, it.asked_back_at) = (down, now);
                    if leader.is_some() {
                        (it.leader, it.leader_epoch) = (leader, leader_epoch);
                    }
                }
            }
            Body::Greet => {
                self.subscribers.push(conn);
                net.send(conn, self.pid, Body::Greeted { id: self.id });
            }
            Body::Ask { round } => {
                let (tilt, replies) = (self.tilt_since.is_some(), self.round());
                net.send(conn, self.pid, Body::Round { round, tilt, replies: Rc::new(replies) });
            }
            Body::Failover => {
                let taken = self.order_failover(net);
                net.send(conn, self.pid, Body::FailoverTaken(taken));
            }
            Body::TooMany => {
                net.close(conn, self.pid);
                self.instances().for_each(|it| it.closed(conn));
            }
            _ => {}
        }
    }

    /// Everybody who is watched.
    fn instances(&mut self) -> impl Iterator<Item = &mut Instance> {
        std::iter::once(&mut self.master).chain(&mut self.replicas).chain(&mut self.peers)
    }

    fn by_conn(&mut self, conn: ConnId) -> Option<&mut Instance> {
        self.instances().find(|it| it.cc == Some(conn))
    }

    /// The address that clients are given: the promoted replica's from the moment at which its
    /// promotion was seen.
    pub(crate) fn current_master(&self) -> Addr {
        let promoted =
            self.promoted.filter(|_| self.failing_over && self.step >= Step::ReconfSlaves);
        promoted.unwrap_or(self.master.addr)
    }

    /// Writes the configuration file.
    fn flush(&mut self) {
        let file = File {
            id: self.id,
            current_epoch: self.current_epoch,
            config_epoch: self.config_epoch,
            leader_epoch: self.leader_epoch,
            master: self.current_master(),
            replicas: self
                .replicas
                .iter()
                .map(|it| it.addr)
                .filter(|it| *it != self.current_master())
                .collect(),
            peers: self.peers.iter().filter_map(|it| Some((it.id?, it.addr))).collect(),
        };
        if self.files.last() != Some(&file) {
            if self.files.len() >= 12 {
                self.files.remove(0);
            }
            self.files.push(file);
        }
    }

    fn publish(&mut self, channel: &'static str, payload: &str, net: &mut Net) {
        net.say(self.pid, || format!("{channel} {payload}"));
        if self.subscribers.is_empty() {
            return;
        }
        let payload: Rc<str> = payload.into();
        for conn in self.subscribers.clone() {
            net.send(conn, self.pid, Body::Event { channel, payload: Rc::clone(&payload) });
        }
    }

    fn event_on_master(&mut self, channel: &'static str, net: &mut Net) {
        let addr = self.master.addr;
        self.publish(channel, &format!("master {NAME} {} {}", addr.host(), addr.port), net);
    }

    /// An event about a replica, or about a sentinel where `id` is given.
    fn event_on(&mut self, channel: &'static str, addr: Addr, id: Option<u64>, net: &mut Net) {
        let (host, port, master) = (addr.host(), addr.port, self.master.addr);
        let what =
            id.map_or_else(|| format!("slave {host}:{port}"), |id| format!("sentinel {}", hex(id)));
        let payload = format!("{what} {host} {port} @ {NAME} {} {}", master.host(), master.port);
        self.publish(channel, &payload, net);
    }

    fn own_addr(&self, net: &Net) -> Addr {
        Addr { ip: net.addr(self.pid).ip, port: SENTINEL }
    }
}
