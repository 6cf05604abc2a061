//! The limits of the ledger.
//!
//! A limit never refuses anything to a client. A session that exceeds it becomes opaque: its
//! requests are still forwarded, and the server applies its own limits.

use crate::scan::bulk::MAX_BULK_LEN;
use crate::scan::stack::MAX_ELEMENTS;

/// The limits of the ledger of one session. A session that exceeds one becomes opaque; nothing is
/// rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum length of an inline command, in bytes including its line feed. The limit of Redis is
    /// 64 KiB (`redis:src/server.h`, `PROTO_INLINE_MAX_SIZE`).
    pub inline_bytes: u32,
    /// Maximum length of a bulk string in either direction, in bytes. Values above 2^32 - 3 mean
    /// 2^32 - 3. A request of more than `proto-max-bulk-len`, 512 MiB, is refused by the server;
    /// the reply of a script may have more.
    pub bulk_bytes: u64,
    /// Maximum number of elements of an aggregate, arguments of a request included; a map of `n`
    /// pairs has `2 n`. Nothing is stored per element, so this only excludes absurd values. Values
    /// above 2^31 - 2 mean 2^31 - 2.
    pub elements: u32,
    /// Nesting of aggregates in a reply up to which each has a level of its own. Four levels need
    /// no allocation; for more, four bytes per level are allocated once, and freed when the frame
    /// ends. Deeper ones are merged, except streamed ones, which Redis does not send.
    pub depth: u16,
    /// Maximum number of runs of in-flight markers, for requests whose reply must be inspected
    /// (MULTI, SUBSCRIBE, HELLO, ...); 24 bytes each. A pipeline in which two kinds alternate at
    /// constant distances is one run; without repetition, a run has two requests. The first 512
    /// runs belong to the session, further ones are taken from 16 MiB for all sessions. Beyond the
    /// limit, replies are counted, but the effect of the requests is not known: the session is
    /// pinned until a `RESET`. Ordinary requests are only counted, in any number.
    pub marks: u16,
    /// Maximum bytes of text that are recorded for replaying the session on another connection:
    /// credentials and names, which are held twice for a short time. A session with more is still
    /// tracked, but cannot be carried. Zero if sessions are not to be carried: nothing is recorded.
    pub memory: u16,
    /// Maximum bytes of names of channels and patterns that are recorded for subscribing again on
    /// another connection; rounded down to kilobytes. A session with more, or one for which the
    /// shared budget is used up, is still tracked, but cannot be carried while it is subscribed.
    /// Zero: no subscribed session is carried.
    pub names: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            inline_bytes: 64 * 1024,
            bulk_bytes: u64::MAX,
            elements: 1 << 30,
            depth: 128,
            marks: 16 * 1024,
            memory: 0,
            names: 0,
        }
    }
}

/// The limits as the scanners store them: in twenty bytes per session, none larger than they can
/// count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) inline_bytes: u32,
    pub(crate) bulk_bytes: u32,
    pub(crate) elements: u32,
    pub(crate) depth: u16,
    pub(crate) marks: u16,
    pub(crate) memory: u16,
    /// In kilobytes.
    names: u16,
}

impl Bounds {
    /// Maximum bytes of names of subscriptions; none without the state of the session.
    pub(crate) fn max_names(&self) -> usize {
        if self.memory == 0 { 0 } else { usize::from(self.names) * KILOBYTE }
    }
}

const KILOBYTE: usize = 1024;

impl Default for Bounds {
    fn default() -> Self {
        Self::from(&Limits::default())
    }
}

impl From<&Limits> for Bounds {
    fn from(limits: &Limits) -> Self {
        Self {
            inline_bytes: limits.inline_bytes,
            bulk_bytes: u32::try_from(limits.bulk_bytes).unwrap_or(u32::MAX).min(MAX_BULK_LEN),
            elements: limits.elements.min(MAX_ELEMENTS),
            depth: limits.depth,
            marks: limits.marks,
            memory: limits.memory,
            names: u16::try_from(limits.names / 1024).unwrap_or(u16::MAX),
        }
    }
}
