//! Reads the configuration on a thread of its own, at the start and at each reload.
//!
//! A read can hang for ever (see [`PendingReads`]), and nothing can end it. So it is never waited for
//! without a bound: after [`BOUND`] it is reported as overdue, once, and everything stays as it
//! was. If it ends later, and nothing newer was asked for, its result counts like any other. A
//! request that comes while a read is overdue starts another one, which may name other files by
//! now. In the file that hangs it fails at once, and [`MOST_THREADS`] bounds what is left, so that
//! requests do not pile up threads. As soon as a read that was given up ends, the file can be read
//! again, and the configuration is.
//!
//! [`Schedule`] decides, without a clock and without threads; [`Reader`] carries it out.

use std::io;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::config::{Loaded, PendingReads};
use crate::process::reload::{Look, Source};
use crate::process::threads;

/// A read that takes longer is overdue. Ten thousand times what a file on a disk takes.
pub(crate) const BOUND: Duration = Duration::from_secs(5);
/// The most reads that may hang at a time.
const MOST_THREADS: usize = 4;
/// Why a read begins when one that was given up has ended.
const AGAIN: &str = "a file that hung can be read again";

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Begin the read of this number.
    Begin(u64),
    /// A read is under way, and another one follows it.
    Wait,
    /// Too many reads hang.
    Refuse,
    /// The result of the read that has just ended counts. If another was asked for meanwhile, it is
    /// next.
    Take(&'static str, Option<&'static str>),
    /// A read that was given up has ended: ask for another one.
    Ask(&'static str),
    /// Nothing.
    Nothing,
}

/// The read that was asked for last.
#[derive(Debug)]
struct Current {
    number: u64,
    why: &'static str,
    since: Instant,
    overdue: bool,
    again: Option<&'static str>,
}

/// Decides when to read, and whose result counts.
#[derive(Debug, Default)]
struct Schedule {
    last: u64,
    current: Option<Current>,
    /// Reads that were given up and have not ended.
    given_up: usize,
}

impl Schedule {
    fn ask(&mut self, why: &'static str, now: Instant) -> Step {
        match &mut self.current {
            Some(current) if !current.overdue => {
                current.again = Some(why);
                return Step::Wait;
            }
            Some(_) if self.given_up + 1 >= MOST_THREADS => return Step::Refuse,
            Some(_) => self.given_up += 1,
            None if self.given_up >= MOST_THREADS => return Step::Refuse,
            None => {}
        }
        self.last += 1;
        self.current =
            Some(Current { number: self.last, why, since: now, overdue: false, again: None });
        Step::Begin(self.last)
    }

    fn ended(&mut self, number: u64) -> Step {
        match self.current.take() {
            Some(current) if current.number == number => Step::Take(current.why, current.again),
            current => {
                self.current = current;
                self.given_up = self.given_up.saturating_sub(1);
                // One under way that is not overdue reads the file by itself.
                if self.current.as_ref().is_none_or(|it| it.overdue) {
                    Step::Ask(AGAIN)
                } else {
                    Step::Nothing
                }
            }
        }
    }

    /// When to look whether the current read is overdue.
    fn deadline(&self) -> Option<Instant> {
        self.current.as_ref().filter(|it| !it.overdue).map(|it| it.since + BOUND)
    }

    /// The current read is overdue from now on.
    fn overdue(&mut self) -> Option<&'static str> {
        let current = self.current.as_mut()?;
        current.overdue = true;
        Some(current.why)
    }
}

