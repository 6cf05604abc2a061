//! The configured sentinel names and their resolved addresses, modelled on
//! `sentinel/src/discovery/seeds.rs`.

use std::collections::BTreeMap;

use crate::wire::{Addr, MS, Micros, SECOND};

const LOOKUP_INTERVAL: Micros = 5 * SECOND;
const LOOKUP_RETRY: Micros = 500 * MS;
const REMEMBER: Micros = 60 * SECOND;
const MAX_PAST: usize = 32;

/// One configured name.
#[derive(Debug, Default)]
pub(crate) struct Seed {
    found: Vec<Addr>,
    past: BTreeMap<Addr, Micros>,
    last_good: Vec<Addr>,
    pub(crate) look_at: Micros,
    /// A pending answer of the resolver, and when it arrives.
    pub(crate) coming: Option<(Micros, Vec<Addr>)>,
}

impl Seed {
    pub(crate) fn new(look_at: Micros) -> Self {
        Self { look_at, ..Self::default() }
    }

    pub(crate) fn due(&self) -> Micros {
        self.coming.as_ref().map_or(self.look_at, |(at, _)| *at)
    }

    /// Processes an answer of the resolver. Whether the addresses changed.
    pub(crate) fn answered(&mut self, now: Micros, answer: Vec<Addr>) -> bool {
        let answer = if answer.is_empty() { self.last_good.clone() } else { answer };
        self.look_at = now + if answer.is_empty() { LOOKUP_RETRY } else { LOOKUP_INTERVAL };
        if answer.is_empty() || answer == self.found {
            return false;
        }
        self.last_good.clone_from(&answer);
        for gone in std::mem::replace(&mut self.found, answer) {
            self.past.insert(gone, now);
        }
        for addr in &self.found {
            self.past.remove(addr);
        }
        while self.past.len() > MAX_PAST {
            let oldest = self.past.iter().min_by_key(|(_, at)| **at).map(|(addr, _)| *addr);
            oldest.and_then(|addr| self.past.remove(&addr));
        }
        true
    }

    /// The addresses to connect to.
    pub(crate) fn wanted(&mut self, now: Micros, up: impl Fn(Addr) -> bool) -> Vec<Addr> {
        self.past.retain(|addr, at| {
            if up(*addr) {
                *at = now;
            }
            now.saturating_sub(*at) < REMEMBER
        });
        self.found.iter().chain(self.past.keys()).copied().collect()
    }

    /// The number of sentinels that the name stands for.
    pub(crate) fn count(&self) -> usize {
        self.found.len().max(1)
    }
}
