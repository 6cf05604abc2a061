//! The session's bookkeeping: what has been asked, what has been answered, and whether now is a quiet moment.

use crate::class::Class;
use crate::limits::Limits;
use crate::standing::{Answer, Counts, Direction, Hint, Standing};

/// The bookkeeping of one session, fed with the bytes of both directions as they are forwarded.
#[derive(Debug)]
pub struct Ledger {}

impl Ledger {
    /// The ledger of a fresh connection: RESP2, nothing owed, between frames.
    #[must_use]
    pub fn new(_limits: &Limits) -> Self {
        Self {}
    }

    /// Takes `bytes` that go from the client to the server, in order.
    pub fn request(&mut self, _bytes: &[u8]) {}

    /// Like [`request`](Self::request), but stops right behind the first request that ends within `bytes`, and returns how
    /// many bytes it took: all of them if none ended. [`last_request`](Self::last_request) then tells its class.
    pub fn request_one(&mut self, bytes: &[u8]) -> usize {
        bytes.len()
    }

    /// Takes `bytes` that go from the server to the client, in order.
    pub fn reply(&mut self, _bytes: &[u8]) {}

    /// Like [`reply`](Self::reply), but stops right behind the first frame (reply or push) that ends within `bytes`, and
    /// returns how many bytes it took: all of them if none ended.
    pub fn reply_one(&mut self, bytes: &[u8]) -> usize {
        bytes.len()
    }

    /// Whether the bytes seen so far end between two frames of that direction. Never true of an opaque session.
    #[must_use]
    pub fn at_boundary(&self, _direction: Direction) -> bool {
        false
    }

    /// How many requests have been sent whose last reply has not come yet. For an opaque session: how many there were when
    /// it turned.
    #[must_use]
    pub fn owed(&self) -> u64 {
        0
    }

    /// Where the session stands.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing::Opaque
    }

    /// How many bytes of the bulk string under way are still to come that nobody needs to look at, without its final
    /// `\r\n`: they may be moved unseen if [`skip_body`](Self::skip_body) is told. Zero if there is none, and if the session
    /// is opaque.
    #[must_use]
    pub fn body_left(&self, _direction: Direction) -> u64 {
        0
    }

    /// Notes that `n` bytes, at most [`body_left`](Self::body_left), have been moved without being shown.
    pub fn skip_body(&mut self, _direction: Direction, _n: u64) {}

    /// One of the hints seen since they were last taken, the gravest first; `None` once all have been taken.
    pub fn take_hint(&mut self) -> Option<Hint> {
        None
    }

    /// The frames counted since this was last called.
    pub fn take_counts(&mut self) -> Counts {
        Counts::default()
    }

    /// The class of the request that ended last; `None` if it was an empty one, or none has ended yet.
    #[must_use]
    pub fn last_request(&self) -> Option<Class> {
        None
    }

    /// The class and answer of the last request answered that was not ordinary; `None` if the last one was.
    #[must_use]
    pub fn last_answer(&self) -> Option<(Class, Answer)> {
        None
    }
}
