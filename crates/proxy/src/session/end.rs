//! Why a session's pump ends, and what follows: nothing, error replies to requests that were never
//! forwarded, or a connection to another target. The [session](crate::session) carries out what is
//! decided here.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use drain::{Phase, Ticket};
use resp::{Direction, Ledger, Limits, MustEnd, Pin, SessionState};

use crate::end_reason::{EndReason, Side};
use crate::invariant;
use crate::io::buffer::KeptBytes;
use crate::io::flow::FlowStep;
use crate::io::stream::ByteStream;
use crate::maintenance::pending;
use crate::not_carried::{NotCarried, Uncarried};
use crate::service::Hint;
use crate::session::carry::CarryState;
use crate::session::connect::CHECK_INTERVAL;
use crate::session::dial;
use crate::session::idle::IdleFacts;
use crate::session::leave::{self, LeaveFacts, Leaving};
use crate::session::pump::{BEGUN, Left, Pump, Stop, Stopped};
use crate::session::refusals::Refused;
use crate::session::upstream::TargetStream;
use crate::shared::{Member, Promotion, verifiers};

/// The bytes of all that a server with too many clients sends before it closes.
const FULL: u64 = b"-ERR max number of clients reached\r\n".len() as u64;

impl<C: ByteStream, U: TargetStream> Pump<C, U> {
    /// Whether the client would not notice if the session continued over another connection.
    #[cold]
    pub(in crate::session) fn can_be_carried(&self) -> bool {
        self.may_carry
            && self.first_end != Some(Side::Client)
            && !self.requests.ended
            && self.replies.is_clear()
            && self.nothing_measured()
            && self.ledger.can_be_carried()
    }

    /// Whether no bytes are recorded in the ledger that were not written.
    fn nothing_measured(&self) -> bool {
        matches!(self.measured, 0 | BEGUN)
    }

    /// Whether a client that has ended its direction has received everything that it will ever get.
    /// Then both connections can be closed without passing the end to the target and waiting for
    /// it: the target would only close, too.
    pub(in crate::session) fn is_finished(&self) -> bool {
        self.first_end == Some(Side::Client)
            && self.nothing_measured()
            && self.ledger.session_state() == SessionState::Quiet
            && self.replies.is_clear()
            && !self.is_interleaving()
            && !self.has_waiting_requests()
            && !self.upstream.is_readable()
    }

    /// Whether the target has answered everything that it was sent, and has not ended the
    /// connection.
    fn is_answered(&self) -> bool {
        self.nothing_measured()
            && self.first_end != Some(Side::Upstream)
            && matches!(
                self.ledger.session_state(),
                SessionState::Quiet | SessionState::Subscribed | SessionState::Transaction
            )
            && self.ledger.owed() == 0
    }

    /// Whether the waiting requests of a session that ends for this reason are refused: they were
    /// held, nothing of them was forwarded, no reply is owed that would have to come first, and the
    /// client expects one to each of them.
    pub(in crate::session) fn is_refused_at(&self, reason: EndReason) -> bool {
        let is_lost = matches!(reason, EndReason::Cut | EndReason::Fenced) || reason.is_loss();
        let is_held =
            reason == EndReason::HoldTimeout || (is_lost && !self.target.accepts_requests());
        let state = self.ledger.session_state();
        is_held
            && !matches!(state, SessionState::Busy | SessionState::Ended)
            && self.ledger.at_boundary(Direction::Request)
            && self.ledger.at_boundary(Direction::Reply)
            && self.ledger.owed() == 0
            && self.ledger.answers_all()
            && self.nothing_measured()
            && self.replies.is_clear()
    }

    /// Records which side ended first.
    pub(in crate::session) fn note_first_end(&mut self) {
        if self.first_end.is_some() {
            return;
        }
        if self.requests.ended {
            self.first_end = Some(Side::Client);
        } else if self.replies.ended {
            self.first_end = Some(Side::Upstream);
            self.report_upstream_end();
        }
    }

