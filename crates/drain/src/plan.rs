//! Decides which phase a shutdown is in: orders, arrivals, counts and the time come in, actions and
//! a deadline go out.
//!
//! A ratchet: the phases are passed in one direction only, some may be skipped, and each has a
//! latest end, so whatever happens the plan is over at most `accept_max + drain_timeout +`
//! [`CUT_GRACE`] after the first order. Within a phase the plan is level-triggered: it looks at
//! what it knows now and goes on as far as that allows, so one event may pass several phases, and
//! an event that is told twice does no harm.
//!
//! Deliberately absent: timers, a clock and threads. The time is an argument, and a time earlier
//! than one already seen counts as that later one.

use std::time::{Duration, Instant};

/// How long [`Phase::Cutting`] may last: time for sessions that were cut to run their last lines.
/// It is a constant because nothing an operator waits for happens in it.
pub const CUT_GRACE: Duration = Duration::from_secs(1);

/// A second [`StopRequest::Drain`] within this time of the first counts as the first one told twice.
/// Supervisors repeat signals (a kubelet that restarts, a process group that gets what its leader
/// forwards too), and such an echo must not turn an orderly drain into a cut.
pub const REPEAT_WINDOW: Duration = Duration::from_secs(1);

/// No single wait is longer than this, whatever the settings say, so that adding it to a time
/// cannot overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Where a shutdown stands. The order of the variants is the order of time: a later phase compares
/// greater, and a process never goes back to an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Phase {
    /// Nobody has ordered anything.
    Serving = 0,
    /// Unready, so that no new clients are sent here, but those who still come are served like any
    /// others.
    Leaving = 1,
    /// The listeners are closed, and sessions leave at their next boundary, spread over a window.
    Draining = 2,
    /// What is left is cut.
    Cutting = 3,
    /// It is over, whether or not everybody has gone.
    Stopped = 4,
}

impl Phase {
    /// Every phase, in the order of time.
    pub const ALL: [Self; 5] =
        [Self::Serving, Self::Leaving, Self::Draining, Self::Cutting, Self::Stopped];

    /// Whether a shutdown in this phase may step to `next`. Serving may skip Leaving (drain at
    /// once), anything before Cutting may go there (a cut), and Stopped is reached only where
    /// nobody is left or nothing more can be done.
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

/// What an operator or a supervisor can order, usually by a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopRequest {
    /// SIGTERM, SIGINT: leave, then drain. Given again at least [`REPEAT_WINDOW`] after the first
    /// time, it is a cut; given again before, it changes nothing.
    Drain,
    /// SIGUSR1: drain without the accepting phase, as haproxy does on this signal. Given again, it
    /// changes nothing.
    DrainAtOnce,
    /// SIGQUIT: cut now.
    Cut,
}

/// How long the phases last. All are durations from the beginning of their phase. No combination is
/// refused here: see [`Settings::sound`] for what contradictions are turned into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Keep accepting at least this long after the order.
    pub accept_min: Duration,
    /// Keep accepting until no real client has come for this long, counted from the order at the
    /// earliest.
    pub accept_quiet: Duration,
    /// Never keep accepting longer than this.
    pub accept_max: Duration,
    /// Sessions are asked to leave evenly spread over this time.
    pub drain_spread: Duration,
    /// What has not left this long after the listeners were closed is cut.
    pub drain_timeout: Duration,
}

impl Default for Settings {
    /// 5 s, 3 s, 15 s, 5 s, 20 s: 36 s at the very most with [`CUT_GRACE`], inside a grace period
    /// of 60 s.
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

impl Settings {
    /// These settings without contradictions: `accept_max` is at least `accept_min`, `drain_spread`
    /// at most `drain_timeout`, and nothing is longer than a year.
    #[must_use]
    pub fn sound(self) -> Self {
        let accept_min = self.accept_min.min(LONGEST);
        let drain_timeout = self.drain_timeout.min(LONGEST);
        Self {
            accept_min,
            accept_quiet: self.accept_quiet.min(LONGEST),
            accept_max: self.accept_max.min(LONGEST).max(accept_min),
            drain_spread: self.drain_spread.min(drain_timeout),
            drain_timeout,
        }
    }

    /// The longest time from the first order to the end: `accept_max + drain_timeout +`
    /// [`CUT_GRACE`]. A supervisor's grace period has to be longer than this.
    #[must_use]
    pub fn longest(self) -> Duration {
        let sound = self.sound();
        sound.accept_max + sound.drain_timeout + CUT_GRACE
    }
}

/// What the plan is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Somebody ordered something now.
    Ordered(StopRequest),
    /// A real client, one that sent a byte, came at this time (not later than now). Clients that
    /// came before the order say nothing about whether others still get sent here, and are ignored.
    Arrived(Instant),
    /// So many sessions and listeners are open now. The last count told is the one that counts.
    Open(u64),
    /// Nothing but the time has changed.
    Tick,
}

