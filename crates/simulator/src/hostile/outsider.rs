//! A process that no configuration names: a sentinel that joins through hellos, or a server.

use std::rc::Rc;

use super::Conspiracy;
use crate::net::{ConnId, Leak, Net, Observation, ProcessInput};
use crate::wire::{Hello, Info, MS, Message, Pid, SECOND, SENTINEL};

/// The only timer: time for a hello.
const SPEAK: u64 = 1;

/// See the module's header.
#[derive(Debug)]
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
}

impl Outsider {
    pub(crate) fn new(pid: Pid, id: u64, proxies: usize) -> Self {
        Self { pid, id, proxies, plot: None, publishing: None, tokens: 0 }
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
            let node = plot.some_node(net);
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
        let from = net.peer(connection, self.pid);
        let leak = match body {
            Message::Greet => Some(Leak::SentinelPassword),
            Message::Probe { password: true, .. } => Some(Leak::NodePassword),
            // A switchover's; a sentinel asks this, too.
            Message::Info if from < self.proxies => Some(Leak::NodePassword),
            Message::Write { .. } => Some(Leak::Request),
            _ => None,
        };
        if let Some(leak) = leak {
            net.observe(Observation::Leaked { pid: from, node: self.pid, leak });
        }
        let reply = match body {
            Message::Ping => Message::Pong,
            Message::Greet => Message::Greeted { id: self.id },
            Message::Ask { round } => {
                return plot.answer(self.pid, self.id, (connection, *round), net);
            }
            Message::IsMasterDown { epoch, candidate, .. } => {
                Message::MasterDown { down: true, leader: *candidate, leader_epoch: *epoch }
            }
            Message::Info => Message::InfoIs(Box::new(self.info(&plot, net))),
            Message::Probe { asked, .. } => {
                Message::Probed { asked: *asked, info: Box::new(self.info(&plot, net)) }
            }
            Message::Write { id } => Message::Written { id: *id, at: net.now },
            Message::Failover => Message::FailoverTaken(true),
            _ => return,
        };
        net.send(connection, self.pid, reply);
    }

    fn info(&self, plot: &Conspiracy, net: &Net) -> Info {
        let is_master = plot.claims_to_be_master(net.addr(self.pid), net.now);
        Info {
            run_id: self.id,
            master: (!is_master).then(|| plot.true_master()),
            link_up: true,
            link_down_for: 0,
            replicas: Vec::new(),
            priority: 1,
            offset: 1 << 40,
            replid: self.id,
            replid2: 0,
            second_offset: -1,
        }
    }
}
