//! The state machine of one session of a shared service: when its requests are shared, when it
//! leaves for a connection of its own, and when it returns.
//!
//! A session changes only at a boundary: the replies to everything it has sent have been delivered,
//! so that no request can overtake another one on a second connection. From a request that needs
//! its own connection on, all bytes of the client wait until that connection is ready. The session
//! returns when the server keeps nothing for that connection any more and the client has not needed
//! it for a while; a session that keeps needing one stays there longer each time.
//!
//! `WAIT` asks about the writes of its own connection. On another connection its reply would be
//! wrong, and would promise a durability that nobody has checked. So the session takes over the
//! very connection that it has shared, once the requests of other clients on it are answered. If it
//! has used several, no connection can answer, and it ends.
//!
//! Deliberately absent: fences, holds and drains. They stop or end a session of either kind, before
//! this machine is asked.

use std::time::Duration;

use resp::{PromotionReason, Sharing};

/// Where the requests of a session go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// To the shared connection of its group.
    Shared,
    /// One request is being answered on the verifier connection, and the others wait.
    Verifying,
    /// All wait until the replies on the shared connection have been delivered.
    Draining(PromotionReason),
    /// All wait until the session has its own connection.
    Connecting(PromotionReason),
    /// To its own connection.
    Dedicated(PromotionReason),
    /// Nowhere.
    Ended,
}

/// What to do with the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// Send it on the shared connection.
    Send,
    /// Have it answered on the verifier connection, after the state of the session.
    Verify,
    /// Keep it, and offer it again after the next action.
    Wait,
    /// Send it, and all bytes after it, on the session's own connection.
    Forward,
    /// End the session.
    End(SharedEnd),
}

/// What to do after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    None,
    /// Offer the next request again.
    Continue,
    /// Open a connection, and set the session's state on it.
    Connect,
    /// Give the shared connection no further requests of other clients; once it has answered the
    /// outstanding ones, it belongs to this session alone.
    TakeConnection,
    /// Join the group of the session's present state; a connection of its own is closed.
    Join,
    /// End the session.
    End(SharedEnd),
}

/// Why a session of a shared service ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SharedEnd {
    /// Its requests were in flight on a connection that was lost: their outcome is not known.
    InFlightLost,
    /// Its own connection could not be opened, or the server refused the state that it had
    /// accepted.
    NotConnected,
    /// `WAIT` after the use of several connections: its reply would be wrong.
    WaitElsewhere,
    /// More replies were delivered than requests sent. Never in normal operation.
    Broken,
}

/// The connections that the session has sent requests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Used {
    None,
    Current,
    Several,
}

/// The shortest and longest time that a session keeps its own connection without needing it.
const LINGER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// A promotion within so many lingers after the return makes the next linger longer.
const SOON: u32 = 10;

/// The state of one session.
#[derive(Debug)]
pub struct SharedSession {
    mode: Mode,
    in_flight: u32,
    used: Used,
    linger: Duration,
    needed_at: Duration,
    returned_at: Option<Duration>,
}

impl Default for SharedSession {
    fn default() -> Self {
        Self {
            mode: Mode::Shared,
            in_flight: 0,
            used: Used::None,
            linger: LINGER.0,
            needed_at: Duration::ZERO,
            returned_at: None,
        }
    }
}

impl SharedSession {
    /// Where the requests go.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The number of requests on the shared connection.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Offers up to `count` requests that are [shared](Sharing::Shared) at once. Returns whether to
    /// send them.
    #[inline]
    pub fn offer_run(&mut self, count: u32) -> bool {
        let sends = self.mode == Mode::Shared;
        if sends && count > 0 {
            self.in_flight = self.in_flight.saturating_add(count);
            if self.used == Used::None {
                self.used = Used::Current;
            }
        }
        sends
    }

    /// Offers the next request at `now`. After [`Offer::Wait`], [`Self::pending`] has the action
    /// that it waits for.
    pub fn offer(&mut self, sharing: Sharing, now: Duration) -> Offer {
        match (self.mode, sharing) {
            (Mode::Shared, Sharing::Shared | Sharing::SharedScript) => {
                self.offer_run(1);
                Offer::Send
            }
            (Mode::Shared, Sharing::Verified) if self.in_flight == 0 => {
                self.mode = Mode::Verifying;
                Offer::Verify
            }
            (Mode::Shared, Sharing::Verified) => Offer::Wait,
            (Mode::Shared | Mode::Dedicated(_), Sharing::Promotes(PromotionReason::Wait))
                if self.used == Used::Several =>
            {
                self.end(SharedEnd::WaitElsewhere);
                Offer::End(SharedEnd::WaitElsewhere)
            }
            (Mode::Shared, Sharing::Promotes(reason)) => {
                self.promote(reason, now);
                Offer::Wait
            }
            (Mode::Dedicated(_), sharing) => {
                if matches!(sharing, Sharing::Promotes(_)) {
                    self.needed_at = now;
                }
                Offer::Forward
            }
            (Mode::Verifying | Mode::Draining(_) | Mode::Connecting(_), _) => Offer::Wait,
            (Mode::Ended, _) => Offer::End(SharedEnd::InFlightLost),
        }
    }

