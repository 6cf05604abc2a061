//! Decides the phase of a shutdown: requests, arrivals, counts and the time go in, actions and a
//! deadline come out.
//!
//! The phases are passed in one direction only. Some may be skipped, and each has a latest end, so
//! a plan is over at most `accept_max + drain_timeout +` [`CUT_GRACE`] after the first request.
//! Within a phase the plan is level-triggered: it evaluates what it knows now and advances as far
//! as that allows. So one event may pass several phases, and a repeated event does no harm.
//!
//! The time is an argument; a time earlier than one already seen counts as the later one.

use std::time::{Duration, Instant};

/// How long [`Phase::Cutting`] may last: time for cut sessions to finish. A constant, because
/// nothing that an operator waits for happens in it.
pub const CUT_GRACE: Duration = Duration::from_secs(1);

/// A second [`StopRequest::Drain`] within this time of the first is taken for a repetition.
/// Supervisors repeat signals (a kubelet that restarts, a process group that receives what its
/// leader forwards too), and a repetition must not turn an orderly drain into a cut.
pub const REPEAT_WINDOW: Duration = Duration::from_secs(1);

/// The upper limit of any single wait, whatever the settings say, so that adding it to a time
/// cannot overflow.
const MAX_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// The phase of a shutdown. The variants are in chronological order: a later phase compares
/// greater, and a process never returns to an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Phase {
    /// No stop has been requested.
    Serving = 0,
    /// Unready, so that no new clients are sent here; those that still arrive are served normally.
    Leaving = 1,
    /// The listeners are closed, and sessions leave at their next boundary, spread over a window.
    Draining = 2,
    /// The remaining sessions are cut.
    Cutting = 3,
    /// Over, whether or not every session has ended.
    Stopped = 4,
}

impl Phase {
    /// Every phase, in chronological order.
    pub const ALL: [Self; 5] =
        [Self::Serving, Self::Leaving, Self::Draining, Self::Cutting, Self::Stopped];

    /// Whether a shutdown in this phase may change to `next`. Serving may skip Leaving (drain at
    /// once), every phase before Cutting may change to it (a cut), and Stopped is reached only when
    /// no session is left or nothing more can be done.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Serving, Self::Leaving | Self::Draining | Self::Cutting)
                | (Self::Leaving, Self::Draining | Self::Cutting)
                | (Self::Draining, Self::Cutting | Self::Stopped)
                | (Self::Cutting, Self::Stopped)
        )
    }

    /// The phase in one lower-case word, for metrics, status and log lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Leaving => "leaving",
            Self::Draining => "draining",
            Self::Cutting => "cutting",
            Self::Stopped => "stopped",
        }
    }
}

/// What an operator or a supervisor can request, usually by a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopRequest {
    /// SIGTERM, SIGINT: leave, then drain. Repeated at least [`REPEAT_WINDOW`] after the first
    /// time, it is a cut; repeated earlier, it changes nothing.
    Drain,
    /// SIGUSR1: drain without the accepting phase, as haproxy does on this signal. Repeated, it
    /// changes nothing.
    DrainAtOnce,
    /// SIGQUIT: cut now.
    Cut,
}

/// The lengths of the phases, each counted from the beginning of its phase. Every combination is
/// accepted; [`ShutdownSettings::normalized`] resolves contradictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShutdownSettings {
    /// Keep accepting at least this long after the request.
    pub accept_min: Duration,
    /// Keep accepting until no real client has arrived for this long, counted from the request at
    /// the earliest.
    pub accept_quiet: Duration,
    /// Never keep accepting longer than this.
    pub accept_max: Duration,
    /// Sessions are asked to leave evenly spread over this time.
    pub drain_spread: Duration,
    /// Sessions that have not left this long after the listeners were closed are cut.
    pub drain_timeout: Duration,
}

impl Default for ShutdownSettings {
    /// 5 s, 3 s, 15 s, 5 s, 20 s: at most 36 s including [`CUT_GRACE`], within a grace period of 60
    /// s.
    fn default() -> Self {
        Self {
            accept_min: Duration::from_secs(5),
            accept_quiet: Duration::from_secs(3),
            accept_max: Duration::from_secs(15),
            drain_spread: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(20),
        }
    }
}

impl ShutdownSettings {
    /// These settings without contradictions: `accept_max` is at least `accept_min`, `drain_spread`
    /// at most `drain_timeout`, and nothing is longer than a year.
    #[must_use]
    pub fn normalized(self) -> Self {
        let accept_min = self.accept_min.min(MAX_WAIT);
        let drain_timeout = self.drain_timeout.min(MAX_WAIT);
        Self {
            accept_min,
            accept_quiet: self.accept_quiet.min(MAX_WAIT),
            accept_max: self.accept_max.min(MAX_WAIT).max(accept_min),
            drain_spread: self.drain_spread.min(drain_timeout),
            drain_timeout,
        }
    }

    /// The maximum time from the first request to the end: `accept_max + drain_timeout +`
    /// [`CUT_GRACE`]. A supervisor's grace period has to be longer than this.
    #[must_use]
    pub fn max_total(self) -> Duration {
        let normalized = self.normalized();
        normalized.accept_max + normalized.drain_timeout + CUT_GRACE
    }
}

/// The input of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownEvent {
    /// A stop was requested now.
    StopRequested(StopRequest),
    /// A real client, one that sent a byte, arrived at this time (not later than now). Clients that
    /// arrived before the request do not show whether others are still sent here, and are ignored.
    ClientArrived(Instant),
    /// The number of sessions and listeners open now. The latest count is the valid one.
    Open(u64),
    /// Only the time has changed.
    Tick,
}

