//! What a client has said about itself, for a list of sessions.
//!
//! The password has no accessor outside of the replay.

use crate::ledger::Ledger;
use crate::ledger::replay_state::{AuthMethod, ReplayState, Text, part};

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

/// The user of a connection that has named none.
const DEFAULT_USER: &[u8] = b"default";

impl ClientFacts<'static> {
    /// A client that has said nothing.
    const NEW: Self = Self {
        user: Some(DEFAULT_USER),
        name: Some(b""),
        library: Some(b""),
        library_version: Some(b""),
        database: Some(0),
        protocol: None,
    };
}

impl Ledger {
    /// What the client has said about itself.
    #[must_use]
    pub fn client_facts(&self) -> ClientFacts<'_> {
        if self.is_opaque() {
            return ClientFacts::default();
        }
        let protocol = Some(if self.matcher.uses_resp3() { 3 } else { 2 });
        if self.limits.memory == 0 {
            return ClientFacts { protocol, ..ClientFacts::default() };
        }
        let facts = self.matcher.recorded_state().map_or(ClientFacts::NEW, of);
        ClientFacts { protocol, ..facts }
    }

    /// The requests that have ended since [`take_counts`](Self::take_counts).
    #[must_use]
    pub fn uncounted_requests(&self) -> u32 {
        self.matcher.uncounted_requests()
    }
}

fn of(state: &ReplayState) -> ClientFacts<'_> {
    let sure = |part: u8, text: Text| (!state.is_doubted(part)).then(|| state.text(text));
    let user = match state.auth {
        AuthMethod::User => sure(part::USER, Text::User),
        AuthMethod::None | AuthMethod::Password => {
            (!state.is_doubted(part::USER)).then_some(DEFAULT_USER)
        }
    };
    ClientFacts {
        user,
        name: sure(part::NAME, Text::Name),
        library: sure(part::LIB, Text::LibName),
        library_version: sure(part::LIB, Text::LibVersion),
        database: (!state.is_doubted(part::DB)).then_some(state.db),
        protocol: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::limits::Limits;

    fn ledger(memory: u16) -> Ledger {
        Ledger::new(&Limits { memory, ..Limits::default() })
    }

    #[test]
    fn reports_what_the_client_said_and_no_password() {
        let mut ledger = ledger(1024);
        assert_eq!(ledger.client_facts(), ClientFacts { protocol: Some(2), ..ClientFacts::NEW });
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
        assert_eq!(ledger.client_facts().user, Some(DEFAULT_USER));
        assert!(!format!("{:?}", ledger.client_facts()).contains("hunter2"));
    }

    #[test]
    fn reports_nothing_that_is_in_doubt() {
        let mut doubtful = ledger(1024);
        // Queued in a transaction: its effect is not known.
        doubtful.request(b"MULTI\r\nSELECT 3\r\nEXEC\r\n");
        doubtful.reply(b"+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
        assert_eq!(doubtful.client_facts().database, None);
        assert_eq!(doubtful.client_facts().user, Some(DEFAULT_USER));
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
}
