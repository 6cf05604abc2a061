//! A sentinel that behaves as `redis:src/sentinel.c` of 7.0 does, as far as its peers and clients
//! can observe it.
//!
//! One monitored master. The timer, the links, the hellos, the votes and the failover are modelled
//! step by step with their original constants, since their order and their delays are what a proxy
//! has to cope with. Coordinated failovers are as in Valkey 9. Deliberately absent: scripts, ACLs.

mod failover;
mod hello;
mod info;
mod instance;
mod serve;
mod tick;
mod votes;

use std::collections::BTreeMap;
use std::rc::Rc;

pub(crate) use instance::{Instance, InstanceKind, ReconfState};

use crate::hostile::Conspiracy;
use crate::net::{ConnId, Net, ProcessInput};
use crate::plan::ClusterConfig;
use crate::speech::Listener;
pub(crate) use crate::wire::NAME;
use crate::wire::{Addr, MS, Message, Pid, Told, hex};

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

/// The steps of a failover.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FailoverStep {
    #[default]
    None,
    WaitStart,
    SelectSlave,
    SendSlaveOfNoOne,
    WaitPromotion,
    ReconfSlaves,
    UpdateConfig,
}

/// The configuration file of a sentinel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SentinelFile {
    pub(crate) id: u64,
    pub(crate) current_epoch: u64,
    pub(crate) config_epoch: u64,
    pub(crate) leader_epoch: u64,
    pub(crate) master: Addr,
    pub(crate) replicas: Vec<Addr>,
    pub(crate) peers: Vec<(u64, Addr)>,
}

impl SentinelFile {
    /// A file as written by an operator, or by an init container.
    pub(crate) fn fresh(id: u64, master: Addr) -> Self {
        Self { id, master, ..Self::default() }
    }
}

/// A sentinel. See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Sentinel {
    pub(crate) pid: Pid,
    pub(crate) id: u64,
    pub(crate) current_epoch: u64,
    pub(crate) config_epoch: u64,
    config: ClusterConfig,
    pub(crate) master: Instance,
    pub(crate) replicas: Vec<Instance>,
    pub(crate) peers: Vec<Instance>,
    tilt_since: Option<i64>,
    previous: i64,
    // The vote and the failover.
    leader: Option<u64>,
    leader_epoch: u64,
    failover_epoch: u64,
    pub(crate) step: FailoverStep,
    step_at: i64,
    failover_at: i64,
    pub(crate) promoted: Option<Addr>,
    forced: bool,
    /// The master itself hands over in the present failover.
    coordinated: bool,
    /// It tells clients names instead of addresses (`announce-hostnames`).
    pub(crate) announces_names: bool,
    /// Connections of proxies.
    listeners: BTreeMap<ConnId, Listener>,
    /// The last files that were written; the newest at the end.
    pub(crate) files: Vec<SentinelFile>,
    /// Set while it lies to proxies.
    pub(crate) plot: Option<Rc<Conspiracy>>,
    tokens: u64,
    /// Failovers that this sentinel completed as the leader.
    pub(crate) switched: u64,
}

impl Sentinel {
    pub(crate) fn new(pid: Pid, file: &SentinelFile, config: ClusterConfig, net: &mut Net) -> Self {
        let now = net.wall_ms(pid);
        let instance = |kind, addr, id| Instance::new(kind, addr, id, now);
        let mut sentinel = Self {
            pid,
            id: file.id,
            current_epoch: file.current_epoch,
            config_epoch: file.config_epoch,
            config,
            master: instance(InstanceKind::Master, file.master, None),
            replicas: file
                .replicas
                .iter()
                .map(|addr| instance(InstanceKind::Replica, *addr, None))
                .collect(),
            peers: file
                .peers
                .iter()
                .map(|(id, addr)| instance(InstanceKind::Sentinel, *addr, Some(*id)))
                .collect(),
            previous: now,
            leader_epoch: file.leader_epoch,
            ..Self::default()
        };
        sentinel.flush();
        let first = net.rng.range(0, 100 * MS);
        net.timer(pid, net.now + first, TICK);
        sentinel
    }

    /// Restarts from a file; `None`: from the one that was written last.
    pub(crate) fn restart(&mut self, file: Option<SentinelFile>, net: &mut Net) {
        let Some(file) = file.or_else(|| self.files.last().cloned()) else { return };
        let old = std::mem::take(self);
        *self = Self {
            switched: old.switched,
            tokens: old.tokens + 1000,
            plot: old.plot,
            announces_names: old.announces_names,
            ..Self::new(old.pid, &file, old.config, net)
        };
    }

