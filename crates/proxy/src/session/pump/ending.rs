//! Why a pump ends, and what follows: nothing, answers to requests that were never forwarded, or
//! another target.
//!
//! Deliberately absent: doing it.

use std::io;
use std::task::{Poll, Waker};
use std::time::Duration;

use resp::{MustEnd, Pin, SessionState};

use super::Pump;
use crate::io::end::End;
use crate::io::flow::Step;
use crate::maintenance::notice;
use crate::service::Hint;
use crate::session::broken;
use crate::session::carry::CarryState;
use crate::session::end_reason::{EndReason, Side};
use crate::session::hold::PATROL;
use crate::session::idle::Facts;
use crate::session::leave::{self, Leaving, Moment};
use crate::session::not_carried::{NotCarried, Uncarried};

/// What is left when a pump has stopped.
#[derive(Debug)]
pub(crate) struct Stopped {
    /// Why it stopped.
    pub(crate) reason: EndReason,
    /// What the client has not taken yet of the target's replies, and our last word to it.
    pub(crate) undelivered: Vec<u8>,
    /// What is to be done then.
    pub(crate) after: Option<Box<After>>,
    /// Bytes forwarded to the target, and to the client.
    pub(crate) bytes: (u64, u64),
    /// Requests that were forwarded whole.
    pub(crate) commands: u32,
    /// If it lost its server and cannot go on: why not.
    pub(crate) uncarried: Option<Box<Uncarried>>,
}

/// What follows the end of a pump.
#[derive(Debug)]
pub(crate) enum After {
    /// Its requests, none of which was forwarded, are answered before it ends.
    Refuse {
        /// What was read of them; it begins between two requests.
        unsent: Vec<u8>,
        /// A transaction is open.
        transaction: bool,
    },
    /// The session can go on over another connection.
    Carry(CarryState),
    /// The same, but it keeps the one it has until then.
    Move(CarryState),
}

impl<C, U> Drop for Pump<'_, C, U> {
    /// However it ends, it is not counted as pinned any more.
    fn drop(&mut self) {
        self.seat.block.repin(self.pin, None);
    }
}

