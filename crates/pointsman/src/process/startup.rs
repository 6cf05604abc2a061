//! The first phase of a run: signal handlers, the runtime, and the configuration, before logging is
//! configured.
//!
//! Signal handlers are installed first. As the first process of a container this one would
//! otherwise ignore SIGTERM, and a read of the configuration that hangs could be ended by SIGKILL
//! only.

use std::io;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::config::Loaded;
use crate::process::config_reader::{ConfigRead, ConfigReader};
use crate::process::config_source::ConfigSource;
use crate::process::signals::Signals;
use crate::system::threads;

/// Maximum number of concurrent name lookups, plus one thread for checks of the configuration file.
const BLOCKING_THREADS: usize = 8 + 1;
/// When the wait is first reported. The interval then doubles up to the second value.
const REPORT_AFTER: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(60));

/// What a run begins with.
pub(crate) struct Startup {
    pub(crate) runtime: Runtime,
    pub(crate) signals: Signals,
    pub(crate) reader: ConfigReader,
}

impl Startup {
    /// Installs the signal handlers.
    ///
    /// # Errors
    ///
    /// If the system provides no runtime or no signal handler.
    pub(crate) fn new(source: ConfigSource) -> io::Result<Self> {
        threads::note_priority();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .on_thread_start(threads::reset_priority)
            .build()?;
        let signals = {
            let _entered = runtime.enter();
            Signals::listen()?
        };
        Ok(Self { runtime, signals, reader: ConfigReader::new(source) })
    }

    /// Reads the configuration, without a time limit. Returns `None` if a signal to stop arrived
    /// first.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub(crate) fn read(&mut self) -> io::Result<Option<Loaded>> {
        let (reader, signals) = (&mut self.reader, &mut self.signals);
        self.runtime.block_on(async {
            let (started, mut interval) = (Instant::now(), REPORT_AFTER.0);
            let mut report_at = started + interval;
            reader.request("the start");
            loop {
                tokio::select! {
                    read = reader.next() => match read {
                        ConfigRead::Done(_, loaded) => return Ok(Some(*loaded)),
                        // The wait is reported by the timer below.
                        ConfigRead::Overdue(..) => {}
                        ConfigRead::Failed(_, fault) => return Err(io::Error::other(fault)),
                    },
                    (name, _) = signals.stop() => {
                        print(&format!("received {name} while waiting for the configuration"));
                        return Ok(None);
                    }
                    () = tokio::time::sleep_until(report_at.into()) => {
                        let reason = reader.describe_hang();
                        print(&format!("waiting for the configuration: {reason}"));
                        interval = (interval * 2).min(REPORT_AFTER.1);
                        report_at = Instant::now() + interval;
                    }
                }
            }
        })
    }
}

/// Writes to the standard error: how to log is part of what is being read.
fn print(text: &str) {
    threads::write_stderr(format!("pointsman: {text}\n"));
}
