//! Decides how long to have patience with one connection.
//!
//! At any moment either we owe the client something or the client keeps us waiting, and whenever it
//! is the latter, a clock runs. The same clock says who has to go when there are too many: whoever
//! has kept us waiting longest.
//!
//! Deliberately absent: sockets and a clock; the time is an argument.

use std::time::Instant;

use crate::server::Settings;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No byte of the next request has come.
    Waiting,
    /// Some of the next request's header has come.
    Reading,
    /// The header is there, and the answer is not yet handed over in full.
    Answering,
    /// An answer without an end is on its way.
    Streaming,
}

/// One connection from accept to close.
#[derive(Debug)]
pub(crate) struct Life {
    state: State,
    since: Instant,
    /// Since when the client has not taken what we want to write.
    blocked: Option<Instant>,
    answered: bool,
}

impl Life {
    /// A connection that was accepted now.
    pub(crate) fn new(now: Instant) -> Self {
        Self { state: State::Waiting, since: now, blocked: None, answered: false }
    }

    fn enter(&mut self, state: State, now: Instant) {
        self.state = state;
        self.since = now;
    }

    /// Bytes came. A header that comes in drops does not start the clock anew.
    pub(crate) fn read(&mut self, now: Instant) {
        if self.state == State::Waiting {
            self.enter(State::Reading, now);
        }
    }

    /// A whole request header is there.
    pub(crate) fn requested(&mut self, now: Instant) {
        self.enter(State::Answering, now);
    }

    /// The answer turned out to have no end.
    pub(crate) fn streams(&mut self, now: Instant) {
        self.enter(State::Streaming, now);
    }

    /// The answer has been handed over, or given up.
    pub(crate) fn answered(&mut self, now: Instant) {
        self.answered = true;
        self.enter(State::Waiting, now);
    }

    /// The client took bytes, or did not although we had some.
    pub(crate) fn wrote(&mut self, took: bool, now: Instant) {
        if took {
            self.blocked = None;
        } else {
            self.blocked.get_or_insert(now);
        }
    }

    pub(crate) fn is_streaming(&self) -> bool {
        self.state == State::Streaming
    }

    /// Since when the client has kept us waiting; `None` while it is our turn.
    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        match self.state {
            State::Waiting | State::Reading => Some(self.since),
            State::Answering | State::Streaming => self.blocked,
        }
    }

    /// When patience ends, if nothing happens until then.
    pub(crate) fn deadline(&self, settings: &Settings) -> Option<Instant> {
        let state = match self.state {
            State::Waiting if self.answered => Some(settings.idle_timeout),
            State::Waiting | State::Reading => Some(settings.header_timeout),
            State::Answering => Some(settings.request_timeout),
            State::Streaming => None,
        };
        let state = state.and_then(|timeout| self.since.checked_add(timeout));
        let blocked = self.blocked.and_then(|since| since.checked_add(settings.request_timeout));
        match (state, blocked) {
            (Some(state), Some(blocked)) => Some(state.min(blocked)),
            (state, blocked) => state.or(blocked),
        }
    }
}
