//! What a person reads: the schedule, the progress, and the summary.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use super::judge::Cause;
use super::schedule::{Act, Fault, Step};
use super::shared::{Excused, Finding};
use super::stock::Stocks;

/// The growth of a proxy's private memory that counts as flat, from its first sample after the
/// warm-up: allocator caches and the history of failovers, both bounded.
pub(super) const GROWTH_KIB: u64 = 8 * 1024;
/// A process is warm after this long.
const WARM: Duration = Duration::from_secs(20);

/// Private dirty memory of one process at one time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// Since the start of the soak.
    pub(super) at: Duration,
    pub(super) pid: u32,
    pub(super) kib: u64,
}

/// How often each fault was performed.
#[derive(Debug, Default)]
pub(super) struct Performed {
    pub(super) first: BTreeMap<Fault, u64>,
    pub(super) second: BTreeMap<Fault, u64>,
    /// Steps whose second fault began before the first one was over.
    pub(super) overlaps: u64,
    pub(super) steps: u64,
    /// Changes of the master by their cause.
    pub(super) planned: u64,
    pub(super) by_fault: u64,
    pub(super) by_environment: u64,
    /// Failovers that a sentinel began and aborted.
    pub(super) aborted: u64,
}

impl Performed {
    pub(super) fn count(&mut self, step: &Step) {
        self.steps += 1;
        *self.first.entry(step.first.fault).or_default() += 1;
        if let Some((_, second)) = step.second {
            *self.second.entry(second.fault).or_default() += 1;
        }
    }

    pub(super) fn switched(&mut self, cause: Cause) {
        match cause {
            Cause::Planned => self.planned += 1,
            Cause::Fault => self.by_fault += 1,
            Cause::Environment => self.by_environment += 1,
        }
    }
}

/// All figures of a run.
#[derive(Debug, Default)]
pub(super) struct Summary {
    pub(super) seed: u64,
    pub(super) minutes: u64,
    pub(super) lasted: Duration,
    pub(super) clients: usize,
    pub(super) replies: u64,
    pub(super) audits: u64,
    pub(super) connections: u64,
    pub(super) closed: u64,
    pub(super) excused: Excused,
    pub(super) failed_failovers: u64,
    pub(super) errors: BTreeMap<String, u64>,
    pub(super) performed: Performed,
    pub(super) samples: Vec<Sample>,
    pub(super) stocks: Stocks,
    pub(super) books: Option<String>,
    pub(super) findings: Vec<Finding>,
    /// Where the logs are, if they were kept.
    pub(super) folder: Option<PathBuf>,
}

pub(super) fn plan(steps: &[Step]) -> String {
    steps.iter().enumerate().fold(String::new(), |mut text, (index, step)| {
        let _ = writeln!(text, "{}", line(index + 1, step));
        text
    })
}

/// One step of the schedule.
pub(super) fn line(number: usize, step: &Step) -> String {
    let act =
        |it: &Act| format!("{} (member {}, {} ms)", it.fault.name(), it.which, it.hold.as_millis());
    let mut text = format!("{number:>4}  {}", act(&step.first));
    if let Some((delay, second)) = &step.second {
        let _ = write!(text, ", after {} ms {}", delay.as_millis(), act(second));
    }
    text
}

/// The command that runs the same schedule again.
fn command(summary: &Summary) -> String {
    format!("cargo xtask soak --minutes {} --seed {}", summary.minutes, summary.seed)
}

/// The first sample of each process after its warm-up, and its last one.
fn spans(samples: &[Sample]) -> Vec<(Sample, Sample)> {
    let mut processes: BTreeMap<u32, Vec<Sample>> = BTreeMap::new();
    for sample in samples {
        processes.entry(sample.pid).or_default().push(*sample);
    }
    let span = |all: Vec<Sample>| {
        let start = all.first()?.at;
        let warm = all.iter().find(|it| it.at >= start + WARM)?;
        Some((*warm, *all.last()?))
    };
    processes.into_values().filter_map(span).collect()
}

/// Growth beyond the bound, one message per process.
pub(super) fn growth(samples: &[Sample]) -> Vec<String> {
    let grown = spans(samples).into_iter().filter(|(warm, last)| last.kib > warm.kib + GROWTH_KIB);
    let message = |(warm, last): (Sample, Sample)| {
        let seconds = (last.at - warm.at).as_secs();
        format!("private memory grew from {} to {} KiB in {seconds} s", warm.kib, last.kib)
    };
    grown.map(message).collect()
}

