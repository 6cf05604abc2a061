//! When a session that shares connections gets one of its own, and when it returns.
//!
//! Either happens at a boundary: the replies to everything that was sent are delivered, and the
//! server keeps nothing for the session but state that can be set on any connection.
//!
//! A session returns after a while. One that soon needs its own connection again stays there longer
//! each time.
//!
//! `WAIT` refers to the writes of its own connection. A session that has sent requests on another
//! one ends instead of getting a wrong reply.

use std::task::Waker;
use std::time::{Duration, Instant};

use resp::{Ledger, PromotionReason};
use target::TargetRef;

use crate::context::WorkerContext;
use crate::end_reason::{EndReason, Side};
use crate::io::shared::{Member, Promotion};
use crate::io::stream::ByteStream;
use crate::io::upstream::Upstream;
use crate::options::UpstreamMode;
use crate::session::carry::replay::Replayed;
use crate::session::carry::{CarryState, Purpose};
use crate::session::leave::Leaving;
use crate::session::pump::{Pump, Start, Stop};
use crate::session::shared::rest::{Kept, RestClock};
use crate::session::shared::{pool, verifiers};
use crate::session::{Ready, Session};
use crate::shared_counters::SharedSnapshot;

/// The shortest and the longest time for which a session keeps its own connection.
const LINGER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// The same after a request that only had to be verified: the rest of the client's handshake often
/// follows at once.
const VERIFICATION_LINGER: Duration = Duration::from_millis(50);

/// A promotion within so many lingers after the return makes the next linger longer.
const SOON: u32 = 10;

/// How long a session keeps its own connection.
#[derive(Debug)]
pub(crate) struct Linger {
    span: Duration,
    returned: Option<Instant>,
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

    /// The session returns.
    pub(crate) fn returned(&mut self, now: Instant) {
        self.returned = Some(now);
    }
}

/// Counts a promotion.
pub(crate) fn count_promotion(context: &WorkerContext, promotion: Promotion) {
    if let Some(count) = context.counters.shared.promoted.get(number(promotion)) {
        count.increment();
    }
}

/// The place of a promotion among [`SharedSnapshot::reasons`].
fn number(promotion: Promotion) -> usize {
    match promotion {
        Promotion::Reason(reason) => reason as usize,
        Promotion::Verification => PromotionReason::ALL.len(),
        Promotion::NotConnected => PromotionReason::ALL.len() + 1,
    }
}

/// The label of a promotion in metrics and lists.
pub(crate) fn label(promotion: Promotion) -> &'static str {
    SharedSnapshot::reasons().nth(number(promotion)).unwrap_or_default()
}

/// The start of a session that returns to shared connections.
pub(crate) fn start_shared(state: CarryState) -> (Upstream, Start) {
    let CarryState { mut ledger, unsent: early, .. } = state;
    ledger.leave_connection();
    let replayed = Some(Box::new(Replayed { ledger: *ledger, messages: Vec::new(), idle: None }));
    (Upstream::sharing(), Start { early, replayed, returns_after: None })
}

/// The start of a session that shares connections to another target from now on.
pub(crate) fn start_elsewhere(mut ledger: Box<Ledger>, unsent: Vec<u8>) -> (Upstream, Start) {
    ledger.changed_server();
    start_shared(CarryState { ledger, unsent, lost: None })
}

impl Session {
    /// Gives up the session's own connection. If it only served to verify requests, it serves the
    /// next session that has any.
    pub(in crate::session) fn return_to_shared(
        &mut self,
        state: CarryState,
        upstream: Upstream,
        target: TargetRef,
    ) -> Ready {
        self.base.context.counters.shared.returned.increment();
        let may_keep = verifiers::may_keep(&state.ledger);
        self.give_up(upstream, &target, may_keep);
        self.linger.get_or_insert_default().returned(Instant::now());
        let (upstream, start) = start_shared(state);
        (target, upstream, start)
    }

    /// Closes the connection, on which everything is answered, unless the next session with a
    /// request to verify can use it.
    pub(in crate::session) fn give_up(
        &self,
        upstream: Upstream,
        target: &TargetRef,
        may_keep: bool,
    ) {
        let promotion = self.base.promotion.take();
        if may_keep && promotion == Some(Promotion::Verification) {
            verifiers::keep(upstream, &target.target(), &self.base.context);
        } else {
            upstream.close_answered();
        }
    }

    /// The purpose of the session's next connection. If that is one of its own although its service
    /// shares connections: after which time it returns.
    pub(in crate::session) fn purpose(
        &mut self,
        promotion: Option<Promotion>,
        upstream: &Upstream,
    ) -> (Purpose, Option<Duration>) {
        let Some(promotion) = promotion else {
            // It keeps its own connection for as long as if it had needed one now.
            let span = self.linger.as_ref().map(|it| it.span());
            return match upstream.is_shared() {
                true => (Purpose::Share, None),
                false => (Purpose::Carry, span),
            };
        };
        count_promotion(&self.base.context, promotion);
        self.base.promotion.set(Some(promotion));
        let linger = self.linger.get_or_insert_default();
        let purpose = match promotion {
            Promotion::Verification => Purpose::Verify,
            Promotion::Reason(_) | Promotion::NotConnected => Purpose::Promote,
        };
        (purpose, Some(linger.promoted(promotion, Instant::now())))
    }
}

