//! The ledger of a session that rests: between two requests, with nothing owed.
//!
//! The scanners are at a frame boundary then, there are no marks, and the session is not pinned. So
//! most of a ledger is as in a new one, and is not kept: only what the server was told, and what
//! the client may rely on. A session that rests for hours needs a quarter of the memory.

use crate::commands::refused::Refusals;
use crate::commands::stateless::StatelessCommands;
use crate::ledger::Ledger;
use crate::ledger::affinity::ServerAffinity;
use crate::ledger::maintenance::ConnectionFeatures;
use crate::ledger::matcher::{ConnectionState, Matcher, WaitUse};
use crate::ledger::recorder::Recorder;
use crate::ledger::session_state::{FrameCounts, SessionState};
use crate::scan::limits::Bounds;

/// What is kept of a ledger between two requests.
#[derive(Debug)]
pub struct RestingLedger {
    recorder: Recorder,
    stateless: StatelessCommands,
    refusals: Refusals,
    limits: Bounds,
    features: ConnectionFeatures,
    affinity: ServerAffinity,
    wait_use: WaitUse,
    resp3: bool,
    is_admitted: bool,
}

impl Ledger {
    /// Whether the session may rest: it is quiet, nothing pins it, and all frames that were counted
    /// were taken.
    #[must_use]
    pub fn may_rest(&self) -> bool {
        self.session_state() == SessionState::Quiet
            && self.pin().is_none()
            && !self.is_screening()
            && self.matcher.may_rest()
    }

    /// Takes what has to be kept while the session rests; this ledger is a new one then. `None` if
    /// it [may not](Self::may_rest) rest.
    pub fn rest(&mut self) -> Option<RestingLedger> {
        if !self.may_rest() {
            return None;
        }
        let empty = self.successor();
        let Self { matcher, limits, stateless, refusals, .. } = std::mem::replace(self, empty);
        let is_admitted = matcher.is_admitted();
        let Matcher { recorder, features, affinity, wait_use, connection, .. } = matcher;
        let resp3 = connection.resp3;
        Some(RestingLedger {
            recorder,
            stateless,
            refusals,
            limits,
            features,
            affinity,
            wait_use,
            resp3,
            is_admitted,
        })
    }
}

impl RestingLedger {
    /// The ledger of the session, which continues.
    #[must_use]
    pub fn wake(self) -> Ledger {
        let Self { recorder, stateless, refusals, limits, .. } = self;
        let Self { features, affinity, wait_use, resp3, is_admitted, .. } = self;
        let connection = ConnectionState { resp3, ..ConnectionState::default() };
        let unadmitted = 0_u32.wrapping_sub(u32::from(is_admitted));
        let matcher = Matcher {
            recorder,
            features,
            affinity,
            wait_use,
            connection,
            unadmitted,
            ..Matcher::default()
        };
        Ledger { matcher, limits, stateless, refusals, ..Ledger::default() }
    }
}

impl Matcher {
    /// Whether a quiet session that is not pinned has nothing that a new matcher does not have but
    /// what a [`RestingLedger`] keeps.
    fn may_rest(&self) -> bool {
        self.marks.is_empty()
            && self.suppression.is_settled()
            && !self.may_queue()
            && self.must_end.is_none()
            && !self.features.is_pending()
            && self.counts == FrameCounts::default()
            && self.replay_state().is_some()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, Strategy, any, prop, prop_assert, prop_assert_eq};
    use proptest::proptest;

    use super::*;
    use crate::ledger::model::{COMMANDS, ModelCommand, ModelServer};
    use crate::{Limits, Replay};

    #[test]
    fn keeps_a_quarter_of_a_ledger() {
        assert!(size_of::<RestingLedger>() <= 64, "{}", size_of::<RestingLedger>());
    }

    fn recording() -> Ledger {
        Ledger::new(&Limits { memory: 4096, names: 8192, ..Limits::default() })
    }

    /// What is known of the session, in words.
    fn facts(ledger: &Ledger) -> String {
        let facts = (ledger.session_state(), ledger.owed(), ledger.pin(), ledger.must_end());
        let carried = (ledger.can_be_carried(), ledger.relies_on_former_scripts());
        let is_admitted = ledger.matcher.is_admitted();
        let notices = (ledger.maintenance_handshake(), ledger.failover_announced());
        let shared = ledger.shared_state().map(|it| (it.credentials, it.db, it.resp3));
        let replay = Replay::of(ledger).map(|it| it.requests().to_vec());
        let client = ledger.client_facts();
        format!("{facts:?} {carried:?} {is_admitted} {notices:?} {shared:?} {replay:?} {client:?}")
    }

    fn says() -> impl Strategy<Value = Vec<(ModelCommand, bool)>> {
        let command = (0..COMMANDS, any::<u8>(), prop::bool::weighted(0.1)).prop_map(
            |(what, detail, refused)| ModelCommand {
                what,
                detail: usize::from(detail),
                refused,
                inline: false,
                messages: false,
            },
        );
        prop::collection::vec((command, any::<bool>()), 1..30)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

        #[test]
        fn continues_after_a_rest_as_without_one(says in says()) {
            let (mut server, mut awake, mut resting) =
                (ModelServer::default(), recording(), recording());
            for (say, rests) in says {
                let Some((request, _, frames)) = server.execute(&say) else { continue };
                for ledger in [&mut awake, &mut resting] {
                    ledger.request(&request);
                    for frame in &frames {
                        ledger.reply(&frame.bytes);
                    }
                    ledger.take_counts();
                    ledger.take_pin_change();
                }
                if rests {
                    let quiet = resting.session_state() == SessionState::Quiet;
                    if let Some(kept) = resting.rest() {
                        prop_assert!(quiet);
                        resting = kept.wake();
                    }
                }
                prop_assert_eq!(facts(&awake), facts(&resting));
            }
        }
    }

    #[test]
    fn rests_with_the_state_of_a_handshake_only_between_requests() {
        let mut ledger = recording();
        let handshake = b"*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$2\r\npw\r\n";
        ledger.request(handshake);
        assert!(ledger.rest().is_none(), "a reply is owed");
        ledger.reply(b"%1\r\n+proto\r\n:3\r\n");
        assert!(ledger.rest().is_none(), "a request was not counted");
        ledger.take_counts();
        ledger.request(b"*1\r\n");
        assert!(ledger.rest().is_none(), "a request has begun");
        ledger.request(b"$4\r\nPING\r\n");
        ledger.reply(b"+PONG\r\n");
        ledger.take_counts();
        let ledger = ledger.rest().map(RestingLedger::wake);
        let shared = ledger.as_ref().and_then(Ledger::shared_state).map(|it| it.credentials);
        assert_eq!(shared, Some(Some((&b"me"[..], &b"pw"[..]))));
    }
}
