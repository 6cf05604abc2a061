//! How a sentinel processes a Redis node's `INFO`.

use super::tick::InstanceRef;
use super::{
    FailoverStep, INFO_PERIOD, Instance, InstanceKind, PUBLISH_PERIOD, ReconfState, Sentinel,
};
use crate::net::{ConnId, Net};
use crate::wire::{Info, MS, Message};

impl Sentinel {
    pub(super) fn info_came(&mut self, connection: ConnId, info: &Info, net: &mut Net) {
        let instance = if self.master.cc.connection == Some(connection) {
            InstanceRef::Master
        } else {
            let at = self.replicas.iter().position(|it| it.cc.connection == Some(connection));
            let Some(at) = at else { return };
            InstanceRef::Replica(at)
        };
        self.update_instance(instance, info, net);
        if instance == InstanceRef::Master {
            self.find_replicas(info, net);
        }
        if self.tilt_since.is_some() {
            return;
        }
        if let InstanceRef::Replica(at) = instance {
            if info.master.is_none() {
                self.replica_says_master(at, net);
            } else {
                self.replica_follows(at, info, net);
            }
        }
    }

    fn update_instance(&mut self, instance: InstanceRef, info: &Info, net: &mut Net) {
        let now = net.wall_ms(self.pid);
        let it = self.get(instance);
        let rebooted = it.id.is_some_and(|id| id != info.run_id);
        it.id = Some(info.run_id);
        it.info_at = now;
        let says_master = info.master.is_none();
        let changed = says_master != it.says_master;
        if changed {
            (it.says_master, it.role_at) = (says_master, now);
            if !says_master {
                it.follows_at = now;
            }
        }
        it.link_down_for = (info.link_down_for / MS) as i64;
        if info.master != it.follows && info.master.is_some() {
            (it.follows, it.follows_at) = (info.master, now);
        }
        (it.link_up, it.priority, it.offset) = (info.link_up, info.priority, info.offset);
        let (kind, addr) = (it.kind, it.addr);
        if rebooted {
            self.event_about("+reboot", kind, addr, None, net);
        }
        if changed {
            let expected = says_master == (kind == InstanceKind::Master);
            let channel = if expected { "+role-change" } else { "-role-change" };
            self.event_about(channel, kind, addr, None, net);
        }
    }

    fn find_replicas(&mut self, info: &Info, net: &mut Net) {
        let now = net.wall_ms(self.pid);
        for addr in &info.replicas {
            if self.replicas.iter().all(|it| it.addr != *addr) {
                self.replicas.push(Instance::new(InstanceKind::Replica, *addr, None, now));
                self.flush();
                self.event_on("+slave", *addr, None, net);
            }
        }
    }

    fn master_looks_sane(&self, now: i64) -> bool {
        let it = &self.master;
        it.says_master && !it.s_down && !it.o_down && now - it.info_at < INFO_PERIOD * 2
    }

    fn replica_says_master(&mut self, at: usize, net: &mut Net) {
        let (pid, now, master) = (self.pid, net.wall_ms(self.pid), self.master.addr);
        let sane = self.master_looks_sane(now);
        let it = &self.replicas[at];
        let (addr, is_promoted) = (it.addr, self.promoted == Some(it.addr));
        if is_promoted && self.step == FailoverStep::WaitPromotion {
            self.config_epoch = self.failover_epoch;
            (self.step, self.step_at) = (FailoverStep::ReconfSlaves, now);
            self.flush();
            self.event_on("+promoted-slave", addr, None, net);
            self.event_on_master("+failover-state-reconf-slaves", net);
            self.force_hello();
            return;
        }
        let wait = PUBLISH_PERIOD * 4;
        let lasts = it.no_down_for(wait, now) && now - it.role_at > wait;
        if let Some(connection) = it.cc.connection.filter(|_| !is_promoted && sane && lasts) {
            net.send(connection, pid, Message::SlaveOf(Some(master)));
            self.event_on("+convert-to-slave", addr, None, net);
        }
    }

    fn replica_follows(&mut self, at: usize, info: &Info, net: &mut Net) {
        let (pid, now, master) = (self.pid, net.wall_ms(self.pid), self.master.addr);
        let (sane, wait) = (self.master_looks_sane(now), self.config.failover_timeout);
        let promoted = self.promoted;
        let it = &mut self.replicas[at];
        let addr = it.addr;
        if info.master != Some(master)
            && sane
            && it.no_down_for(wait, now)
            && now - it.follows_at > wait
        {
            if let Some(connection) = it.cc.connection {
                net.send(connection, pid, Message::SlaveOf(Some(master)));
                self.event_on("+fix-slave-config", addr, None, net);
            }
            return;
        }
        let mut event = None;
        if it.reconf == ReconfState::Sent && promoted.is_some() && info.master == promoted {
            it.reconf = ReconfState::InProgress;
            event = Some("+slave-reconf-inprog");
        }
        if it.reconf == ReconfState::InProgress && info.link_up {
            it.reconf = ReconfState::Done;
            event = Some("+slave-reconf-done");
        }
        if let Some(channel) = event {
            self.event_on(channel, addr, None, net);
        }
    }
}
