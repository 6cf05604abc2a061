//! The number of sessions of each source, for the limit per source.
//!
//! A source is the range of addresses that one party can choose from: an IPv4 address, or a 64-bit
//! IPv6 network, since the owner of one IPv6 address has 2^64 of them. The table has an entry for a
//! source only while it has sessions, so it never exceeds the number of sessions, and it is not
//! used at all while the limit is off. It has a lock, taken once when a connection begins and once
//! when it ends, for one hash table access.
//!
//! Rates are not limited, and sources without sessions are forgotten.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The source of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientSource(IpAddr);

impl ClientSource {
    /// The source that an address belongs to.
    pub(crate) fn of(peer: IpAddr) -> Self {
        Self(match peer.to_canonical() {
            IpAddr::V4(ip) => IpAddr::V4(ip),
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
        })
    }
}

/// The number of sessions of each source.
#[derive(Debug)]
pub(crate) struct SourceTable {
    table: Mutex<HashMap<ClientSource, usize>>,
    limit: AtomicUsize,
}

impl SourceTable {
    /// At most `limit` sessions per source; 0 for no limit.
    pub(crate) fn new(limit: usize) -> Self {
        Self { table: Mutex::default(), limit: AtomicUsize::new(limit) }
    }

    /// Changes the limit. Sessions that began while there was none are not counted.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Whether there is a limit.
    pub(crate) fn is_on(&self) -> bool {
        self.limit.load(Ordering::Relaxed) > 0
    }

    /// Counts a session, if its source is below the limit.
    pub(crate) fn try_acquire(&self, source: ClientSource) -> Option<ClientSource> {
        let (mut table, limit) = (self.table(), self.limit.load(Ordering::Relaxed));
        let count = table.get(&source).copied().unwrap_or(0);
        if limit > 0 && count >= limit {
            return None;
        }
        table.insert(source, count + 1);
        Some(source)
    }

    /// Removes a session from the count.
    pub(crate) fn release(&self, source: ClientSource) {
        let mut table = self.table();
        match table.get_mut(&source) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                table.remove(&source);
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<ClientSource, usize>> {
        // No critical section can panic half-way.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> ClientSource {
        ClientSource::of(text.parse().unwrap())
    }

    #[test]
    fn groups_addresses_into_sources() {
        assert_eq!(source("2001:db8:1:2::1"), source("2001:db8:1:2:ffff::9"));
        assert_ne!(source("2001:db8:1:2::1"), source("2001:db8:1:3::1"));
        assert_eq!(source("::ffff:192.0.2.7"), source("192.0.2.7"));
        assert_ne!(source("192.0.2.7"), source("192.0.2.8"));
    }

    #[test]
    fn removes_sources_without_sessions() {
        let sources = SourceTable::new(2);
        for number in 0..1000_u32 {
            let source = ClientSource::of(IpAddr::from(number.to_be_bytes()));
            assert!(sources.try_acquire(source).is_some() && sources.try_acquire(source).is_some());
            assert!(sources.try_acquire(source).is_none());
            sources.release(source);
            assert!(sources.try_acquire(source).is_some());
            sources.release(source);
            sources.release(source);
        }
        assert!(sources.table().is_empty());
    }
}