    /// Reports to discovery that the target ended the connection, unless the client asked for it or
    /// provoked it: strangers would have the target examined as often as they like.
    fn report_upstream_end(&self) {
        if self.ledger.session_state() != SessionState::Ended && !self.ledger.provokes_close() {
            if self.replies.moved == FULL {
                self.target.doubt();
            }
            self.context.hint(&self.target, Hint::UpstreamEnded);
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
        if side == Side::Upstream
            && let Some(cause) = self.upstream.member().and_then(Member::cause_of_end)
        {
            return Some(cause);
        }
        Some(match (side, self.first_end) {
            _ if invariant::is_violation(&error) => EndReason::InternalError,
            (Side::Upstream, _) if dial::note_error(&self.context, &self.target, &error) => {
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
        })
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
        let ended = self.first_end == Some(Side::Client) || self.requests.ended;
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
        let lost = Some(reason).filter(|it| it.is_loss());
        // Another connection would be closed as well, and the target asked in vain why it closed.
        let may_continue = (lost.is_some() && !self.ledger.provokes_close())
            || matches!(stop, Stop::End(EndReason::Fenced) | Stop::Leave | Stop::Rebalance);
        let may_be_uncarried = may_continue || reason == EndReason::ReplyDropped;
        let uncarried = may_be_uncarried.then(|| self.why_not_carried()).flatten();
        let is_answered = self.is_answered();
        let left = if stop == Stop::Rest {
            self.begin_rest().map(Left::Resting)
        } else if matches!(stop, Stop::Promote | Stop::Return) {
            let promotion = (stop == Stop::Promote).then(|| {
                let reason = self.upstream.member().and_then(Member::promotion);
                reason.unwrap_or(Promotion::NotConnected)
            });
            let unsent = self.take_unsent();
            if self.commands > 0 {
                self.ledger.changed_connection();
            }
            Some(Left::State(self.take_state(unsent, None), promotion))
        } else if may_continue && self.can_be_carried() {
            let unsent = self.take_unsent();
            Some(Left::State(self.take_state(unsent, lost), None))
        } else if self.is_refused_at(reason) {
            let transaction = self.ledger.session_state() == SessionState::Transaction;
            Some(Left::Refused(Refused { unsent: self.take_unsent(), transaction }))
        } else if reason == EndReason::ClientClosed
            && self.sharing.as_ref().is_some_and(|it| it.return_at.is_some())
            && self.is_finished()
            && verifiers::may_keep(&self.ledger)
        {
            // A connection of its own that is as good as a new one after `RESET`.
            Some(Left::CleanConnection)
        } else {
            None
        };
        // The bytes that the client has not taken yet or that are held back.
        let mut undelivered = self.replies.take_kept();
        undelivered.append(&mut self.take_held_back());
        // A session that continues has handed its ledger over, and notifies its client that the
        // failover is over where it arrives.
        undelivered.append(&mut pending::last_push(&self.ledger, &self.context, reason));
        Stopped {
            stop,
            undelivered,
            left: left.map(Box::new),
            bytes: (self.requests.moved, self.replies.moved),
            commands: self.commands,
            is_answered,
            uncarried,
        }
    }

    /// Takes the state that the session continues with.
    fn take_state(&mut self, unsent: Vec<u8>, lost: Option<EndReason>) -> CarryState {
        let ledger = std::mem::replace(&mut self.ledger, Ledger::new(&Limits::default()));
        let undelivered = Some(self.replies.take_kept()).filter(|it| !it.is_empty());
        let undelivered = undelivered.map(KeptBytes::new);
        CarryState { ledger: Box::new(ledger), unsent, undelivered, lost, waited: self.waited() }
    }

    // Leaving, when the drain or an ejected replica asks the session to: carries out the rules of
    // [`leave`] on a pump. It waits for the turn of the session, asks its client to move if it can
    // be asked, and ends the session at the moment that the rules allow.

    pub(in crate::session) fn is_draining(&self) -> bool {
        self.context.listener.drain.phase() >= Phase::Draining
    }

    /// Advances a session that the drain or an ejected replica asks to leave. Returns a stop if it
    /// can continue elsewhere at once.
    pub(in crate::session) fn check_leaving(
        &mut self,
        ticket: &Ticket,
        waker: &Waker,
    ) -> Option<Stop> {
        if self.leaving == Leaving::No && (self.is_draining() || self.target.is_draining()) {
            // Created only now: ten thousand sessions need no memory for it while none has to
            // leave.
            let (draining, target) = (self.is_draining(), &self.target);
            let turn = self.rare.get_or_insert_default().turn.get_or_insert_with(|| {
                if draining {
                    Box::pin(ticket.asked())
                } else {
                    Box::pin(leave::turn(Arc::clone(target)))
                }
            });
            if turn.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
                self.rare().turn = None;
                // A session that continues elsewhere need not wait: its client notices nothing.
                if !draining && self.can_be_carried() {
                    return Some(Stop::Leave);
                }
                self.begin_to_leave(waker);
            }
        }
        if self.leaving == Leaving::Notified && self.is_due(|rare| &mut rare.patience, waker) {
            self.wait_for_reply(waker);
        }
        if self.leaving == Leaving::AfterReply && self.is_due(|rare| &mut rare.patience, waker) {
            self.leaving = Leaving::WhenQuiet;
            self.rare().patience.set(leave::PATIENCE, waker);
        }
        let is_over =
            self.leaving == Leaving::WhenQuiet && self.is_due(|rare| &mut rare.patience, waker);
        let is_stopped = self.leaving == Leaving::AtBoundary && self.measured == 0;
        if (is_over || is_stopped) && self.waits_at_gate() {
            // Read again when the gate opens: each request that waited there is answered.
            self.leaving = Leaving::WhenQuiet;
            self.rare().patience.set(leave::PATIENCE, waker);
        } else if is_over {
            self.leaving = Leaving::AtBoundary;
            if self.measured == 0 && self.has_begun_request() {
                self.measured = BEGUN;
            }
        }
        None
    }

    /// The turn of this session to leave has come. A client that can be asked to move closes its
    /// connection by itself; all other sessions end after a reply.
    fn begin_to_leave(&mut self, waker: &Waker) {
        let moving =
            if self.is_draining() { pending::moving(&self.ledger, &self.context) } else { None };
        if let Some((seconds, push)) = moving {
            self.announce(push);
            self.leaving = Leaving::Notified;
            self.rare().patience.set(Duration::from_secs(seconds), waker);
        } else {
            self.wait_for_reply(waker);
        }
    }

    fn wait_for_reply(&mut self, waker: &Waker) {
        self.leaving = Leaving::AfterReply;
        self.replied = false;
        self.rare().patience.set(leave::REPLY_WAIT, waker);
    }

    /// Why a session that was asked to leave ends now; `None` if it has to stay for the moment.
    /// `idle`: no requests can be forwarded now.
    pub(in crate::session) fn left(&mut self, idle: bool) -> Option<Stop> {
        // If a request has arrived of which the event loop does not know yet, it will, and the
        // session stays until then. One that is stopped at a boundary leaves it unread.
        if self.leaving == Leaving::No
            || !self.may_leave(idle)
            || (self.leaving != Leaving::AtBoundary && self.client.has_unread())
        {
            return None;
        }
        Some(match self.leaving {
            _ if self.is_draining() => EndReason::Drained.into(),
            Leaving::Rebalancing => Stop::Rebalance,
            _ => Stop::Leave,
        })
    }

    fn may_leave(&mut self, idle: bool) -> bool {
        // What has begun is taken along by a session that continues elsewhere.
        let ends = self.is_draining() || !self.can_be_carried();
        let is_awaited = self.leaving != Leaving::AtBoundary || self.measured == BEGUN;
        let begun = ends && is_awaited && self.has_begun_request();
        // What was read of it is written now, unless the target takes no requests.
        let is_passed = self.requests.is_clear() || self.target.accepts_requests();
        if self.measured == BEGUN && !begun && is_passed {
            self.measured = 0;
        }
        let waits = ends && self.upstream.member().is_some_and(Member::is_to_be_sent);
        let facts = LeaveFacts {
            state: self.ledger.session_state(),
            has_received: self.has_received,
            requests_idle: idle,
            replied: self.replied,
            replies_delivered: self.replies.is_clear(),
            nothing_begun: self.measured == 0 && !begun && !waits,
        };
        if !leave::may_leave(self.leaving, facts) {
            return false;
        }
        // No session is closed because another replica has fewer.
        let stays = self.leaving == Leaving::Rebalancing && !self.can_be_moved();
        if stays {
            self.cancel_rebalancing();
        }
        !stays
    }

    // Rules for sessions on a replica that do not apply to a master's: they wait a bounded time for
    // an unresponsive replica, and move from a replica with many sessions to one with fewer.
    //
    // An unresponsive replica, which was ejected because it answers nothing, may never answer what
    // it was asked. Sessions that cannot be carried away from it, because a reply is owed, they
    // block or they are pinned, end after `silent_timeout`. If the replica answers in time, they
    // stay. An unresponsive master needs no such rule: once it is superseded its fence is raised,
    // which ends its sessions.
    //
    // A session that was chosen to equalise the shares
    // ([`PoolWriter::balance`](target::PoolWriter::balance)) moves at once if it is quiet, or after
    // its replies. It is never closed for that: it keeps its connection until the new one works,
    // and if it reaches no boundary in time, another session is moved instead.

    /// Whether the target has been unresponsive for too long. Starts and stops the timer.
    pub(in crate::session) fn check_unresponsive(&mut self, waker: &Waker) -> Option<Stop> {
        let set = self.rare.as_ref().is_some_and(|rare| rare.unresponsive.is_set());
        match (self.target.is_silent(), set) {
            (false, false) => return None,
            (true, false) => {
                let span = self.context.shared.service.options.now().silent_timeout;
                if !span.is_zero() {
                    self.rare().unresponsive.set(span, waker);
                }
            }
            (false, true) => self.rare().unresponsive.clear(),
            (true, true) => {}
        }
        // A session whose turn to leave would come later leaves now.
        if self.target.is_silent()
            && self.target.is_draining()
            && !self.is_draining()
            && self.can_be_carried()
        {
            return Some(Stop::Leave);
        }
        let is_over = self.is_due(|rare| &mut rare.unresponsive, waker);
        is_over.then_some(EndReason::TargetUnresponsive.into())
    }

    /// Whether the session moves to a replica with fewer sessions now. If it is owed replies, it is
    /// marked to move after them.
    pub(in crate::session) fn check_rebalancing(&mut self, waker: &Waker) -> Option<Stop> {
        if self.leaving == Leaving::Rebalancing {
            let over = self.is_draining()
                || self.target.is_draining()
                || self.is_due(|rare| &mut rare.patience, waker);
            if over {
                self.cancel_rebalancing();
            }
            return None;
        }
        if !self.target.has_move_permits() {
            return None;
        }
        let possible = self.leaving == Leaving::No && self.may_carry && !self.is_draining();
        let busy = self.ledger.session_state() == SessionState::Busy;
        if !possible || !(busy || self.can_be_moved()) || !self.target.take_move_permit() {
            return None;
        }
        self.leaving = Leaving::Rebalancing;
        if !busy {
            return Some(Stop::Rebalance);
        }
        self.rare().patience.set(leave::PATIENCE, waker);
        None
    }

    /// Whether the session could continue over another connection without any loss. A subscribed
    /// session would miss messages.
    pub(in crate::session) fn can_be_moved(&self) -> bool {
        self.can_be_carried() && self.ledger.session_state() == SessionState::Quiet
    }

    /// The session stays where it is.
    pub(in crate::session) fn cancel_rebalancing(&mut self) {
        self.leaving = Leaving::No;
        self.rare().patience.clear();
    }

    // Timeouts of a client that is silent, and of requests that wait at a closed gate.

    /// Why the client is closed for its silence; `None` if it is not.
    #[cold]
    pub(in crate::session) fn check_idle(&mut self, waker: &Waker) -> Option<EndReason> {
        if self.target.is_closed() {
            self.idle.gate_was_closed = true;
        }
        let facts = IdleFacts {
            has_received: self.has_received,
            asked: self.commands > 0 || self.ledger.has_sent_requests(),
            moved: self.requests.moved as u32,
            awaited: self.ledger.awaits_client()
                && !self.has_waiting_requests()
                && self.replies.is_clear(),
        };
        self.idle.check(&self.context.shared.service.options.now(), facts, waker)
    }

    /// Whether the client has gone while the gate was closed, or has waited for too long. It is not
    /// read at a closed gate, so its end may come after requests that it no longer waits for; those
    /// must not be executed late. Checked at intervals, and when the gate opens.
    pub(in crate::session) fn check_gate(&mut self, waker: &Waker) -> Option<EndReason> {
        let closed = self.target.is_closed();
        let due = self.is_due(|rare| &mut rare.gate_check, waker);
        let set = self.rare.as_ref().is_some_and(|rare| rare.gate_check.is_set());
        if !closed && !set {
            return None;
        }
        if !closed {
            self.rare().gate_check.clear();
        } else if due || !set {
            self.rare().gate_check.set(CHECK_INTERVAL, waker);
        }
        if (due || !closed) && !self.requests.ended && self.client.peer_closed() {
            return Some(EndReason::HoldAbandoned);
        }
        // If the fence is raised, they continue to wait: for the next target.
        if !closed && !self.target.fence().is_raised() {
            self.gate_checks = 0;
            self.context.count_waiting(false);
        }
        if !due || !closed {
            return None;
        }
        let waits = self.waits_at_gate();
        self.gate_checks = if waits { self.gate_checks.saturating_add(1) } else { 0 };
        self.context.count_waiting(waits);
        let most = self.context.shared.service.options.now().hold_timeout;
        (self.waited() >= most).then_some(EndReason::HoldTimeout)
    }

    /// Whether requests wait because the target takes none.
    fn waits_at_gate(&self) -> bool {
        let waits = || self.has_waiting_requests() || self.client.has_unread();
        !self.target.accepts_requests() && waits()
    }

    /// How long requests have waited at the gate.
    fn waited(&self) -> Duration {
        CHECK_INTERVAL * u32::from(self.gate_checks)
    }
}
