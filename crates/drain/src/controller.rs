//! Drives one plan with real timers: the only part of this crate that waits.
//!
//! It sleeps until the plan's next deadline or until there is news, tells the plan what it sees,
//! and does what the plan demands, which is never more than to store a word and to ring a bell.
//! Arrivals do not wake it: a deadline that they have moved is noticed when it is due.
//!
//! Sessions are asked when every listener is closed: who is told to move comes back at once, and
//! where a later process listens on the same sockets, a listener of this one that is still open
//! would let him in again. A listener whose worker hangs is not waited for longer than a moment.
//!
//! Deliberately absent: signals (whoever receives them calls [`Drain::order`]), and any decision.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::plan::{Action, Event, Phase, Plan, Settings};
use crate::shared::{Shared, Tally, now};
use crate::ticket::Drain;

/// How long open listeners may put off that sessions are asked.
const DOORS: Duration = Duration::from_millis(250);

/// A handle for everybody and the controller that is to be run once. Nothing happens until it is.
#[must_use]
pub fn new(settings: Settings) -> (Drain, Controller) {
    let now = now();
    let plan = Plan::new(settings, now);
    let shared = Arc::new(Shared::new(now, plan.settings().drain_spread));
    (Drain::new(Arc::clone(&shared)), Controller { shared, plan, unasked: None })
}

/// Carries out one shutdown. Made by [`new`].
#[derive(Debug)]
pub struct Controller {
    shared: Arc<Shared>,
    plan: Plan,
    /// Since when sessions are to be asked and are not, for the sake of the listeners.
    unasked: Option<Instant>,
}

/// How a shutdown went, from its first order to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// From the first order to the end.
    pub total: Duration,
    /// Time spent unready but accepting; zero if skipped.
    pub leaving: Duration,
    /// Time from closing the listeners until everybody had left or was cut; zero if skipped.
    pub draining: Duration,
    /// Time given to sessions that were cut; zero if nobody was.
    pub cutting: Duration,
    /// Sessions since the start of the process. Those still open have not closed their ticket
    /// within [`CUT_GRACE`](crate::CUT_GRACE).
    pub tally: Tally,
    /// The same, of those sessions only that ended after the first order: what the last line of a
    /// process should say.
    pub since_order: Tally,
}

impl Summary {
    /// Whether everybody left, by themselves or at a boundary.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.since_order.cut == 0 && self.since_order.open == 0
    }
}

/// When each phase began and what the tally was at the first order.
#[derive(Debug, Default)]
struct Log {
    entered: Vec<(Phase, Instant)>,
    at_order: Option<Tally>,
}

impl Controller {
    /// Waits for orders, carries the shutdown out, and returns when it is over. Needs a runtime
    /// with timers; one thread is enough. To be run to its end: if it is dropped, the phase stays
    /// what it was.
    pub async fn run(mut self) -> Summary {
        let mut log = Log::default();
        loop {
            // A permit is kept if the bell rings before the wait, so looking first and waiting then
            // leaves no gap.
            let before = self.plan.phase();
            self.look(&mut log);
            if self.plan.phase() == Phase::Stopped {
                return self.summary(&log);
            }
            if self.plan.phase() != before {
                // Who closed between the count and the new phase did not know that it is awaited:
                // count again.
                continue;
            }
            self.ask();
            let doors = self.unasked.map(|since| since + DOORS);
            match self.plan.deadline().into_iter().chain(doors).min() {
                None => self.shared.news.notified().await,
                Some(deadline) => {
                    let due = tokio::time::sleep_until(deadline.into());
                    tokio::select! {
                        () = self.shared.news.notified() => {}
                        () = due => {}
                    }
                }
            }
        }
    }

    /// Asks the sessions, if they are to be asked and nobody is let in any more.
    fn ask(&mut self) {
        let Some(since) = self.unasked else { return };
        if self.shared.doors() == 0 || now() >= since + DOORS {
            self.unasked = None;
            self.shared.ask(since);
        }
    }

    /// Tells the plan everything there is to be told at this moment.
    fn look(&mut self, log: &mut Log) {
        // First what must not be missing when the time moves on: a count that is too old would take
        // a full house for an empty one, and an arrival told too late would no longer move the
        // deadline that is due now. An empty house is told last, with the present time, because
        // that is when it ends a phase.
        let open = self.shared.open();
        if open > 0 {
            self.step(self.plan.entered(), Event::Open(open), log);
        }
        if let Some(at) = self.shared.arrived() {
            self.step(at, Event::Arrived(at), log);
        }
        if let Some(settings) = self.shared.take_settings() {
            self.plan.configure(settings);
            self.shared.spread_over(self.plan.settings().drain_spread);
        }
        for (at, order) in self.shared.take_orders() {
            log.at_order.get_or_insert_with(|| self.shared.tally());
            self.step(at, Event::Ordered(order), log);
        }
        self.step(now(), Event::Open(open), log);
    }

    fn step(&mut self, at: Instant, event: Event, log: &mut Log) {
        let before = self.plan.phase();
        let actions = self.plan.step(at, event);
        if let Some(deadline) =
            self.plan.deadline().filter(|_| self.plan.phase() == Phase::Draining)
        {
            self.shared.cut_comes(deadline);
        }
        for action in actions {
            match action {
                Action::BecomeUnready => self.shared.publish(Phase::Leaving),
                Action::CloseListeners => self.shared.publish(Phase::Draining),
                Action::AskSessions => self.unasked = Some(self.plan.entered()),
                Action::CutSessions => {
                    self.unasked = None;
                    self.shared.publish(Phase::Cutting);
                    self.shared.cut();
                }
                Action::Finish => {
                    self.shared.publish(Phase::Stopped);
                    self.shared.cut();
                }
            }
        }
        if self.plan.phase() != before {
            log.entered.push((self.plan.phase(), self.plan.entered()));
        }
    }

    fn summary(&self, log: &Log) -> Summary {
        let tally = self.shared.tally();
        let ended = self.plan.entered();
        // A phase lasts until the next one that was entered.
        let lasted = |phase: Phase| {
            let mut from = log.entered.iter().skip_while(|(entered, _)| *entered != phase);
            let began = from.next().map_or(ended, |(_, at)| *at);
            let next = from.next().map_or(ended, |(_, at)| *at);
            next.saturating_duration_since(began)
        };
        Summary {
            total: self
                .plan
                .ordered()
                .map_or(Duration::ZERO, |at| ended.saturating_duration_since(at)),
            leaving: lasted(Phase::Leaving),
            draining: lasted(Phase::Draining),
            cutting: lasted(Phase::Cutting),
            tally,
            since_order: tally.since(&log.at_order.unwrap_or_default()),
        }
    }
}
