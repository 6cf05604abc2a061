//! Updates the connections to the sentinels: those of the configuration and those learned from
//! other sentinels.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::{Discovery, RECONCILE_EVERY};
use crate::NodeAddr;
use crate::clock;
use crate::discovery::seeds::{self, Seed};
use crate::link::links::{ANONYMOUS, LinkKey, LinkRequest};

impl Discovery {
    /// A peer announced a change: updates the connections now, or as soon as the rate limit
    /// permits.
    pub(super) fn reconcile_soon(&mut self) {
        let now = clock::now();
        let at = self.reconciled_at.map_or(now, |last| (last + RECONCILE_EVERY).max(now));
        self.reconcile_at.get_or_insert(at);
    }

    /// Updates the connections for the current seeds and learned addresses.
    pub(super) fn reconcile(&mut self, now: Instant) {
        (self.reconcile_at, self.reconciled_at) = (None, Some(now));
        let mut requests: BTreeMap<LinkKey, LinkRequest> = BTreeMap::new();
        for seed in self.seeds.values_mut() {
            let (group, auth) = (seed.service, seed.auth);
            let (login, host) = (self.links.login(auth), seed.name().host.clone());
            for addr in seed.wanted(now, |addr| self.links.is_up(&(NodeAddr::from(addr), auth))) {
                login.transport().set_name(addr, &host);
                requests.entry((NodeAddr::from(addr), auth)).or_default().add_service(group);
            }
        }
        for entry in self.services.values().filter(|it| it.learns) {
            let (service, own_auth) = (&entry.runtime, entry.auth);
            let group = service.number;
            let shares =
                self.links.login(own_auth).transport().is_tls() || service.trusts_learned();
            let learned_auth = if shares { own_auth } else { ANONYMOUS };
            for (id, addrs) in service.learned_sentinels(&self.links) {
                // A sentinel that is reached needs no second connection. Until then, each of its
                // announced addresses is tried.
                let reached = self.links.voting_link(group, &id).map(|link| &link.addr);
                for addr in
                    addrs.into_iter().filter(|addr| reached.is_none_or(|reached| reached == addr))
                {
                    // A configured one among them keeps its connection.
                    let known = requests.contains_key(&(addr.clone(), own_auth));
                    let auth = if known { own_auth } else { learned_auth };
                    match requests.entry((addr.clone(), auth)) {
                        Entry::Occupied(mut known) => {
                            known.get_mut().add_service(group);
                            if let Some(expected) = &mut known.get_mut().expect {
                                expected.insert(id.clone());
                            }
                        }
                        Entry::Vacant(vacant) => {
                            let expect = Some(BTreeSet::from([id.clone()]));
                            vacant.insert(LinkRequest { services: vec![group], expect });
                        }
                    }
                }
            }
        }
        self.links.reconcile(&requests);
        for service in self.services.values_mut().map(|it| &mut it.runtime) {
            let seeds = || self.seeds.values().filter(|seed| seed.service == service.number);
            let found = seeds().map(Seed::found);
            let expected = seeds::expected(found, |addr| {
                let auth = seeds().find(|seed| seed.found().contains(&addr))?.auth;
                self.links.sentinel_at(&(NodeAddr::from(addr), auth)).cloned()
            });
            service.expect(expected, &self.links);
        }
    }
}
