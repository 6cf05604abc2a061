//! Logging: human-readable lines on a terminal, native entries for systemd's journal, JSON
//! otherwise.
//!
//! Logging never blocks. A worker hands each line to a separate thread through a bounded queue
//! (`writer`). If the reader stops reading, lines are dropped and counted; data is never delayed by
//! the log. Before that, `rate_limiter` bounds the number of lines from one call site.
//!
//! A panic is logged the same way: the standard hook writes to the standard error, and a thread
//! that panics would wait there for a reader that has stopped.

mod journal;
mod rate_limiter;
mod writer;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal as _};
use std::panic;

use tracing::level_filters::LevelFilter;
use tracing::{error, warn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, Registry, reload};

use crate::config::{LogConfig, LogFormat};
use journal::{JournalLayer, JournalSocket};
use rate_limiter::LogRateLimiter;
use writer::{Descriptor, LineQueue, WriterGuard};

/// Several values as one field: people read them, and a list in the form of Rust's `Debug` shows
/// names of types.
pub(crate) fn list<T: ToString>(values: &[T]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Keeps the log's thread alive. Dropping it writes the remaining lines, for at most one second.
pub(crate) struct Logging {
    _guard: WriterGuard,
    pub(crate) handle: LogHandle,
}

/// Changes the log's level and rate limit, and counts lines that were lost. Can outlive
/// [`Logging`].
#[derive(Debug, Clone)]
pub(crate) struct LogHandle {
    level: reload::Handle<LevelFilter, Registry>,
    rate_limiter: LogRateLimiter,
    lines: LineQueue,
}

impl LogHandle {
    /// Applies these settings from now on.
    pub(crate) fn set(&self, log: &LogConfig) {
        // Fails only if another log is installed in this process, as in tests.
        drop(self.level.reload(LevelFilter::from_level(log.level)));
        self.rate_limiter.set(lines_per_second(log));
    }

    /// Returns the number of lines dropped because the reader was too slow or the write failed.
    pub(crate) fn dropped(&self) -> u64 {
        self.lines.dropped()
    }

    /// Returns the number of lines suppressed by the rate limit.
    pub(crate) fn suppressed(&self) -> u64 {
        self.rate_limiter.suppressed()
    }
}

fn lines_per_second(log: &LogConfig) -> u32 {
    u32::try_from(log.lines_per_second).unwrap_or(u32::MAX)
}

/// Whether output for people has colours.
pub(crate) fn is_coloured() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The format of the log in this place. Where there is no journal, JSON is the most useful one.
fn found_format(format: LogFormat) -> LogFormat {
    let journal = std::env::var("JOURNAL_STREAM").ok();
    match format {
        LogFormat::Auto if io::stdout().is_terminal() => LogFormat::Human,
        LogFormat::Auto if journal::is_stdout(journal.as_deref()) => LogFormat::Journald,
        format => format,
    }
}

impl Logging {
    /// Starts the log as configured. Later calls in the same process have no effect, which concerns
    /// tests only.
    ///
    /// # Errors
    ///
    /// If the system provides no thread.
    pub(crate) fn start(log: &LogConfig) -> io::Result<Self> {
        let format = found_format(log.format);
        let journal = (format == LogFormat::Journald).then(JournalSocket::open).flatten();
        let has_journal = journal.is_some();
        let (writer, guard) = match journal {
            Some(journal) => writer::start(journal, report)?,
            None => writer::start(Descriptor::new(io::stdout()), report)?,
        };
        let (level, handle) = reload::Layer::new(LevelFilter::from_level(log.level));
        let rate_limiter = LogRateLimiter::new(lines_per_second(log));
        let lines = || tracing_subscriber::fmt::layer().with_writer(writer.clone());
        let lines = match format {
            LogFormat::Human => lines().with_ansi(is_coloured()).boxed(),
            LogFormat::Journald if has_journal => JournalLayer(writer.clone()).boxed(),
            // Without the module, which would be a second `target` in a line that has one.
            _ => lines().with_ansi(false).with_target(false).json().flatten_event(true).boxed(),
        };
        let started = tracing_subscriber::registry()
            .with(level)
            .with(rate_limiter.clone())
            .with(lines)
            .try_init();
        // Only a second start in one process fails; the first log stays installed.
        drop(started);
        panic::set_hook(Box::new(log_panic));
        let handle = LogHandle { level: handle, rate_limiter, lines: writer };
        Ok(Self { _guard: guard, handle })
    }
}

/// Reports in the log itself that lines are missing.
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
    error!(thread = thread.name(), place, backtrace, "thread panicked: {payload}");
}
