//! What is known about a socket: which attempts may succeed, and whether its peer has ended.
//!
//! A few bits, because each session has two of them. How they are kept up to date is described in
//! [`reactor`](crate::runtime::reactor).

use rustix::event::epoll::EventFlags;

/// What may be attempted on a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Readiness(u8);

impl Readiness {
    /// Nothing is known yet.
    pub(crate) const NONE: Self = Self(0);
    /// A read may return something.
    pub(crate) const READ: Self = Self(1);
    /// A write may accept something.
    pub(crate) const WRITE: Self = Self(2);
    /// The peer has closed its direction or the connection.
    pub(crate) const ENDED: Self = Self(4);
    /// The connection is broken.
    pub(crate) const BROKEN: Self = Self(8);
    /// The assumed readiness of a connection that was just accepted.
    pub(crate) const BOTH: Self = Self(3);

    pub(super) fn of(flags: EventFlags) -> Self {
        let mut bits = 0;
        if flags.contains(EventFlags::IN) {
            bits |= Self::READ.0;
        }
        if flags.contains(EventFlags::OUT) {
            bits |= Self::WRITE.0;
        }
        if flags.contains(EventFlags::RDHUP) {
            bits |= Self::READ.0 | Self::ENDED.0;
        }
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            // Attempt both directions: the attempt returns the error.
            bits |= Self::READ.0 | Self::WRITE.0 | Self::ENDED.0 | Self::BROKEN.0;
        }
        Self(bits)
    }

    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}