/// What to do, in the order given. Each action is returned at most once in the life of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShutdownAction {
    /// Answer "not ready" from now on.
    BecomeUnready,
    /// Accept what is left in the listeners' queues, then close them.
    CloseListeners,
    /// Ask the sessions to leave, spread over `drain_spread` from now.
    AskSessions,
    /// Cut every session now.
    CutSessions,
    /// Stop waiting.
    Finish,
}

/// The state of one shutdown, from before its first request until its end.
#[derive(Debug, Clone)]
pub struct Plan {
    settings: ShutdownSettings,
    phase: Phase,
    /// The latest time seen.
    now: Instant,
    /// When the first request of any kind came.
    stop_requested_at: Option<Instant>,
    /// When the first [`StopRequest::Drain`] came.
    drain_requested_at: Option<Instant>,
    /// When the current phase began.
    phase_entered_at: Instant,
    /// Since when no real client has arrived; not before Leaving began.
    quiet_since: Instant,
    open: u64,
}

impl Plan {
    /// A plan in [`Phase::Serving`] without sessions. `settings` are
    /// [`normalized`](ShutdownSettings::normalized).
    #[must_use]
    pub fn new(settings: ShutdownSettings, now: Instant) -> Self {
        let settings = settings.normalized();
        Self {
            settings,
            phase: Phase::Serving,
            now,
            stop_requested_at: None,
            drain_requested_at: None,
            phase_entered_at: now,
            quiet_since: now,
            open: 0,
        }
    }

    /// The current phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// When the current phase began.
    #[must_use]
    pub fn phase_entered_at(&self) -> Instant {
        self.phase_entered_at
    }

    /// When the first request came, if any.
    #[must_use]
    pub fn stop_requested_at(&self) -> Option<Instant> {
        self.stop_requested_at
    }

    /// The settings in force, [`normalized`](ShutdownSettings::normalized).
    #[must_use]
    pub fn settings(&self) -> ShutdownSettings {
        self.settings
    }

    /// Replaces the settings. Deadlines of the current phase still count from its beginning, so a
    /// shorter one may be due immediately; what has been done is not undone.
    pub fn configure(&mut self, settings: ShutdownSettings) {
        self.settings = settings.normalized();
    }

    /// When [`ShutdownEvent::Tick`] is due at the latest. `None` while only another event can
    /// change anything.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Serving | Phase::Stopped => None,
            Phase::Leaving => {
                let earliest = self.phase_entered_at + self.settings.accept_min;
                let quiet = self.quiet_since + self.settings.accept_quiet;
                Some(earliest.max(quiet).min(self.phase_entered_at + self.settings.accept_max))
            }
            Phase::Draining => Some(self.phase_entered_at + self.settings.drain_timeout),
            Phase::Cutting => Some(self.phase_entered_at + CUT_GRACE),
        }
    }

    /// Processes one event and advances as far as what is known now allows.
    pub fn step(&mut self, now: Instant, event: ShutdownEvent) -> Vec<ShutdownAction> {
        self.now = self.now.max(now);
        let mut actions = Vec::new();
        match event {
            ShutdownEvent::StopRequested(request) => self.apply_request(request, &mut actions),
            ShutdownEvent::ClientArrived(at) => {
                self.quiet_since = self.quiet_since.max(at.min(self.now));
            }
            ShutdownEvent::Open(count) => self.open = count,
            ShutdownEvent::Tick => {}
        }
        self.advance(&mut actions);
        actions
    }

    fn apply_request(&mut self, request: StopRequest, actions: &mut Vec<ShutdownAction>) {
        if self.phase == Phase::Stopped {
            return;
        }
        self.stop_requested_at.get_or_insert(self.now);
        match request {
            StopRequest::Drain => match self.drain_requested_at {
                None => {
                    self.drain_requested_at = Some(self.now);
                    self.enter(Phase::Leaving, actions);
                }
                Some(first) if self.now.saturating_duration_since(first) >= REPEAT_WINDOW => {
                    self.enter(Phase::Cutting, actions);
                }
                Some(_) => {}
            },
            StopRequest::DrainAtOnce => self.enter(Phase::Draining, actions),
            StopRequest::Cut => self.enter(Phase::Cutting, actions),
        }
    }

    fn advance(&mut self, actions: &mut Vec<ShutdownAction>) {
        // At most one iteration per phase: each but the last enters a later one.
        loop {
            let due = self.deadline().is_some_and(|deadline| self.now >= deadline);
            let empty = self.open == 0;
            let next = match self.phase {
                Phase::Leaving if due => Phase::Draining,
                Phase::Draining if empty => Phase::Stopped,
                Phase::Draining if due => Phase::Cutting,
                Phase::Cutting if empty || due => Phase::Stopped,
                _ => return,
            };
            self.enter(next, actions);
        }
    }

    /// Enters `next` if that is a legal transition, and adds the actions of the phases passed on
    /// the way.
    fn enter(&mut self, next: Phase, actions: &mut Vec<ShutdownAction>) {
        let previous = self.phase;
        if !previous.may_become(next) {
            return;
        }
        self.phase = next;
        self.phase_entered_at = self.now;
        self.quiet_since = self.now;
        if previous == Phase::Serving {
            actions.push(ShutdownAction::BecomeUnready);
        }
        if previous < Phase::Draining && next >= Phase::Draining {
            actions.push(ShutdownAction::CloseListeners);
        }
        match next {
            Phase::Draining => actions.push(ShutdownAction::AskSessions),
            Phase::Cutting => actions.push(ShutdownAction::CutSessions),
            Phase::Stopped => actions.push(ShutdownAction::Finish),
            Phase::Serving | Phase::Leaving => {}
        }
    }
}
