//! Decides the deadline of one connection.
//!
//! At any time either the server owes the client something, or the client keeps the server waiting;
//! in the second case a deadline applies. The same state tells which connection to evict when there
//! are too many: the one that has kept the server waiting, or has waited for its turn, longest.

use std::time::Instant;

use crate::settings::ServerSettings;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestState {
    /// The handshake of TLS is not complete, or no request has come without TLS where it was
    /// expected.
    Handshaking,
    /// No byte of the next request has arrived.
    Waiting,
    /// Part of the next request's header has arrived, or the request waits for its turn. Then it
    /// may be evicted, too, so that many of them take no slot from a probe.
    Reading,
    /// The header is complete, and the response has not been handed over in full.
    Answering,
    /// An endless response is being sent.
    Streaming,
}

/// The state of one connection from accept to close.
#[derive(Debug)]
pub(crate) struct ConnectionClock {
    state: RequestState,
    since: Instant,
    /// Since when the client has not accepted the bytes to be written.
    blocked: Option<Instant>,
    answered: bool,
}

impl ConnectionClock {
    /// A connection that was accepted now, and may begin with a handshake.
    pub(crate) fn new(now: Instant, handshakes: bool) -> Self {
        let state = if handshakes { RequestState::Handshaking } else { RequestState::Waiting };
        Self { state, since: now, blocked: None, answered: false }
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.state == RequestState::Handshaking
    }

    /// The handshake is complete. Its time counts in that for the first request.
    pub(crate) fn secured(&mut self) {
        if self.is_handshaking() {
            self.state = RequestState::Waiting;
        }
    }

    fn enter(&mut self, state: RequestState, now: Instant) {
        self.state = state;
        self.since = now;
    }

    /// Bytes arrived. A header that arrives in small pieces does not restart the timeout.
    pub(crate) fn read(&mut self, now: Instant) {
        if self.state == RequestState::Waiting {
            self.enter(RequestState::Reading, now);
        }
    }

    /// The request has to wait for its turn.
    pub(crate) fn queued(&mut self, now: Instant) {
        self.enter(RequestState::Reading, now);
    }

    /// A request header is complete, or a request that waited has its turn.
    pub(crate) fn requested(&mut self, now: Instant) {
        self.enter(RequestState::Answering, now);
    }

    /// The response turned out to be endless.
    pub(crate) fn streams(&mut self, now: Instant) {
        self.enter(RequestState::Streaming, now);
    }

    /// The response has been handed over or given up.
    pub(crate) fn answered(&mut self, now: Instant) {
        self.answered = true;
        self.enter(RequestState::Waiting, now);
    }

    /// The client accepted bytes, or did not although there were some.
    pub(crate) fn wrote(&mut self, took: bool, now: Instant) {
        if took {
            self.blocked = None;
        } else {
            self.blocked.get_or_insert(now);
        }
    }

    #[cfg(test)]
    pub(crate) fn is_streaming(&self) -> bool {
        self.state == RequestState::Streaming
    }

    /// Since when the client has kept the server waiting, or waits for its turn; `None` while the
    /// server owes a response.
    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        match self.state {
            RequestState::Handshaking | RequestState::Waiting | RequestState::Reading => {
                Some(self.since)
            }
            RequestState::Answering | RequestState::Streaming => self.blocked,
        }
    }

    /// When the connection times out if nothing happens until then.
    pub(crate) fn deadline(&self, settings: &ServerSettings) -> Option<Instant> {
        let state = match self.state {
            RequestState::Waiting if self.answered => Some(settings.idle_timeout),
            RequestState::Handshaking | RequestState::Waiting | RequestState::Reading => {
                Some(settings.header_timeout)
            }
            RequestState::Answering => Some(settings.request_timeout),
            RequestState::Streaming => None,
        };
        let state = state.and_then(|timeout| self.since.checked_add(timeout));
        let blocked = self.blocked.and_then(|since| since.checked_add(settings.request_timeout));
        match (state, blocked) {
            (Some(state), Some(blocked)) => Some(state.min(blocked)),
            (state, blocked) => state.or(blocked),
        }
    }
}