    /// The action that requests wait for: also after each reply and verification. An action is
    /// returned once.
    pub fn pending(&mut self) -> Action {
        match self.mode {
            Mode::Draining(reason) if self.in_flight == 0 => {
                self.mode = Mode::Connecting(reason);
                match (reason, self.used) {
                    (PromotionReason::Wait, Used::Current) => Action::TakeConnection,
                    (_, Used::None) => Action::Connect,
                    _ => {
                        self.used = Used::Several;
                        Action::Connect
                    }
                }
            }
            _ => Action::None,
        }
    }

    /// So many replies from the shared connection have been delivered.
    pub fn replied(&mut self, ended: u32) -> Action {
        match self.in_flight.checked_sub(ended) {
            None => self.end(SharedEnd::Broken),
            Some(left) => {
                self.in_flight = left;
                match self.pending() {
                    Action::None if left == 0 && self.mode == Mode::Shared => Action::Continue,
                    action => action,
                }
            }
        }
    }

    /// A reply shows that the session should not be shared: it is large, or the server requires
    /// authentication. Takes effect at the next boundary.
    pub fn unsuited(&mut self, reason: PromotionReason, now: Duration) -> Action {
        if self.mode == Mode::Shared {
            self.promote(reason, now);
        }
        self.pending()
    }

    /// The verifier's reply has been delivered. `may_share`: the state of the session is known and
    /// common, and its group has a place.
    pub fn verified(&mut self, may_share: bool, now: Duration) -> Action {
        match self.mode {
            Mode::Verifying if may_share => {
                self.mode = Mode::Shared;
                Action::Join
            }
            Mode::Verifying => {
                self.mode = Mode::Shared;
                self.promote(PromotionReason::Connection, now);
                self.pending()
            }
            _ => self.end(SharedEnd::Broken),
        }
    }

    /// The session has its own connection, with its state.
    pub fn connected(&mut self) -> Action {
        match self.mode {
            Mode::Connecting(reason) => {
                self.mode = Mode::Dedicated(reason);
                Action::Continue
            }
            _ => self.end(SharedEnd::Broken),
        }
    }

    /// The session is about to send on another shared connection than before.
    pub fn changed_connection(&mut self) {
        if self.used == Used::Current {
            self.used = Used::Several;
        }
    }

    /// The session's own connection has nothing in flight, and nothing of the client waits.
    /// `may_share`: the server keeps nothing for it that another connection would not have.
    pub fn at_boundary(&mut self, may_share: bool, now: Duration) -> Action {
        let calm = now.saturating_sub(self.needed_at) >= self.linger;
        match self.mode {
            Mode::Dedicated(_) if may_share && calm => {
                (self.mode, self.returned_at) = (Mode::Shared, Some(now));
                self.used = Used::Several;
                Action::Join
            }
            _ => Action::None,
        }
    }

    /// When [`Self::at_boundary`] should be asked again, if nothing happens until then.
    #[must_use]
    pub fn returns_at(&self) -> Option<Duration> {
        matches!(self.mode, Mode::Dedicated(_)).then(|| self.needed_at + self.linger)
    }

    /// The connection that the session uses was lost: the shared one, the verifier, or the one that
    /// was being opened for it. Its own connection ends the session outside of this machine.
    pub fn connection_lost(&mut self) -> Action {
        match self.mode {
            Mode::Shared if self.in_flight == 0 => {
                self.changed_connection();
                Action::Continue
            }
            // It was to be taken over, or was being opened.
            Mode::Connecting(_) => self.end(SharedEnd::NotConnected),
            Mode::Ended => Action::None,
            _ => self.end(SharedEnd::InFlightLost),
        }
    }

    #[cfg(test)]
    pub(crate) fn linger(&self) -> Duration {
        self.linger
    }

    fn promote(&mut self, reason: PromotionReason, now: Duration) {
        if let Some(returned) = self.returned_at {
            let soon = now.saturating_sub(returned) < self.linger.saturating_mul(SOON);
            let next = if soon { self.linger.saturating_mul(2) } else { self.linger / 2 };
            self.linger = next.clamp(LINGER.0, LINGER.1);
        }
        self.needed_at = now;
        self.mode = Mode::Draining(reason);
    }

    fn end(&mut self, why: SharedEnd) -> Action {
        self.mode = Mode::Ended;
        Action::End(why)
    }
}
