//! Hellos: how sentinels find each other, and how a new configuration spreads.

use super::{FailoverStep, Instance, InstanceKind, NAME, PUBLISH_PERIOD, Sentinel};
use crate::net::Net;
use crate::wire::{Addr, Hello};

impl Sentinel {
    /// Processes a hello that came through a Redis node, or directly from a peer.
    pub(super) fn hello(&mut self, hello: &Hello, net: &mut Net) {
        if hello.id == self.id {
            return;
        }
        let now = net.wall_ms(self.pid);
        let known = self.peers.iter().any(|it| it.id == Some(hello.id) && it.addr == hello.addr);
        if !known {
            self.add_peer(hello, now, net);
        }
        if hello.current_epoch > self.current_epoch {
            self.current_epoch = hello.current_epoch;
            self.flush();
            self.publish("+new-epoch", &hello.current_epoch.to_string(), net);
        }
        if self.config_epoch < hello.config_epoch {
            self.config_epoch = hello.config_epoch;
            if hello.master != self.master.addr {
                self.event_on("+config-update-from", hello.addr, Some(hello.id), net);
                self.announce_switch(hello.master, net);
                self.reset_to(hello.master, net);
            }
            self.flush();
        }
    }

    /// Adds a sentinel at an address that is not known for it.
    fn add_peer(&mut self, hello: &Hello, now: i64, net: &mut Net) {
        let moved = self.peers.iter().position(|it| it.id == Some(hello.id));
        if let Some(at) = moved {
            self.peers.remove(at).drop_links(self.pid, net);
            self.event_on("+sentinel-address-switch", hello.addr, Some(hello.id), net);
        } else if let Some(other) = self.peers.iter_mut().find(|it| it.addr == hello.addr) {
            // Another sentinel was at this address: it stays as a peer without an address.
            (other.addr.port, other.disconnected) = (0, true);
            other.cc.close(self.pid, net);
            net.trace_line(self.pid, || format!("+sentinel-invalid-addr {}", hello.addr));
        }
        self.peers.push(Instance::new(InstanceKind::Sentinel, hello.addr, Some(hello.id), now));
        if moved.is_none() {
            self.event_on("+sentinel", hello.addr, Some(hello.id), net);
        }
        self.flush();
    }

    pub(super) fn announce_switch(&mut self, new: Addr, net: &mut Net) {
        let old = self.master.addr;
        let (from, to) = (self.host(old), self.host(new));
        let payload = format!("{NAME} {from} {} {to} {}", old.port, new.port);
        self.publish("+switch-master", &payload, net);
    }

    /// Monitors another master from now on; the old one becomes a replica in its list.
    pub(super) fn reset_to(&mut self, new: Addr, net: &mut Net) {
        let now = net.wall_ms(self.pid);
        let mut replicas: Vec<Addr> =
            self.replicas.iter().map(|it| it.addr).filter(|it| *it != new).collect();
        if self.master.addr != new && !replicas.contains(&self.master.addr) {
            replicas.push(self.master.addr);
        }
        let master = Instance::new(InstanceKind::Master, new, None, now);
        let master = std::mem::replace(&mut self.master, master);
        let replicas_before = std::mem::take(&mut self.replicas);
        replicas_before.into_iter().chain([master]).for_each(|it| it.drop_links(self.pid, net));
        self.replicas = replicas
            .into_iter()
            .map(|it| Instance::new(InstanceKind::Replica, it, None, now))
            .collect();
        (self.forced, self.coordinated, self.promoted) = (false, false, None);
        (self.step, self.step_at, self.failover_at) = (FailoverStep::None, 0, 0);
        self.leader = None;
        self.flush();
    }

    /// `SENTINEL RESET`: peers and replicas are found again. After `REMOVE` and `MONITOR` the
    /// config-epoch is 0 as well.
    pub(crate) fn forget(&mut self, monitored_anew: bool, net: &mut Net) {
        let master = self.current_master();
        std::mem::take(&mut self.peers).into_iter().for_each(|it| it.drop_links(self.pid, net));
        if monitored_anew {
            self.config_epoch = 0;
        }
        self.reset_to(master, net);
        self.replicas.clear();
        self.flush();
        self.event_on_master(if monitored_anew { "+monitor" } else { "+reset-master" }, net);
    }

    /// `SENTINEL SET quorum`.
    pub(crate) fn set_quorum(&mut self, quorum: usize, net: &mut Net) {
        self.config.quorum = quorum;
        self.event_on_master("+set", net);
    }

    /// The next tick sends a hello to all instances.
    pub(super) fn force_hello(&mut self) {
        self.instances().for_each(|it| it.last_pub -= PUBLISH_PERIOD + 1);
    }
}
