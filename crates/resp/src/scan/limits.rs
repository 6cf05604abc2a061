//! How much the scanner is willing to follow.
//!
//! A limit never refuses anything to a client: what goes beyond it turns the session opaque, so the
//! bytes are forwarded all the same and the server, which has limits of its own, gives the answer.

use crate::scan::bulk::MAX_BULK_LEN;
use crate::scan::stack::MAX_ELEMENTS;

/// The bounds of one session's bookkeeping. What exceeds one of them turns the session opaque;
/// nothing is ever rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest inline command, in bytes up to and with its line feed. Redis's own bound is 64 KiB
    /// (`redis:src/server.h`, `PROTO_INLINE_MAX_SIZE`).
    pub inline_bytes: u32,
    /// Longest bulk string in either direction, in bytes. Redis's default is 512 MiB
    /// (`proto-max-bulk-len`). Values above 2^32 - 3 mean 2^32 - 3.
    pub bulk_bytes: u64,
    /// Most elements one aggregate may announce, arguments of a request included; a map of `n`
    /// pairs has `2 n`. Nothing is stored for an element, so this only keeps nonsense out. Values
    /// above 2^31 - 2 mean 2^31 - 2.
    pub elements: u32,
    /// Deepest nesting of aggregates in a reply. Four levels cost nothing; beyond them four bytes a
    /// level are allocated, once, and freed when the frame ends.
    pub depth: u16,
    /// Most runs of requests in flight that need an eye on their reply (MULTI, SUBSCRIBE, HELLO,
    /// ...), 24 bytes each. A pipeline in which two kinds alternate at constant distances is one
    /// run; where nothing repeats, a run is two requests. The first 512 runs are the session's own,
    /// the others come out of 16 MiB for all sessions. Beyond it replies are counted, but what the
    /// requests did is not known: the session stays on its connection until it is reset. Ordinary
    /// requests are only counted, in any number.
    pub marks: u16,
    /// Most bytes of text that are remembered of the session's state, so that it can be had again
    /// on another connection: credentials and names, for a while twice. A session that says more
    /// can still be followed, but not carried over. Zero for sessions that nobody will carry over:
    /// nothing is remembered.
    pub memory: u16,
    /// Most bytes that the names of channels and patterns may take which are remembered, so that
    /// the session can subscribe to them again on another connection; counted in whole kilobytes. A
    /// session beyond it, or one that comes when all sessions together remember too much, can still
    /// be followed, but not carried over while it is subscribed. Zero: no subscribed session is.
    pub names: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            inline_bytes: 64 * 1024,
            bulk_bytes: 512 * 1024 * 1024,
            elements: 1 << 30,
            depth: 128,
            marks: 16 * 1024,
            memory: 0,
            names: 0,
        }
    }
}

/// The limits as the scanners hold them, in twenty bytes a session, and none beyond what they can
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

/// How much may be remembered, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyLimits {
    /// Of the session's state.
    pub(crate) text: usize,
    /// Of its subscriptions.
    pub(crate) names: usize,
}

impl Bounds {
    pub(crate) fn copy_limits(&self) -> CopyLimits {
        let text = usize::from(self.memory);
        CopyLimits { text, names: if text == 0 { 0 } else { usize::from(self.names) * KILOBYTE } }
    }
}

const KILOBYTE: usize = 1024;

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
