//! Logging: lines for people on a terminal, for the journal where it listens, JSON for machines,
//! and never a wait on any of them.
//!
//! A worker that writes a line hands it to a thread of its own through a bounded queue (`writer`).
//! If the reader stops reading, lines are dropped and counted; data is never held up by a log.
//! Before that, a throttle bounds how many lines come from one place.
//!
//! A panic is logged like anything else: the standard hook writes to the standard error, and a
//! thread that panics would wait there for a reader that has stopped.

mod journal;
mod throttle;
mod writer;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal as _};
use std::panic;

use tracing::level_filters::LevelFilter;
use tracing::{error, warn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, Registry, reload};

use crate::config::{LogConfig, LogFormat, LogLevel};
use journal::{Journal, Sender};
use throttle::Throttle;
use writer::{Descriptor, Dropped, Guard};

/// Keeps the log's thread alive. Dropping it writes out what is left, for no longer than a second.
pub struct Telemetry {
    _guard: Guard,
    dropped: Dropped,
    switch: LogSwitch,
}

/// Changes how much is logged.
#[derive(Debug, Clone)]
pub struct LogSwitch {
    level: reload::Handle<LevelFilter, Registry>,
    throttle: Throttle,
}

impl LogSwitch {
    /// From now on.
    pub fn set(&self, log: &LogConfig) {
        // Fails only where the log of this process is another one, as in tests.
        drop(self.level.reload(filter(log.level)));
        self.throttle.set(most(log));
    }
}

fn most(log: &LogConfig) -> u32 {
    u32::try_from(log.lines_per_second).unwrap_or(u32::MAX)
}

fn filter(level: LogLevel) -> LevelFilter {
    LevelFilter::from_level(level.into())
}

impl From<LogLevel> for tracing::Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

/// Lines that nobody will read. Can outlive the [`Telemetry`].
#[derive(Clone)]
pub struct Unread {
    dropped: Dropped,
    throttle: Throttle,
}

impl Unread {
    /// Lines dropped because the reader was too slow, or could not be written to.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.count()
    }

    /// Lines left out because there were too many like them.
    #[must_use]
    pub fn suppressed(&self) -> u64 {
        self.throttle.suppressed()
    }
}

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Human,
    Json,
    Journal,
}

fn shape(format: LogFormat) -> Shape {
    match format {
        LogFormat::Human => Shape::Human,
        LogFormat::Json => Shape::Json,
        LogFormat::Journald => Shape::Journal,
        LogFormat::Auto if io::stdout().is_terminal() => Shape::Human,
        LogFormat::Auto if journal::is_ours(std::env::var("JOURNAL_STREAM").ok().as_deref()) => {
            Shape::Journal
        }
        LogFormat::Auto => Shape::Json,
    }
}

impl Telemetry {
    /// Starts to log as configured. Later calls in the same process have no effect, which only
    /// tests would notice.
    ///
    /// # Errors
    ///
    /// If the system gives no thread.
    pub fn start(log: &LogConfig) -> io::Result<Self> {
        let shape = shape(log.format);
        let sender = (shape == Shape::Journal).then(Sender::open).flatten();
        // Without a journal JSON is what can be read best.
        let shape = if shape == Shape::Journal && sender.is_none() { Shape::Json } else { shape };
        let (writer, guard) = match sender {
            Some(sender) => writer::start(sender, report)?,
            None => writer::start(Descriptor::new(io::stdout()), report)?,
        };
        let dropped = writer.dropped();
        let (level, handle) = reload::Layer::new(filter(log.level));
        let throttle = Throttle::new(most(log));
        let colour = io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let lines = || tracing_subscriber::fmt::layer().with_writer(writer.clone());
        let lines = match shape {
            Shape::Human => lines().with_ansi(colour).boxed(),
            // Without the module, which would be a second `target` in a line that has one.
            Shape::Json => {
                lines().with_ansi(false).with_target(false).json().flatten_event(true).boxed()
            }
            Shape::Journal => Journal(writer.clone()).boxed(),
        };
        let started = tracing_subscriber::registry()
            .with(level)
            .with(throttle.clone())
            .with(lines)
            .try_init();
        // Only a second start in one process fails, and the first one goes on.
        drop(started);
        panic::set_hook(Box::new(log_panic));
        Ok(Self { _guard: guard, dropped, switch: LogSwitch { level: handle, throttle } })
    }

    /// Changes how much is logged, later.
    #[must_use]
    pub fn switch(&self) -> LogSwitch {
        self.switch.clone()
    }

    /// Counts the lines that nobody will read.
    #[must_use]
    pub fn unread(&self) -> Unread {
        Unread { dropped: self.dropped.clone(), throttle: self.switch.throttle.clone() }
    }
}

/// Says in the log itself that lines of it are missing.
fn report(lines: u64, error: Option<&io::Error>) {
    match error {
        Some(error) => warn!(lines, %error, "log lines dropped"),
        None => warn!(lines, "log lines dropped"),
    }
}

fn log_panic(info: &panic::PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let place = info.location().map(tracing::field::display);
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured)
        .then(|| tracing::field::display(&backtrace));
    let payload = info.payload();
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let payload = text.unwrap_or("no message");
    error!(thread = thread.name(), place, backtrace, "panicked: {payload}");
}
