//! Carrying a session over: its connection to the target is gone, its client need not notice.
//!
//! A session may be carried when nothing is owed in either direction and all that the server kept
//! for it can be said again elsewhere ([`resp::Replay`]), subscriptions included if the operator
//! wants that. It waits for a target, for its turn, dials, says again what it is, has the target's
//! answers, and goes on; requests that were read and never forwarded go first. If the points moved,
//! that is all. A target that is full, busy or silent is tried again until the hold is over. If the
//! target ended the connection while it was still the target, it is asked first whether it is
//! alive: one that answers has ended this session on purpose (`CLIENT KILL`, its idle timeout, a
//! full output buffer), and so its client's connection ends too. One that does not answer is about
//! to be replaced.
//!
//! All of it is bounded by `hold_timeout`, and so is the number of sessions that wait.
//!
//! Deliberately absent: sessions with a request in flight. Its outcome is unknown, and only their
//! clients can decide.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use crate::io::connection::Line;
use drain::Ticket;
use resp::{Ledger, MaintenanceHandshake};
use target::{Generation, Target, TargetRef};

use crate::io::end::End;
use crate::maintenance::notice::{self, MaintenanceKind, Notice};
use crate::runtime::worker::WorkerContext;
use crate::service::Hint;
use crate::session::broken;
use crate::session::dial_permits::Turn;
use crate::session::end_reason::EndReason;
use crate::session::hold::{self, Held, PATROL};
use crate::session::kick::Kicked;
use crate::session::resume::{self, Failed, Followed};

/// What a session takes along.
#[derive(Debug)]
pub(crate) struct CarryState {
    /// Where it stands, and what it is.
    pub(crate) ledger: Box<Ledger>,
    /// What was read from the client and not forwarded: it begins between two requests.
    pub(crate) unsent: Vec<u8>,
    /// How the target ended the connection, if it did.
    pub(crate) lost: Option<EndReason>,
}

/// Where a session goes on.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) target: TargetRef,
    pub(crate) upstream: Line,
    pub(crate) followed: Box<Followed>,
}

/// What one attempt has come to.
enum Attempt {
    Arrived(Line, Box<Followed>),
    /// The target is none any more, or may not be used at present. That says nothing about the next
    /// one.
    Superseded,
    /// Another attempt may succeed. The reason is the session's if none does.
    Failed(EndReason),
}

/// A session between two targets.
pub(crate) struct MigratingSession<'a> {
    pub(crate) seat: &'a WorkerContext,
    pub(crate) ticket: &'a Ticket,
    pub(crate) client: &'a mut Line,
    /// Unforwarded bytes of the client, in the end too.
    pub(crate) unsent: &'a mut Vec<u8>,
    pub(crate) ledger: Box<Ledger>,
    /// The target that it lost.
    pub(crate) from: Option<&'a TargetRef>,
    /// How the session lost its target, as long as it is not known whether that was meant.
    pub(crate) lost: Option<(Generation, EndReason)>,
    /// The connection that it had, if it still stands. Closing thousands of them takes as long as
    /// opening them: each is closed in its session's turn, and not before sessions that have a
    /// request waiting.
    pub(crate) old: Option<Line>,
}

impl<'a> MigratingSession<'a> {
    /// Gets the session to a target, in the state that it was in.
    ///
    /// # Errors
    ///
    /// Why its client's connection has to end.
    pub(crate) async fn carry(&mut self) -> Result<Connected, EndReason> {
        let WorkerContext { shared, block, .. } = self.seat;
        self.stand_back().await;
        let _place = shared.held.take().ok_or(EndReason::HoldFull)?;
        let _held = Held::new(block);
        let route = &shared.service.route;
        let until = Instant::now() + shared.service.options.now().hold_timeout;
        let replica = self.from.filter(|from| from.look().is_some());
        if let (Some(from), Some((_, reason))) = (replica, self.lost) {
            self.lost = None;
            let Self { seat, ticket, client, unsent, .. } = self;
            Kicked { seat, ticket, client, unsent, from }.judge(reason, until).await?;
        }
        let mut failed = None;
        loop {
            if route.open_target().is_none() {
                // A failover is under way: whatever ended the connection is part of it.
                (self.lost, self.old, failed) = (None, None, None);
                self.tell_of_the_failover(until).await?;
                hold::wait(self.client, self.unsent, route, self.ticket, until).await?;
                self.stand_back().await;
            }
            let turn = match self.turn(until).await {
                Err(EndReason::HoldTimeout) => return Err(failed.unwrap_or(EndReason::HoldTimeout)),
                turn => turn?,
            };
            let Some(target) = route.open_target() else { continue };
            match self.attempt(&target, until).await? {
                Attempt::Arrived(upstream, followed) => {
                    turn.arrived();
                    return Ok(Connected { target, upstream, followed });
                }
                Attempt::Superseded => {}
                Attempt::Failed(reason) => {
                    // Another replica has nothing to do with this one.
                    if route.leads_elsewhere(&target) {
                        drop(turn);
                    } else {
                        failed = Some(reason);
                        turn.failed();
                    }
                    self.tell_of_the_failover(until).await?;
                    if Instant::now() >= until {
                        return Err(reason);
                    }
                }
            }
        }
    }

    /// Lets sessions with a request go first, unless this is one.
    async fn stand_back(&self) {
        if self.unsent.is_empty() && !self.client.is_readable() {
            self.seat.turns.stand_back().await;
        }
    }

