//! What is known about a socket: which attempts may succeed, and whether its peer has ended.
//!
//! A few bits, because each session has two of them. How they are kept up to date is described in
//! [`reactor`](crate::runtime::reactor).

use rustix::event::epoll::EventFlags;

/// What may be attempted on a socket. The two usual bits are those of the kernel, because they are
/// read for every event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Readiness(u8);

impl Readiness {
    /// Nothing is known yet.
    pub(crate) const NONE: Self = Self(0);
    /// A read may return something.
    pub(crate) const READ: Self = Self(1);
    /// A write may accept something.
    pub(crate) const WRITE: Self = Self(4);
    /// The peer has closed its direction or the connection.
    pub(crate) const ENDED: Self = Self(2);
    /// The connection is broken.
    pub(crate) const BROKEN: Self = Self(8);
    /// The assumed readiness of a connection that was just accepted.
    pub(crate) const BOTH: Self = Self(5);

    #[inline]
    pub(super) fn of(flags: EventFlags) -> Self {
        let usual = flags.intersection(EventFlags::IN | EventFlags::OUT);
        if usual != flags { Self::of_unusual(flags) } else { Self::of_usual(usual) }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the lowest bits")]
    const fn of_usual(flags: EventFlags) -> Self {
        Self(flags.bits() as u8)
    }

    #[cold]
    fn of_unusual(flags: EventFlags) -> Self {
        let mut bits = Self::of_usual(flags.intersection(EventFlags::IN | EventFlags::OUT)).0;
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

const _: () = assert!(
    Readiness::of_usual(EventFlags::IN).0 == Readiness::READ.0
        && Readiness::of_usual(EventFlags::OUT).0 == Readiness::WRITE.0,
    "the bits of the kernel"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translates_every_combination_of_flags() {
        let flags = [
            (EventFlags::IN, Readiness::READ.0),
            (EventFlags::OUT, Readiness::WRITE.0),
            (EventFlags::RDHUP, Readiness::READ.0 | Readiness::ENDED.0),
            (EventFlags::HUP, 15),
            (EventFlags::ERR, 15),
            // Not asked for: means nothing.
            (EventFlags::PRI, 0),
        ];
        for set in 0..1 << flags.len() {
            let chosen = flags.iter().enumerate().filter(|(nth, _)| set >> nth & 1 == 1);
            let (given, bits) = chosen.fold((EventFlags::empty(), 0), |(given, bits), (_, it)| {
                (given | it.0, bits | it.1)
            });
            assert_eq!(Readiness::of(given), Readiness(bits), "{given:?}");
        }
    }
}
