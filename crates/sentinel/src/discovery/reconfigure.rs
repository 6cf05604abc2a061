//! Applies changed settings to running services.
//!
//! Services share the connections to sentinels, by their credentials. The changes of all services
//! are therefore applied together: if every service with the same credentials changes them alike,
//! the connections stay and log in anew, one after another. Otherwise those that change get
//! credentials of their own, and keep the connections that no other service uses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Discovery;
use crate::discovery::config::DiscoverySettings;
use crate::link::login::Access;

impl Discovery {
    /// Applies changed settings, by the number of their service.
    pub(super) fn change_settings(&mut self, changes: BTreeMap<usize, DiscoverySettings>) {
        self.change_sentinel_auth(&changes);
        for (number, change) in changes {
            let Some(service) = self.services.get_mut(&number) else { continue };
            service.learns = change.learn;
            if !change.learn {
                service.runtime.forget_learned();
            }
            service.runtime.change(change, &self.links);
        }
    }

    fn change_sentinel_auth(&mut self, changes: &BTreeMap<usize, DiscoverySettings>) {
        let users: BTreeMap<usize, usize> =
            self.services.iter().map(|(service, it)| (*service, it.auth)).collect();
        for (number, movers, access) in regroup(&users, changes) {
            let login = self.links.login(number);
            if login.is(access) {
                continue;
            }
            let users = self.services.iter().filter(|(_, it)| it.auth == number);
            let all: BTreeSet<usize> = users.map(|(service, _)| *service).collect();
            if all == movers {
                login.replace(access);
                continue;
            }
            let branch = self.links.branch(number, &movers, access);
            for seed in self.seeds.values_mut().filter(|seed| movers.contains(&seed.service)) {
                seed.auth = branch;
            }
            for service in movers {
                if let Some(service) = self.services.get_mut(&service) {
                    service.auth = branch;
                    let settings = service.handle.connection_settings();
                    settings.sentinel_auth.store(Arc::new(self.links.login(branch)));
                }
            }
        }
    }
}

/// The changes by the number of the present credentials and by the new credentials, each with the
/// services that change.
fn regroup<'a>(
    users: &BTreeMap<usize, usize>,
    changes: &'a BTreeMap<usize, DiscoverySettings>,
) -> Vec<(usize, BTreeSet<usize>, Access<'a>)> {
    let mut groups: Vec<(usize, BTreeSet<usize>, Access<'_>)> = Vec::new();
    for (service, change) in changes {
        let Some(number) = users.get(service).copied() else { continue };
        let access = change.sentinel_access();
        match groups.iter_mut().find(|it| it.0 == number && it.2.is_same(&access)) {
            Some(group) => drop(group.1.insert(*service)),
            None => groups.push((number, BTreeSet::from([*service]), access)),
        }
    }
    groups
}
