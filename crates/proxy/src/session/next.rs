//! What a session does after its pump has stopped, or after a rest.

use crate::end_reason::EndReason;
use crate::invariant;
use crate::io::stream::ClientStream;
use crate::session::carry::CarryState;
use crate::session::connect::{Again, Why};
use crate::session::pump::{Left, Stop, Stopped};
use crate::session::rest::{Resting, Woken};
use crate::session::upstream::Upstream;
use crate::session::{Next, Session, SessionEnd, refusals};
use crate::shared::Promotion;

/// Requests that were read and never forwarded, and that are refused before their session ends.
pub(super) struct Refused {
    /// The part of them that was read; it begins at a frame boundary.
    unsent: Vec<u8>,
    /// A transaction is open.
    transaction: bool,
    /// What the client is sent after the refusals: our last push.
    last_bytes: Vec<u8>,
}

impl Refused {
    /// Has the refusals for the client, which are its end.
    pub(super) async fn refuse(self, client: &mut impl ClientStream) -> SessionEnd {
        let Self { unsent, transaction, mut last_bytes } = self;
        let reason = EndReason::HoldTimeout;
        let mut refusals = refusals::refuse(client, unsent, reason, transaction).await;
        refusals.append(&mut last_bytes);
        (reason, refusals)
    }
}

/// Makes sure that a target that is lost receives nothing more: the kernel would send again what a
/// partitioned master has not acknowledged, when it comes back.
fn reset_if_lost(upstream: &mut Upstream, stop: Stop) {
    if let Stop::End(EndReason::Fenced | EndReason::ReplyDropped | EndReason::TargetUnresponsive) =
        stop
    {
        upstream.reset_on_close();
    }
}

impl Session {
    /// Decides what follows a pump, and records what it has done. If the session ends, the
    /// connection to the target is closed here, before the client's.
    pub(super) fn next(&mut self, stopped: Stopped, mut upstream: Upstream) -> Next {
        let Stopped { stop, undelivered, left, bytes, commands, is_answered, uncarried } = stopped;
        self.base.add(bytes.0, bytes.1, commands);
        if stop != Stop::Rest {
            self.base.count_as(None);
        }
        self.uncarried = uncarried;
        reset_if_lost(&mut upstream, stop);
        match left.map(|left| *left) {
            Some(Left::Resting(resting)) => Next::Rest(Box::new(resting)),
            Some(Left::State(state)) => self.continue_with(stop, state, upstream),
            Some(Left::Promoted(state, promotion)) => self.again(state, upstream, Some(promotion)),
            // Our last push comes after what is undelivered.
            Some(Left::Refused { unsent, transaction }) => {
                Next::Refuse(Refused { unsent, transaction, last_bytes: undelivered })
            }
            Some(Left::CleanConnection) => {
                if let Some(target) = &self.target {
                    self.give_up(upstream, target, true);
                }
                Next::Close((EndReason::ClientClosed, undelivered))
            }
            None => {
                if is_answered {
                    upstream.close_answered();
                }
                let reason = match stop {
                    Stop::End(_) | Stop::Leave | Stop::Rebalance => stop.reason(),
                    Stop::Promote | Stop::Return | Stop::Rest => {
                        invariant::report("a session continues with nothing")
                    }
                };
                Next::Close((reason, undelivered))
            }
        }
    }

    /// The session continues with this state.
    fn continue_with(&mut self, stop: Stop, state: CarryState, upstream: Upstream) -> Next {
        match (stop, self.target.take()) {
            (Stop::Return, Some(here)) => Next::Pump(self.return_to_shared(state, upstream, here)),
            (Stop::Rebalance, Some(here)) => {
                Next::Connect(Box::new(Why::Rebalance(here, upstream, state)))
            }
            (_, here) => {
                self.target = here;
                self.again(state, upstream, None)
            }
        }
    }

    /// The session continues over another connection.
    fn again(&mut self, state: CarryState, old: Upstream, promotion: Option<Promotion>) -> Next {
        let (purpose, returns_after) = self.purpose(promotion, &old);
        Next::Connect(Box::new(Why::Again(Again { state, old, purpose, returns_after })))
    }

    /// Decides what follows a rest.
    pub(super) fn woken(&mut self, resting: Resting, woken: Woken) -> Next {
        match (woken, self.target.take()) {
            (Ok(early), Some(target)) => {
                let (upstream, start) = resting.wake(early);
                Next::Pump((target, upstream, start))
            }
            (woken, target) => {
                self.target = target;
                let lost = || invariant::report("a session rests without a target");
                Next::Close((woken.err().unwrap_or_else(lost), Vec::new()))
            }
        }
    }
}
