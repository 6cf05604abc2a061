//! Tracks what a session uses that only its server has: cursors of unfinished iterations, the
//! connection's ID, and the script cache.
//!
//! A cursor is a position in the hash table of the server that returned it, and every server has
//! its own hash seed (`redis:src/dict.c`, `dictScan`). Another server accepts the same cursor and
//! silently skips keys. A session that holds a cursor is therefore pinned.
//!
//! All iterations of a session are tracked in one number: the sum of the digests of the cursors
//! that were returned, minus those that were sent back. It is zero if every cursor has been used,
//! however iterations are interleaved. An iteration that is never finished, or is finished on
//! another connection, leaves a number other than zero; the session stays pinned, without any
//! allocation.
//!
//! An unknown command may leave any state. It pins the session permanently.
//!
//! A session that sends `CLIENT ID`, or that loads or looks up a script, is assumed to rely on the
//! result from that request on. A script does not pin a session that received `NOSCRIPT` before,
//! because its client has a fallback and will use it again. Running a script pins only within a
//! transaction, where the client has no fallback for `NOSCRIPT`.

use crate::commands::class::Class;
use crate::commands::cursor::{digest, number};
use crate::ledger::session_state::Pin;

/// Flags of a session.
pub(crate) mod flag {
    /// The client sent `CLIENT ID`.
    pub(crate) const CLIENT_ID: u8 = 1;
    /// The client may rely on a cached script.
    pub(crate) const SCRIPT: u8 = 1 << 1;
    /// The client received `NOSCRIPT` and continued.
    pub(crate) const FALLS_BACK: u8 = 1 << 2;
    /// The client added scripts to the cache of this server.
    pub(crate) const CACHED_HERE: u8 = 1 << 3;
    /// The client added scripts to the cache of a former server.
    pub(crate) const CACHED_ELSEWHERE: u8 = 1 << 4;
    /// In a transaction, the client called a script that only a former server may have.
    pub(crate) const FORMER_SCRIPT: u8 = 1 << 5;
    /// The client sent something that is not a request.
    pub(crate) const INVALID: u8 = 1 << 6;
    /// The client was told the ID of this connection, whether it relies on it or not.
    pub(crate) const KNOWS_ID: u8 = 1 << 7;
}

/// What pins one session to its server.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ServerAffinity {
    /// The sum of the digests of all cursors returned and not sent back, modulo 2^32.
    cursors: u32,
    /// A permanent pin: a cursor may have been returned unseen, or an unknown command was sent. Of
    /// an opaque session: the reason why it is opaque.
    pub(super) permanent: Option<Pin>,
    flags: u8,
}

impl ServerAffinity {
    pub(crate) fn is(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Sets the flag if `on`; it is not cleared otherwise.
    pub(crate) fn set(&mut self, flag: u8, on: bool) {
        self.flags |= if on { flag } else { 0 };
    }

    pub(crate) fn clear(&mut self, flag: u8) {
        self.flags &= !flag;
    }

    /// A request of that class was sent.
    pub(crate) fn sent(&mut self, class: Class) {
        match class {
            Class::Unknown => self.pin_permanently(Pin::UnknownCommand),
            Class::ClientId => self.set(flag::CLIENT_ID | flag::KNOWS_ID, true),
            Class::Hello | Class::ClientInfo => self.set(flag::KNOWS_ID, true),
            Class::Script => {
                self.set(flag::SCRIPT, !self.is(flag::FALLS_BACK));
                self.set(flag::CACHED_HERE, true);
            }
            Class::Eval => self.set(flag::CACHED_HERE, true),
            _ => {}
        }
    }

    /// A request of that class was queued in a transaction.
    pub(crate) fn queued(&mut self, class: Class) {
        self.set(flag::SCRIPT, class.runs_script());
        self.set(flag::FORMER_SCRIPT, class == Class::EvalSha && self.is(flag::CACHED_ELSEWHERE));
    }

    /// An error was received, which may be `NOSCRIPT`.
    pub(crate) fn error_received(&mut self, error: &[u8]) {
        self.set(flag::FALLS_BACK, error.starts_with(b"NOSCRIPT "));
    }

    /// The session was carried here.
    pub(crate) fn carry_from(&mut self, before: Self) {
        self.flags = before.flags & (flag::CLIENT_ID | flag::FALLS_BACK | flag::CACHED_ELSEWHERE);
        self.set(flag::CACHED_ELSEWHERE, before.is(flag::CACHED_HERE));
    }

    /// The reply to the cursor with the digest `sent` contained the cursor `returned`, possibly
    /// with a carriage return.
    pub(crate) fn cursor_returned(&mut self, sent: u32, returned: Option<&[u8]>) {
        let returned = returned.map(|cursor| cursor.strip_suffix(b"\r").unwrap_or(cursor));
        match returned.filter(|cursor| number(cursor).is_some()) {
            Some(cursor) => {
                self.cursors = self.cursors.wrapping_sub(sent).wrapping_add(digest(cursor));
            }
            None => self.pin_permanently(Pin::Cursor),
        }
    }

    /// The cursor with that digest was deleted.
    pub(crate) fn cursor_closed(&mut self, sent: u32) {
        self.cursors = self.cursors.wrapping_sub(sent);
    }

    pub(crate) fn pin_permanently(&mut self, pin: Pin) {
        self.permanent = self.permanent.or(Some(pin));
    }

    /// Why the session is opaque, if it is.
    pub(crate) fn opaque_reason(self) -> Pin {
        let makes_opaque =
            |pin| matches!(pin, Pin::Monitor | Pin::Replication | Pin::Debugger | Pin::NotFollowed);
        self.permanent.filter(|pin| makes_opaque(*pin)).unwrap_or(Pin::NotResp)
    }

    /// What pins the session. `library` is the name of its client library.
    pub(crate) fn pin(self, library: &[u8]) -> Option<Pin> {
        // StackExchange.Redis requests the ID of each new connection and only logs it.
        let client_id = self.is(flag::CLIENT_ID) && !library.starts_with(b"SE.Redis");
        let pins = [
            (self.cursors != 0, Pin::Cursor),
            (client_id, Pin::ClientId),
            (self.is(flag::SCRIPT), Pin::Script),
        ];
        self.permanent.or_else(|| pins.into_iter().find(|(is, _)| *is).map(|(_, pin)| pin))
    }
}

#[cfg(test)]
mod tests {
    use super::ServerAffinity;
    use crate::commands::cursor::digest;

    #[test]
    fn unpins_when_every_cursor_was_sent_back() {
        let mut affinity = ServerAffinity::default();
        let cursors: Vec<String> = (1..500_u64).map(|it| (it * 7919).to_string()).collect();
        cursors.iter().for_each(|cursor| affinity.cursor_returned(0, Some(cursor.as_bytes())));
        let is_pinned = |affinity: ServerAffinity| affinity.pin(b"").is_some();
        for cursor in cursors.iter().rev() {
            assert!(is_pinned(affinity));
            affinity.cursor_returned(digest(cursor.as_bytes()), Some(b"0\r"));
        }
        assert!(!is_pinned(affinity));
        affinity.cursor_returned(0, Some(b"abc"));
        assert!(is_pinned(affinity));
    }
}
