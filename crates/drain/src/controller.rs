//! Drives one plan with real timers: the only part of this crate that waits.
//!
//! It sleeps until the plan's next deadline or a notification, passes what it observes to the plan,
//! and executes the plan's actions, each of which only stores a word and notifies waiters. Arrivals
//! do not wake it: a deadline that they have moved is noticed when it is due.
//!
//! Sessions are asked to leave once every listener is closed. A client that is asked to move
//! reconnects immediately; where a later process listens on the same sockets, a listener of this
//! process that is still open would accept it again. A listener whose worker hangs delays this only
//! for a moment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::plan::{Phase, Plan, ShutdownAction, ShutdownEvent, ShutdownSettings, StopRequest};
use crate::shared::{DrainState, SessionCounts, now};
use crate::ticket::Drain;

/// How long open listeners may delay asking the sessions.
const LISTENERS_TIMEOUT: Duration = Duration::from_millis(250);

/// A handle for the rest of the process, and the controller, which is to be run once. Nothing
/// happens until it runs.
#[must_use]
pub fn new(settings: ShutdownSettings) -> (Drain, Controller) {
    let now = now();
    let plan = Plan::new(settings, now);
    let shared = Arc::new(DrainState::new(now, plan.settings().drain_spread));
    (Drain::new(Arc::clone(&shared)), Controller { shared, plan, ask_since: None })
}

impl Drain {
    /// Begins to close this group alone: its listeners close, and its sessions leave by the same
    /// plan as in a shutdown of the process, without the accepting phase. The controller is to be
    /// run once. A shutdown of the process meanwhile applies to the group as well, and whichever
    /// deadline comes first.
    pub fn close_group(&self, settings: ShutdownSettings) -> Controller {
        let shared = self.state();
        let plan = Plan::new(settings, now());
        shared.set_spread(plan.settings().drain_spread);
        shared.put_request(now(), StopRequest::DrainAtOnce);
        Controller { shared, plan, ask_since: None }
    }
}

/// Carries out one shutdown. Created by [`new`].
#[derive(Debug)]
pub struct Controller {
    shared: Arc<DrainState>,
    plan: Plan,
    /// Since when sessions should be asked but are not, because listeners are still open.
    ask_since: Option<Instant>,
}

/// How a shutdown went, from its first request to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// From the first request to the end.
    pub total: Duration,
    /// Time spent unready but accepting; zero if skipped.
    pub leaving: Duration,
    /// From closing the listeners until every session had left or was cut; zero if skipped.
    pub draining: Duration,
    /// Time given to sessions that were cut; zero if there were none.
    pub cutting: Duration,
    /// Sessions since the start of the process. Those still open did not close their ticket within
    /// [`CUT_GRACE`](crate::CUT_GRACE).
    pub session_counts: SessionCounts,
    /// Sessions that ended after the first stop request: what the last log line of a process
    /// reports.
    pub since_stop_request: SessionCounts,
}

impl Summary {
    /// Whether every session left by itself or at a boundary.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.since_stop_request.cut == 0 && self.since_stop_request.open == 0
    }
}

/// When each phase began, and the session counts at the first request.
#[derive(Debug, Default)]
struct PhaseLog {
    entered: Vec<(Phase, Instant)>,
    at_stop_request: Option<SessionCounts>,
}

impl Controller {
    /// Waits for requests, carries the shutdown out, and returns when it is over. Needs a runtime
    /// with timers; one thread is enough. It has to run to its end: if it is dropped, the phase
    /// stays as it is.
    pub async fn run(mut self) -> Summary {
        let mut phase_log = PhaseLog::default();
        loop {
            // `Notify` keeps a permit if it is notified before the wait, so checking first and
            // waiting then leaves no gap.
            let before = self.plan.phase();
            self.observe(&mut phase_log);
            if self.plan.phase() == Phase::Stopped {
                return self.summary(&phase_log);
            }
            if self.plan.phase() != before {
                // A session that closed between the count and the new phase did not notify this
                // task: count again.
                continue;
            }
            self.ask();
            let accept_permits = self.ask_since.map(|since| since + LISTENERS_TIMEOUT);
            match self.plan.deadline().into_iter().chain(accept_permits).min() {
                None => self.shared.controller_notify.notified().await,
                Some(deadline) => {
                    let due = tokio::time::sleep_until(deadline.into());
                    tokio::select! {
                        () = self.shared.controller_notify.notified() => {}
                        () = due => {}
                    }
                }
            }
        }
    }

