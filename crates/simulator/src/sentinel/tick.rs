//! The timer of a sentinel: links, periodic commands, TILT, and who is held to be down.

use std::rc::Rc;

use super::{
    INFO_PERIOD, Instance, Kind, MIN_RECONNECT, PING_PERIOD, PUBLISH_PERIOD, Sentinel, Step,
    TILT_PERIOD, TILT_TRIGGER,
};
use crate::net::{ConnId, Net};
use crate::wire::{Body, Hello, SECOND};

/// How long a dial may take: as long as the operating system tries.
const DIAL: u64 = 60 * SECOND;

/// Which of the instances a step is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Master,
    Replica(usize),
    Peer(usize),
}

impl Sentinel {
    pub(super) fn tick(&mut self, net: &mut Net) {
        self.check_tilt(net);
        self.look_after(Which::Master, net);
        for at in 0..self.replicas.len() {
            self.look_after(Which::Replica(at), net);
        }
        for at in 0..self.peers.len() {
            self.look_after(Which::Peer(at), net);
        }
        if self.step == Step::UpdateConfig {
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

    fn get(&mut self, which: Which) -> &mut Instance {
        match which {
            Which::Master => &mut self.master,
            Which::Replica(at) => &mut self.replicas[at],
            Which::Peer(at) => &mut self.peers[at],
        }
    }

    fn look_after(&mut self, which: Which, net: &mut Net) {
        self.reconnect(which, net);
        self.send_periodic(which, net);
        let now = net.wall_ms(self.pid);
        if let Some(since) = self.tilt_since {
            if now - since < TILT_PERIOD {
                return;
            }
            self.tilt_since = None;
            self.publish("-tilt", "#tilt mode exited", net);
        }
        self.check_subjectively(which, net);
        if which == Which::Master {
            self.check_objectively(net);
            if self.start_failover_if_needed(net) {
                self.ask_others(true, net);
            }
            self.advance_failover(net);
            self.ask_others(false, net);
        }
    }

    fn reconnect(&mut self, which: Which, net: &mut Net) {
        let (pid, now) = (self.pid, net.wall_ms(self.pid));
        let mut tokens = self.tokens;
        let it = self.get(which);
        if !it.disconnected || it.addr.port == 0 || now - it.reconnect_at < PING_PERIOD {
            return;
        }
        (it.reconnect_at, it.disconnected) = (now, false);
        if it.cc.is_none() && it.cc_token.is_none() {
            tokens += 1;
            (it.cc_token, it.cc_at) = (Some(tokens), now);
            it.last_ping = now;
            if it.open_ping == 0 {
                it.open_ping = now;
            }
            net.dial(pid, it.addr, DIAL, tokens);
        }
        if it.kind != Kind::Sentinel && it.pc.is_none() && it.pc_token.is_none() {
            tokens += 1;
            (it.pc_token, it.pc_at, it.pc_activity) = (Some(tokens), now, now);
            net.dial(pid, it.addr, DIAL, tokens);
        }
        self.tokens = tokens;
    }

    pub(super) fn dialled(&mut self, token: u64, conn: Option<ConnId>, net: &mut Net) {
        let pid = self.pid;
        let found =
            self.instances().find(|it| it.cc_token == Some(token) || it.pc_token == Some(token));
        let Some(it) = found else { return conn.into_iter().for_each(|conn| net.close(conn, pid)) };
        let commands = it.cc_token == Some(token);
        if conn.is_none() {
            it.disconnected = true;
        }
        if commands {
            (it.cc_token, it.cc) = (None, conn);
        } else {
            (it.pc_token, it.pc) = (None, conn);
        }
        if let Some(conn) = conn {
            net.send(conn, pid, if commands { Body::Ping } else { Body::Subscribe });
        }
    }

    fn send_periodic(&mut self, which: Which, net: &mut Net) {
        let (pid, now) = (self.pid, net.wall_ms(self.pid));
        let urgent = self.master.o_down || self.failing_over;
        let (hello, down_after) = (self.own_hello(net), self.settings.down_after);
        let it = self.get(which);
        let Some(conn) = it.cc.filter(|_| !it.disconnected) else { return };
        let period = if it.kind == Kind::Replica && (urgent || it.link_down_for != 0) {
            1000
        } else {
            INFO_PERIOD
        };
        // One question at a time is enough here: what counts is when the answer comes.
        let asked = it.info_asked > it.info_at && now - it.info_asked < period;
        if it.kind != Kind::Sentinel && !asked && (it.info_at == 0 || now - it.info_at > period) {
            it.info_asked = now;
            net.send(conn, pid, Body::Info);
        }
        let ping = down_after.min(PING_PERIOD);
        if now - it.last_pong > ping && now - it.last_ping > ping / 2 {
            it.last_ping = now;
            if it.open_ping == 0 {
                it.open_ping = now;
            }
            net.send(conn, pid, Body::Ping);
        }
        if now - it.last_pub > PUBLISH_PERIOD {
            it.last_pub = now;
            net.send(conn, pid, Body::Publish(Rc::new(hello)));
        }
    }

    fn own_hello(&self, net: &Net) -> Hello {
        Hello {
            addr: self.own_addr(net),
            id: self.id,
            current_epoch: self.current_epoch,
            master: self.current_master(),
            config_epoch: self.config_epoch,
        }
    }

    fn check_subjectively(&mut self, which: Which, net: &mut Net) {
        let (pid, now, down_after) = (self.pid, net.wall_ms(self.pid), self.settings.down_after);
        let it = self.get(which);
        let silent_for = match (it.open_ping, it.disconnected) {
            (0, false) => 0,
            (0, true) => now - it.last_avail,
            (open, _) => now - open,
        };
        let stuck = it.open_ping != 0
            && now - it.open_ping > down_after / 2
            && now - it.last_pong > down_after / 2;
        if (it.cc.is_some() || it.cc_token.is_some()) && now - it.cc_at > MIN_RECONNECT && stuck {
            it.cc.take().into_iter().for_each(|conn| net.close(conn, pid));
            (it.cc_token, it.disconnected) = (None, true);
        }
        let deaf = now - it.pc_at > MIN_RECONNECT && now - it.pc_activity > PUBLISH_PERIOD * 3;
        if (it.pc.is_some() || it.pc_token.is_some()) && deaf {
            it.pc.take().into_iter().for_each(|conn| net.close(conn, pid));
            (it.pc_token, it.disconnected) = (None, true);
        }
        let says_replica = it.kind == Kind::Master && !it.says_master;
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
        match kind {
            Kind::Master => self.event_on_master(channel, net),
            Kind::Replica => self.event_on(channel, addr, None, net),
            Kind::Sentinel => self.event_on(channel, addr, id, net),
        }
    }

    fn check_objectively(&mut self, net: &mut Net) {
        let others = self.peers.iter().filter(|it| it.master_down).count();
        let down = self.master.s_down && 1 + others >= self.settings.quorum;
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
