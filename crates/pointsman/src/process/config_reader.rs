//! Reads the configuration on a thread of its own, at the start and at each reload.
//!
//! A read can hang for ever (see [`PendingReads`]), and nothing can end it. It is therefore never
//! waited for without a limit: after [`BOUND`] it is reported as overdue, once, and everything
//! stays as it was. If it ends later, and no newer read was requested, its result counts like any
//! other. A request that arrives while a read is overdue starts another one, which may name other
//! files by then. Opening the file that hangs fails at once, and [`MOST_THREADS`] bounds the
//! remaining cases, so requests do not accumulate threads. As soon as an abandoned read ends, the
//! file is readable again, and the configuration is read again.
//!
//! A secret file that hangs is waited for at the start only. After that it is read on a thread of
//! its own with a limit (`file_reader`), so that it delays nothing else.
//!
//! [`Schedule`] decides, without a clock and without threads; [`ConfigReader`] executes.

use std::io;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::config::{FileStamp, Loaded, PendingReads, SECRET_PATIENCE, SecretFiles};
use crate::process::config_source::ConfigSource;
use crate::system::threads;

/// A read that takes longer is overdue. Ten thousand times what a file on a disk takes.
pub(crate) const BOUND: Duration = Duration::from_secs(5);
/// Maximum number of reads that may hang at a time.
const MOST_THREADS: usize = 4;
/// The reason given for the read that follows the end of an abandoned one.
const AGAIN: &str = "a file that hung can be read again";

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
enum ReadStep {
    /// Begin the read with this number.
    Begin(u64),
    /// A read is in progress, and another one follows it.
    Wait,
    /// Too many reads hang.
    Refuse,
    /// Use the result of the read that has just ended. If another read was requested meanwhile, it
    /// is next.
    Use(&'static str, Option<&'static str>),
    /// An abandoned read has ended: request another one.
    Request(&'static str),
    /// Do nothing.
    Nothing,
}

/// The read that was requested last.
#[derive(Debug)]
struct Current {
    number: u64,
    why: &'static str,
    since: Instant,
    overdue: bool,
    again: Option<&'static str>,
}

/// Decides when to read, and which result counts.
#[derive(Debug, Default)]
struct Schedule {
    last: u64,
    current: Option<Current>,
    /// Number of abandoned reads that have not ended.
    abandoned: usize,
}

impl Schedule {
    fn request(&mut self, why: &'static str, now: Instant) -> ReadStep {
        match &mut self.current {
            Some(current) if !current.overdue => {
                current.again = Some(why);
                return ReadStep::Wait;
            }
            Some(_) if self.abandoned + 1 >= MOST_THREADS => return ReadStep::Refuse,
            Some(_) => self.abandoned += 1,
            None if self.abandoned >= MOST_THREADS => return ReadStep::Refuse,
            None => {}
        }
        self.last += 1;
        self.current =
            Some(Current { number: self.last, why, since: now, overdue: false, again: None });
        ReadStep::Begin(self.last)
    }

    fn ended(&mut self, number: u64) -> ReadStep {
        match self.current.take() {
            Some(current) if current.number == number => ReadStep::Use(current.why, current.again),
            current => {
                self.current = current;
                self.abandoned = self.abandoned.saturating_sub(1);
                // A read in progress that is not overdue reads the file anyway.
                if self.current.as_ref().is_none_or(|it| it.overdue) {
                    ReadStep::Request(AGAIN)
                } else {
                    ReadStep::Nothing
                }
            }
        }
    }

    /// When the current read becomes overdue.
    fn deadline(&self) -> Option<Instant> {
        self.current.as_ref().filter(|it| !it.overdue).map(|it| it.since + BOUND)
    }

    /// Marks the current read as overdue, and returns its reason.
    fn overdue(&mut self) -> Option<&'static str> {
        let current = self.current.as_mut()?;
        current.overdue = true;
        Some(current.why)
    }
}

