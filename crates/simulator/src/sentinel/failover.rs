//! The steps of a failover, on the sentinel that leads it.

use super::{
    ELECTION_TIMEOUT, FailoverStep, INFO_PERIOD, Instance, MAX_DESYNC, PING_PERIOD, RECONF_RETRY,
    ReconfState, Sentinel,
};
use crate::net::Net;
use crate::wire::{Addr, MS, Message};

impl Sentinel {
    pub(super) fn start_failover_if_needed(&mut self, net: &mut Net) -> bool {
        let now = net.wall_ms(self.pid);
        let recently = now - self.failover_at < self.config.failover_timeout * 2;
        if !self.master.o_down || self.is_failing_over() || recently {
            return false;
        }
        self.start_failover(net);
        true
    }

    fn start_failover(&mut self, net: &mut Net) {
        let now = net.wall_ms(self.pid);
        (self.step, self.step_at) = (FailoverStep::WaitStart, now);
        self.current_epoch += 1;
        self.failover_epoch = self.current_epoch;
        let epoch = self.current_epoch.to_string();
        self.publish("+new-epoch", &epoch, net);
        self.event_on_master("+try-failover", net);
        self.failover_at = now + net.rng.range(0, MAX_DESYNC) as i64;
    }

    /// `SENTINEL FAILOVER` by an operator, which needs no election unless it is `COORDINATED`.
    /// Whether it was accepted.
    pub(crate) fn order_failover(&mut self, coordinated: bool, net: &mut Net) -> bool {
        if self.is_failing_over() || self.select(net).is_none() {
            return false;
        }
        self.start_failover(net);
        (self.forced, self.coordinated) = (!coordinated, coordinated);
        if coordinated {
            self.ask_others(true, net);
        }
        true
    }

    fn enter(&mut self, step: FailoverStep, net: &Net) {
        (self.step, self.step_at) = (step, net.wall_ms(self.pid));
    }

    pub(super) fn advance_failover(&mut self, net: &mut Net) {
        match self.step {
            FailoverStep::WaitStart => self.wait_start(net),
            FailoverStep::SelectSlave => match self.select(net) {
                None => self.abort("-failover-abort-no-good-slave", net),
                Some(addr) => {
                    self.event_on("+selected-slave", addr, None, net);
                    self.promoted = Some(addr);
                    self.enter(FailoverStep::SendSlaveOfNoOne, net);
                    self.event_on("+failover-state-send-slaveof-noone", addr, None, net);
                }
            },
            FailoverStep::SendSlaveOfNoOne => self.promote(net),
            FailoverStep::WaitPromotion => {
                if net.wall_ms(self.pid) - self.step_at > self.config.failover_timeout {
                    self.abort("-failover-abort-slave-timeout", net);
                }
            }
            FailoverStep::ReconfSlaves => self.reconfigure_next(net),
            FailoverStep::None | FailoverStep::UpdateConfig => {}
        }
    }

    fn wait_start(&mut self, net: &mut Net) {
        let (now, epoch) = (net.wall_ms(self.pid), self.failover_epoch);
        let leads = self.elected(epoch, net) == Some(self.id);
        if leads || self.forced {
            self.event_on_master("+elected-leader", net);
            self.enter(FailoverStep::SelectSlave, net);
            self.event_on_master("+failover-state-select-slave", net);
        } else if now - self.failover_at > ELECTION_TIMEOUT.min(self.config.failover_timeout) {
            self.abort("-failover-abort-not-elected", net);
        }
    }

    fn abort(&mut self, channel: &'static str, net: &mut Net) {
        self.event_on_master(channel, net);
        (self.forced, self.coordinated, self.promoted) = (false, false, None);
        self.enter(FailoverStep::None, net);
    }

