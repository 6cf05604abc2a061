//! Why a session's pump ends, and what follows: nothing, error replies to requests that were never
//! forwarded, or a connection to another target.
//!
//! The decisions about leaving in a drain are in [`leaving`], about sessions on replicas in
//! [`replica`], about idle clients and waiting requests in [`timeouts`].
//!
//! Deliberately absent: the actions. The [session](crate::session) carries out what is decided
//! here.

mod leaving;
mod replica;
mod timeouts;

use std::io;
use std::task::Poll;

use resp::{Ledger, Limits, MustEnd, Pin, SessionState};

use crate::end_reason::{EndReason, Side};
use crate::invariant;
use crate::io::flow::FlowStep;
use crate::io::stream::ByteStream;
use crate::maintenance::pending;
use crate::not_carried::{NotCarried, Uncarried};
use crate::service::Hint;
use crate::session::carry::CarryState;
use crate::session::dial;
use crate::session::pump::{Left, Pump, Stop, Stopped};
use crate::session::upstream::TargetStream;
use crate::shared::{Member, Promotion};

impl<C: ByteStream, U: TargetStream> Pump<C, U> {
    /// Whether the client would not notice if the session continued over another connection.
    #[cold]
    pub(in crate::session) fn can_be_carried(&self) -> bool {
        self.may_carry
            && self.first_end != Some(Side::Client)
            && !self.requests.has_ended()
            && self.replies.is_clear()
            && self.measured == 0
            && self.ledger.can_be_carried()
    }

    /// Whether a client that has ended its direction has received everything that it will ever get.
    /// Then both connections can be closed without passing the end to the target and waiting for
    /// it: the target would only close, too.
    pub(in crate::session) fn is_finished(&self) -> bool {
        self.first_end == Some(Side::Client)
            && self.measured == 0
            && self.ledger.session_state() == SessionState::Quiet
            && self.replies.is_clear()
            && !self.is_interleaving()
            && !self.has_waiting_requests()
            && !self.upstream.is_readable()
    }

    /// Whether the target has answered everything that it was sent, and has not ended the
    /// connection.
    fn is_answered(&self) -> bool {
        self.measured == 0
            && self.first_end != Some(Side::Upstream)
            && matches!(
                self.ledger.session_state(),
                SessionState::Quiet | SessionState::Subscribed | SessionState::Transaction
            )
            && self.ledger.owed() == 0
    }

    /// Whether nothing of the waiting requests was forwarded, and no reply is owed that would have
    /// to come first.
    fn can_be_refused(&self) -> bool {
        let between = matches!(
            self.ledger.session_state(),
            SessionState::Quiet | SessionState::Pinned | SessionState::Transaction
        );
        between && self.ledger.owed() == 0 && self.measured == 0 && self.replies.is_clear()
    }

    /// Records which side ended first.
    pub(in crate::session) fn note_first_end(&mut self) {
        if self.first_end.is_some() {
            return;
        }
        if self.requests.has_ended() {
            self.first_end = Some(Side::Client);
        } else if self.replies.has_ended() {
            self.first_end = Some(Side::Upstream);
            self.report_upstream_end();
        }
    }

    /// Reports to discovery that the target ended the connection, unless the client asked for it or
    /// provoked it: strangers would have the target examined as often as they like.
    fn report_upstream_end(&self) {
        if self.ledger.session_state() != SessionState::Ended && !self.ledger.provokes_close() {
            self.context.counters.hints.increment();
            self.context.shared.service.hints.hint(&self.target, Hint::UpstreamEnded);
        }
    }

    /// The end reason of a failed step, if one failed.
    pub(in crate::session) fn failure(
        &mut self,
        requests: FlowStep,
        replies: FlowStep,
    ) -> Option<EndReason> {
        let (side, error) = match (requests, replies) {
            (FlowStep::SourceFailed(error), _) | (_, FlowStep::SinkFailed(error)) => {
                (Side::Client, error)
            }
            (FlowStep::SinkFailed(error), _) | (_, FlowStep::SourceFailed(error)) => {
                (Side::Upstream, error)
            }
            _ => return None,
        };
        Some(self.failure_reason(side, &error))
    }

    fn failure_reason(&mut self, side: Side, error: &io::Error) -> EndReason {
        if side == Side::Upstream
            && let Some(cause) = self.upstream.member().and_then(Member::cause_of_end)
        {
            return cause;
        }
        match (side, self.first_end) {
            _ if invariant::is_violation(error) => EndReason::InternalError,
            (Side::Upstream, _) if dial::note_error(&self.context, &self.target, error) => {
                if self.first_end.is_none() {
                    self.report_upstream_end();
                }
                EndReason::TargetTlsFailed
            }
            // A side that has ended may refuse what still arrives: that is its end and not another
            // fault.
            (Side::Client, Some(Side::Client)) => EndReason::ClientClosed,
            (Side::Upstream, Some(Side::Upstream)) => EndReason::UpstreamClosed,
            (Side::Upstream, None) => {
                self.report_upstream_end();
                EndReason::from_error(side, error.kind())
            }
            _ => EndReason::from_error(side, error.kind()),
        }
    }

