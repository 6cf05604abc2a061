//! The wire of a shared connection, which takes any part of a write, and the server at its end.

use std::io;
use std::task::{Context, Poll};

use crate::io::stream::ByteStream;
use crate::shared::isolation::server::{may_be_shared, parse, reply};

/// A wire and its server.
#[derive(Debug, Default)]
pub(super) struct Wire {
    /// Bytes that the server has received and not executed.
    to_server: Vec<u8>,
    /// Bytes of the server that were not read.
    from_server: Vec<u8>,
    /// How many bytes it takes now.
    pub(super) takes: usize,
    /// How many bytes a read returns at most.
    pub(super) gives: usize,
    /// It encrypts: a write that has to wait is sent later as a whole, or never.
    pub(super) encrypts: bool,
    /// The write that waits.
    begun: Vec<u8>,
    /// Whether requests may be sent now.
    pub(super) gate_open: bool,
}

impl Wire {
    pub(super) fn new(encrypts: bool) -> Self {
        Self { encrypts, gate_open: true, ..Self::default() }
    }

    /// The server executes up to `most` requests, and passes each to `executed`.
    pub(super) fn serve(&mut self, most: usize, mut executed: impl FnMut(&[u8])) {
        for _ in 0..most {
            let Some((words, len)) = parse(&self.to_server) else { break };
            assert!(may_be_shared(&words), "not shared: {words:?}");
            executed(&self.to_server[..len]);
            self.to_server.drain(..len);
            self.from_server.extend(reply(&words));
            if words[0] == b"INCR" {
                self.from_server.extend(b">2\r\n+notice\r\n:1\r\n");
            }
        }
    }

    /// Whether the server has been sent, or is being sent, a script, which may answer anything.
    pub(super) fn has_script(&self) -> bool {
        let has = |bytes: &[u8]| bytes.windows(4).any(|word| word == b"EVAL");
        has(&self.to_server) || has(&self.begun)
    }

    /// The server sends what no request asked for.
    pub(super) fn lie(&mut self, bytes: &[u8]) {
        self.from_server.extend_from_slice(bytes);
    }

    /// Whether bytes of the server wait.
    pub(super) fn has_replies(&self) -> bool {
        !self.from_server.is_empty()
    }
}

impl ByteStream for Wire {
    fn update_readiness(&mut self, _cx: &mut Context<'_>) {}

    fn is_readable(&self) -> bool {
        self.gives > 0 && self.has_replies()
    }

    fn poll_read(&mut self, _cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let len = buffer.len().min(self.gives).min(self.from_server.len());
        if len == 0 {
            return Poll::Pending;
        }
        self.gives -= len;
        buffer[..len].copy_from_slice(&self.from_server[..len]);
        self.from_server.drain(..len);
        Poll::Ready(Ok(len))
    }

    fn poll_write(&mut self, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        assert!(self.gate_open, "a write while the gate is closed");
        assert!(!bytes.is_empty() && bytes.starts_with(&self.begun), "not the write that waits");
        if self.takes == 0 {
            if self.encrypts && self.begun.is_empty() {
                self.begun = bytes.to_vec();
            }
            return Poll::Pending;
        }
        let len = if self.encrypts {
            self.takes -= 1;
            self.begun.len().max(bytes.len().min(1000))
        } else {
            bytes.len().min(self.takes)
        };
        if !self.encrypts {
            self.takes -= len;
        }
        self.begun.clear();
        self.to_server.extend_from_slice(&bytes[..len]);
        Poll::Ready(Ok(len))
    }

    fn begun_write(&self) -> usize {
        self.begun.len()
    }

    fn poll_shutdown(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn peer_closed(&self) -> bool {
        false
    }

    fn has_unread(&self) -> bool {
        self.has_replies()
    }
}
