//! One proxy: the real discovery in a runtime of its own, and the clients it serves.
//!
//! The time of the runtime is paused. It advances whenever the proxy is scheduled: when something
//! arrives, and every few milliseconds, which is how late its timers may be. A proxy that is
//! stopped is not scheduled, and finds all its timers due when it continues.

mod host;
pub(crate) mod observed;
mod sessions;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sentinel::{
    Credentials, Discovery, DiscoveryConfig, DiscoveryControl, DiscoveryHandle, DiscoverySettings,
    MachineRules, NodeAddr, ReplicaRules, Replicas, Resolver, SwitchoverOptions, SwitchoverStep,
    Timeouts,
};
use target::{EmptyPool, PoolWriter, TargetWriter};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;

use host::{HostRequest, SimulatedHost, Socket};
use observed::Observed;
use sessions::Sessions;

use crate::net::{ConnId, Net, Observation, ProcessInput};
use crate::plan::ClusterConfig;
use crate::wire::{
    Addr, MS, Message, Micros, NAME, NODE_SECRET, Pid, SECOND, SENTINEL, SENTINEL_SECRET,
};

/// A process that did not run for longer than this must not trust its state. Longer than the limit
/// of the product by the time between two looks.
const TRUSTED: Micros = 650 * MS;

/// After a longer stop this holds even if the sentinels were silent before.
const LONG: Micros = 3500 * MS;

/// The interval at which a proxy is scheduled.
const TICK: Micros = 5 * MS;

/// The key of the timer for that; other keys below this limit are those of lookups.
const WAKE: u64 = 1;
const LOOKUPS: u64 = 1 << 62;

/// How long the kernel of a proxy tries to connect. Discovery is less patient.
const DIAL: Micros = 10 * SECOND;

/// How often the kernel checks connections.
const KERNEL_INTERVAL: Micros = 100 * MS;

/// The configuration of a proxy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProxyConfig {
    pub(crate) cluster: ClusterConfig,
    /// How many names resolve to sentinels: one for all of them, or one per sentinel.
    pub(crate) names: usize,
    /// Servers have passwords.
    pub(crate) has_passwords: bool,
}

impl ProxyConfig {
    fn discovery(&self, target_writer: TargetWriter, writer: PoolWriter) -> DiscoveryConfig {
        let secret = |secret| self.has_passwords.then(|| Credentials::new(None, secret));
        let minority = self.cluster.minority;
        DiscoveryConfig {
            name: "service".into(),
            master_name: NAME.into(),
            sentinels: (0..self.names).map(sentinel_name).collect(),
            settings: DiscoverySettings {
                sentinel_auth: secret(SENTINEL_SECRET),
                auth: secret(NODE_SECRET),
                rules: MachineRules { minority, ..MachineRules::default() },
                probe_timeout: Duration::from_millis(250),
                learn: true,
                ..DiscoverySettings::default()
            },
            target_writer,
            replicas: Some(Replicas { rules: ReplicaRules::default(), writer }),
            sentinel_pool: None,
            commands: Default::default(),
        }
    }
}

/// A proxy. See the module's header.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) pid: Pid,
    pub(crate) config: ProxyConfig,
    pub(crate) observed: Observed,
    pub(crate) sessions: Sessions,
    /// An operator requests a switchover.
    pub(crate) is_switchover_wanted: bool,
    steps: Option<mpsc::Receiver<SwitchoverStep>>,
    runtime: Runtime,
    /// The runtime has nothing more to do at the present time.
    idle: Arc<Notify>,
    discovery: JoinHandle<()>,
    control: DiscoveryControl,
    handle: DiscoveryHandle,
    host: Arc<SimulatedHost>,
    dials: BTreeMap<u64, (Addr, oneshot::Sender<Socket>)>,
    lookups: BTreeMap<u64, (oneshot::Sender<Vec<SocketAddr>>, Vec<Addr>)>,
    tokens: u64,
    /// The monotonic clock when it last ran.
    ran_at: Micros,
    wake_at: Micros,
    kernel_at: Micros,
    /// It has just continued: what arrived meanwhile is read first.
    is_resuming: bool,
    starts: u64,
    shown: String,
}

fn sentinel_name(number: usize) -> NodeAddr {
    NodeAddr { host: format!("sentinel{number}").into(), port: SENTINEL }
}

