//! The duration of commands and connects, measured cheaply enough to be always on.
//!
//! A histogram has four buckets per power of two of microseconds, so a value is known to a quarter
//! of itself over the whole range from a microsecond to two minutes, in less than a kilobyte. Like
//! every counter it belongs to one worker, which adds without atomic operations; a reader sums up
//! the workers.
//!
//! Commands are sampled. A [`Stopwatch`] takes eight bytes of a session and follows one request at
//! a time: every thirty-second write that begins a request starts it, and it remembers how many
//! replies come first. The clock is read twice per sample, so on average once in sixteen requests.
//! It measures the time of the target and of the network to it: from the moment at which the first
//! bytes of the request have been written to the target until the last byte of its reply has been
//! read from it. The speed of the client does not matter. Blocking commands (`BLPOP`, `WAIT`) and
//! sessions that are not followed are excluded.
//!
//! Quantiles are not computed while measuring.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use resp::{Class, Direction, Ledger};

use crate::counter::{Counted, Counter, Counters};

/// One of this many writes that begin a request is measured.
const SAMPLE_INTERVAL: u64 = 32;

/// The powers of two of microseconds that are distinguished, and the buckets per power.
const OCTAVES: u32 = 27;
const PARTS: usize = 4;
/// The number of buckets; the last one also holds everything beyond two minutes.
const BUCKETS: usize = (OCTAVES as usize - 1) * PARTS;

/// The bucket of a value: below four each has its own, then each power of two has four.
fn bucket(micros: u64) -> usize {
    let octave = (micros | 1).ilog2();
    if octave < 2 {
        return usize::try_from(micros).unwrap_or(0);
    }
    let part = usize::try_from((micros >> (octave - 2)) & 3).unwrap_or(0);
    ((octave as usize - 1) * PARTS + part).min(BUCKETS - 1)
}

/// The upper end of a bucket, exclusive, in microseconds.
fn end(bucket: usize) -> u64 {
    let next = (bucket + 1) as u64;
    match next / 4 {
        0 => next,
        octave => (4 + next % 4) << (octave - 1),
    }
}

#[derive(Debug, Default)]
pub(crate) struct Histogram {
    counts: Counters<BUCKETS>,
    micros: Counter,
}

impl Histogram {
    /// Adds a value. Only the owning worker may call it.
    pub(crate) fn record(&self, span: Duration) {
        self.record_micros(u64::try_from(span.as_micros()).unwrap_or(u64::MAX));
    }

    fn record_micros(&self, micros: u64) {
        self.counts.increment(bucket(micros));
        self.micros.add(micros);
    }
}

impl Counted<Distribution> for Histogram {
    fn add_to(&self, sum: &mut Distribution) {
        self.counts.add_to(&mut sum.counts);
        self.micros.add_to(&mut sum.micros);
    }
}

/// The measurements of all workers so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Distribution {
    counts: Vec<u64>,
    micros: u64,
}

impl Distribution {
    /// Adds another distribution.
    pub fn merge(&mut self, other: &Self) {
        self.counts.resize(BUCKETS, 0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        self.micros = self.micros.saturating_add(other.micros);
    }

    /// What was measured after `before`, an earlier copy of the same distribution.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut rest = self.clone();
        for (count, then) in rest.counts.iter_mut().zip(&before.counts) {
            *count = count.saturating_sub(*then);
        }
        rest.micros = rest.micros.saturating_sub(before.micros);
        rest
    }

    /// The number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of the values.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.micros)
    }

    /// The number of values below `bound`; exact if `bound` is a power of two of microseconds.
    #[must_use]
    pub fn below(&self, bound: Duration) -> u64 {
        let bound = u64::try_from(bound.as_micros()).unwrap_or(u64::MAX);
        self.counts
            .iter()
            .enumerate()
            .take_while(|(at, _)| end(*at) <= bound)
            .map(|(_, count)| count)
            .sum()
    }

    /// The quantile at `per_mille`, to a quarter of itself; `None` without values.
    #[must_use]
    pub fn quantile(&self, per_mille: u64) -> Option<Duration> {
        let wanted = (self.count().checked_mul(per_mille)?).div_ceil(1000).max(1);
        let mut seen = 0;
        let at = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        Some(Duration::from_micros(end(at)))
    }
}