/// What came of a request.
#[derive(Debug)]
pub(crate) enum Read {
    /// The configuration was read, with or without faults.
    Done(&'static str, Box<Loaded>),
    /// The read has not ended in time. If it still does, its result follows.
    Overdue(&'static str, String),
    /// It cannot be read now.
    Failed(&'static str, String),
}

/// A read that has ended: what the file looked like before, and what was read. `None`: its thread
/// did not end well.
type Ended = (u64, Option<(Look, Box<Loaded>)>);

/// Reads on threads of its own.
#[derive(Debug)]
pub(crate) struct Reader {
    source: Source,
    files: PendingReads,
    schedule: Schedule,
    ended: (mpsc::Sender<Ended>, mpsc::Receiver<Ended>),
    /// What the file looked like before the last read.
    look: Look,
    /// What is to be told before anything else.
    failed: Option<(&'static str, String)>,
}

impl Reader {
    pub(crate) fn new(source: Source) -> Self {
        let ended = mpsc::channel(2 * MOST_THREADS);
        Self {
            source,
            files: PendingReads::default(),
            schedule: Schedule::default(),
            ended,
            look: None,
            failed: None,
        }
    }

    /// The files that are being read.
    pub(crate) fn files(&self) -> PendingReads {
        self.files.clone()
    }

    /// Where the configuration comes from.
    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// What the file looked like before the last read.
    pub(crate) fn look(&self) -> Look {
        self.look
    }

    /// Asks for a read; [`next`](Self::next) tells what came of it. `false` if it follows one that
    /// is under way.
    pub(crate) fn ask(&mut self, why: &'static str) -> bool {
        match self.schedule.ask(why, Instant::now()) {
            Step::Begin(number) => self.begin(number),
            Step::Refuse => {
                self.failed = Some((
                    why,
                    format!("{MOST_THREADS} attempts have not ended; {}", self.hangs()),
                ));
            }
            _ => return false,
        }
        true
    }

    fn begin(&self, number: u64) {
        let (source, files, tell) = (self.source.clone(), self.files.clone(), self.ended.0.clone());
        let mut ending = Ending { number, read: None, tell };
        // If there is no thread, the ending is dropped with the closure, and so tells that nothing
        // was read.
        let _made: io::Result<_> = threads::aside("config", move || {
            ending.read = Some((source.look(), Box::new(source.load(&files))));
            drop(ending);
        });
    }

    /// Waits for what came of a request. Loses nothing if it is dropped and called again.
    pub(crate) async fn next(&mut self) -> Read {
        loop {
            if let Some((why, fault)) = self.failed.take() {
                return Read::Failed(why, fault);
            }
            let (number, read) = match self.schedule.deadline() {
                None => match self.ended.1.recv().await {
                    Some(ended) => ended,
                    None => return std::future::pending().await,
                },
                Some(deadline) => tokio::select! {
                    biased;
                    Some(ended) = self.ended.1.recv() => ended,
                    () = tokio::time::sleep_until(deadline.into()) => match self.schedule.overdue() {
                        Some(why) => return Read::Overdue(why, self.hangs()),
                        None => continue,
                    },
                },
            };
            match self.schedule.ended(number) {
                Step::Take(why, again) => {
                    if let Some(why) = again {
                        self.ask(why);
                    }
                    return match read {
                        Some((look, loaded)) => {
                            self.look = look;
                            Read::Done(why, loaded)
                        }
                        None => Read::Failed(
                            why,
                            "the system gives no thread to read the configuration".to_owned(),
                        ),
                    };
                }
                Step::Ask(why) => drop(self.ask(why)),
                _ => {}
            }
        }
    }

    /// Which file is waited for, in words.
    #[must_use]
    pub(crate) fn hangs(&self) -> String {
        match self.files.oldest() {
            Some((path, time)) => {
                let (path, seconds) = (path.display(), time.as_secs());
                format!(
                    "{path}: reading it has not ended for {seconds} s; is its file system still there?"
                )
            }
            None => "reading the configuration has not ended".to_owned(),
        }
    }
}

/// Tells that a read has ended, however it did.
struct Ending {
    number: u64,
    read: Option<(Look, Box<Loaded>)>,
    tell: mpsc::Sender<Ended>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        // There is room for every thread's word. The reader may have gone.
        let _ = self.tell.try_send((self.number, self.read.take()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_once_more_if_asked_while_reading() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        assert_eq!(schedule.ask("one", now), Step::Begin(1));
        assert_eq!(schedule.deadline(), Some(now + BOUND));
        assert_eq!(schedule.ask("two", now), Step::Wait);
        assert_eq!(schedule.ask("three", now), Step::Wait);
        assert_eq!(schedule.ended(1), Step::Take("one", Some("three")));
        assert_eq!(schedule.ask("three", now), Step::Begin(2));
        assert_eq!(schedule.ended(2), Step::Take("three", None));
        assert_eq!(schedule.deadline(), None);
    }

    #[test]
    fn takes_late_result_if_nothing_newer_was_asked_for() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        assert_eq!(schedule.ask("one", now), Step::Begin(1));
        assert_eq!(schedule.overdue(), Some("one"));
        assert_eq!(schedule.deadline(), None, "it is told once");
        assert_eq!(schedule.ended(1), Step::Take("one", None));
    }

    #[test]
    fn drops_late_result_and_reads_again_if_it_was_given_up() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        assert_eq!(schedule.ask("one", now), Step::Begin(1));
        schedule.overdue();
        assert_eq!(schedule.ask("two", now), Step::Begin(2));
        // The file that hangs is refused at once.
        assert_eq!(schedule.ended(2), Step::Take("two", None));
        assert_eq!(schedule.ended(1), Step::Ask(AGAIN));
        // While another one is under way, it is enough.
        assert_eq!(schedule.ask("three", now), Step::Begin(3));
        schedule.overdue();
        assert_eq!(schedule.ask("four", now), Step::Begin(4));
        assert_eq!(schedule.ended(3), Step::Nothing);
        assert_eq!(schedule.ended(4), Step::Take("four", None));
    }

    #[test]
    fn bounds_reads_that_hang() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let mut begun = 0;
        for _ in 0..100 {
            if let Step::Begin(_) = schedule.ask("again", now) {
                begun += 1;
            }
            schedule.overdue();
        }
        assert_eq!(begun, MOST_THREADS);
        assert_eq!(schedule.ended(1), Step::Ask(AGAIN));
        assert!(matches!(schedule.ask("again", now), Step::Begin(_)));
    }

    #[tokio::test]
    async fn tells_that_a_read_is_overdue_and_takes_it_later() {
        // The standard input is not read here: the test reports to the schedule what a thread would
        // tell.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pointsman.toml");
        std::fs::write(&file, "[[service]]\nsentinels = [\"s\"]\n").unwrap();
        let flags = crate::config::Flags { config: Some(file), ..crate::config::Flags::default() };
        let mut reader = Reader::new(Source::new(flags));
        assert!(reader.ask("one"));
        let Read::Done("one", loaded) = reader.next().await else { panic!("it was not read") };
        assert!(loaded.config().is_ok());
        assert_eq!(
            reader.schedule.ask("two", Instant::now().checked_sub(BOUND).unwrap()),
            Step::Begin(2)
        );
        let Read::Overdue("two", fault) = reader.next().await else { panic!("it was not overdue") };
        assert!(fault.contains("has not ended"), "{fault}");
        reader.begin(2);
        assert!(matches!(reader.next().await, Read::Done("two", _)));
        // A thread that did not end well is no read, and does not leave the reader waiting.
        assert_eq!(reader.schedule.ask("three", Instant::now()), Step::Begin(3));
        drop(Ending { number: 3, read: None, tell: reader.ended.0.clone() });
        assert!(matches!(reader.next().await, Read::Failed("three", _)));
    }
}
