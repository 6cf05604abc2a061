//! Looks at what is sent to the old master, on the network and not in the server: the only witness
//! while the server is stopped or cut off. Writes are told from everything else by their first
//! bytes.
//!
//! The kernel itself notes when each connection sent its last one, so that no look of ours has to
//! come at the right moment.

use std::time::{Duration, Instant};

use harness::{Counter, in_private_namespace};

/// How a writer's SET begins.
const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n";
/// Looks, of which the quickest counts.
const LOOKS: usize = 5;

/// See the module's header.
#[derive(Debug)]
pub(super) struct Tap(Counter);

impl Tap {
    /// Begins to look, if packets can be counted here.
    pub(super) fn start(port: u16) -> Result<Option<Self>, String> {
        if in_private_namespace() { Counter::of(port, SET).map(Self).map(Some) } else { Ok(None) }
    }

    /// Connections on which a packet that begins with a SET was sent after `moment`. What a look
    /// takes makes a packet appear rather too late than too early.
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

/// Those whose last packet is younger than the moment.
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
