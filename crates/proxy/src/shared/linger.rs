//! How long a session that shares connections keeps one of its own, once it has needed it.
//!
//! A session returns to shared connections after a while. One that soon needs its own connection
//! again stays there longer each time.

use std::time::{Duration, Instant};

use resp::PromotionReason;

use crate::shared::Promotion;
use crate::shared_counters::SharedSnapshot;

/// The shortest and the longest time for which a session keeps its own connection.
const LINGER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// How long it keeps the connection after a request that only had to be verified: the rest of the
/// client's handshake often follows at once.
const VERIFICATION_LINGER: Duration = Duration::from_millis(50);

/// A promotion within this many lingers after the return makes the next linger longer.
const SOON: u32 = 10;

/// How long a session keeps its own connection.
#[derive(Debug)]
pub(crate) struct Linger {
    span: Duration,
    pub(crate) returned: Option<Instant>,
}

impl Default for Linger {
    fn default() -> Self {
        Self { span: LINGER.0, returned: None }
    }
}

impl Linger {
    /// The session is promoted. Returns how long it keeps its own connection.
    pub(crate) fn promoted(&mut self, promotion: Promotion, now: Instant) -> Duration {
        match promotion {
            Promotion::Verification => return VERIFICATION_LINGER,
            // There is no reason to expect that its next connection is different.
            Promotion::Reason(PromotionReason::NotAuthenticated) => return LINGER.0,
            Promotion::Reason(_) | Promotion::NotConnected => {}
        }
        if let Some(returned) = self.returned {
            let soon = now.saturating_duration_since(returned) < self.span.saturating_mul(SOON);
            let next = if soon { self.span.saturating_mul(2) } else { self.span / 2 };
            self.span = next.clamp(LINGER.0, LINGER.1);
        }
        self.span
    }

    /// How long it keeps its own connection at present.
    pub(crate) fn span(&self) -> Duration {
        self.span
    }
}

/// The place of a promotion among [`SharedSnapshot::reasons`].
pub(crate) fn number(promotion: Promotion) -> usize {
    match promotion {
        Promotion::Reason(reason) => reason as usize,
        Promotion::Verification => PromotionReason::COUNT,
        Promotion::NotConnected => PromotionReason::COUNT + 1,
    }
}

/// The label of a promotion in metrics and lists.
pub(crate) fn label(promotion: Promotion) -> &'static str {
    SharedSnapshot::reasons().nth(number(promotion)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRANSACTION: Promotion = Promotion::Reason(PromotionReason::Transaction);

    /// The spans of promotions, each so many seconds after the return from the one before.
    fn spans(promotion: Promotion, pauses: &[u64]) -> Vec<u64> {
        let (mut linger, mut now) = (Linger::default(), Instant::now());
        let promoted = pauses.iter().map(|pause| {
            now += Duration::from_secs(*pause);
            let span = linger.promoted(promotion, now);
            now += span;
            linger.returned = Some(now);
            span.as_secs()
        });
        promoted.collect()
    }

    #[test]
    fn keeps_a_connection_longer_each_time_it_is_needed_soon() {
        assert_eq!(spans(TRANSACTION, &[0; 5]), [1, 2, 4, 8, 16]);
        assert_eq!(spans(TRANSACTION, &[0; 12])[8..], [256, 300, 300, 300]);
        // Ten times the span is no longer soon.
        assert_eq!(spans(TRANSACTION, &[0, 9, 19, 41]), [1, 2, 4, 2]);
        assert_eq!(spans(TRANSACTION, &[0, 0, 1000, 1000]), [1, 2, 1, 1]);
    }

    #[test]
    fn labels_every_promotion_as_it_is_counted() {
        for &reason in PromotionReason::ALL {
            assert_eq!(label(Promotion::Reason(reason)), reason.label());
        }
        assert_eq!(label(Promotion::Verification), "verification");
        assert_eq!(label(Promotion::NotConnected), "not_connected");
    }

    #[test]
    fn keeps_a_connection_for_a_moment_after_a_verification() {
        assert_eq!(spans(Promotion::Verification, &[0; 3]), [0; 3]);
        let mut linger = Linger::default();
        let now = Instant::now();
        assert_eq!(linger.promoted(Promotion::Verification, now), VERIFICATION_LINGER);
        assert_eq!(linger.span(), LINGER.0, "it does not count");
        let unauthenticated = Promotion::Reason(PromotionReason::NotAuthenticated);
        assert_eq!(spans(unauthenticated, &[0; 3]), [1; 3]);
    }
}
