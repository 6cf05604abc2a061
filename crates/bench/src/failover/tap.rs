//! Observes what is sent to the old master on the network, the only way while the server is stopped
//! or cut off. Writes are recognised by their first bytes.
//!
//! The kernel records when each connection sent its last packet, so the time of a query does not
//! matter.

use std::time::{Duration, Instant};

use harness::{Counter, in_private_namespace};

/// The first bytes of a writer's SET.
const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n";
/// Number of queries; the fastest one counts.
const LOOKS: usize = 5;

/// Counts packets; see the module.
#[derive(Debug)]
pub(super) struct Tap(Counter);

impl Tap {
    /// Starts to count, if packets can be counted here.
    pub(super) fn start(port: u16) -> Result<Option<Self>, String> {
        if in_private_namespace() { Counter::of(port, SET).map(Self).map(Some) } else { Ok(None) }
    }

    /// Connections on which a packet that begins with a SET was sent after `moment`. The duration
    /// of a query makes a packet appear later, so this is an upper bound.
    pub(super) fn after(&self, moment: Instant) -> Result<u64, String> {
        let mut quickest: Option<(Duration, Instant, Vec<Duration>)> = None;
        for _ in 0..LOOKS {
            let began = Instant::now();
            let ages = self.0.ages()?;
            let (took, ended) = (began.elapsed(), Instant::now());
            if quickest.as_ref().is_none_or(|(least, ..)| took < *least) {
                quickest = Some((took, ended, ages));
            }
        }
        Ok(quickest.map_or(0, |(_, ended, ages)| {
            sent_after(&ages, ended.saturating_duration_since(moment))
        }))
    }
}

/// The number of connections whose last packet is younger than the moment.
fn sent_after(ages: &[Duration], moment: Duration) -> u64 {
    ages.iter().filter(|age| **age < moment).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_only_later_senders() {
        let ages = [100, 250, 900].map(Duration::from_millis);
        let after = |ms| sent_after(&ages, Duration::from_millis(ms));
        assert_eq!([after(50), after(100), after(251), after(1000)], [0, 0, 2, 3]);
    }
}
