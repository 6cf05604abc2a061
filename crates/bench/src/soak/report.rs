//! What a person reads: the schedule, the progress, and the summary.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::schedule::{Fault, Step};

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
    pub(super) lost: u64,
    pub(super) errors: BTreeMap<String, u64>,
    pub(super) performed: BTreeMap<Fault, u64>,
    pub(super) samples: Vec<Sample>,
    pub(super) books: Option<String>,
    pub(super) findings: Vec<String>,
}

pub(super) fn plan(steps: &[Step]) -> String {
    steps.iter().enumerate().fold(String::new(), |mut text, (index, step)| {
        let _ = writeln!(text, "{}", line(index + 1, step));
        text
    })
}

/// One step of the schedule.
pub(super) fn line(number: usize, step: &Step) -> String {
    format!(
        "{number:>4}  after {:>4} ms  {:<40} member {:>2}, for {:>4} ms",
        step.pause.as_millis(),
        step.fault.name(),
        step.which,
        step.hold.as_millis()
    )
}

/// The command that runs the same schedule again.
fn command(summary: &Summary) -> String {
    format!("cargo xtask soak --minutes {} --seed {}", summary.minutes, summary.seed)
}

/// Growth beyond the bound, one message per process.
pub(super) fn growth(samples: &[Sample]) -> Vec<String> {
    let mut processes: BTreeMap<u32, Vec<Sample>> = BTreeMap::new();
    for sample in samples {
        processes.entry(sample.pid).or_default().push(*sample);
    }
    let grown = processes.into_values().filter_map(|all| {
        let start = all.first()?.at;
        let warm = all.iter().find(|it| it.at >= start + WARM)?;
        let last = all.last()?;
        (last.kib > warm.kib + GROWTH_KIB).then(|| {
            format!(
                "private memory grew from {} to {} KiB in {} s",
                warm.kib,
                last.kib,
                (last.at - warm.at).as_secs()
            )
        })
    });
    grown.collect()
}

pub(super) fn summary(it: &Summary) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "\nSoak of {} s with seed {}", it.lasted.as_secs(), it.seed);
    let steps: u64 = it.performed.values().sum();
    let _ = writeln!(text, "\n  {steps} steps");
    for (fault, count) in &it.performed {
        let _ = writeln!(text, "    {count:>4}  {}", fault.name());
    }
    let _ = writeln!(
        text,
        "\n  {} replies to {} clients, each compared with its model; {} audits of whole values\n  \
         {} connections, {} of them ended by a fault\n  {} acknowledged writes lost in unplanned \
         failovers, which Redis may lose; 0 allowed elsewhere",
        it.replies, it.clients, it.audits, it.connections, it.closed, it.lost
    );
    for (message, count) in &it.errors {
        let _ = writeln!(text, "    {count:>6}  {message}");
    }
    if let (Some(least), Some(most)) = (
        it.samples.iter().map(|sample| sample.kib).min(),
        it.samples.iter().map(|sample| sample.kib).max(),
    ) {
        let _ = writeln!(
            text,
            "  private memory {least} to {most} KiB in {} samples; a process may grow by {GROWTH_KIB} KiB",
            it.samples.len()
        );
    }
    if let Some(books) = &it.books {
        let _ = writeln!(text, "  last process: {books}");
    }
    if it.findings.is_empty() {
        text.push_str("\nNo finding.\n");
    } else {
        let _ = writeln!(text, "\n{} findings:", it.findings.len());
        for finding in &it.findings {
            let _ = writeln!(text, "  {finding}");
        }
        let _ = writeln!(text, "\nRun it again: {}", command(it));
    }
    text
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
    fn names_the_command_only_with_findings() {
        let mut it = Summary { seed: 42, minutes: 3, ..Summary::default() };
        assert!(summary(&it).contains("No finding.") && !summary(&it).contains("cargo xtask"));
        it.findings.push("step 1: wrong".to_owned());
        assert!(summary(&it).contains("cargo xtask soak --minutes 3 --seed 42"));
    }
}