/// The command times of one service on one worker.
#[derive(Debug)]
pub(crate) struct CommandTimes {
    origin: Instant,
    candidates: Counter,
    pub(crate) took: Histogram,
}

impl Default for CommandTimes {
    fn default() -> Self {
        Self { origin: Instant::now(), candidates: Counter::default(), took: Histogram::default() }
    }
}

impl Counted<Distribution> for CommandTimes {
    fn add_to(&self, sum: &mut Distribution) {
        self.took.add_to(sum);
    }
}

impl CommandTimes {
    /// Microseconds since the worker started to measure.
    pub(crate) fn elapsed(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Microseconds, never zero, that wrap after an hour: longer than any command that is measured.
    fn now(&self) -> NonZeroU32 {
        #[expect(clippy::cast_possible_truncation, reason = "only differences count")]
        let micros = self.origin.elapsed().as_micros() as u32;
        NonZeroU32::new(micros).unwrap_or(NonZeroU32::MIN)
    }
}

/// Follows one request of a session to its reply.
#[derive(Debug, Default)]
pub(crate) struct Stopwatch {
    since: Option<NonZeroU32>,
    /// Replies that come before the awaited one.
    ahead: u32,
}

impl Stopwatch {
    /// To be called before the ledger records a write: if it is to be measured, the number of
    /// replies owed before it.
    #[inline]
    pub(crate) fn before_write(&self, commands: &CommandTimes, ledger: &Ledger) -> Option<u64> {
        if self.since.is_some() {
            return None;
        }
        commands.candidates.increment();
        let candidates = commands.candidates.get().is_multiple_of(SAMPLE_INTERVAL)
            && ledger.at_boundary(Direction::Request);
        candidates.then(|| ledger.owed())
    }

    /// To be called after the ledger has recorded the write.
    #[cold]
    pub(crate) fn start(&mut self, owed: u64, commands: &CommandTimes, ledger: &Ledger) {
        let answered = ledger.owed() > owed || !ledger.at_boundary(Direction::Request);
        let waits = matches!(ledger.last_request(), Some(Class::Blocking | Class::Wait));
        if answered && !waits {
            self.start_before_record(owed, commands);
        }
    }

    /// Starts a sample before the ledger records the write. The time includes waiting for a turn
    /// on the shared connection.
    pub(crate) fn start_before_record(&mut self, owed: u64, commands: &CommandTimes) {
        self.since = Some(commands.now());
        self.ahead = u32::try_from(owed).unwrap_or(u32::MAX);
    }

    /// Records that this many replies have arrived.
    #[inline(always)]
    pub(crate) fn replied(&mut self, replies: u32, commands: &CommandTimes) {
        if let Some(since) = self.since {
            self.replied_since(since, replies, commands);
        }
    }

    #[cold]
    fn replied_since(&mut self, since: NonZeroU32, replies: u32, commands: &CommandTimes) {
        if replies <= self.ahead {
            self.ahead -= replies;
            return;
        }
        self.since = None;
        commands.took.record_micros(commands.now().get().wrapping_sub(since.get()).into());
    }
}

#[cfg(test)]
mod tests {
    use resp::Limits;

    use super::*;

    #[test]
    fn puts_every_value_into_its_bucket() {
        let values = (0..5000).chain(
            (0..40).flat_map(|octave| [(1_u64 << octave) - 1, 1 << octave, (1 << octave) + 1]),
        );
        for micros in values {
            let at = bucket(micros);
            assert!(at < BUCKETS);
            if at + 1 < BUCKETS {
                assert!(micros < end(at), "{micros} in {at}");
            }
            assert!(at == 0 || end(at - 1) <= micros, "{micros} in {at}");
            assert!(
                end(at) <= micros.max(3) + micros / 4 + 1 || at + 1 == BUCKETS,
                "{micros}: wider than a quarter"
            );
        }
    }

