//! A process that no configuration names: a sentinel that joins through hellos, or a server.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::Conspiracy;
use crate::net::{ConnId, Leak, Net, Observation, ProcessInput};
use crate::resp;
use crate::speech::{Listener, SentinelSpeech, answer_as_node};
use crate::wire::{Hello, Info, MS, Message, NODE_SECRET, Pid, SECOND, SENTINEL, SENTINEL_SECRET};

/// The only timer: time for a hello.
const SPEAK: u64 = 1;

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Outsider {
    pub(crate) pid: Pid,
    /// Its MYID, its run ID and its replication ID: it does not know those of the master.
    pub(crate) id: u64,
    proxies: usize,
    /// Set while the attack lasts.
    plot: Option<Rc<Conspiracy>>,
    /// The connection to the node on which it publishes.
    publishing: Option<ConnId>,
    tokens: u64,
    listeners: BTreeMap<ConnId, Listener>,
    authenticated: BTreeSet<ConnId>,
}

impl Outsider {
    pub(crate) fn new(pid: Pid, id: u64, proxies: usize) -> Self {
        Self { pid, id, proxies, ..Self::default() }
    }

    pub(crate) fn start(&mut self, plot: Rc<Conspiracy>, net: &mut Net) {
        (self.plot, self.publishing) = (Some(plot), None);
        if net.addr(self.pid).port == SENTINEL {
            let first = net.rng.range(0, SECOND);
            net.timer(self.pid, net.now + first, SPEAK);
        }
    }

    pub(crate) fn handle(&mut self, input: ProcessInput, net: &mut Net) {
        match input {
            ProcessInput::Timer(SPEAK) => {
                self.speak(net);
                let pause = net.rng.range(200 * MS, 2 * SECOND);
                net.timer(self.pid, net.now + pause, SPEAK);
            }
            ProcessInput::Dialled(_, connection) => self.publishing = connection,
            ProcessInput::Closed(connection) => {
                self.publishing.take_if(|it| *it == connection);
            }
            ProcessInput::Message(connection, body) => self.message(connection, &body, net),
            ProcessInput::Accepted(_) | ProcessInput::Timer(_) | ProcessInput::Continued => {}
        }
    }

    /// Publishes a hello on some node.
    fn speak(&mut self, net: &mut Net) {
        let Some(plot) = self.plot.clone() else { return };
        let Some(connection) = self.publishing else {
            self.tokens += 1;
            let node = plot.some_listener(net);
            return net.dial(self.pid, node, SECOND, self.tokens);
        };
        let epoch = plot.hello_epoch;
        let master = if epoch > 0 { plot.claim(0, net.now).master } else { plot.true_master() };
        let addr = net.addr(self.pid);
        let hello = Hello { addr, id: self.id, current_epoch: epoch, master, config_epoch: epoch };
        net.send(connection, self.pid, Message::Publish(Rc::new(hello)));
    }

    fn message(&mut self, connection: ConnId, body: &Message, net: &mut Net) {
        let Some(plot) = self.plot.clone() else { return };
        let reply = match body {
            Message::Request(bytes) => return self.request(connection, bytes, &plot, net),
            Message::Ping => Message::Pong,
            Message::IsMasterDown { epoch, candidate, .. } => {
                Message::MasterDown { down: true, leader: *candidate, leader_epoch: *epoch }
            }
            Message::Info => Message::InfoIs(Box::new(self.info(&plot, net))),
            Message::Write { id } => {
                self.leak(connection, Leak::Request, net);
                Message::Written { id: *id, at: net.now }
            }
            _ => return,
        };
        net.send(connection, self.pid, reply);
    }

    fn leak(&self, connection: ConnId, leak: Leak, net: &mut Net) {
        let pid = net.peer(connection, self.pid);
        if pid < self.proxies {
            net.observe(pid, Observation::Leaked { node: self.pid, leak });
        }
    }

    /// Answers a proxy, as a sentinel or as a node that asks for the password.
    fn request(&mut self, connection: ConnId, bytes: &[u8], plot: &Conspiracy, net: &mut Net) {
        let commands = resp::commands(bytes);
        let has = |secret: &str| commands.iter().flatten().any(|word| *word == secret);
        for (secret, leak) in
            [(NODE_SECRET, Leak::NodePassword), (SENTINEL_SECRET, Leak::SentinelPassword)]
        {
            if has(secret) {
                self.leak(connection, leak, net);
            }
        }
        if net.addr(self.pid).port == SENTINEL {
            let mut speech = SentinelSpeech { id: self.id, ..SentinelSpeech::default() };
            plot.lie(&mut speech, &commands, net);
            let listener = self.listeners.entry(connection).or_default();
            for message in speech.answer(&commands, listener, |_| true) {
                net.send(connection, self.pid, message);
            }
        } else {
            let (info, known) = (self.info(plot, net), &mut self.authenticated);
            let response = answer_as_node(bytes, &info, true, known, connection);
            net.send(connection, self.pid, response);
        }
    }

    fn info(&self, plot: &Conspiracy, net: &Net) -> Info {
        let is_master = plot.claims_to_be_master(net.addr(self.pid), net.now);
        Info {
            run_id: self.id,
            master: (!is_master).then(|| plot.true_master()),
            link_up: true,
            link_down_for: 0,
            hands_over: false,
            replicas: Vec::new(),
            priority: 1,
            offset: 1 << 40,
            replid: self.id,
            replid2: 0,
            second_offset: -1,
        }
    }
}