/// The result of a request.
#[derive(Debug)]
pub(crate) enum ConfigRead {
    /// The configuration was read, with or without faults.
    Done(&'static str, Box<Loaded>),
    /// The read has not ended in time. If it ends later, its result follows.
    Overdue(&'static str, String),
    /// The configuration cannot be read now.
    Failed(&'static str, String),
}

/// A read that has ended: the file's metadata before it, and what was read. `None`: its thread
/// failed.
type Ended = (u64, Option<(FileStamp, Box<Loaded>)>);

/// Executes reads on threads of their own.
#[derive(Debug)]
pub(crate) struct ConfigReader {
    source: ConfigSource,
    files: PendingReads,
    schedule: Schedule,
    ended: (mpsc::Sender<Ended>, mpsc::Receiver<Ended>),
    /// The file's metadata before the last read.
    stamp: FileStamp,
    /// A failure that `next` returns first.
    failed: Option<(&'static str, String)>,
    secret_files: SecretFiles,
    /// The configuration was read once.
    is_started: bool,
}

impl ConfigReader {
    pub(crate) fn new(source: ConfigSource) -> Self {
        let ended = mpsc::channel(2 * MOST_THREADS);
        Self {
            source,
            files: PendingReads::default(),
            schedule: Schedule::default(),
            ended,
            stamp: None,
            failed: None,
            secret_files: SecretFiles::new(),
            is_started: false,
        }
    }

    /// Returns the files that are being read.
    pub(crate) fn files(&self) -> PendingReads {
        self.files.clone()
    }

    /// Returns the source of the configuration.
    pub(crate) fn source(&self) -> &ConfigSource {
        &self.source
    }

    /// Returns the file's metadata before the last read.
    pub(crate) fn stamp(&self) -> FileStamp {
        self.stamp
    }

    /// Returns the secret files of the last read.
    pub(crate) fn secret_files(&self) -> &SecretFiles {
        &self.secret_files
    }

    /// Requests a read; [`next`](Self::next) returns its result. Returns `false` if the read
    /// follows one that is in progress.
    pub(crate) fn request(&mut self, why: &'static str) -> bool {
        match self.schedule.request(why, Instant::now()) {
            ReadStep::Begin(number) => self.begin(number),
            ReadStep::Refuse => {
                self.failed = Some((
                    why,
                    format!("{MOST_THREADS} reads have not ended; {}", self.describe_hang()),
                ));
            }
            _ => return false,
        }
        true
    }

    fn begin(&self, number: u64) {
        let (source, files, sender) =
            (self.source.clone(), self.files.clone(), self.ended.0.clone());
        let mut report = EndReport { number, read: None, sender };
        // The first read waits for every file: without a secret there is nothing to start with.
        let patience = self.is_started.then_some(SECRET_PATIENCE);
        // If no thread can be started, `report` is dropped with the closure, and reports that
        // nothing was read.
        let _made: io::Result<_> = threads::spawn("config", move || {
            report.read = Some((source.stamp(), Box::new(source.load(&files, patience))));
            drop(report);
        });
    }

    /// Waits for the result of a request. Cancel safe.
    pub(crate) async fn next(&mut self) -> ConfigRead {
        loop {
            if let Some((why, fault)) = self.failed.take() {
                return ConfigRead::Failed(why, fault);
            }
            let (number, read) = match self.schedule.deadline() {
                None => match self.ended.1.recv().await {
                    Some(ended) => ended,
                    None => return std::future::pending().await,
                },
                Some(deadline) => tokio::select! {
                    biased;
                    Some(ended) = self.ended.1.recv() => ended,
                    () = tokio::time::sleep_until(deadline.into()) => {
                        let Some(why) = self.schedule.overdue() else { continue };
                        return ConfigRead::Overdue(why, self.describe_hang());
                    }
                },
            };
            match self.schedule.ended(number) {
                ReadStep::Use(why, again) => {
                    if let Some(why) = again {
                        self.request(why);
                    }
                    return match read {
                        Some((stamp, loaded)) => {
                            self.stamp = stamp;
                            self.is_started = true;
                            self.secret_files.clone_from(loaded.secret_files());
                            ConfigRead::Done(why, loaded)
                        }
                        None => ConfigRead::Failed(
                            why,
                            "cannot start a thread to read the configuration".to_owned(),
                        ),
                    };
                }
                ReadStep::Request(why) => drop(self.request(why)),
                _ => {}
            }
        }
    }

    /// Describes the file whose read has not ended.
    #[must_use]
    pub(crate) fn describe_hang(&self) -> String {
        match self.files.oldest() {
            Some((path, time)) => {
                let (path, seconds) = (path.display(), time.as_secs());
                format!(
                    "{path}: a read has not ended for {seconds} s; is its file system reachable?"
                )
            }
            None => "reading the configuration has not ended".to_owned(),
        }
    }
}

/// Reports the end of a read, also if its thread fails.
struct EndReport {
    number: u64,
    read: Option<(FileStamp, Box<Loaded>)>,
    sender: mpsc::Sender<Ended>,
}

impl Drop for EndReport {
    fn drop(&mut self) {
        // The channel has capacity for every thread. The reader may be gone.
        let _ = self.sender.try_send((self.number, self.read.take()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_once_more_if_requested_meanwhile() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        assert_eq!(schedule.request("one", now), ReadStep::Begin(1));
        assert_eq!(schedule.deadline(), Some(now + BOUND));
        assert_eq!(schedule.request("two", now), ReadStep::Wait);
        assert_eq!(schedule.request("three", now), ReadStep::Wait);
        assert_eq!(schedule.ended(1), ReadStep::Use("one", Some("three")));
        assert_eq!(schedule.request("three", now), ReadStep::Begin(2));
        assert_eq!(schedule.ended(2), ReadStep::Use("three", None));
        assert_eq!(schedule.deadline(), None);
    }

    #[test]
    fn uses_late_result_if_no_newer_request() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        assert_eq!(schedule.request("one", now), ReadStep::Begin(1));
        assert_eq!(schedule.overdue(), Some("one"));
        assert_eq!(schedule.deadline(), None, "reported once");
        assert_eq!(schedule.ended(1), ReadStep::Use("one", None));
    }

    #[test]
    fn reads_again_after_abandoned_read() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        assert_eq!(schedule.request("one", now), ReadStep::Begin(1));
        schedule.overdue();
        assert_eq!(schedule.request("two", now), ReadStep::Begin(2));
        // Opening the file that hangs is refused at once.
        assert_eq!(schedule.ended(2), ReadStep::Use("two", None));
        assert_eq!(schedule.ended(1), ReadStep::Request(AGAIN));
        // A read in progress is sufficient.
        assert_eq!(schedule.request("three", now), ReadStep::Begin(3));
        schedule.overdue();
        assert_eq!(schedule.request("four", now), ReadStep::Begin(4));
        assert_eq!(schedule.ended(3), ReadStep::Nothing);
        assert_eq!(schedule.ended(4), ReadStep::Use("four", None));
    }

    #[test]
    fn bounds_reads_that_hang() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let mut begun = 0;
        for _ in 0..100 {
            if let ReadStep::Begin(_) = schedule.request("again", now) {
                begun += 1;
            }
            schedule.overdue();
        }
        assert_eq!(begun, MOST_THREADS);
        assert_eq!(schedule.ended(1), ReadStep::Request(AGAIN));
        assert!(matches!(schedule.request("again", now), ReadStep::Begin(_)));
    }

    #[tokio::test]
    async fn reports_overdue_read_and_uses_it_later() {
        // Standard input is not read here: the test reports to the schedule in place of a thread.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pointsman.toml");
        std::fs::write(&file, "[[service]]\nsentinels = [\"s\"]\n").unwrap();
        let flags = crate::config::Flags { config: Some(file), ..crate::config::Flags::default() };
        let mut reader = ConfigReader::new(ConfigSource::new(flags));
        assert!(reader.request("one"));
        let ConfigRead::Done("one", loaded) = reader.next().await else {
            panic!("it was not read")
        };
        assert!(loaded.config().is_ok());
        assert_eq!(
            reader.schedule.request("two", Instant::now().checked_sub(BOUND).unwrap()),
            ReadStep::Begin(2)
        );
        let ConfigRead::Overdue("two", fault) = reader.next().await else {
            panic!("it was not overdue")
        };
        assert!(fault.contains("has not ended"), "{fault}");
        reader.begin(2);
        assert!(matches!(reader.next().await, ConfigRead::Done("two", _)));
        // A failed thread is not a read, and does not leave the reader waiting.
        assert_eq!(reader.schedule.request("three", Instant::now()), ReadStep::Begin(3));
        drop(EndReport { number: 3, read: None, sender: reader.ended.0.clone() });
        assert!(matches!(reader.next().await, ConfigRead::Failed("three", _)));
    }
}