pub(super) fn summary(it: &Summary) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "\nSoak of {} s with seed {}", it.lasted.as_secs(), it.seed);
    faults(&mut text, it);
    let _ = writeln!(
        text,
        "\n  {} replies to {} clients, each compared with its model; {} audits of whole values\n  \
         {} connections, {} of them ended by a fault\n  acknowledged writes that Redis may lose: {} by \
         a fault of the master, {} by a replica that lagged at SENTINEL FAILOVER, {} in failovers by \
         the environment",
        it.replies,
        it.clients,
        it.audits,
        it.connections,
        it.closed,
        it.excused.by_fault,
        it.excused.by_lag,
        it.excused.by_environment
    );
    for (message, count) in &it.errors {
        let _ = writeln!(text, "    {count:>6}  {message}");
    }
    accounts(&mut text, it);
    findings(&mut text, it);
    text
}

fn faults(text: &mut String, it: &Summary) {
    let done = &it.performed;
    let _ = writeln!(text, "\n  {} steps, {} with two faults at once", done.steps, done.overlaps);
    let all: BTreeSet<&Fault> = done.first.keys().chain(done.second.keys()).collect();
    for fault in all {
        let count = |of: &BTreeMap<Fault, u64>| of.get(fault).copied().unwrap_or(0);
        let (first, second) = (count(&done.first), count(&done.second));
        let _ = writeln!(text, "    {first:>4} + {second:>3}  {}", fault.name());
    }
    let _ = writeln!(
        text,
        "  changes of the master: {} planned, {} by a fault, {} by the environment ({} observations \
         explained by these); {} orders failed; sentinels aborted {} failovers",
        done.planned,
        done.by_fault,
        done.by_environment,
        it.excused.others,
        it.failed_failovers,
        done.aborted
    );
}

fn accounts(text: &mut String, it: &Summary) {
    let memory = |sample: Option<&Sample>| sample.map_or(0, |sample| sample.kib);
    let most = it.samples.iter().map(|sample| sample.kib).max().unwrap_or(0);
    let _ = writeln!(
        text,
        "  private memory {} KiB first, {most} KiB most, {} KiB last, in {} samples; a process may \
         grow by {GROWTH_KIB} KiB",
        memory(it.samples.first()),
        memory(it.samples.last()),
        it.samples.len()
    );
    let longest = spans(&it.samples).into_iter().max_by_key(|(warm, last)| last.at - warm.at);
    if let Some((warm, last)) = longest {
        let seconds = (last.at - warm.at).as_secs();
        let _ = writeln!(
            text,
            "  of the process that ran longest: {} KiB, {seconds} s later {} KiB",
            warm.kib, last.kib
        );
    }
    let stocks = &it.stocks;
    let _ = writeln!(
        text,
        "  books balanced {} times with all clients at rest, {} of them to the byte",
        stocks.taken, stocks.exact
    );
    for (when, stock) in [("first", &stocks.first), ("last", &stocks.last)] {
        if let Some(stock) = stock {
            let _ = writeln!(text, "  {when} balance: {}", stock.books.line());
        }
    }
    if let Some(books) = &it.books {
        let _ = writeln!(text, "  at the end: {books}");
    }
}

fn findings(text: &mut String, it: &Summary) {
    if it.findings.is_empty() {
        text.push_str("\nNo finding.\n");
        return;
    }
    let _ = writeln!(text, "\n{} findings:", it.findings.len());
    for finding in &it.findings {
        let _ = writeln!(text, "  {}", finding.what);
    }
    for finding in it.findings.iter().filter(|it| !it.before.is_empty()) {
        let _ = writeln!(text, "\nBefore: {}", finding.what);
        for line in &finding.before {
            let _ = writeln!(text, "  {line}");
        }
    }
    if let Some(folder) = &it.folder {
        let _ = writeln!(text, "\nLogs of all processes: {}", folder.display());
    }
    let _ = writeln!(text, "Run it again: {}", command(it));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: u64, pid: u32, kib: u64) -> Sample {
        Sample { at: Duration::from_secs(at), pid, kib }
    }

    #[test]
    fn reports_growth_of_one_process_only() {
        let flat = [sample(0, 1, 100), sample(30, 1, 9000), sample(60, 1, 9100)];
        assert!(growth(&flat).is_empty(), "the warm-up does not count");
        let replaced = [sample(30, 1, 100), sample(60, 2, 90_000), sample(70, 2, 90_000)];
        assert!(growth(&replaced).is_empty());
        let grown = [sample(0, 1, 100), sample(30, 1, 9000), sample(60, 1, 9001 + GROWTH_KIB)];
        assert_eq!(growth(&grown).len(), 1);
    }

    #[test]
    fn explains_findings_and_how_to_repeat_them() {
        let mut it = Summary { seed: 42, minutes: 3, ..Summary::default() };
        assert!(summary(&it).contains("No finding.") && !summary(&it).contains("cargo xtask"));
        let before = vec!["1.000 s  begin of: reload".to_owned()];
        it.findings.push(Finding { what: "step 1: wrong".to_owned(), before });
        it.folder = Some(PathBuf::from("/kept"));
        let text = summary(&it);
        for part in ["cargo xtask soak --minutes 3 --seed 42", "begin of: reload", "/kept"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
