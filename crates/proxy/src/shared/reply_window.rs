//! How many requests of one client may be in flight on a connection.
//!
//! A client that pipelines requests with large replies has to be recognized before all of its
//! replies are on their way: they arrive whether it reads or not, and nothing that has begun can
//! change to another connection. So only a few of its requests are in flight at first, and twice
//! as many each time as many replies as that have arrived, as long as replies of that size would
//! be few bytes.

use super::member_state::{LARGE_REPLIES, MAX_REPLIES};

/// Requests in flight of a client of whose replies nothing is known. As many as clients often send
/// at once.
const FIRST: u32 = 8;

/// The most: if their replies are unexpectedly large, but not so large that the client gets its own
/// connection, it can keep all of them, and other clients do not wait until it has read them.
#[expect(clippy::cast_possible_truncation, reason = "128")]
const MOST: u32 = (MAX_REPLIES / LARGE_REPLIES) as u32;

/// Bytes of the replies to all of them, if they are as large as the last ones.
const BYTES: usize = 1024 * 1024;

/// The window of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplyWindow {
    size: u32,
    /// Replies since the size was last decided, and their bytes.
    replies: u32,
    bytes: usize,
}

impl Default for ReplyWindow {
    fn default() -> Self {
        Self { size: FIRST, replies: 0, bytes: 0 }
    }
}

impl ReplyWindow {
    /// The number of requests that may be sent while that many are in flight.
    #[inline]
    pub(crate) fn room(&self, in_flight: u32) -> u32 {
        self.size.saturating_sub(in_flight)
    }

    /// Bytes of replies have arrived, and the end of that many replies.
    #[inline]
    pub(crate) fn received(&mut self, bytes: usize, ended: u32) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.replies = self.replies.saturating_add(ended);
        if self.replies >= self.size {
            let fitting = BYTES.saturating_mul(self.replies as usize) / self.bytes.max(1);
            let most = u32::try_from(fitting).unwrap_or(MOST).clamp(FIRST, MOST);
            let size = self.size.saturating_mul(2).min(most);
            *self = Self { size, replies: 0, bytes: 0 };
        } else if self.bytes > BYTES {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_with_small_replies() {
        let mut window = ReplyWindow::default();
        let mut sizes = Vec::new();
        for _ in 0..7 {
            let size = window.room(0);
            sizes.push(size);
            (0..size).for_each(|_| window.received(4096, 1));
        }
        assert_eq!(sizes, [8, 16, 32, 64, 128, 128, 128]);
        assert_eq!((window.room(127), window.room(128), window.room(300)), (1, 0, 0));
    }

    #[test]
    fn shrinks_with_large_replies() {
        let mut window = ReplyWindow::default();
        (0..8).for_each(|_| window.received(5, 1));
        assert_eq!(window.room(0), 16);
        (0..16).for_each(|_| window.received(50_000, 1));
        assert_eq!(window.room(0), 20);
        (0..20).for_each(|_| window.received(50_000, 1));
        assert_eq!(window.room(0), 20);
        // Again small ones, and then one that is very large on its own, before its end.
        (0..60).for_each(|_| window.received(5, 1));
        assert_eq!(window.room(0), 80);
        window.received(BYTES + 1, 0);
        assert_eq!(window, ReplyWindow::default());
    }
}