impl Proxy {
    pub(crate) fn new(pid: Pid, config: ProxyConfig, starts: u64, net: &mut Net) -> Self {
        let now = net.mono(pid);
        let ClusterConfig { clients, think, .. } = config.cluster;
        let sessions = Sessions::new(pid, clients, think, starts << 20, net);
        let host = Arc::<SimulatedHost>::default();
        host.set_clocks(net.now, now);
        let idle = Arc::new(Notify::new());
        let parked = Arc::clone(&idle);
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .on_thread_park(move || parked.notify_one())
            .build()
            .expect("a runtime");
        let (target_writer, reader) = TargetWriter::new();
        let (pool_writer, pool) = PoolWriter::new(&reader, EmptyPool::Reject);
        let timeouts = Timeouts {
            connect: Duration::from_millis(300),
            command: Duration::from_millis(500),
            reconnect_min: Duration::from_millis(50),
            reconnect_max: Duration::from_secs(1),
            user: Duration::from_secs(3),
        };
        let entered = runtime.enter();
        let resolver = Resolver::simulated(Arc::clone(&host) as Arc<dyn sentinel::Host>);
        let (discovery, mut control) = Discovery::new(timeouts, &[], &resolver);
        let (_, handle) = control.add(config.discovery(target_writer, pool_writer));
        control.apply();
        let discovery = runtime.spawn(discovery.run());
        drop(entered);
        net.timer(pid, net.now, WAKE);
        Self {
            pid,
            observed: Observed::new(pid, now, reader, pool, &handle),
            sessions,
            is_switchover_wanted: false,
            steps: None,
            runtime,
            idle,
            discovery,
            control,
            handle,
            host,
            dials: BTreeMap::new(),
            lookups: BTreeMap::new(),
            tokens: starts << 30,
            ran_at: now,
            wake_at: net.now,
            kernel_at: net.now,
            is_resuming: false,
            starts,
            shown: String::new(),
            config,
        }
    }

    /// An operator's order to follow a node.
    pub(crate) fn follow(&mut self, node: Addr, lasts: Micros, force: bool, net: &mut Net) {
        net.trace_line(self.pid, || format!("ORDERED to follow {node}, by force: {force}"));
        self.observed.ordered_at = net.mono(self.pid);
        self.handle.follow(node.node(), Duration::from_micros(lasts), force);
        self.run(net);
    }

    /// The configured list of sentinels changes: this many names, but for one.
    pub(crate) fn reload(&mut self, names: usize, without: Option<usize>, net: &mut Net) {
        self.config.names = names;
        let left = (0..names).filter(|number| Some(*number) != without);
        self.control.set_sentinels(0, left.map(sentinel_name).collect());
        self.control.apply();
        net.trace_line(self.pid, || format!("RELOADS: {names} names, without {without:?}"));
        if net.runs(self.pid) {
            self.run(net);
        }
    }

    pub(crate) fn restart(&mut self, net: &mut Net) {
        *self = Self::new(self.pid, self.config, self.starts + 1, net);
    }

    pub(crate) fn handle(&mut self, input: ProcessInput, net: &mut Net) {
        match input {
            ProcessInput::Timer(WAKE) if net.now < self.wake_at => return,
            ProcessInput::Timer(WAKE) => {
                self.is_resuming = false;
                self.check_kernel(net);
                self.run(net);
                self.wake_at = net.now + TICK;
                net.timer(self.pid, self.wake_at, WAKE);
            }
            ProcessInput::Timer(key) if key >= LOOKUPS => {
                if let Some((answer, found)) = self.lookups.remove(&key) {
                    let _late = answer.send(found.into_iter().map(Addr::socket).collect());
                    self.run(net);
                }
            }
            ProcessInput::Timer(key) if key >= sessions::TIMERS => {
                self.sessions.timer(key, &self.observed, net);
            }
            ProcessInput::Dialled(token, connection) if token >= sessions::TOKENS => {
                self.sessions.dialled(token, connection, &self.observed, net);
            }
            ProcessInput::Dialled(token, connection) => {
                self.dialled(token, connection, net);
                self.run(net);
            }
            ProcessInput::Closed(connection) => {
                if self.host.end(connection) {
                    self.run(net);
                } else {
                    self.sessions.closed(connection, net);
                }
            }
            ProcessInput::Message(connection, body) => {
                if self.receive(connection, &body, net) {
                    self.run(net);
                } else {
                    self.sessions.message(connection, &body, &self.observed, net);
                }
            }
            ProcessInput::Continued => self.resume(net),
            ProcessInput::Accepted(_) | ProcessInput::Timer(_) => {}
        }
        self.pass_hint(net);
    }

    fn pass_hint(&mut self, net: &mut Net) {
        if std::mem::take(&mut self.sessions.hint) {
            self.handle.hint();
            self.run(net);
        }
    }

