//! Votes: whether the master is down, and which sentinel leads the failover.

use super::{ASK_PERIOD, FailoverStep, MAX_DESYNC, Sentinel};
use crate::net::Net;
use crate::wire::{Addr, Message, hex};

impl Sentinel {
    /// `SENTINEL IS-MASTER-DOWN-BY-ADDR` to every peer: the query, and from the start of a failover
    /// on the request for a vote.
    pub(super) fn ask_others(&mut self, forced: bool, net: &mut Net) {
        let (pid, now) = (self.pid, net.wall_ms(self.pid));
        let candidate = (self.step > FailoverStep::None).then_some(self.id);
        // A coordinated failover of a healthy master needs votes, too.
        let down = self.master.s_down || (self.coordinated && candidate.is_some());
        let (addr, epoch) = (self.master.addr, self.current_epoch);
        for peer in &mut self.peers {
            let silent = now - peer.asked_back_at;
            if silent > ASK_PERIOD * 5 {
                (peer.master_down, peer.leader) = (false, None);
            }
            let Some(connection) = peer.commands().filter(|_| down) else { continue };
            // Sentinel asks again only when the last answer is old enough.
            if forced || silent >= ASK_PERIOD {
                net.send(connection, pid, Message::IsMasterDown { addr, epoch, candidate });
            }
        }
    }

    /// Processes the answer to such a query.
    pub(super) fn is_master_down(
        &mut self,
        addr: Addr,
        epoch: u64,
        candidate: Option<u64>,
        net: &mut Net,
    ) -> Message {
        let ours = self.master.addr == addr;
        let down = self.tilt_since.is_none() && ours && self.master.s_down;
        let (mut leader, mut leader_epoch) = (None, 0);
        if let Some(candidate) = candidate.filter(|_| ours) {
            leader = self.vote(epoch, candidate, net);
            leader_epoch = self.leader_epoch;
        }
        Message::MasterDown { down, leader, leader_epoch }
    }

    /// The first candidate that asks at an epoch gets the vote.
    pub(super) fn vote(&mut self, epoch: u64, candidate: u64, net: &mut Net) -> Option<u64> {
        if epoch > self.current_epoch {
            self.current_epoch = epoch;
            self.flush();
            self.publish("+new-epoch", &epoch.to_string(), net);
        }
        if self.leader_epoch < epoch && self.current_epoch <= epoch {
            (self.leader, self.leader_epoch) = (Some(candidate), self.current_epoch);
            self.flush();
            self.publish(
                "+vote-for-leader",
                &format!("{} {}", hex(candidate), self.leader_epoch),
                net,
            );
            if candidate != self.id {
                self.failover_at = net.wall_ms(self.pid) + net.rng.range(0, MAX_DESYNC) as i64;
            }
        }
        self.leader
    }

    /// The candidate with a majority of all known sentinels, and the quorum, at this epoch.
    pub(super) fn elected(&mut self, epoch: u64, net: &mut Net) -> Option<u64> {
        let counted = self.peers.iter().filter(|peer| peer.leader_epoch == self.current_epoch);
        let mut votes: Vec<u64> = counted.filter_map(|peer| peer.leader).collect();
        let times = |votes: &[u64], id: u64| votes.iter().filter(|it| **it == id).count();
        let most = |votes: &[u64]| votes.iter().copied().max_by_key(|id| times(votes, *id));
        let own = self.vote(epoch, most(&votes).unwrap_or(self.id), net);
        votes.extend(own.filter(|_| self.leader_epoch == epoch));
        let winner = most(&votes)?;
        let needed = (self.peers.len().div_ceil(2) + 1).max(self.config.quorum);
        (times(&votes, winner) >= needed).then_some(winner)
    }
}
