//! The first moments of a run: signals, the runtime, and the configuration, before anything is
//! known of how to log.
//!
//! From the first moment on, signals are listened to. As the first process of a container this one
//! would otherwise ignore SIGTERM for as long as it has no handler, and a configuration file that
//! hangs would make it last until it is killed.

use std::io;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::config::Loaded;
use crate::process::config_reader::{Read, Reader};
use crate::process::reload::Source;
use crate::process::signals::Signals;
use crate::process::threads;

/// Threads that may wait for name servers at a time, and one that looks at the configuration file.
const BLOCKING_THREADS: usize = 8 + 1;
/// After this time it is said what is waited for; then each time after twice as long, up to the
/// other one.
const SAY: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(60));

/// What a run begins with.
pub struct Startup {
    pub(crate) runtime: Runtime,
    pub(crate) signals: Signals,
    pub(crate) reader: Reader,
}

impl Startup {
    /// Listens to signals.
    ///
    /// # Errors
    ///
    /// If the system gives no runtime or no signal handler.
    pub fn begin(source: Source) -> io::Result<Self> {
        threads::note_priority();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .on_thread_start(threads::at_ease)
            .build()?;
        let signals = {
            let _entered = runtime.enter();
            Signals::listen()?
        };
        Ok(Self { runtime, signals, reader: Reader::new(source) })
    }

    /// Reads the configuration, however long that takes; `None` if told to stop meanwhile.
    ///
    /// # Errors
    ///
    /// If there is no thread to read on.
    pub fn read(&mut self) -> io::Result<Option<Loaded>> {
        let (reader, signals) = (&mut self.reader, &mut self.signals);
        self.runtime.block_on(async {
            let (begin, mut pause) = (Instant::now(), SAY.0);
            let mut say = begin + pause;
            reader.ask("the start");
            loop {
                tokio::select! {
                    read = reader.next() => match read {
                        Read::Done(_, loaded) => return Ok(Some(*loaded)),
                        // What is waited for is said all the same.
                        Read::Overdue(..) => {}
                        Read::Failed(_, fault) => return Err(io::Error::other(fault)),
                    },
                    (name, _) = signals.stop() => {
                        tell(&format!("{name} while waiting for the configuration: ended"));
                        return Ok(None);
                    }
                    () = tokio::time::sleep_until(say.into()) => {
                        tell(&format!("waiting for the configuration: {}", reader.hangs()));
                        pause = (pause * 2).min(SAY.1);
                        say = Instant::now() + pause;
                    }
                }
            }
        })
    }
}

/// Writes to the standard error. How to log is part of what is being read.
fn tell(text: &str) {
    threads::say(format!("pointsman: {text}\n"));
}