    fn resume(&mut self, net: &mut Net) {
        let now = net.mono(self.pid);
        // Input that waited in the stopped process is read before its timers.
        let away = net.now - net.process(self.pid).stopped_at;
        if away > TRUSTED && (away > LONG || self.observed.was_answered(now.saturating_sub(away))) {
            self.observed.resumed(now, net.now);
        }
        self.sessions.continue_first(&self.observed, net);
        self.is_resuming = true;
        self.wake_at = net.now + 1;
        net.timer(self.pid, self.wake_at, WAKE);
    }

    fn dialled(&mut self, token: u64, connection: Option<ConnId>, net: &mut Net) {
        let dial = self.dials.remove(&token);
        let Some((to, answer)) = dial else {
            return connection.into_iter().for_each(|it| net.close(it, self.pid));
        };
        // Without a connection the answer is dropped, which refuses it.
        let Some(connection) = connection else { return };
        let socket = self.host.open(connection, to, net.mono(self.pid));
        // If the dial was given up meanwhile, the socket is dropped, which closes it.
        let _late = answer.send(socket);
    }

    /// `false`: not for discovery.
    fn receive(&mut self, connection: ConnId, body: &Message, net: &mut Net) -> bool {
        let (bytes, told) = match body {
            Message::Response(bytes, told) => (&bytes[..], told.as_ref()),
            Message::TooMany => (&b"-ERR max number of clients reached\r\n"[..], None),
            _ => return false,
        };
        let Some((from, asked)) = self.host.receive(connection, bytes) else { return false };
        if let Some(told) = told {
            self.observed.told(told, from, asked, net.mono(self.pid), net.now);
        }
        true
    }

    fn check_kernel(&mut self, net: &mut Net) {
        if net.now >= self.kernel_at {
            self.kernel_at = net.now + KERNEL_INTERVAL;
            self.host.check_connections(self.pid, net);
        }
    }

    /// Lets discovery do all that is due.
    fn run(&mut self, net: &mut Net) {
        if self.is_resuming {
            return;
        }
        if std::mem::take(&mut self.is_switchover_wanted) {
            self.begin_switchover();
        }
        let now = net.mono(self.pid);
        let ahead = Duration::from_micros(now - std::mem::replace(&mut self.ran_at, now));
        self.host.set_clocks(net.now, now);
        let idle = &self.idle;
        self.runtime.block_on(async {
            tokio::time::advance(ahead).await;
            idle.notified().await;
        });
        for request in self.host.take_requests() {
            self.perform(request, net);
        }
        self.report(net);
        self.sessions.pump(&self.observed, net);
    }

    fn begin_switchover(&mut self) {
        let (steps, reported) = mpsc::channel(64);
        self.steps = Some(reported);
        let handle = self.handle.clone();
        self.runtime.spawn(async move {
            let _outcome = sentinel::switchover(&handle, SwitchoverOptions::default(), steps).await;
        });
    }

    fn perform(&mut self, request: HostRequest, net: &mut Net) {
        match request {
            HostRequest::Dial(to, answer) => {
                let to = Addr::of_socket(to);
                self.tokens += 1;
                self.dials.insert(self.tokens, (to, answer));
                net.dial(self.pid, to, DIAL, self.tokens);
            }
            HostRequest::LookUp(name, port, answer) => {
                let (late, found) = net.look_up(&name, port, self.config.names);
                self.tokens += 1;
                self.lookups.insert(LOOKUPS + self.tokens, (answer, found));
                net.timer(self.pid, net.now + late, LOOKUPS + self.tokens);
            }
            HostRequest::Write(connection, bytes) => {
                net.send(connection, self.pid, Message::Request(bytes));
            }
            HostRequest::Close(connection) => net.close(connection, self.pid),
        }
    }

    /// Reports to the oracle and to the timeline.
    fn report(&mut self, net: &mut Net) {
        let now = net.mono(self.pid);
        let mut events = self.observed.look(&self.handle, now);
        if self.discovery.is_finished() {
            events.push(Observation::InvariantBroken("discovery panicked".to_owned()));
        }
        for event in events {
            if let Observation::Opened { to, how, .. } = &event {
                net.trace_line(self.pid, || format!("GATE OPEN to {to}: {how}"));
            }
            net.observe(self.pid, event);
        }
        if let Some(steps) = &mut self.steps {
            while let Ok(step) = steps.try_recv() {
                net.trace_line(self.pid, || format!("switchover: {}: {}", step.step, step.text));
            }
        }
        if net.trace.is_on() {
            let (snapshot, shut) = (&self.observed.snapshot, self.observed.held);
            let (state, (all, majority)) = (snapshot.state, snapshot.quorum);
            let minority = if snapshot.minority { ", minority" } else { "" };
            let line =
                format!("{state}, gate shut: {shut}, majority {majority} of {all}{minority}");
            if self.shown != line {
                net.trace_line(self.pid, || line.clone());
                self.shown = line;
            }
        }
    }
}
