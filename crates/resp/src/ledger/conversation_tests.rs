//! Property test: in generated conversations with a model server, the number of owed replies is
//! exact after every piece.

use proptest::prelude::{ProptestConfig, Strategy, any, prop, prop_assert_eq, proptest};

use crate::ledger::model::{COMMANDS, ModelCommand, ModelServer};
use crate::{Ledger, Limits, SessionState};

/// Both streams of a conversation, with the boundaries of their frames.
#[derive(Default)]
struct Conversation {
    requests: Vec<u8>,
    replies: Vec<u8>,
    /// Ends of the requests that get a reply.
    asked: Vec<usize>,
    /// Ends of the frames that complete the reply to a request.
    answered: Vec<usize>,
    /// Ends of all frames from the server, each with the end of the request that it must follow.
    frames: Vec<(usize, usize)>,
}

impl Conversation {
    fn hold(says: &[ModelCommand]) -> (Self, SessionState) {
        let (mut server, mut all) = (ModelServer::default(), Self::default());
        for say in says {
            let Some((request, answered, frames)) = server.execute(say) else { continue };
            all.requests.extend(request);
            if answered {
                all.asked.push(all.requests.len());
            }
            for frame in frames {
                all.replies.extend(frame.bytes);
                all.frames.push((all.replies.len(), all.requests.len()));
                if frame.answers {
                    all.answered.push(all.replies.len());
                }
            }
        }
        (all, server.session_state())
    }

    /// How many bytes the server can have sent when `sent` bytes of the requests have arrived.
    fn available(&self, sent: usize) -> usize {
        self.frames.iter().take_while(|(_, after)| *after <= sent).last().map_or(0, |(end, _)| *end)
    }

    fn owed(&self, sent: usize, received: usize) -> usize {
        let count = |ends: &[usize], until: usize| ends.iter().filter(|end| **end <= until).count();
        count(&self.asked, sent) - count(&self.answered, received)
    }
}

fn says() -> impl Strategy<Value = Vec<ModelCommand>> {
    let say = (
        0..COMMANDS,
        any::<u8>(),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(what, detail, refused, inline, messages)| ModelCommand {
            what,
            detail: usize::from(detail),
            refused,
            inline,
            messages,
        });
    prop::collection::vec(say, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn counts_owed_replies_exactly_after_every_piece(
        says in says(),
        pieces in prop::collection::vec((prop::bool::weighted(0.6), 1_usize..60), 1..60),
        few_marks in prop::bool::weighted(0.3),
    ) {
        let (talk, session_state) = Conversation::hold(&says);
        let marks = if few_marks { 1 } else { Limits::default().marks };
        let mut ledger = Ledger::new(&Limits { marks, ..Limits::default() });
        let (mut sent, mut received) = (0, 0);
        for (request, size) in pieces.iter().cycle() {
            if *request {
                let end = (sent + size).min(talk.requests.len());
                ledger.request(&talk.requests[sent..end]);
                sent = end;
            } else {
                let end = (received + size).min(talk.available(sent));
                ledger.reply(&talk.replies[received..end]);
                received = end;
            }
            if few_marks && ledger.session_state() == SessionState::Opaque {
                return Ok(());
            }
            prop_assert_eq!(
                ledger.owed(),
                talk.owed(sent, received) as u64,
                "sent {} received {}",
                sent,
                received
            );
            let one_direction = pieces.iter().all(|(direction, _)| direction == request);
            if one_direction || received == talk.replies.len() {
                break;
            }
        }
        ledger.request(&talk.requests[sent..]);
        if few_marks && ledger.session_state() == SessionState::Opaque {
            return Ok(());
        }
        for byte in &talk.replies[received..] {
            ledger.reply(&[*byte]);
            received += 1;
            prop_assert_eq!(ledger.owed(), talk.owed(talk.requests.len(), received) as u64);
        }
        // An unmarked request may be a transaction; then the session is pinned, or subscribed.
        let unknown =
            matches!(ledger.session_state(), SessionState::Pinned | SessionState::Subscribed);
        if !few_marks || !unknown {
            prop_assert_eq!(ledger.session_state(), session_state);
        }
        prop_assert_eq!((ledger.owed(), ledger.allocated()), (0, 0));
        let counts = ledger.take_counts();
        let frames = (counts.replies + counts.pushes) as usize;
        prop_assert_eq!(
            (counts.replies as usize, frames),
            (talk.answered.len(), talk.frames.len())
        );
    }
}
