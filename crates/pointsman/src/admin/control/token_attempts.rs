//! Limits how often a source may present a wrong token. Pure: the time is an argument.
//!
//! Each source has an allowance of wrong tokens that refills slowly. A token that is presented
//! again is no further guess and costs nothing, so a script with a token that was replaced, or is
//! not in force yet, does not use up the allowance. What is limited is wrong tokens: a correct one
//! is not counted and never refused, so nobody can lock out the operator, not even from the same
//! address.
//!
//! Memory is bounded: if there are too many sources, the one with the largest allowance is
//! forgotten, which is the one that loses least by it. An attacker with more sources than that
//! gains attempts by their number, as it does anyway.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Wrong tokens in a row that a source may present.
const ALLOWANCE: u32 = 10;
/// The time after which a source may present one more.
const REFILL: Duration = Duration::from_secs(5);
/// Maximum number of sources that are remembered.
const MAX_SOURCES: usize = 1024;

/// Wrong tokens of a source that are recognised.
const KNOWN: usize = 4;

/// The sources that have presented wrong tokens.
#[derive(Debug, Default)]
pub(super) struct TokenAttempts {
    sources: HashMap<IpAddr, Source>,
    /// Keyed, so that what is remembered of a token says nothing about it.
    hashes: RandomState,
}

#[derive(Debug)]
struct Source {
    /// When its allowance will be complete again.
    complete: Instant,
    /// The hashes of its last wrong tokens.
    known: [Option<u64>; KNOWN],
}

impl TokenAttempts {
    /// How long a source has to wait until it may present a token; `None` if it may do so now.
    pub(super) fn wait(&self, source: Option<IpAddr>, now: Instant) -> Option<Duration> {
        let source = self.sources.get(&group(source))?;
        let debt = source.complete.saturating_duration_since(now);
        let wait = (debt + REFILL).checked_sub(REFILL * ALLOWANCE)?;
        (!wait.is_zero()).then_some(wait)
    }

    /// Records a wrong token. Returns whether it uses up the allowance of its source.
    pub(super) fn record_wrong(
        &mut self,
        source: Option<IpAddr>,
        token: &[u8],
        now: Instant,
    ) -> bool {
        let (ip, hash) = (group(source), Some(self.hashes.hash_one(token)));
        if self.sources.len() >= MAX_SOURCES && !self.sources.contains_key(&ip) {
            self.forget_one(now);
        }
        let source =
            self.sources.entry(ip).or_insert(Source { complete: now, known: [None; KNOWN] });
        if source.known.contains(&hash) {
            return false;
        }
        source.known.rotate_right(1);
        if let Some(first) = source.known.first_mut() {
            *first = hash;
        }
        source.complete = source.complete.max(now) + REFILL;
        self.wait(Some(ip), now).is_some()
    }

    /// Makes room for a source.
    fn forget_one(&mut self, now: Instant) {
        self.sources.retain(|_, source| source.complete > now);
        if self.sources.len() >= MAX_SOURCES
            && let Some((least, _)) = self.sources.iter().min_by_key(|(_, source)| source.complete)
        {
            let least = *least;
            self.sources.remove(&least);
        }
    }
}

/// What counts as one source: an IPv4 address, or the first 64 bits of an IPv6 address. A peer
/// without an address has disconnected; all of them count as one.
fn group(source: Option<IpAddr>) -> IpAddr {
    match source.map(|ip| ip.to_canonical()) {
        Some(IpAddr::V6(ip)) => {
            let [a, b, c, d, ..] = ip.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        Some(ip) => ip,
        None => Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn refuses_source_that_used_up_its_allowance() {
        let (mut attempts, start) = (TokenAttempts::default(), Instant::now());
        let (guessing, other) = (ip("192.0.2.1"), ip("192.0.2.2"));
        for number in 1..=ALLOWANCE {
            assert_eq!(attempts.wait(guessing, start), None, "{number}");
            let is_used_up = attempts.record_wrong(guessing, &[number as u8], start);
            assert_eq!(is_used_up, number == ALLOWANCE, "{number}");
        }
        assert_eq!(attempts.wait(guessing, start), Some(REFILL));
        assert_eq!(attempts.wait(other, start), None, "another source is not affected");
        assert_eq!(attempts.wait(ip("::ffff:192.0.2.1"), start), Some(REFILL));
        // One more per refill.
        assert_eq!(attempts.wait(guessing, start + REFILL), None);
        attempts.record_wrong(guessing, b"late", start + REFILL);
        assert_eq!(attempts.wait(guessing, start + REFILL), Some(REFILL));
        // Complete again after it has been silent.
        let later = start + REFILL * (ALLOWANCE + 2);
        for number in 0..ALLOWANCE {
            assert_eq!(attempts.wait(guessing, later), None);
            attempts.record_wrong(guessing, &[b'l', number as u8], later);
        }
        assert!(attempts.wait(guessing, later).is_some());
    }

    #[test]
    fn counts_repeated_token_once() {
        let (mut attempts, now) = (TokenAttempts::default(), Instant::now());
        let script = ip("192.0.2.1");
        for number in 0..1000_u32 {
            let token = if number % 2 == 0 { &b"replaced"[..] } else { b"not in force yet" };
            assert!(!attempts.record_wrong(script, token, now));
        }
        assert_eq!(attempts.wait(script, now), None);
    }

    #[test]
    fn counts_ipv6_prefix_as_one_source() {
        let (mut attempts, now) = (TokenAttempts::default(), Instant::now());
        for number in 0..ALLOWANCE {
            attempts.record_wrong(ip(&format!("2001:db8:1:2::{number:x}")), &[number as u8], now);
        }
        assert!(attempts.wait(ip("2001:db8:1:2:ffff::1"), now).is_some());
        assert!(attempts.wait(ip("2001:db8:1:3::1"), now).is_none());
        assert!(attempts.wait(None, now).is_none());
    }

    #[test]
    fn bounds_memory_and_keeps_worst_sources() {
        let (mut attempts, now) = (TokenAttempts::default(), Instant::now());
        let worst = ip("192.0.2.1");
        for number in 0..ALLOWANCE {
            attempts.record_wrong(worst, &[number as u8], now);
        }
        for number in 0..10_000_u32 {
            let source = Some(IpAddr::from((0x0a00_0000 + number).to_be_bytes()));
            attempts.record_wrong(source, b"guess", now);
            assert!(attempts.sources.len() <= MAX_SOURCES);
        }
        assert!(attempts.wait(worst, now).is_some(), "the worst source was forgotten");
        // Sources with a complete allowance leave first, all at once.
        attempts.record_wrong(ip("192.0.2.9"), b"guess", now + REFILL * 2);
        assert_eq!(attempts.sources.len(), 2);
    }
}
