//! Two views of what a client has set for its connection: for a list of sessions, and for sessions
//! that could share a connection.
//!
//! A session may share a connection if nothing is in flight and the server keeps nothing for its
//! connection but state that can be set on any other. What pins a session to its *server*, an
//! iteration under way or a cached script, does not pin it to its connection.
//!
//! Only the replay and shared connections have access to the password.

use crate::ledger::Ledger;
use crate::ledger::replay_state::{AuthMethod, ReplayState, Text, part};
use crate::ledger::session_state::{Pin, SessionState};

/// What is known of a client. A field is `None` if it is not known: the session is opaque, records
/// nothing, or has changed it in a way that could not be tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientFacts<'a> {
    /// The user; `default` if it has not authenticated, or with a password alone.
    pub user: Option<&'a [u8]>,
    /// The name (`CLIENT SETNAME`); empty if it has none.
    pub name: Option<&'a [u8]>,
    /// The name of its library (`CLIENT SETINFO`); empty if it has not said it.
    pub library: Option<&'a [u8]>,
    /// The version of its library; empty if it has not said it.
    pub library_version: Option<&'a [u8]>,
    /// The database.
    pub database: Option<u32>,
    /// The version of the protocol, 2 or 3.
    pub protocol: Option<u8>,
}

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
    /// What the client has said about itself.
    #[must_use]
    pub fn client_facts(&self) -> ClientFacts<'_> {
        if self.is_opaque() {
            return ClientFacts::default();
        }
        let protocol = Some(if self.matcher.connection.resp3 { 3 } else { 2 });
        if self.limits.memory == 0 {
            return ClientFacts { protocol, ..ClientFacts::default() };
        }
        let state = self.recorded_state();
        let known = |parts: u8| (!state.is_doubted(parts)).then_some(state);
        let text = |part: u8, text: Text| known(part).map(|it| it.text(text));
        ClientFacts {
            user: known(part::USER).map(ReplayState::user),
            name: text(part::NAME, Text::Name),
            library: text(part::LIB, Text::LibName),
            library_version: text(part::LIB, Text::LibVersion),
            database: known(part::DB).map(|it| it.db),
            protocol,
        }
    }

    /// The state in which the session may share a connection now; `None` if it may not, or if
    /// [`Limits::memory`](crate::Limits::memory) is zero.
    #[must_use]
    pub fn shared_state(&self) -> Option<SharedState<'_>> {
        let state = self.recorded_state();
        let may = self.limits.memory > 0
            && self.session_state() == SessionState::Quiet
            && matches!(self.pin(), None | Some(Pin::Cursor | Pin::Script))
            && !state.is_in_doubt()
            && !state.is_on(part::NO_EVICT);
        let is_authenticated = state.auth != AuthMethod::None;
        may.then(|| SharedState {
            credentials: is_authenticated.then(|| (state.user(), state.text(Text::Password))),
            db: state.db,
            resp3: state.resp3,
            read_only: state.is_on(part::READ_ONLY),
            no_touch: state.is_on(part::NO_TOUCH),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;

    fn ledger(memory: u16) -> Ledger {
        Ledger::new(&Limits { memory, ..Limits::default() })
    }

    #[test]
    fn reports_what_the_client_said_and_no_password() {
        let mut ledger = ledger(1024);
        let silent = ClientFacts {
            user: Some(b"default"),
            name: Some(b""),
            library: Some(b""),
            library_version: Some(b""),
            database: Some(0),
            protocol: Some(2),
        };
        assert_eq!(ledger.client_facts(), silent);
        for (request, reply) in [
            ("HELLO 3 AUTH alice hunter2 SETNAME shop\r\n", "%1\r\n+proto\r\n:3\r\n"),
            ("SELECT 7\r\n", "+OK\r\n"),
            ("CLIENT SETINFO LIB-NAME redis-py\r\n", "+OK\r\n"),
            ("CLIENT SETINFO LIB-VER 5.1\r\n", "+OK\r\n"),
        ] {
            ledger.request(request.as_bytes());
            ledger.reply(reply.as_bytes());
        }
        let facts = ledger.client_facts();
        assert_eq!(
            facts,
            ClientFacts {
                user: Some(b"alice"),
                name: Some(b"shop"),
                library: Some(b"redis-py"),
                library_version: Some(b"5.1"),
                database: Some(7),
                protocol: Some(3),
            }
        );
        // A password alone belongs to the default user; a refused request changes nothing.
        ledger.request(b"AUTH hunter2\r\nAUTH bob wrong\r\n");
        ledger.reply(b"+OK\r\n-WRONGPASS\r\n");
        assert_eq!(ledger.client_facts().user, Some(&b"default"[..]));
        assert!(!format!("{:?}", ledger.client_facts()).contains("hunter2"));
    }

    #[test]
    fn reports_nothing_that_is_in_doubt() {
        let mut doubtful = ledger(1024);
        // Queued in a transaction: its effect is not known.
        doubtful.request(b"MULTI\r\nSELECT 3\r\nEXEC\r\n");
        doubtful.reply(b"+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
        assert_eq!(doubtful.client_facts().database, None);
        assert_eq!(doubtful.client_facts().user, Some(&b"default"[..]));
        let mut opaque = ledger(1024);
        opaque.request(b"MONITOR\r\n");
        opaque.reply(b"+OK\r\n");
        assert_eq!(opaque.client_facts(), ClientFacts::default());
        let unrecorded = ledger(0);
        let known = ClientFacts { protocol: Some(2), ..ClientFacts::default() };
        assert_eq!(unrecorded.client_facts(), known);
    }

    #[test]
    fn counts_requests_that_were_not_taken_yet() {
        let mut ledger = ledger(1024);
        ledger.request(b"GET a\r\nGET b\r\n");
        assert_eq!(ledger.uncounted_requests(), 2);
        ledger.take_counts();
        assert_eq!(ledger.uncounted_requests(), 0);
    }

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
