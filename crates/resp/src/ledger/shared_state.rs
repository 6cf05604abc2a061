//! What sessions must have in common to share a connection, and whether a session may share one.
//!
//! A session may if nothing is in flight and the server keeps nothing for its connection but state
//! that can be set on any other. What pins a session to its *server*, an iteration under way or a
//! cached script, does not pin it to its connection.

use crate::ledger::Ledger;
use crate::ledger::pin::Pin;
use crate::ledger::replay_state::{AuthMethod, ReplayState, Text, part};
use crate::ledger::session_state::SessionState;

/// The state that sessions on one connection have in common. Names of clients and libraries are not
/// part of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SharedState<'a> {
    /// User and secret, if the client has sent any. `AUTH` without a user means `default`.
    pub credentials: Option<(&'a [u8], &'a [u8])>,
    /// The database.
    pub db: u32,
    /// Whether replies are those of RESP3.
    pub resp3: bool,
    /// `READONLY`.
    pub read_only: bool,
    /// `CLIENT NO-TOUCH ON`.
    pub no_touch: bool,
}

impl std::fmt::Debug for SharedState<'_> {
    /// Omits the credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedState").field("db", &self.db).field("resp3", &self.resp3).finish()
    }
}

impl Ledger {
    /// The state in which the session may share a connection now; `None` if it may not, or if
    /// [`Limits::memory`](crate::Limits::memory) is zero.
    #[must_use]
    pub fn shared_state(&self) -> Option<SharedState<'_>> {
        let may = self.limits.memory > 0
            && self.session_state() == SessionState::Quiet
            && matches!(self.pin(), None | Some(Pin::Cursor | Pin::Script));
        if !may {
            return None;
        }
        match self.matcher.recorded_state() {
            None => Some(SharedState {
                credentials: None,
                db: 0,
                resp3: false,
                read_only: false,
                no_touch: false,
            }),
            Some(state) => of_recorded(state),
        }
    }
}

fn of_recorded(state: &ReplayState) -> Option<SharedState<'_>> {
    let secret = state.text(Text::Password);
    if state.is_in_doubt() || state.is_on(part::NO_EVICT) {
        return None;
    }
    Some(SharedState {
        credentials: match state.auth {
            AuthMethod::None => None,
            AuthMethod::Password => Some((b"default", secret)),
            AuthMethod::User => Some((state.text(Text::User), secret)),
        },
        db: state.db,
        resp3: state.resp3,
        read_only: state.is_on(part::READ_ONLY),
        no_touch: state.is_on(part::NO_TOUCH),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;

    fn after(memory: u16, exchanges: &[(&str, &str)]) -> Ledger {
        let mut ledger = Ledger::new(&Limits { memory, ..Limits::default() });
        for (request, reply) in exchanges {
            ledger.request(format!("{request}\r\n").as_bytes());
            ledger.reply(reply.as_bytes());
        }
        ledger
    }

    #[test]
    fn reports_what_the_server_has_accepted() {
        let hello = "%1\r\n+proto\r\n:3\r\n";
        let ledger = after(
            500,
            &[
                ("AUTH me old", "-WRONGPASS x\r\n"),
                ("HELLO 3 AUTH you new", hello),
                ("SELECT 7", "+OK\r\n"),
                ("CLIENT NO-TOUCH ON", "+OK\r\n"),
                ("SELECT 99", "-ERR out of range\r\n"),
                ("CLIENT SETNAME n", "+OK\r\n"),
            ],
        );
        let state = ledger.shared_state().unwrap();
        assert_eq!(state.credentials, Some((&b"you"[..], &b"new"[..])));
        assert_eq!(
            (state.db, state.resp3, state.read_only, state.no_touch),
            (7, true, false, true)
        );
        assert!(!format!("{state:?}").contains("new"));
        let password = after(500, &[("AUTH p", "+OK\r\n")]);
        let state = password.shared_state().unwrap();
        assert_eq!(state.credentials, Some((&b"default"[..], &b"p"[..])));
    }

    #[test]
    fn refuses_whatever_needs_its_connection() {
        let cases: &[&[(&str, &str)]] = &[
            &[("GET k", "")],
            &[("GET k", "$5\r\nab")],
            &[("MULTI", "+OK\r\n")],
            &[("WATCH k", "+OK\r\n")],
            &[("CLIENT ID", ":7\r\n")],
            &[("CLIENT NO-EVICT ON", "+OK\r\n")],
            &[("CLIENT TRACKING ON", "+OK\r\n")],
            &[("CLIENT REPLY OFF", "")],
            &[("SUBSCRIBE c", "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n")],
            &[("WAIT 0 0", ":0\r\n")],
            &[("NOSUCH", "+OK\r\n")],
            &[("QUIT", "+OK\r\n")],
            &[("AUTH", "")],
        ];
        for exchanges in cases {
            assert_eq!(after(500, exchanges).shared_state(), None, "{exchanges:?}");
        }
        assert_eq!(after(0, &[]).shared_state(), None, "credentials are not recorded");
        assert!(after(500, &[]).shared_state().is_some());
        // These pin a session to its server only.
        let scan = "*2\r\n$2\r\n17\r\n*0\r\n";
        let others =
            [("SCAN 0", scan), ("SCRIPT LOAD x", "$1\r\nx\r\n"), ("WATCH k", "-ERR x\r\n")];
        for exchange in others {
            assert!(after(500, &[exchange]).shared_state().is_some(), "{exchange:?}");
        }
        let done = [("MULTI", "+OK\r\n"), ("GET k", "+QUEUED\r\n"), ("EXEC", "*1\r\n$-1\r\n")];
        assert!(after(500, &done).shared_state().is_some());
    }
}
