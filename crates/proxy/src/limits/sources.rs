//! How many sessions each source has, for the limit on one source.
//!
//! A source is what one party can come from at will: an IPv4 address, or the 64 bits of an IPv6
//! network, since whoever has one IPv6 address has 2^64 of them. The table has an entry for a
//! source only while it has a session, so it is never larger than the number of sessions, and it is
//! not touched at all where the limit is off. It is behind a lock, taken once when a connection
//! comes and once when it goes, for the time of one look into a hash table.
//!
//! Deliberately absent: rates, and memory of sources that have gone.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A party that sessions come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

/// The sessions of each source.
#[derive(Debug)]
pub(crate) struct SourceTable {
    table: Mutex<HashMap<ClientSource, usize>>,
    limit: usize,
}

impl SourceTable {
    /// At most `limit` sessions a source.
    pub(crate) fn new(limit: usize) -> Self {
        Self { table: Mutex::default(), limit }
    }

    /// Counts a session in, if its source has a place left.
    pub(crate) fn try_acquire(&self, source: ClientSource) -> Option<ClientSource> {
        let mut table = self.table();
        let count = table.entry(source).or_insert(0);
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(source)
    }

    /// Counts it out again.
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
        // Nothing under the lock can panic half-way.
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
    fn an_ipv6_network_is_one_source_and_an_ipv4_address_is_one_in_both_spellings() {
        assert_eq!(source("2001:db8:1:2::1"), source("2001:db8:1:2:ffff::9"));
        assert_ne!(source("2001:db8:1:2::1"), source("2001:db8:1:3::1"));
        assert_eq!(source("::ffff:192.0.2.7"), source("192.0.2.7"));
        assert_ne!(source("192.0.2.7"), source("192.0.2.8"));
    }

    #[test]
    fn a_source_that_has_gone_leaves_nothing_in_the_table() {
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
