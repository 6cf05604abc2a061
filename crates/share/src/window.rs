//! How many requests of one client may be in flight on a connection.
//!
//! A client that pipelines requests with large replies has to be recognized before all of its
//! replies are on their way: they arrive whether it reads or not, and nothing that has begun can
//! change to another connection. So only a few of its requests are in flight at first, and twice
//! as many each time as many replies as that were small.

/// Requests in flight of a client of whose replies nothing is known.
const FIRST: u32 = 4;

/// The most, which suffices to keep a connection busy: more wait for their turn anyway.
const MOST: u32 = 256;

/// Replies of more than this on average are not small.
const SMALL: usize = 4096;

/// The window of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyWindow {
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
    #[must_use]
    pub fn room(&self, in_flight: u32) -> u32 {
        self.size.saturating_sub(in_flight)
    }

    /// Bytes of replies have arrived, and the end of that many replies.
    #[inline]
    pub fn received(&mut self, bytes: usize, ended: u32) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.replies = self.replies.saturating_add(ended);
        if self.replies >= self.size {
            self.decide();
        } else if self.bytes > MOST as usize * SMALL {
            // Not even one window of small replies is so large.
            *self = Self::default();
        }
    }

    fn decide(&mut self) {
        let is_small = self.bytes / (self.replies.max(1) as usize) <= SMALL;
        let size = if is_small { self.size.saturating_mul(2).min(MOST) } else { FIRST };
        *self = Self { size, replies: 0, bytes: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_with_small_replies() {
        let mut window = ReplyWindow::default();
        let mut sizes = Vec::new();
        for _ in 0..8 {
            let size = window.room(0);
            sizes.push(size);
            (0..size).for_each(|_| window.received(SMALL, 1));
        }
        assert_eq!(sizes, [4, 8, 16, 32, 64, 128, 256, 256]);
        assert_eq!((window.room(255), window.room(256), window.room(300)), (1, 0, 0));
    }

    #[test]
    fn begins_again_with_large_replies() {
        let mut window = ReplyWindow::default();
        (0..12).for_each(|_| window.received(5, 1));
        assert_eq!(window.room(0), 16);
        (0..16).for_each(|_| window.received(SMALL + 1, 1));
        assert_eq!(window.room(0), FIRST);
        (0..8).for_each(|_| window.received(SMALL + 1, 1));
        assert_eq!(window.room(0), FIRST);
        (0..12).for_each(|_| window.received(5, 1));
        // A reply that is very large on its own, before its end.
        window.received(MOST as usize * SMALL + 1, 0);
        assert_eq!(window, ReplyWindow::default());
    }
}