    /// Waits for a turn. The old connection is closed then, or when that takes long.
    async fn turn(&mut self, until: Instant) -> Result<Turn<'a>, EndReason> {
        let Self { seat, ticket, client, unsent, old, .. } = self;
        let mut turn = pin!(hold::turn(client, unsent, &seat.turns, ticket, until));
        let old = old.take();
        if old.is_some()
            && let Ok(turn) = tokio::time::timeout(PATROL, turn.as_mut()).await
        {
            return turn;
        }
        drop(old);
        turn.await
    }

    /// One attempt.
    async fn attempt(&mut self, target: &Target, until: Instant) -> Result<Attempt, EndReason> {
        let WorkerContext { shared, block, .. } = self.seat;
        let options = &shared.service.options;
        let lost = self.lost.filter(|(generation, _)| *generation == target.generation());
        let handed_over = async {
            if lost.is_some() {
                resume::answers(target, options, until).await?;
                return Ok(None);
            }
            resume::resume(target, options, &self.ledger, until).await.map(Some)
        };
        let result = tokio::select! {
            biased;
            result = handed_over => result,
            () = overtaken(self.seat, target, self.ticket) => {
                return if self.ticket.is_cut() { Err(EndReason::Cut) } else { Ok(Attempt::Superseded) };
            }
        };
        match (result, lost) {
            // The answer of one that is not the target any more, or may not be, says nothing about
            // the time when it was.
            (Ok(None), Some(_)) if is_overtaken(target) || target.is_shut() => {
                Ok(Attempt::Superseded)
            }
            (Ok(None), Some((_, reason))) => Err(reason),
            (Ok(None), None) => Ok(Attempt::Superseded),
            (Ok(Some((upstream, followed))), _) => {
                block.dials.one();
                // The points may have moved meanwhile: then this connection leads nowhere.
                if is_overtaken(target) || target.is_shut() {
                    return Ok(Attempt::Superseded);
                }
                if self.client.is_gone() {
                    return Err(EndReason::HoldAbandoned);
                }
                target.note_use();
                block.carried.one();
                Ok(Attempt::Arrived(upstream, followed))
            }
            (Err(Failed::Superseded), _) => Ok(Attempt::Superseded),
            (Err(Failed::Refused), _) => Err(EndReason::CarryRefused),
            (Err(failed), _) => {
                // It does not answer, so it did not end this session on purpose.
                self.lost = None;
                self.note(target, failed);
                let ours = matches!(failed, Failed::Dial(failure) if failure.is_ours());
                Ok(Attempt::Failed(if ours { EndReason::Exhausted } else { EndReason::DialFailed }))
            }
        }
    }

    /// Tells the client, if it agreed to be told and was not yet. It has all its replies, so this
    /// is a place for it; that it is over it hears where the session goes on.
    async fn tell_of_the_failover(&mut self, until: Instant) -> Result<(), EndReason> {
        let options = self.seat.shared.service.options.now();
        if self.ledger.failover_announced()
            || self.ledger.maintenance_handshake() == MaintenanceHandshake::Off
            || !options.maintenance_push
        {
            return Ok(());
        }
        let seconds = notice::seconds(options.hold_timeout);
        let push = Notice::FailingOver { number: notice::number(), seconds };
        let push = push.encode();
        // Its socket has room for so little, unless the client reads nothing: then nothing can be
        // said to it at all.
        let written = poll_fn(|cx| Poll::Ready(self.client.poll_write(cx, push.as_bytes()))).await;
        let Poll::Ready(written) = written else { return Ok(()) };
        let rest = written.map_err(|_| EndReason::HoldAbandoned)?;
        self.ledger.set_failover_announced(true);
        self.seat.block.noticed(MaintenanceKind::FailingOver);
        let rest = broken::behind(push.as_bytes(), rest).map_err(|_| EndReason::InternalError)?;
        let said = tokio::time::timeout_at(until.into(), resume::write(self.client, rest)).await;
        said.map_or(Err(EndReason::HoldAbandoned), |said| {
            said.map_err(|_| EndReason::HoldAbandoned)
        })
    }

    /// Tells what a failure says about the target.
    fn note(&self, target: &Target, failed: Failed) {
        let WorkerContext { shared, block, .. } = self.seat;
        let hint = match failed {
            Failed::Dial(failure) => {
                block.dial_failed(failure);
                // Out of descriptors or ports here says nothing about the target.
                (!failure.is_ours()).then_some(Hint::DialFailed(failure))
            }
            // One that is full has ended a connection that nobody had ended. One that runs a script
            // is asked what it is, too.
            Failed::Broken | Failed::Unavailable => Some(Hint::UpstreamEnded),
            Failed::NotReady(hint) => Some(Hint::Replied(hint)),
            Failed::Refused | Failed::Superseded => None,
        };
        if let Some(hint) = hint {
            target.shun();
            block.hints.one();
            shared.service.hints.hint(target, hint);
        }
    }
}

/// Returns when it is of no use any more to dial `target`.
pub(crate) async fn overtaken(seat: &WorkerContext, target: &Target, ticket: &Ticket) {
    loop {
        let news = seat.news.notified();
        if ticket.is_cut() || is_overtaken(target) {
            return;
        }
        news.await;
    }
}

/// Whether it is of no use to begin with this target.
pub(crate) fn is_overtaken(target: &Target) -> bool {
    target.fence().has_fallen() || target.is_draining()
}
