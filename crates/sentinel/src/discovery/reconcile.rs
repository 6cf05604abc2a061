//! Brings the connections to the sentinels in line with the configuration and with what sentinels
//! tell of each other.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::{Discovery, RECONCILE_EVERY};
use crate::NodeAddr;
use crate::discovery::seeds::{self, Seed};
use crate::link::links::{LinkKey, LinkRequest};

impl Discovery {
    /// Somebody told something new: brings the connections in line now, or as soon as it may be
    /// done again.
    pub(super) fn reconcile_soon(&mut self) {
        let now = Instant::now();
        let at = self.reconciled_at.map_or(now, |last| (last + RECONCILE_EVERY).max(now));
        self.reconcile_at.get_or_insert(at);
    }

    /// Brings the connections in line with the seeds and with what was learnt.
    pub(super) fn reconcile(&mut self, now: Instant) {
        (self.reconcile_at, self.reconciled_at) = (None, Some(now));
        let mut wishes: BTreeMap<LinkKey, LinkRequest> = BTreeMap::new();
        for seed in &mut self.seeds {
            let (group, auth) = (seed.group, seed.auth);
            for addr in seed.wanted(now, |addr| self.links.is_up(&(NodeAddr::from(addr), auth))) {
                wishes.entry((NodeAddr::from(addr), auth)).or_default().add_service(group);
            }
        }
        for (group, (_, auth)) in self.groups.iter().zip(&self.learn) {
            for (id, addrs) in group.learnt().candidates() {
                // Whoever is reached needs no second connection; until then every address it is
                // said to have is tried.
                let reached = self.links.voting_link(group.number, id).map(|link| &link.addr);
                for addr in
                    addrs.into_iter().filter(|addr| reached.is_none_or(|there| there == *addr))
                {
                    match wishes.entry((addr.clone(), *auth)) {
                        Entry::Occupied(mut known) => {
                            known.get_mut().add_service(group.number);
                            if let Some(expected) = &mut known.get_mut().expect {
                                expected.insert(id.clone());
                            }
                        }
                        Entry::Vacant(vacant) => {
                            let expect = Some(BTreeSet::from([id.clone()]));
                            vacant.insert(LinkRequest { services: vec![group.number], expect });
                        }
                    }
                }
            }
        }
        self.links.reconcile(&wishes);
        for group in &mut self.groups {
            let seeds = || self.seeds.iter().filter(|seed| seed.group == group.number);
            let found = seeds().map(Seed::found);
            let expected = seeds::expected(found, |addr| {
                let auth = seeds().find(|seed| seed.found().contains(&addr))?.auth;
                self.links.sentinel_at(&(NodeAddr::from(addr), auth)).cloned()
            });
            group.expect(expected, &self.links);
        }
    }
}