    /// Why the ledger says that the session must not continue.
    #[cold]
    pub(in crate::session) fn forced_end(&self) -> EndReason {
        match self.ledger.must_end() {
            Some(MustEnd::WaitAfterCarry) => EndReason::StateLost,
            Some(MustEnd::Broken(fault)) => invariant::report(fault.text()),
            None => invariant::report("the ledger ended a session without a reason"),
        }
    }

    /// Appends our last push, if there is one, to what came from the target, which has ended. After
    /// the end is passed to the client nothing can be sent to it.
    pub(in crate::session) fn append_last_push(&mut self) {
        let push = pending::last_push(&self.ledger, &self.context, EndReason::UpstreamClosed);
        if !push.is_empty() {
            self.ledger.set_failover_announced(false);
            self.replies.keep(&push);
        }
    }

    /// Why the session cannot continue over another connection; `None` if it can, or if its client
    /// has ended it.
    pub(in crate::session) fn why_not_carried(&self) -> Option<Box<Uncarried>> {
        let ended = self.first_end == Some(Side::Client) || self.requests.has_ended();
        if ended || self.ledger.session_state() == SessionState::Ended || self.can_be_carried() {
            return None;
        }
        let why = match self.ledger.pin() {
            _ if !self.may_carry => NotCarried::Disabled,
            Some(pin) => NotCarried::Pinned(pin),
            None => NotCarried::InFlight,
        };
        let mut uncarried = Uncarried::new(why);
        if why == NotCarried::Pinned(Pin::UnknownCommand) {
            uncarried.command = self.ledger.unknown_command().map(Box::from);
        }
        Some(uncarried)
    }

    /// Counts the session by what pins it now, and ends it if it relies on scripts that only its
    /// former target had.
    #[cold]
    #[inline(never)]
    pub(in crate::session) fn note_pin(&mut self) -> Poll<EndReason> {
        self.context.count_pin(self.ledger.pin());
        let quiet = self.ledger.session_state() == SessionState::Quiet
            && self.replies.is_clear()
            && self.measured == 0;
        if quiet && self.ledger.relies_on_former_scripts() && !self.client.has_unread() {
            return Poll::Ready(EndReason::StateLost);
        }
        Poll::Pending
    }

    /// Takes the pump apart.
    pub(in crate::session) fn stop(&mut self, stop: Stop) -> Stopped {
        self.record_sent();
        let reason = stop.reason();
        let lost = match stop {
            Stop::End(
                reason @ (EndReason::UpstreamClosed
                | EndReason::UpstreamReset
                | EndReason::UpstreamLost
                | EndReason::UpstreamError
                | EndReason::TargetTlsFailed),
            ) => Some(reason),
            _ => None,
        };
        // Another connection would be closed as well, and the target asked in vain why it closed.
        let may_continue = (lost.is_some() && !self.ledger.provokes_close())
            || matches!(stop, Stop::End(EndReason::Fenced) | Stop::Leave | Stop::Rebalance);
        let uncarried = if may_continue || reason == EndReason::ReplyDropped {
            self.why_not_carried()
        } else {
            None
        };
        let is_answered = self.is_answered();
        let left = if stop == Stop::Rest {
            self.sharing.as_mut().and_then(|it| it.kept.take()).map(Left::Kept)
        } else if matches!(stop, Stop::Promote | Stop::Return) {
            let promotion = self.upstream.member().and_then(Member::promotion);
            let unsent = self.take_unsent();
            if self.commands > 0 {
                self.ledger.changed_connection();
            }
            let state = self.take_state(unsent, None);
            Some(match stop {
                Stop::Promote => {
                    Left::Promoted(state, promotion.unwrap_or(Promotion::NotConnected))
                }
                _ => Left::State(state),
            })
        } else if may_continue && self.can_be_carried() {
            let unsent = self.take_unsent();
            Some(Left::State(self.take_state(unsent, lost)))
        } else if reason == EndReason::HoldTimeout && self.can_be_refused() {
            let transaction = self.ledger.session_state() == SessionState::Transaction;
            Some(Left::Refused { unsent: self.take_unsent(), transaction })
        } else if reason == EndReason::ClientClosed && self.leaves_clean() {
            Some(Left::CleanConnection)
        } else {
            None
        };
        let mut undelivered = self.take_undelivered();
        // A session that continues has handed its ledger over, and notifies its client that the
        // failover is over where it arrives.
        undelivered.append(&mut pending::last_push(&self.ledger, &self.context, reason));
        Stopped {
            stop,
            undelivered,
            left: left.map(Box::new),
            bytes: (self.requests.bytes_moved(), self.replies.bytes_moved()),
            commands: self.commands,
            is_answered,
            uncarried,
        }
    }

    /// Takes the state that the session continues with.
    fn take_state(&mut self, unsent: Vec<u8>, lost: Option<EndReason>) -> CarryState {
        let ledger = std::mem::replace(&mut self.ledger, Ledger::new(&Limits::default()));
        CarryState { ledger: Box::new(ledger), unsent, lost }
    }
}
