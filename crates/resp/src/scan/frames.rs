//! Finds the frames of a server, for code that reads one connection instead of tracking a session.
//! Discovery uses it to know that a reply is complete and within bounds before it is decoded.

use crate::scan::frame_runs;
use crate::scan::limits::{Bounds, Limits};
use crate::scan::message_kind::MessageKind;
use crate::scan::reply::{FrameScan, ReplyScanner};

/// The bytes are not RESP, or exceed a limit. Nothing more can be read from that connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotResp;

/// Finds the ends of frames from a server, incrementally.
#[derive(Debug)]
pub struct Frames {
    replies: ReplyScanner,
    limits: Bounds,
    failed: bool,
    /// Frames that are nested more deeply than the limit are refused.
    flat: bool,
}

impl Frames {
    /// At the beginning of a connection.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            replies: ReplyScanner::default(),
            limits: Bounds::from(&limits),
            failed: false,
            flat: false,
        }
    }

    /// Refuses frames that are nested more deeply than the limit, which a decoder would follow
    /// with its own stack.
    #[must_use]
    pub fn refuse_deeper(self) -> Self {
        Self { flat: true, ..self }
    }

    /// Scans `bytes`, which follow those given before. `Some(n)`: a frame ended after the first `n`
    /// bytes, and the rest was not read. `None`: all bytes were read, and the frame is incomplete.
    ///
    /// # Errors
    ///
    /// [`NotResp`], and so for all further calls.
    pub fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, NotResp> {
        let mut input = bytes;
        if self.failed {
            return Err(NotResp);
        }
        let scan = self.replies.scan(&mut input, &self.limits, false);
        self.failed = scan == FrameScan::Invalid || (self.flat && self.replies.stack.has_merged());
        match scan {
            _ if self.failed => Err(NotResp),
            FrameScan::Frame => Ok(Some(bytes.len() - input.len())),
            _ => Ok(None),
        }
    }

    /// Whether the bytes so far end at the end of a frame.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        !self.failed && self.replies.at_boundary()
    }

    /// Whether the frame that ended last is a message of a subscription or the confirmation of one.
    #[must_use]
    pub fn is_of_subscription(&self) -> bool {
        self.replies.message().0 != MessageKind::Other
    }

    /// Reads up to `most` short and frequent replies at the beginning of `bytes`, if these begin at
    /// the end of a frame. Returns the number of replies and their length. The rest was not read.
    #[inline]
    pub fn run(&mut self, bytes: &[u8], most: u32) -> (u32, usize) {
        if !self.at_boundary() {
            return (0, 0);
        }
        let (count, rest) = frame_runs::replies(bytes, most, &self.limits);
        if count > 0 {
            self.replies.skip_run();
        }
        (count, bytes.len() - rest.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_one_frame_end_per_call_in_any_pieces() {
        let wire = b"*2\r\n$3\r\nabc\r\n:1\r\n+OK\r\n";
        let mut whole = Frames::new(Limits::default());
        assert_eq!(whole.end(wire), Ok(Some(17)));
        assert_eq!(whole.end(&wire[17..]), Ok(Some(5)));
        let mut bytewise = Frames::new(Limits::default());
        let ends: Vec<usize> =
            (0..wire.len()).filter(|at| bytewise.end(&wire[*at..=*at]) == Ok(Some(1))).collect();
        assert_eq!(ends, [16, 21]);
    }

    #[test]
    fn refuses_invalid_and_oversized_frames() {
        let limits = Limits { depth: 4, elements: 8, bulk_bytes: 16, ..Limits::default() };
        for wire in [
            &b"HTTP/1.1 200 OK\r\n"[..],
            b"*99\r\n",
            b"$17\r\n",
            b"*-7\r\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
        ] {
            let mut frames = Frames::new(limits).refuse_deeper();
            assert_eq!(frames.end(wire), Err(NotResp), "{}", String::from_utf8_lossy(wire));
            assert_eq!(frames.end(b"+OK\r\n"), Err(NotResp), "nothing can be read after it");
        }
    }
}