impl<C: End, U: End> Pump<'_, C, U> {
    /// Whether nobody needs to notice if the session went on over another connection.
    pub(super) fn can_be_carried(&self) -> bool {
        self.carries
            && self.first != Some(Side::Client)
            && !self.requests.has_ended()
            && self.replies.is_clear()
            && self.measured == 0
            && self.ledger.can_be_carried()
    }

    /// Whether a client that has ended its direction has had all that it will ever get: then the
    /// target need not be told of an end and waited for, since both connections may as well be
    /// closed. It would only close, too.
    pub(super) fn has_all(&self) -> bool {
        self.first == Some(Side::Client)
            && self.measured == 0
            && self.ledger.session_state() == SessionState::Quiet
            && self.replies.is_clear()
            && !self.has_words()
            && !self.upstream.is_readable()
    }

    /// Whether nothing of what waits has been forwarded, and nothing is owed that would have to be
    /// answered first.
    fn can_be_refused(&self) -> bool {
        let between = matches!(
            self.ledger.session_state(),
            SessionState::Quiet | SessionState::Pinned | SessionState::Transaction
        );
        between && self.ledger.owed() == 0 && self.measured == 0 && self.replies.is_clear()
    }

    /// Whether the client has been silent for too long.
    pub(super) fn judge_silence(&mut self, waker: &Waker) -> Option<EndReason> {
        if self.target.is_shut() {
            self.silence.excuse();
        }
        let facts = Facts {
            heard: self.heard,
            asked: self.commands > 0 || self.ledger.has_sent_requests(),
            moved: self.requests.moved() as u32,
            awaited: self.ledger.awaits_client()
                && self.requests.is_clear()
                && self.replies.is_clear(),
        };
        self.silence.judge(&self.seat.shared.service.options.now(), facts, waker)
    }

    /// A patrol found that requests have been waiting at the gate, or that they have not. Whether
    /// that is for too long.
    pub(super) fn has_waited_too_long(&mut self) -> bool {
        let waits = !self.requests.is_clear() || self.client.has_unread();
        self.waited = if waits { self.waited.saturating_add(1) } else { 0 };
        let waited: Duration = PATROL * u32::from(self.waited);
        waited >= self.seat.shared.service.options.now().hold_timeout
    }

    /// The target ended it, and not because it was told to.
    pub(super) fn tell_of_the_end(&self) {
        if self.ledger.session_state() != SessionState::Ended {
            self.seat.block.hints.one();
            self.seat.shared.service.hints.hint(self.target, Hint::UpstreamEnded);
        }
    }

    /// The reason behind a failed step, if one failed.
    pub(super) fn failure(&mut self, requests: Step, replies: Step) -> Option<EndReason> {
        let (side, error) = match (requests, replies) {
            (Step::SourceFailed(error), _) | (_, Step::SinkFailed(error)) => (Side::Client, error),
            (Step::SinkFailed(error), _) | (_, Step::SourceFailed(error)) => {
                (Side::Upstream, error)
            }
            _ => return None,
        };
        Some(self.failed(side, &error))
    }

    fn failed(&mut self, side: Side, error: &io::Error) -> EndReason {
        match (side, self.first) {
            _ if broken::is_broken(error) => EndReason::InternalError,
            // Whoever has ended may well refuse what still comes: that is the end of it and not
            // another fault.
            (Side::Client, Some(Side::Client)) => EndReason::ClientClosed,
            (Side::Upstream, Some(Side::Upstream)) => EndReason::UpstreamClosed,
            (Side::Upstream, None) => {
                self.tell_of_the_end();
                EndReason::from_error(side, error.kind())
            }
            _ => EndReason::from_error(side, error.kind()),
        }
    }

    /// Why the ledger says that the session must not go on.
    #[cold]
    pub(super) fn must_end(&self) -> EndReason {
        match self.ledger.must_end() {
            Some(MustEnd::WaitAfterCarry) => EndReason::Forfeit,
            Some(MustEnd::Broken(fault)) => broken::found(fault.text()),
            None => broken::found("a session was to end without a reason"),
        }
    }

    /// Puts our last word, if there is one, behind what came from the target, which has ended:
    /// behind the end that the client is about to be told nothing can be said.
    pub(super) fn have_the_last_word(&mut self) {
        let word = notice::last_word(&self.ledger, self.seat, EndReason::UpstreamClosed);
        if !word.is_empty() {
            self.ledger.set_failover_announced(false);
            self.replies.keep(&word);
        }
    }

    /// Whether this is the moment for a session that was asked to leave. `idle`: there are no
    /// requests to be forwarded now.
    pub(super) fn may_leave(&mut self, idle: bool) -> bool {
        let moment = Moment {
            standing: self.ledger.session_state(),
            heard: self.heard,
            requests_idle: idle,
            replied: self.replied,
            replies_delivered: self.replies.is_clear(),
            unmeasured: self.measured == 0,
        };
        if !leave::may_leave(self.leaving, moment) {
            return false;
        }
        // No session is closed because another replica has fewer.
        let stays = self.leaving == Leaving::Moving && !self.can_be_moved();
        if stays {
            self.stay();
        }
        !stays
    }

    /// Why the session cannot go on over another connection; `None` if it can, or if its client has
    /// ended it.
    fn uncarried(&self) -> Option<Box<Uncarried>> {
        let ended = self.first == Some(Side::Client) || self.requests.has_ended();
        if ended || self.ledger.session_state() == SessionState::Ended || self.can_be_carried() {
            return None;
        }
        let why = match self.ledger.pin() {
            _ if !self.carries => NotCarried::Disabled,
            Some(pin) => NotCarried::Pinned(pin),
            None => NotCarried::InFlight,
        };
        let mut uncarried = Uncarried::new(why);
        if why == NotCarried::Pinned(Pin::UnknownCommand) {
            uncarried.command = self.ledger.unknown_command().map(Box::from);
        }
        Some(uncarried)
    }

    /// Counts the session by what pins it now, and ends it if it relies on scripts of its former
    /// server.
    #[cold]
    #[inline(never)]
    pub(super) fn note_pin(&mut self) -> Poll<EndReason> {
        let before = std::mem::replace(&mut self.pin, self.ledger.pin());
        if self.pin != before {
            self.seat.block.repin(before, self.pin);
        }
        let quiet = self.ledger.session_state() == SessionState::Quiet
            && self.replies.is_clear()
            && self.measured == 0;
        if quiet && self.ledger.relies_on_former_scripts() && !self.client.has_unread() {
            return Poll::Ready(EndReason::Forfeit);
        }
        Poll::Pending
    }

    /// Takes the pump apart.
    pub(super) fn stop(&mut self, reason: EndReason) -> Stopped {
        let lost = match reason {
            EndReason::UpstreamClosed
            | EndReason::UpstreamReset
            | EndReason::UpstreamLost
            | EndReason::UpstreamError => Some(reason),
            _ => None,
        };
        let goes_on = lost.is_some() || matches!(reason, EndReason::Fenced | EndReason::Dismissed);
        let uncarried =
            if goes_on || reason == EndReason::ReplyDropped { self.uncarried() } else { None };
        let after = if goes_on && self.can_be_carried() {
            let ledger =
                std::mem::replace(&mut self.ledger, resp::Ledger::new(&resp::Limits::default()));
            let luggage =
                CarryState { ledger: Box::new(ledger), unsent: self.requests.take_kept(), lost };
            let moves = reason == EndReason::Dismissed && self.leaving == Leaving::Moving;
            Some(if moves { After::Move(luggage) } else { After::Carry(luggage) })
        } else if reason == EndReason::HoldTimeout && self.can_be_refused() {
            let transaction = self.ledger.session_state() == SessionState::Transaction;
            Some(After::Refuse { unsent: self.requests.take_kept(), transaction })
        } else {
            None
        };
        let mut undelivered = self.undelivered();
        // Who goes on elsewhere has taken its ledger along, and hears there that it is over.
        undelivered.append(&mut notice::last_word(&self.ledger, self.seat, reason));
        Stopped {
            reason,
            undelivered,
            after: after.map(Box::new),
            bytes: (self.requests.moved(), self.replies.moved()),
            commands: self.commands,
            uncarried,
        }
    }
}
