//! Reports the orders and overrides of one service: answers for their senders, the log and the
//! snapshot.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::warn;

use super::ServiceRuntime;
use crate::clock;
use crate::discovery::snapshot::{OverrideSnapshot, OverridesSnapshot};
use crate::link::links::Links;
use crate::{FollowRefusal, Followed, Machine, OverrideEnd, OverrideNews};

/// How often an override in force is logged.
const REMIND_EVERY: Duration = Duration::from_secs(60);

/// Answers kept until their senders have read them. An order waits a few seconds for its answer,
/// and one service has one order at a time.
const MAX_ANSWERS: usize = 16;

/// The answer to an order, by its number.
pub(crate) type OrderAnswer = (u64, Result<Followed, FollowRefusal>);

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct OverrideReport {
    answers: VecDeque<OrderAnswer>,
    logged_at: Option<Instant>,
    last_end: Option<OverrideEnd>,
}

impl ServiceRuntime {
    /// An order was answered, or an override ended. The sender of an order waits to see it in the
    /// snapshot.
    pub(super) fn report_override(&mut self, news: OverrideNews, links: &Links) {
        self.overrides.record(&self.name, news, &self.machine);
        self.publish(links);
    }

    pub(super) fn remind_of_override(&mut self, now: Instant) {
        self.overrides.remind(now, &self.name, &self.machine);
    }
}

impl OverrideReport {
    fn record(&mut self, service: &Arc<str>, news: OverrideNews, machine: &Machine) {
        match news {
            OverrideNews::Answered(order, answer) => {
                if let Some(it) = machine.override_in_force().filter(|_| answer.is_ok()) {
                    let seconds = it.until.saturating_duration_since(clock::now()).as_secs();
                    warn!(
                        %service, master = %it.addr, seconds,
                        "override in force: following this master by an operator's order, without \
                         the sentinels"
                    );
                    self.logged_at = Some(clock::now());
                }
                if self.answers.len() >= MAX_ANSWERS {
                    self.answers.pop_front();
                }
                self.answers.push_back((order, answer));
            }
            OverrideNews::Ended(master, end) => {
                warn!(%service, %master, reason = end.label(), "override ended");
                self.last_end = Some(end);
            }
        }
    }

    /// Repeats the log line while an override is in force.
    fn remind(&mut self, now: Instant, service: &Arc<str>, machine: &Machine) {
        let Some(it) = machine.override_in_force() else { return };
        let due = |at: Instant| now.saturating_duration_since(at) >= REMIND_EVERY;
        if self.logged_at.is_some_and(due) {
            self.logged_at = Some(now);
            let seconds = it.until.saturating_duration_since(now).as_secs();
            warn!(
                %service, master = %it.addr, seconds,
                "override still in force: the sentinels do not decide the master"
            );
        }
    }

    pub(super) fn snapshot(&self, machine: &Machine) -> OverridesSnapshot {
        let in_force = machine.override_in_force().map(|it| OverrideSnapshot {
            addr: it.addr.clone(),
            since: it.since,
            until: it.until,
            contradicted_by: machine
                .named_masters()
                .into_iter()
                .filter(|(addr, _)| **addr != it.addr)
                .map(|(addr, _)| addr.clone())
                .collect(),
        });
        let answers = self.answers.iter().cloned().collect();
        let (last_end, minority) = (self.last_end, machine.configured_minority_policy());
        OverridesSnapshot { in_force, answers, last_end, minority }
    }
}
