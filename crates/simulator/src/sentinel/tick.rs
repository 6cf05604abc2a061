//! The timer of a sentinel: links, periodic commands, TILT, and down detection.

use std::rc::Rc;

use super::{
    FailoverStep, INFO_PERIOD, Instance, InstanceKind, MIN_RECONNECT, PING_PERIOD, PUBLISH_PERIOD,
    Sentinel, TILT_PERIOD, TILT_TRIGGER,
};
use crate::net::{ConnId, Net};
use crate::wire::{Hello, Message};

/// Identifies the instance that a step is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InstanceRef {
    Master,
    Replica(usize),
    Peer(usize),
}

impl Sentinel {
    pub(super) fn tick(&mut self, net: &mut Net) {
        self.check_tilt(net);
        self.update_link(InstanceRef::Master, net);
        for at in 0..self.replicas.len() {
            self.update_link(InstanceRef::Replica(at), net);
        }
        for at in 0..self.peers.len() {
            self.update_link(InstanceRef::Peer(at), net);
        }
        if self.step == FailoverStep::UpdateConfig {
            self.switch_to_promoted(net);
        }
    }

    fn check_tilt(&mut self, net: &mut Net) {
        let now = net.wall_ms(self.pid);
        let passed = now - self.previous;
        if !(0..=TILT_TRIGGER).contains(&passed) {
            self.tilt_since = Some(now);
            self.publish("+tilt", "#tilt mode entered", net);
        }
        self.previous = now;
    }

    pub(super) fn get(&mut self, instance: InstanceRef) -> &mut Instance {
        match instance {
            InstanceRef::Master => &mut self.master,
            InstanceRef::Replica(at) => &mut self.replicas[at],
            InstanceRef::Peer(at) => &mut self.peers[at],
        }
    }

    fn update_link(&mut self, instance: InstanceRef, net: &mut Net) {
        self.reconnect(instance, net);
        self.send_periodic(instance, net);
        let now = net.wall_ms(self.pid);
        if let Some(since) = self.tilt_since {
            if now - since < TILT_PERIOD {
                return;
            }
            self.tilt_since = None;
            self.publish("-tilt", "#tilt mode exited", net);
        }
        self.check_subjectively(instance, net);
        if instance == InstanceRef::Master {
            self.check_objectively(net);
            if self.start_failover_if_needed(net) {
                self.ask_others(true, net);
            }
            self.advance_failover(net);
            self.ask_others(false, net);
        }
    }

    fn reconnect(&mut self, instance: InstanceRef, net: &mut Net) {
        let (pid, now) = (self.pid, net.wall_ms(self.pid));
        let mut tokens = self.tokens;
        let it = self.get(instance);
        if !it.disconnected || it.addr.port == 0 || now - it.reconnect_at < PING_PERIOD {
            return;
        }
        (it.reconnect_at, it.disconnected) = (now, false);
        if !it.cc.is_open() {
            tokens += 1;
            it.pinged(now);
            it.cc.dial(it.addr, tokens, pid, net);
        }
        if it.kind != InstanceKind::Sentinel && !it.pc.is_open() {
            tokens += 1;
            it.pc_activity = now;
            it.pc.dial(it.addr, tokens, pid, net);
        }
        self.tokens = tokens;
    }

    pub(super) fn dialled(&mut self, token: u64, connection: Option<ConnId>, net: &mut Net) {
        let pid = self.pid;
        let found =
            self.instances().find(|it| it.cc.token == Some(token) || it.pc.token == Some(token));
        let Some(it) = found else {
            return connection.into_iter().for_each(|connection| net.close(connection, pid));
        };
        it.disconnected |= connection.is_none();
        let (link, first) = if it.cc.token == Some(token) {
            (&mut it.cc, Message::Ping)
        } else {
            (&mut it.pc, Message::Subscribe)
        };
        (link.token, link.connection) = (None, connection);
        connection.into_iter().for_each(|connection| net.send(connection, pid, first.clone()));
    }

    fn send_periodic(&mut self, instance: InstanceRef, net: &mut Net) {
        let (pid, now) = (self.pid, net.wall_ms(self.pid));
        let urgent = self.master.o_down || self.is_failing_over();
        let (hello, down_after) = (self.own_hello(net), self.config.down_after);
        let it = self.get(instance);
        let Some(connection) = it.commands() else { return };
        let period = if it.kind == InstanceKind::Replica && (urgent || it.link_down_for != 0) {
            1000
        } else {
            INFO_PERIOD
        };
        // One pending command suffices here: only the time of the answer matters.
        let asked = it.info_asked > it.info_at && now - it.info_asked < period;
        if it.kind != InstanceKind::Sentinel
            && !asked
            && (it.info_at == 0 || now - it.info_at > period)
        {
            it.info_asked = now;
            net.send(connection, pid, Message::Info);
        }
        let ping = down_after.min(PING_PERIOD);
        if now - it.last_pong > ping && now - it.last_ping > ping / 2 {
            it.pinged(now);
            net.send(connection, pid, Message::Ping);
        }
        if now - it.last_pub > PUBLISH_PERIOD {
            it.last_pub = now;
            net.send(connection, pid, Message::Publish(Rc::new(hello)));
        }
    }

    fn own_hello(&self, net: &Net) -> Hello {
        Hello {
            addr: net.addr(self.pid),
            id: self.id,
            current_epoch: self.current_epoch,
            master: self.current_master(),
            config_epoch: self.config_epoch,
        }
    }

    fn check_subjectively(&mut self, instance: InstanceRef, net: &mut Net) {
        let (pid, now, down_after) = (self.pid, net.wall_ms(self.pid), self.config.down_after);
        let it = self.get(instance);
        let silent_for = match (it.open_ping, it.disconnected) {
            (0, false) => 0,
            (0, true) => now - it.last_avail,
            (open, _) => now - open,
        };
        let stuck = it.open_ping != 0
            && now - it.open_ping > down_after / 2
            && now - it.last_pong > down_after / 2;
        let deaf = now - it.pc_activity > PUBLISH_PERIOD * 3;
        for (link, fails) in [(&mut it.cc, stuck), (&mut it.pc, deaf)] {
            if link.is_open() && now - link.dialled_at > MIN_RECONNECT && fails {
                link.close(pid, net);
                it.disconnected = true;
            }
        }
        let says_replica = it.kind == InstanceKind::Master && !it.says_master;
        let wrong_role = says_replica && now - it.role_at > down_after + INFO_PERIOD * 2;
        let down = silent_for > down_after || wrong_role;
        if down == it.s_down {
            return;
        }
        it.s_down = down;
        if down {
            it.s_down_at = now;
        }
        let (kind, addr, id) = (it.kind, it.addr, it.id);
        let channel = if down { "+sdown" } else { "-sdown" };
        self.event_about(channel, kind, addr, id, net);
    }

    fn check_objectively(&mut self, net: &mut Net) {
        let others = self.peers.iter().filter(|it| it.master_down).count();
        let down = self.master.s_down && 1 + others >= self.config.quorum;
        if down == self.master.o_down {
            return;
        }
        self.master.o_down = down;
        if down {
            self.master.o_down_at = net.wall_ms(self.pid);
        }
        self.event_on_master(if down { "+odown" } else { "-odown" }, net);
    }
}
