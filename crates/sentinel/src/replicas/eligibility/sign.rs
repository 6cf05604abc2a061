//! What one replica's answers say to the sessions that are on it: when it answered, whom it
//! follows, whether it is silent.
//!
//! Kept apart from the last answer, which is forgotten after a stall of this process: that a
//! replica was pointed elsewhere in that time has to be noticed afterwards.

use std::time::{Duration, Instant};

use crate::{NodeAddr, Probe, ProbeFailure, Role};

/// What is known of one replica. See the module's header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Signs {
    /// When the youngest question was asked that was answered with a report.
    asked_at: Option<Instant>,
    /// The same for any answer at all. One that refuses us is busy or full, but alive.
    alive_at: Option<Instant>,
    /// Whom it followed by then; `Some(None)` for nobody, as a master.
    follows: Option<Option<NodeAddr>>,
    repointed_at: Option<Instant>,
}

/// What sessions are told of one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sign<'a> {
    pub(crate) addr: &'a NodeAddr,
    /// The process that answered last, where known.
    pub(crate) run_id: Option<&'a str>,
    pub(crate) asked_at: Option<Instant>,
    /// When it was learned that it follows somebody else than before.
    pub(crate) repointed_at: Option<Instant>,
    /// Whom it follows, if anybody.
    pub(crate) follows: Option<&'a NodeAddr>,
    /// It has not answered anything for longer than it may.
    pub(crate) silent: bool,
    /// It is about to be promoted.
    pub(crate) candidate: bool,
}

impl Signs {
    /// Takes in an answer, heard at `now`.
    pub(super) fn hear(&mut self, now: Instant, probe: &Probe) {
        match &probe.outcome {
            Ok(report) => {
                self.alive_at = self.alive_at.max(Some(probe.asked_at));
                if self.asked_at.is_some_and(|at| probe.asked_at < at) {
                    // It was overtaken: what it says is from before.
                    return;
                }
                self.asked_at = Some(probe.asked_at);
                let follows = match &report.role {
                    Role::Master => None,
                    Role::Replica { master, .. } => Some(master.clone()),
                    Role::Unknown => return,
                };
                if self.follows.as_ref().is_some_and(|before| *before != follows) {
                    self.repointed_at = Some(now);
                }
                self.follows = Some(follows);
            }
            Err(ProbeFailure::Denied | ProbeFailure::TurnedAway) => {
                self.alive_at = self.alive_at.max(Some(probe.asked_at));
            }
            Err(ProbeFailure::Unreachable | ProbeFailure::Rejected | ProbeFailure::Silent) => {}
        }
    }

    /// What sessions are told at `now`. `unanswered`: for how long it may be silent; `None` while
    /// it has not been asked yet.
    pub(super) fn tell<'a>(
        &'a self,
        now: Instant,
        (addr, run_id): (&'a NodeAddr, Option<&'a str>),
        unanswered: Option<Duration>,
    ) -> Sign<'a> {
        let since = |at: Instant| now.saturating_duration_since(at);
        let silent = unanswered.is_some_and(|span| self.alive_at.is_none_or(|at| since(at) > span));
        let (asked_at, repointed_at) = (self.asked_at, self.repointed_at);
        let follows = self.follows.as_ref().and_then(Option::as_ref);
        Sign { addr, run_id, asked_at, repointed_at, follows, silent, candidate: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeReport;
    use crate::replicas::eligibility::tests::{follower, ms, node, report};

    fn answer(asked_at: Instant, role: Role) -> Probe {
        Probe { asked_at, outcome: Ok(NodeReport { role, ..report(2, Role::Unknown, 0, "x") }) }
    }

    #[test]
    fn notes_when_a_replica_is_pointed_elsewhere() {
        let (mut signs, start, addr) = (Signs::default(), Instant::now(), node(2));
        let mut hear = |at: u64, role| {
            signs.hear(start + ms(at), &answer(start + ms(at), role));
            signs.tell(start + ms(at), (&addr, None), None).repointed_at
        };
        assert_eq!(hear(1, follower(1, true)), None, "the first answer is no change");
        assert_eq!(hear(2, follower(1, false)), None, "nor is a link that is down");
        assert_eq!(hear(3, Role::Unknown), None);
        assert_eq!(hear(4, follower(3, false)), Some(start + ms(4)));
        assert_eq!(hear(5, follower(3, true)), Some(start + ms(4)));
        assert_eq!(
            hear(6, Role::Master),
            Some(start + ms(6)),
            "a promotion ends all connections, too"
        );
        assert_eq!(hear(7, follower(3, true)), Some(start + ms(7)));
        // An answer that was overtaken by a younger one.
        signs.hear(start + ms(9), &answer(start + ms(2), follower(1, true)));
        let sign = signs.tell(start + ms(9), (&addr, None), None);
        assert_eq!((sign.repointed_at, sign.asked_at), (Some(start + ms(7)), Some(start + ms(7))));
    }

    #[test]
    fn is_silent_only_without_any_answer() {
        let (mut signs, start, addr) = (Signs::default(), Instant::now(), node(2));
        signs.hear(start, &answer(start, follower(1, true)));
        let failed = |failure| Probe { asked_at: start + ms(3000), outcome: Err(failure) };
        let silent =
            |signs: &Signs, at| signs.tell(start + ms(at), (&addr, None), Some(ms(3000))).silent;
        for failure in [ProbeFailure::Silent, ProbeFailure::Unreachable, ProbeFailure::Rejected] {
            signs.hear(start + ms(3000), &failed(failure));
            assert_eq!((silent(&signs, 3000), silent(&signs, 3001)), (false, true), "{failure:?}");
        }
        assert!(
            !signs.tell(start + ms(9000), (&addr, None), None).silent,
            "it was not asked since a stall"
        );
        for failure in [ProbeFailure::TurnedAway, ProbeFailure::Denied] {
            let mut alive = signs.clone();
            alive.hear(start + ms(3000), &failed(failure));
            assert!(!silent(&alive, 3001), "{failure:?} is an answer");
        }
    }
}
