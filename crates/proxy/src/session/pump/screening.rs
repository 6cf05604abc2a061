//! Requests that are refused to clients: what is forwarded in their place, and the error that the
//! client gets.
//!
//! The ledger finds them ([`Ledger::screen`](resp::Ledger::screen)). The server gets a request
//! that it does not know, so its error stands where that of the refused request belongs, and aborts
//! a transaction as that would; its text is replaced ([`interleave`](super::interleave)).

use std::time::Instant;

use resp::{RefusedCommand, Screened};

use super::Pump;
use crate::io::stream::ByteStream;
use crate::session::upstream::TargetStream;

impl<C: ByteStream, U: TargetStream> Pump<C, U> {
    /// Forwards the bytes that were read before this pump began.
    pub(super) fn screen_early(&mut self, early: Vec<u8>) {
        if early.is_empty() {
            return;
        }
        match self.ledger.screen(&early) {
            None => self.requests.replace_kept(early),
            Some(screened) => self.forward_screened(screened),
        }
    }

    /// Forwards what takes the place of the bytes that were read last.
    #[cold]
    pub(super) fn take_screened(&mut self) {
        if !std::mem::replace(&mut self.has_received, true) {
            self.context.drain.record_arrival();
        }
        if let Some(screened) = self.screened.take() {
            self.forward_screened(*screened);
        }
    }

    fn forward_screened(&mut self, Screened { bytes, refused, broken }: Screened) {
        if !bytes.is_empty() {
            self.requests.keep(&bytes);
        }
        // Nothing more is read: the client's direction ends for it as for the server.
        self.requests.ended |= broken;
        for command in refused {
            self.count_refused(command);
        }
    }

    fn count_refused(&self, command: RefusedCommand) {
        if let Some(count) = self.context.counters.refused_commands.get(command.index()) {
            count.increment();
        }
        let shared = &self.context.shared;
        if let Some(unlogged) = shared.refusal_log.due(command.index(), Instant::now()) {
            let (service, command) = (&*shared.service.name, command.label());
            tracing::warn!(
                service,
                command,
                unlogged,
                "client's command refused, see the key refuse"
            );
        }
    }
}