    fn promote(&mut self, net: &mut Net) {
        let (pid, now) = (self.pid, net.wall_ms(self.pid));
        let Some(addr) = self.promoted else { return };
        let replica = self.replicas.iter().find(|it| it.addr == addr);
        let (it, late) = if self.coordinated {
            (Some(&self.master), "-failover-abort-master-timeout")
        } else {
            (replica, "-failover-abort-slave-timeout")
        };
        match it.and_then(Instance::commands) {
            None if now - self.step_at > self.config.failover_timeout => self.abort(late, net),
            None => {}
            Some(connection) => {
                let left = self.config.failover_timeout - (now - self.step_at);
                let lasts = u64::try_from(left).unwrap_or(0) * MS;
                let order = match self.coordinated {
                    true => Message::Failover { to: addr, lasts },
                    false => Message::SlaveOf(None),
                };
                net.send(connection, pid, order);
                self.event_on("+failover-state-wait-promotion", addr, None, net);
                self.enter(FailoverStep::WaitPromotion, net);
            }
        }
    }

    /// The replica to promote: by priority, then by offset, then by run ID.
    fn select(&self, net: &Net) -> Option<Addr> {
        let now = net.wall_ms(self.pid);
        let master_down = self.master.s_down;
        let down_for = if master_down { now - self.master.s_down_at } else { 0 };
        let most_unlinked = down_for + self.config.down_after * 10;
        let validity = if master_down { PING_PERIOD * 5 } else { INFO_PERIOD * 3 };
        let good = self.replicas.iter().filter(|it| {
            !it.s_down
                && it.commands().is_some()
                && now - it.last_avail <= PING_PERIOD * 5
                && it.priority > 0
                && now - it.info_at <= validity
                && it.link_down_for <= most_unlinked
        });
        let best =
            good.min_by_key(|it| (it.priority, u64::MAX - it.offset, it.id.unwrap_or(u64::MAX)));
        best.map(|it| it.addr)
    }

    /// Reconfigures the other replicas to follow the promoted one, one at a time.
    fn reconfigure_next(&mut self, net: &mut Net) {
        let (pid, now) = (self.pid, net.wall_ms(self.pid));
        let Some(promoted) = self.promoted else { return };
        let mut busy = self
            .replicas
            .iter()
            .filter(|it| matches!(it.reconf, ReconfState::Sent | ReconfState::InProgress))
            .count();
        let mut sent = Vec::new();
        for it in &mut self.replicas {
            if busy >= 1 {
                break;
            }
            if it.addr == promoted || it.reconf != ReconfState::None {
                continue;
            }
            let Some(connection) = it.commands() else { continue };
            net.send(connection, pid, Message::SlaveOf(Some(promoted)));
            (it.reconf, it.reconf_at) = (ReconfState::Sent, now);
            sent.push(it.addr);
            busy += 1;
        }
        for it in &mut self.replicas {
            if it.reconf == ReconfState::Sent && now - it.reconf_at > RECONF_RETRY {
                it.reconf = ReconfState::Done;
            }
        }
        for addr in sent {
            self.event_on("+slave-reconf-sent", addr, None, net);
        }
        self.detect_end(promoted, net);
    }

    fn detect_end(&mut self, promoted: Addr, net: &mut Net) {
        let (pid, now) = (self.pid, net.wall_ms(self.pid));
        if self.replicas.iter().any(|it| it.addr == promoted && it.s_down) {
            return;
        }
        let mut left = self
            .replicas
            .iter()
            .filter(|it| it.addr != promoted && it.reconf != ReconfState::Done && !it.s_down)
            .count();
        let timeout = now - self.step_at > self.config.failover_timeout;
        if timeout {
            left = 0;
            self.event_on_master("+failover-end-for-timeout", net);
        }
        if left > 0 {
            return;
        }
        self.event_on_master("+failover-end", net);
        if timeout {
            let waiting = |it: &&Instance| it.addr != promoted && it.reconf == ReconfState::None;
            for connection in self.replicas.iter().filter(waiting).filter_map(Instance::commands) {
                net.send(connection, pid, Message::SlaveOf(Some(promoted)));
            }
        }
        self.enter(FailoverStep::UpdateConfig, net);
    }

    pub(super) fn switch_to_promoted(&mut self, net: &mut Net) {
        let new = self.promoted.unwrap_or(self.master.addr);
        self.switched += 1;
        self.announce_switch(new, net);
        self.reset_to(new, net);
    }
}