impl<C: ByteStream, U: ByteStream> Pump<C, U> {
    /// Records what has left on the shared connection since the last poll. To be called before
    /// anything is decided.
    #[inline]
    pub(in crate::session) fn record_sent(&mut self) {
        if U::SHARED
            && let Some(member) = self.upstream.as_member()
        {
            member.record_sent(|bytes| self.ledger.request(bytes));
        }
    }

    /// Offers what the client has sent to the shared connection.
    #[inline]
    pub(in crate::session) fn offer_requests(&mut self) {
        if U::SHARED
            && !self.target.fence().is_raised()
            && let Some(member) = self.upstream.as_member()
        {
            pool::offer(member, &self.ledger, (&self.context, &self.target));
        }
    }

    /// Whether [`check_transition`](Self::check_transition) would find nothing.
    #[inline]
    pub(in crate::session) fn has_no_transition(&self) -> bool {
        if U::SHARED {
            self.upstream.member().is_some_and(Member::is_undisturbed)
        } else {
            self.sharing.is_none()
        }
    }

    /// Whether requests of the client wait here: they were read, and were not sent.
    pub(in crate::session) fn has_waiting_requests(&self) -> bool {
        !self.requests.is_clear() || self.upstream.member().is_some_and(Member::has_waiting)
    }

    /// Takes what was read from the client and not sent.
    pub(in crate::session) fn take_unsent(&mut self) -> Vec<u8> {
        self.record_sent();
        let mut unsent = self.upstream.as_member().map_or_else(Vec::new, Member::take_unsent);
        unsent.append(&mut self.requests.take_kept());
        unsent.append(&mut self.ledger.take_screened());
        unsent
    }

    /// Why a session that shares, or may return to that, stops now.
    pub(in crate::session) fn check_transition(
        &mut self,
        idle: bool,
        waker: &Waker,
    ) -> Option<Stop> {
        let stop = if U::SHARED {
            let member = self.upstream.member()?;
            // Nothing else would end it: its client does not read, so nothing is read for it.
            if member.cause_of_end() == Some(EndReason::SlowReader) {
                return Some(EndReason::SlowReader.into());
            }
            member.promotion()?;
            Stop::Promote
        } else if idle && self.may_return(waker) {
            Stop::Return
        } else {
            return None;
        };
        let settled = self.replies.is_clear() && !self.is_interleaving();
        let promotes = U::SHARED;
        let stays = match promotes {
            true => self.leaving == Leaving::AtBoundary,
            false => self.leaving != Leaving::No,
        };
        if !settled || stays || self.target.fence().is_raised() {
            return None;
        }
        if self.ledger.shared_state().is_none() {
            // Only requests without such an effect are shared.
            return promotes.then_some(EndReason::StateLost.into());
        }
        Some(stop)
    }

    /// Whether a session whose client has left gives up a connection of its own that is as good as
    /// a new one after `RESET`.
    pub(in crate::session) fn leaves_clean(&self) -> bool {
        self.sharing.as_ref().is_some_and(|it| it.return_at.is_some())
            && self.is_finished()
            && verifiers::may_keep(&self.ledger)
    }

    /// Whether the session has had its own connection for long enough.
    fn may_return(&mut self, waker: &Waker) -> bool {
        let Some(at) = self.sharing.as_ref().and_then(|it| it.return_at) else { return false };
        let ended = self.first_end == Some(Side::Client) || self.requests.has_ended();
        let left = at.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            let timer = &mut self.rare().returns;
            if !timer.is_set() {
                timer.set(left, waker);
            }
            return false;
        }
        let mode = self.context.shared.service.options.now().upstream;
        mode != UpstreamMode::Dedicated && !ended && self.first_end.is_none() && self.measured == 0
    }
}

/// The state of a pump whose service shares connections.
#[derive(Debug)]
pub(crate) struct SharingState {
    /// If it has its own connection: when it may return.
    return_at: Option<Instant>,
    pub(super) rest: RestClock,
    /// Set when it stops to rest.
    pub(in crate::session) kept: Option<Kept>,
}

impl SharingState {
    /// Of a session that shares.
    pub(crate) fn sharing(rest: RestClock) -> Box<Self> {
        Box::new(Self { return_at: None, rest, kept: None })
    }

    /// Of a session that returns after `span`.
    pub(crate) fn returning(span: Duration) -> Box<Self> {
        let return_at = Some(Instant::now() + span);
        Box::new(Self { return_at, rest: RestClock::default(), kept: None })
    }
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
            linger.returned(now);
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
        for reason in PromotionReason::ALL {
            assert_eq!(label(Promotion::Reason(reason)), reason.name());
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
