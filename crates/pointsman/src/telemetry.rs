//! Logging: lines for people on a terminal, JSON for machines, and never a wait on either.
//!
//! A worker that writes a line hands it to a thread of its own through a bounded queue. If the reader of the standard output
//! stops reading, lines are dropped and counted; data is never held up by a log.

use std::io::{self, IsTerminal as _};
use std::sync::Arc;

use tracing::level_filters::LevelFilter;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, Registry, reload};

use crate::config::{Log, LogFormat, LogLevel};

/// Lines that may wait for the writer.
const BACKLOG: usize = 4096;

/// Keeps the log's thread alive; dropping it writes out what is left.
pub struct Telemetry {
    _guard: WorkerGuard,
    dropped: ErrorCounter,
    level: LogLevelSwitch,
}

/// Changes how much is logged.
#[derive(Debug, Clone)]
pub struct LogLevelSwitch(reload::Handle<LevelFilter, Registry>);

impl LogLevelSwitch {
    /// From now on.
    pub fn set(&self, level: LogLevel) {
        // Fails only where the log of this process is another one, as in tests.
        drop(self.0.reload(filter(level)));
    }
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// How many lines were dropped. Can outlive the [`Telemetry`].
pub type DroppedLines = Arc<dyn Fn() -> usize + Send + Sync>;

impl Telemetry {
    /// Starts to log as configured. Later calls in the same process have no effect, which only tests would notice.
    #[must_use]
    pub fn start(log: &Log) -> Self {
        let (writer, guard) =
            NonBlockingBuilder::default().buffered_lines_limit(BACKLOG).lossy(true).finish(io::stdout());
        let dropped = writer.error_counter();
        let (level, switch) = reload::Layer::new(filter(log.level));
        let human = match log.format {
            LogFormat::Auto => io::stdout().is_terminal(),
            LogFormat::Human => true,
            LogFormat::Json => false,
        };
        let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(colour);
        let lines = if human { lines.boxed() } else { lines.json().flatten_event(true).boxed() };
        let started = tracing_subscriber::registry().with(level).with(lines).try_init();
        // Only a second start in one process fails, and the first one goes on.
        drop(started);
        Self { _guard: guard, dropped, level: LogLevelSwitch(switch) }
    }

    /// Changes how much is logged, later.
    #[must_use]
    pub fn level(&self) -> LogLevelSwitch {
        self.level.clone()
    }

    /// A counter of dropped lines.
    #[must_use]
    pub fn dropped_lines(&self) -> DroppedLines {
        let counter = self.dropped.clone();
        Arc::new(move || counter.dropped_lines())
    }
}
