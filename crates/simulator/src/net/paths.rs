//! Paths between hosts that are cut, healed and slowed down.

use super::{Event, Net};
use crate::wire::{MS, Micros, SECOND};

/// How long a message that a slow host delayed may be under way.
const SLOW_MAX: Micros = SECOND;

impl Net {
    /// Adds a cut in this direction between two hosts.
    pub(crate) fn cut(&mut self, from: usize, to: usize) {
        if from != to {
            let (now, hosts) = (self.now, self.hosts);
            let path = &mut self.paths[from * hosts + to];
            path.cuts += 1;
            path.cut_since.get_or_insert(now);
        }
    }

    /// Removes a cut.
    pub(crate) fn mend(&mut self, from: usize, to: usize) {
        let (now, at) = (self.now, from * self.hosts + to);
        let path = &mut self.paths[at];
        path.cuts = path.cuts.saturating_sub(1);
        if path.cuts > 0 || from == to {
            return;
        }
        let Some(since) = path.cut_since.take() else { return };
        let parked = std::mem::take(&mut path.parked);
        let due = self.rng.range(MS, (now - since).min(3 * SECOND) + 2 * MS);
        (self.paths[at].ready_at, self.paths[at].mended_at) = (now + due, now);
        for (to, incarnation, connection, input) in parked {
            let side = self.side(connection, to);
            let arrival = (now + due).max(self.conns[connection].ends[side].last_arrival + 1);
            self.conns[connection].ends[side].last_arrival = arrival;
            self.at(arrival, Event::To(to, incarnation, input));
        }
    }

    /// Whether a message may be under way that a slow host delayed.
    pub(crate) fn was_slow(&self) -> bool {
        self.now < self.slow_until
    }

    /// Delays every message between a host and all others; 0 restores the normal latency.
    pub(crate) fn slow(&mut self, host: usize, by: Micros) {
        self.slow_until = if by == 0 { self.now + SLOW_MAX } else { Micros::MAX };
        for other in 0..self.hosts {
            self.paths[host * self.hosts + other].slow = by;
            self.paths[other * self.hosts + host].slow = by;
        }
    }
}