    pub(crate) fn handle(&mut self, input: ProcessInput, net: &mut Net) {
        match input {
            ProcessInput::Timer(TICK) => {
                self.tick(net);
                let hz = net.rng.range(10, 20);
                net.timer(self.pid, net.now + 1000 * MS / hz, TICK);
            }
            ProcessInput::Dialled(token, connection) => self.dialled(token, connection, net),
            ProcessInput::Closed(connection) => {
                self.listeners.remove(&connection);
                self.instances().for_each(|it| it.closed(connection));
            }
            ProcessInput::Message(connection, body) => self.message(connection, body, net),
            ProcessInput::Accepted(_) | ProcessInput::Timer(_) | ProcessInput::Continued => {}
        }
    }

    fn message(&mut self, connection: ConnId, body: Message, net: &mut Net) {
        let now = net.wall_ms(self.pid);
        match body {
            Message::Ping => net.send(connection, self.pid, Message::Pong),
            Message::Pong => {
                if let Some(it) = self.by_conn(connection) {
                    it.pong(now);
                }
            }
            Message::InfoIs(info) => self.info_came(connection, &info, net),
            Message::Publish(hello) | Message::Hello(hello) => {
                self.instances()
                    .filter(|it| it.pc.connection == Some(connection))
                    .for_each(|it| it.pc_activity = now);
                self.hello(&hello, net);
            }
            Message::IsMasterDown { addr, epoch, candidate } => {
                let answer = self.is_master_down(addr, epoch, candidate, net);
                net.send(connection, self.pid, answer);
            }
            Message::MasterDown { down, leader, leader_epoch } => {
                if let Some(it) = self.by_conn(connection) {
                    (it.master_down, it.asked_back_at) = (down, now);
                    if leader.is_some() {
                        (it.leader, it.leader_epoch) = (leader, leader_epoch);
                    }
                }
            }
            Message::Request(commands) => self.request(connection, &commands, net),
            Message::TooMany => {
                net.close(connection, self.pid);
                self.instances().for_each(|it| it.closed(connection));
            }
            _ => {}
        }
    }

    /// All instances.
    fn instances(&mut self) -> impl Iterator<Item = &mut Instance> {
        std::iter::once(&mut self.master).chain(&mut self.replicas).chain(&mut self.peers)
    }

    fn by_conn(&mut self, connection: ConnId) -> Option<&mut Instance> {
        self.instances().find(|it| it.cc.connection == Some(connection))
    }

    /// Whether an instance that it knows has this address.
    pub(crate) fn knows(&self, addr: Addr) -> bool {
        self.peers.iter().chain(&self.replicas).chain([&self.master]).any(|it| it.addr == addr)
    }

    pub(crate) fn is_failing_over(&self) -> bool {
        self.step > FailoverStep::None
    }

    /// The address that clients are given: the promoted replica's once its promotion was observed.
    pub(crate) fn current_master(&self) -> Addr {
        let promoted = self.promoted.filter(|_| self.step >= FailoverStep::ReconfSlaves);
        promoted.unwrap_or(self.master.addr)
    }

    /// The replica that it has ordered to become the master, or the address that clients are given.
    pub(crate) fn successor(&self) -> Addr {
        let ordered = self.promoted.filter(|_| self.step >= FailoverStep::WaitPromotion);
        ordered.unwrap_or(self.current_master())
    }

    /// Writes the configuration file.
    fn flush(&mut self) {
        let file = SentinelFile {
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
        net.trace_line(self.pid, || format!("{channel} {payload}"));
        let payload: Rc<str> = payload.into();
        for (connection, listener) in &self.listeners {
            let Some(bytes) = listener.event(channel, &payload) else { continue };
            let payload = Rc::clone(&payload);
            let told = Told::Event { id: self.id, channel, payload };
            let told = listener.resp3.then_some(told);
            net.send(*connection, self.pid, Message::Response(bytes, told));
        }
    }

    fn event_on_master(&mut self, channel: &'static str, net: &mut Net) {
        let addr = self.master.addr;
        self.publish(channel, &format!("master {NAME} {} {}", self.host(addr), addr.port), net);
    }

    /// An event about a replica, or about a sentinel where `id` is given.
    fn event_on(&mut self, channel: &'static str, addr: Addr, id: Option<u64>, net: &mut Net) {
        let (host, port, master) = (self.host(addr), addr.port, self.master.addr);
        let what =
            id.map_or_else(|| format!("slave {host}:{port}"), |id| format!("sentinel {}", hex(id)));
        let payload =
            format!("{what} {host} {port} @ {NAME} {} {}", self.host(master), master.port);
        self.publish(channel, &payload, net);
    }

    /// An event about an instance of this kind.
    fn event_about(
        &mut self,
        channel: &'static str,
        kind: InstanceKind,
        addr: Addr,
        id: Option<u64>,
        net: &mut Net,
    ) {
        match kind {
            InstanceKind::Master => self.event_on_master(channel, net),
            InstanceKind::Replica => self.event_on(channel, addr, None, net),
            InstanceKind::Sentinel => self.event_on(channel, addr, id, net),
        }
    }

    /// How it tells clients an address.
    fn host(&self, addr: Addr) -> String {
        if self.announces_names { addr.name() } else { addr.host() }
    }
}