    /// Asks the sessions to leave, if that is due and no listener accepts any more.
    fn ask(&mut self) {
        let Some(since) = self.ask_since else { return };
        if self.shared.accept_permits() == 0 || now() >= since + LISTENERS_TIMEOUT {
            self.ask_since = None;
            self.shared.ask(since);
        }
    }

    /// Passes everything that is known now to the plan.
    fn observe(&mut self, phase_log: &mut PhaseLog) {
        // First the facts that must not be missing when the time advances: with an outdated count,
        // open sessions would be overlooked, and an arrival passed too late could no longer move
        // the deadline that is due now. The count is passed again last, with the current time,
        // because a count of zero ends a phase at that time.
        let open = self.shared.open();
        if open > 0 {
            self.step(self.plan.phase_entered_at(), ShutdownEvent::Open(open), phase_log);
        }
        if let Some(at) = self.shared.last_arrival() {
            self.step(at, ShutdownEvent::ClientArrived(at), phase_log);
        }
        if let Some(settings) = self.shared.take_settings() {
            self.plan.configure(settings);
            self.shared.set_spread(self.plan.settings().drain_spread);
        }
        for (at, request) in self.shared.take_requests() {
            phase_log.at_stop_request.get_or_insert_with(|| self.shared.session_counts());
            self.step(at, ShutdownEvent::StopRequested(request), phase_log);
        }
        self.step(now(), ShutdownEvent::Open(open), phase_log);
    }

    fn step(&mut self, at: Instant, event: ShutdownEvent, phase_log: &mut PhaseLog) {
        let before = self.plan.phase();
        let actions = self.plan.step(at, event);
        if let Some(deadline) =
            self.plan.deadline().filter(|_| self.plan.phase() == Phase::Draining)
        {
            self.shared.set_cut_at(deadline);
        }
        for action in actions {
            match action {
                ShutdownAction::BecomeUnready => self.shared.publish(Phase::Leaving),
                ShutdownAction::CloseListeners => self.shared.publish(Phase::Draining),
                ShutdownAction::AskSessions => self.ask_since = Some(self.plan.phase_entered_at()),
                ShutdownAction::CutSessions => {
                    self.ask_since = None;
                    self.shared.publish(Phase::Cutting);
                    self.shared.cut();
                }
                ShutdownAction::Finish => {
                    self.shared.publish(Phase::Stopped);
                    self.shared.cut();
                }
            }
        }
        if self.plan.phase() != before {
            phase_log.entered.push((self.plan.phase(), self.plan.phase_entered_at()));
        }
    }

    fn summary(&self, phase_log: &PhaseLog) -> Summary {
        let session_counts = self.shared.session_counts();
        let ended = self.plan.phase_entered_at();
        // A phase lasts until the next one that was entered.
        let lasted = |phase: Phase| {
            let mut from = phase_log.entered.iter().skip_while(|(entered, _)| *entered != phase);
            let began = from.next().map_or(ended, |(_, at)| *at);
            let next = from.next().map_or(ended, |(_, at)| *at);
            next.saturating_duration_since(began)
        };
        Summary {
            total: self
                .plan
                .stop_requested_at()
                .map_or(Duration::ZERO, |at| ended.saturating_duration_since(at)),
            leaving: lasted(Phase::Leaving),
            draining: lasted(Phase::Draining),
            cutting: lasted(Phase::Cutting),
            session_counts,
            since_stop_request: session_counts
                .since(&phase_log.at_stop_request.unwrap_or_default()),
        }
    }
}