/// What is to be done, in the order given. Each is demanded at most once in the life of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Answer "not ready" from now on.
    BecomeUnready,
    /// Take what the listeners' queues still hold, then close them.
    CloseListeners,
    /// Ask the sessions to leave, spread over `drain_spread` from now.
    AskSessions,
    /// Tell every session that it is cut, now.
    CutSessions,
    /// Wait for nobody any more.
    Finish,
}

/// The state of one shutdown, from before its first order until its end.
#[derive(Debug, Clone)]
pub struct Plan {
    settings: Settings,
    phase: Phase,
    /// The latest time seen.
    now: Instant,
    /// When the first order of any kind came.
    ordered: Option<Instant>,
    /// When the first [`StopRequest::Drain`] came.
    drain_ordered: Option<Instant>,
    /// When the present phase began.
    entered: Instant,
    /// Since when no real client has come; not before Leaving began.
    quiet_since: Instant,
    open: u64,
}

impl Plan {
    /// A plan in [`Phase::Serving`] that knows of no session. `settings` are made
    /// [`sound`](Settings::sound).
    #[must_use]
    pub fn new(settings: Settings, now: Instant) -> Self {
        let settings = settings.sound();
        Self {
            settings,
            phase: Phase::Serving,
            now,
            ordered: None,
            drain_ordered: None,
            entered: now,
            quiet_since: now,
            open: 0,
        }
    }

    /// Where the shutdown stands.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// When the present phase began.
    #[must_use]
    pub fn entered(&self) -> Instant {
        self.entered
    }

    /// When the first order came, if one has.
    #[must_use]
    pub fn ordered(&self) -> Option<Instant> {
        self.ordered
    }

    /// The settings in force, which are [`sound`](Settings::sound).
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Puts other settings in force. Deadlines of the present phase count from its beginning as
    /// before, so a shorter one may be due at once; what has been done is not undone.
    pub fn configure(&mut self, settings: Settings) {
        self.settings = settings.sound();
    }

    /// When [`Event::Tick`] is due at the latest. `None` while nothing but another event can change
    /// anything.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Serving | Phase::Stopped => None,
            Phase::Leaving => {
                let earliest = self.entered + self.settings.accept_min;
                let quiet = self.quiet_since + self.settings.accept_quiet;
                Some(earliest.max(quiet).min(self.entered + self.settings.accept_max))
            }
            Phase::Draining => Some(self.entered + self.settings.drain_timeout),
            Phase::Cutting => Some(self.entered + CUT_GRACE),
        }
    }

    /// Takes notice of one event and goes on as far as what is known now allows.
    pub fn step(&mut self, now: Instant, event: Event) -> Vec<Action> {
        self.now = self.now.max(now);
        let mut actions = Vec::new();
        match event {
            Event::Ordered(order) => self.obey(order, &mut actions),
            Event::Arrived(at) => self.quiet_since = self.quiet_since.max(at.min(self.now)),
            Event::Open(count) => self.open = count,
            Event::Tick => {}
        }
        self.advance(&mut actions);
        actions
    }

    fn obey(&mut self, order: StopRequest, actions: &mut Vec<Action>) {
        if self.phase == Phase::Stopped {
            return;
        }
        self.ordered.get_or_insert(self.now);
        match order {
            StopRequest::Drain => match self.drain_ordered {
                None => {
                    self.drain_ordered = Some(self.now);
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

    fn advance(&mut self, actions: &mut Vec<Action>) {
        // At most one round for each phase: every round but the last enters a later one.
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

    /// Moves to `next` if that is a legal move, and demands what the phases passed on the way have
    /// not yet demanded.
    fn enter(&mut self, next: Phase, actions: &mut Vec<Action>) {
        let previous = self.phase;
        if !previous.may_become(next) {
            return;
        }
        self.phase = next;
        self.entered = self.now;
        self.quiet_since = self.now;
        if previous == Phase::Serving {
            actions.push(Action::BecomeUnready);
        }
        if previous < Phase::Draining && next >= Phase::Draining {
            actions.push(Action::CloseListeners);
        }
        match next {
            Phase::Draining => actions.push(Action::AskSessions),
            Phase::Cutting => actions.push(Action::CutSessions),
            Phase::Stopped => actions.push(Action::Finish),
            Phase::Serving | Phase::Leaving => {}
        }
    }
}
