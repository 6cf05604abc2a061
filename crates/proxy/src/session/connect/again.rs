//! Connecting a session whose pump has stopped: with its state, to another target or to the one
//! that it had.

use std::num::NonZeroU64;
use std::pin::Pin;
use std::time::Duration;

use target::TargetRef;

use super::{Connecting, FirstDial, hold_until, rebalance};
use crate::end_reason::EndReason;
use crate::io::buffer::KeptBytes;
use crate::io::stream::ClientStream;
use crate::maintenance::pending;
use crate::not_carried::{NotCarried, Uncarried};
use crate::session::carry::{CarryState, Migration};
use crate::session::pump::Start;
use crate::session::refusals::Refused;
use crate::session::upstream::Upstream;
use crate::session::{Ready, Session, SessionEnd};
use crate::shared::Promotion;

/// A connection that is reset within this time after the last one ends its session.
const RESETS_APART: Duration = Duration::from_secs(60);

/// Why a session connects.
pub(in crate::session) enum Why {
    /// It is new. Its dial has begun already, or has not.
    First(Option<FirstDial>),
    /// It is carried, promoted or verified.
    Again(Again),
    /// It moves to another replica, and keeps its connection until the new one works.
    Rebalance(TargetRef, Upstream, CarryState),
}

/// A session that continues over another connection.
pub(in crate::session) struct Again {
    pub(in crate::session) state: CarryState,
    /// The connection that it had.
    pub(in crate::session) old: Upstream,
    /// Why it gets one of its own, if it has shared connections and leaves them.
    pub(in crate::session) promotion: Option<Promotion>,
    /// If it gets a connection of its own although its service shares connections: the time after
    /// which it returns.
    pub(in crate::session) returns_after: Option<Duration>,
}

impl Session {
    /// Connects, or has what its client is sent before it ends.
    pub(in crate::session) fn connect<'a>(
        &'a self,
        why: Why,
        client: &'a mut impl ClientStream,
    ) -> Pin<Box<dyn Future<Output = Result<Ready, SessionEnd>> + 'a>> {
        match why {
            Why::First(begun) => Box::pin(self.connect_first(client, begun)),
            Why::Again(again) => Box::pin(self.connect_again(client, again)),
            Why::Rebalance(here, upstream, state) => {
                let context = &self.base.context;
                Box::pin(async move { Ok(rebalance(context, here, upstream, state).await) })
            }
        }
    }

    /// Connects to another target in the state that the session was in, or has refusals for its
    /// client. Closes the connection that it had.
    async fn connect_again(
        &self,
        client: &mut impl ClientStream,
        mut again: Again,
    ) -> Result<Ready, SessionEnd> {
        let returns_after = again.returns_after;
        let (mut unsent, undelivered) = (Vec::new(), again.state.undelivered.take());
        match self.carry(client, again, &mut unsent, undelivered.is_some()).await {
            Ok((target, upstream, mut start)) => {
                if let (Some(replayed), Some(first)) = (&mut start.replayed, undelivered) {
                    replayed.messages.splice(..0, first.into_rest());
                }
                Ok((target, upstream, Start { early: unsent, returns_after, ..start }))
            }
            Err((reason, push)) => {
                let undelivered = undelivered.map_or_else(Vec::new, KeptBytes::into_rest);
                let refused = Some(Refused { unsent, transaction: false });
                Err(SessionEnd { reason, undelivered, refused, push })
            }
        }
    }

    /// Carries the session to another target. On failure returns why it ends, and our last push.
    async fn carry(
        &self,
        client: &mut impl ClientStream,
        again: Again,
        unsent: &mut Vec<u8>,
        is_behind: bool,
    ) -> Result<Ready, (EndReason, Vec<u8>)> {
        let Again { state, old, promotion, .. } = again;
        let CarryState { ledger, unsent: requests, lost, waited, .. } = state;
        *unsent = requests;
        let from = self.target.as_ref();
        let shares = promotion.is_none() && old.is_shared();
        let old = Some(old).filter(|_| lost.is_none());
        let lost = lost.filter(|reason| !self.was_forgotten(*reason));
        let lost = from.map(|target| target.generation()).zip(lost);
        let (failed, reused, is_interrupt) = (None, false, false);
        let migration = Box::new(Migration {
            ledger,
            from,
            lost,
            old,
            failed,
            shares,
            promotion,
            is_behind,
            reused,
            is_interrupt,
        });
        let mut connecting = Connecting::new(&self.base, client, unsent, Some(migration));
        connecting.held.until = hold_until(&self.base.context, waited);
        let reason = match connecting.connect().await {
            Ok(connected) => return Ok(connected),
            Err(reason) => reason,
        };
        let context = &self.base.context;
        let Some(migration) = &mut connecting.migration else { return Err((reason, Vec::new())) };
        if promotion.is_some() && reason == EndReason::HoldAbandoned {
            // The client has ended its direction, and may wait for the replies even so. A
            // connection of its own would have taken its requests already. In a box: a session that
            // waits for a target has no memory for this.
            let promoted = Box::pin(migration.promote_once(context, connecting.held.unsent)).await;
            return promoted.ok_or((reason, Vec::new()));
        }
        Err((reason, pending::last_push(&migration.ledger, context, reason)))
    }

    /// Whether the target did not end the idle connection, and another one is worth an attempt. A
    /// server ends one on which it has answered everything in order. Routers forget idle
    /// connections, and reset them or answer no more.
    fn was_forgotten(&self, reason: EndReason) -> bool {
        if !matches!(reason, EndReason::UpstreamReset | EndReason::UpstreamLost) {
            return false;
        }
        let now = self.base.context.counters.elapsed();
        let before = self.reset_at.replace(NonZeroU64::new(now));
        let since = |before: NonZeroU64| Duration::from_micros(now.saturating_sub(before.get()));
        before.is_none_or(|before| since(before) >= RESETS_APART)
    }

    /// Notes why the session could not continue.
    pub(in crate::session) fn not_continued(&mut self, ending: SessionEnd) -> SessionEnd {
        let failed = NotCarried::after_an_attempt(ending.reason).map(Uncarried::new);
        self.uncarried = self.uncarried.take().or(failed);
        ending
    }
}