    fn of(values: &[u64]) -> Distribution {
        let histogram = Histogram::default();
        values.iter().for_each(|micros| histogram.record(Duration::from_micros(*micros)));
        let mut sum = Distribution::default();
        histogram.add_to(&mut sum);
        sum
    }

    #[test]
    fn sums_workers_and_is_exact_at_powers_of_two() {
        let mut both = of(&[63, 64, 100]);
        let other = Histogram::default();
        other.record(Duration::from_secs(3600));
        other.add_to(&mut both);
        let below = |micros| both.below(Duration::from_micros(micros));
        assert_eq!((below(64), below(128), below(1 << 26), both.count()), (1, 3, 3, 4));
        assert_eq!(both.sum(), Duration::from_micros(63 + 64 + 100 + 3_600_000_000));
        assert_eq!(both.quantile(500), Some(Duration::from_micros(80)));
        assert_eq!(Distribution::default().quantile(500), None);
    }

    /// A session without sockets: what is written and what arrives.
    struct TestSession {
        commands: CommandTimes,
        ledger: Ledger,
        watch: Stopwatch,
    }

    impl TestSession {
        fn new() -> Self {
            Self {
                commands: CommandTimes::default(),
                ledger: Ledger::new(&Limits::default()),
                watch: Stopwatch::default(),
            }
        }

        fn write(&mut self, bytes: &[u8]) {
            let start = self.watch.before_write(&self.commands, &self.ledger);
            self.ledger.request(bytes);
            if let Some(start) = start {
                self.watch.start(start, &self.commands, &self.ledger);
            }
        }

        /// Writes answered requests until the next write is measured, and then `bytes`.
        fn write_measured(&mut self, bytes: &[u8]) {
            while self.commands.candidates.get() % SAMPLE_INTERVAL != SAMPLE_INTERVAL - 1 {
                self.write(b"PING\r\n");
                self.read(b"+PONG\r\n");
            }
            self.write(bytes);
        }

        fn read(&mut self, bytes: &[u8]) {
            self.ledger.reply(bytes);
            let replies = self.ledger.take_counts().replies;
            self.watch.replied(replies, &self.commands);
        }

        fn measured(&self) -> u64 {
            let mut sum = Distribution::default();
            self.commands.took.add_to(&mut sum);
            sum.count()
        }
    }

    #[test]
    fn measures_one_in_sample_interval() {
        let mut session = TestSession::new();
        for _ in 0..800 {
            session.write(b"PING\r\n");
            session.read(b"+PONG\r\n");
        }
        assert_eq!(session.measured(), 800 / SAMPLE_INTERVAL);
    }

    #[test]
    fn measures_request_to_end_of_its_reply() {
        let mut session = TestSession::new();
        session.write_measured(b"GET a\r\nGET b\r\n");
        session.read(b"$4\r\nab");
        assert_eq!(session.measured(), 0);
        session.read(b"cd\r\n");
        assert_eq!(session.measured(), 1);
        session.read(b"$-1\r\n");
        // After others that are still owed, and in a write of its own.
        session.write(b"GET a\r\nGET b\r\n");
        session
            .commands
            .candidates
            .add(SAMPLE_INTERVAL - 1 - session.commands.candidates.get() % SAMPLE_INTERVAL);
        session.write(b"GE");
        session.write(b"T c\r\n");
        session.read(b"$-1\r\n");
        session.read(b"$-1\r\n");
        assert_eq!(session.measured(), 1);
        session.read(b"$-1\r\n");
        assert_eq!(session.measured(), 2);
    }

    #[test]
    fn skips_blocking_commands_and_those_without_reply() {
        let mut session = TestSession::new();
        session.write_measured(b"BLPOP q 0\r\n");
        session.read(b"*-1\r\n");
        assert_eq!(session.measured(), 0);
        session.write_measured(b"CLIENT REPLY SKIP\r\n");
        session.write(b"GET a\r\n");
        session.write(b"GET b\r\n");
        session.read(b"$-1\r\n");
        assert_eq!(session.measured(), 0);
    }
}
