//! The configured sentinel names and the addresses behind them, as `sentinel/src/discovery/seeds.rs`
//! remembers them.

use std::collections::BTreeMap;

use crate::wire::{Addr, MS, SECOND, Us};

const LOOKUP_EVERY: Us = 5 * SECOND;
const LOOKUP_SOON: Us = 500 * MS;
const REMEMBER: Us = 60 * SECOND;
const MAX_PAST: usize = 32;

/// One configured name.
#[derive(Debug, Default)]
pub(crate) struct Seed {
    found: Vec<Addr>,
    past: BTreeMap<Addr, Us>,
    last_good: Vec<Addr>,
    pub(crate) look_at: Us,
    /// An answer that is on its way, and when it comes.
    pub(crate) coming: Option<(Us, Vec<Addr>)>,
}

impl Seed {
    pub(crate) fn new(look_at: Us) -> Self {
        Self { look_at, ..Self::default() }
    }

    pub(crate) fn due(&self) -> Us {
        self.coming.as_ref().map_or(self.look_at, |(at, _)| *at)
    }

    /// An answer of the resolver. Whether the addresses are others than before.
    pub(crate) fn answered(&mut self, now: Us, answer: Vec<Addr>) -> bool {
        let answer = if answer.is_empty() { self.last_good.clone() } else { answer };
        self.look_at = now + if answer.is_empty() { LOOKUP_SOON } else { LOOKUP_EVERY };
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

    /// The addresses to be connected to.
    pub(crate) fn wanted(&mut self, now: Us, up: impl Fn(Addr) -> bool) -> Vec<Addr> {
        self.past.retain(|addr, at| {
            if up(*addr) {
                *at = now;
            }
            now.saturating_sub(*at) < REMEMBER
        });
        self.found.iter().chain(self.past.keys()).copied().collect()
    }

    /// How many sentinels the name stands for.
    pub(crate) fn count(&self) -> usize {
        self.found.len().max(1)
    }
}
