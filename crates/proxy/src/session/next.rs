//! What a session does after its pump has stopped, or after a rest.

use crate::end_reason::EndReason;
use crate::invariant;
use crate::session::carry::CarryState;
use crate::session::connect::{Again, Why};
use crate::session::pump::{Left, Stop, Stopped};
use crate::session::rest::{Resting, Woken};
use crate::session::upstream::Upstream;
use crate::session::{Next, Session, SessionEnd};
use crate::shared::Promotion;

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
        // A target that is lost receives nothing more: the kernel would send again what a
        // partitioned master has not acknowledged, when it comes back.
        if matches!(
            stop.reason(),
            EndReason::Fenced | EndReason::ReplyDropped | EndReason::TargetUnresponsive
        ) {
            upstream.reset_on_close();
        }
        match left.map(|left| *left) {
            Some(Left::Resting(resting)) => Next::Rest(Box::new(resting)),
            Some(Left::State(state, promotion)) => {
                self.continue_with(stop, state, promotion, upstream)
            }
            Some(Left::Refused(refused)) => {
                // Nothing is undelivered but our last push.
                let (reason, refused) = (stop.reason(), Some(refused));
                let end =
                    SessionEnd { reason, undelivered: Vec::new(), refused, push: undelivered };
                Next::Close(self.not_continued(end))
            }
            Some(Left::CleanConnection) => {
                if let Some(target) = &self.target {
                    self.give_up(upstream, target, true);
                }
                Next::Close(EndReason::ClientClosed.into())
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
                Next::Close(SessionEnd { undelivered, ..reason.into() })
            }
        }
    }

    /// The session continues with this state.
    fn continue_with(
        &mut self,
        stop: Stop,
        state: CarryState,
        promotion: Option<Promotion>,
        old: Upstream,
    ) -> Next {
        match (stop, self.target.take()) {
            (Stop::Return, Some(here)) => Next::Pump(self.return_to_shared(state, old, here)),
            (Stop::Rebalance, Some(here)) => {
                Next::Connect(Box::new(Why::Rebalance(here, old, state)))
            }
            (_, here) => {
                self.target = here;
                let returns_after = self.returns_after(promotion, &old);
                Next::Connect(Box::new(Why::Again(Again { state, old, promotion, returns_after })))
            }
        }
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
                Next::Close(woken.err().unwrap_or_else(lost).into())
            }
        }
    }
}
