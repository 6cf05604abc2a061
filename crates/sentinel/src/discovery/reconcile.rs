//! Brings the connections to the sentinels in line with the configuration and with what sentinels
//! tell of each other.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::{Discovery, RECONCILE_EVERY};
use crate::NodeAddr;
use crate::discovery::seeds::{self, Seed};
use crate::link::links::{Key, Wish};

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
        let mut wishes: BTreeMap<Key, Wish> = BTreeMap::new();
        for seed in &mut self.seeds {
            let (service, auth) = (seed.service, seed.auth);
            for addr in seed.wanted(now, |addr| self.links.is_up(&(NodeAddr::from(addr), auth))) {
                wishes.entry((NodeAddr::from(addr), auth)).or_default().want(service);
            }
        }
        for (service, (_, auth)) in self.services.iter().zip(&self.learn) {
            for (id, addrs) in service.learned_addresses().candidates() {
                // Whoever is reached needs no second connection; until then every address it is
                // said to have is tried.
                let reached = self.links.speaker(service.number, id).map(|link| &link.addr);
                for addr in
                    addrs.into_iter().filter(|addr| reached.is_none_or(|there| there == *addr))
                {
                    match wishes.entry((addr.clone(), *auth)) {
                        Entry::Occupied(mut known) => {
                            known.get_mut().want(service.number);
                            if let Some(expected) = &mut known.get_mut().expect {
                                expected.insert(id.clone());
                            }
                        }
                        Entry::Vacant(vacant) => {
                            let expect = Some(BTreeSet::from([id.clone()]));
                            vacant.insert(Wish { groups: vec![service.number], expect });
                        }
                    }
                }
            }
        }
        self.links.reconcile(&wishes);
        for service in &mut self.services {
            let seeds = || self.seeds.iter().filter(|seed| seed.service == service.number);
            let found = seeds().map(Seed::found);
            let expected = seeds::expected(found, |addr| {
                let auth = seeds().find(|seed| seed.found().contains(&addr))?.auth;
                self.links.answers_at(&(NodeAddr::from(addr), auth)).cloned()
            });
            service.expect(expected, &self.links);
        }
    }
}
