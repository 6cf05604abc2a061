//! Measures what processes used of the machine, read from `/proc` at both ends of a window.
//!
//! CPU time is read from the process clock (`clock_getcpuclockid`), in nanoseconds:
//! `/proc/PID/stat` counts whole ticks only, and a sum over `/proc/PID/task` loses the time of
//! threads that have ended, so it can decrease. The CPU time of unrelated processes (`/proc/stat`
//! without ours) shows whether a measurement was disturbed.

use std::fs;
use std::time::{Duration, Instant};

use harness::{Cluster, Pointsman};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// A tick of `/proc/stat`; the kernel reports hundredths of a second on every machine.
const TICK: Duration = Duration::from_millis(10);

/// The processes whose CPU time is counted.
#[derive(Debug, Clone, Default)]
pub struct Meter {
    /// The processes under test.
    pub proxy: Vec<u32>,
    /// All other processes of the measurement; this process is always included.
    pub others: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    at: Instant,
    proxy: Duration,
    ours: Duration,
    busy: Duration,
    stolen: Duration,
}

/// Resources used in an interval. Times are in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Window {
    /// The length of the interval.
    pub seconds: f64,
    /// CPU time of the processes under test.
    pub proxy: f64,
    /// CPU time of unrelated processes. Counted in ticks, so slightly below zero means none.
    pub foreign: f64,
    /// Time that the host withheld from the machine.
    pub stolen: f64,
}

impl Meter {
    /// For a proxy in front of a cluster.
    #[must_use]
    pub fn of(proxy: &Pointsman, cluster: &Cluster) -> Self {
        let others = cluster.nodes().iter().chain(cluster.sentinels());
        let others = others.filter_map(harness::Node::pid).collect();
        Self { proxy: vec![proxy.process().pid()], others }
    }

    pub(crate) fn sample(&self) -> Sample {
        let proxy: Duration = self.proxy.iter().map(|pid| cpu(*pid)).sum();
        let ours: Duration =
            self.others.iter().chain([&std::process::id()]).map(|pid| cpu(*pid)).sum();
        let (busy, stolen) = machine(&fs::read_to_string("/proc/stat").unwrap_or_default());
        Sample { at: Instant::now(), proxy, ours: ours + proxy, busy, stolen }
    }
}

impl Sample {
    /// The resources used from `self` to `end`.
    pub(crate) fn until(&self, end: &Self) -> Window {
        let between = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64();
        Window {
            seconds: end.at.saturating_duration_since(self.at).as_secs_f64(),
            proxy: between(self.proxy, end.proxy),
            foreign: between(self.busy, end.busy) - between(self.ours, end.ours),
            stolen: between(self.stolen, end.stolen),
        }
    }
}

/// CPU time of a process with all its threads, including ended ones; zero for a process that has
/// ended.
pub(crate) fn cpu(pid: u32) -> Duration {
    let of = |pid: u32| {
        clock_gettime(clock_getcpuclockid(Pid::from_raw(i32::try_from(pid).ok()?)).ok()?).ok()
    };
    of(pid).map_or(Duration::ZERO, Duration::from)
}

/// Busy and stolen time of all cores since boot: user, nice, system, irq, softirq; steal.
fn machine(stat: &str) -> (Duration, Duration) {
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<u32> =
        line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    let at = |index: usize| TICK * ticks.get(index).copied().unwrap_or(0);
    ([0, 1, 2, 5, 6].into_iter().map(at).sum(), at(7))
}

/// Private dirty memory of the processes, in bytes.
#[must_use]
pub fn private_memory(pids: &[u32]) -> u64 {
    let of = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Private_Dirty:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    pids.iter().filter_map(of).sum::<u64>() * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes_idle_time() {
        let stat = "cpu  100 20 30 9999 7 4 6 50 0 0\ncpu0 1 1 1 1\n";
        assert_eq!(machine(stat), (Duration::from_millis(1600), Duration::from_millis(500)));
    }

    fn burn(enough: impl Fn() -> bool) -> u64 {
        let mut sum = 0_u64;
        while !enough() {
            sum = (0..10_000).fold(sum, |sum, number| sum.wrapping_mul(31).wrapping_add(number));
        }
        sum
    }

    #[test]
    fn measures_cpu_and_memory_of_this_process() {
        let meter = Meter { proxy: vec![std::process::id()], others: Vec::new() };
        let before = meter.sample();
        let sum = burn(|| meter.sample().proxy > before.proxy);
        let window = before.until(&meter.sample());
        assert!(window.proxy > 0.0 && window.seconds > 0.0, "{window:?} {sum}");
        assert!(private_memory(&[std::process::id()]) > 4096);
        assert_eq!(private_memory(&[u32::MAX]), 0);
        assert_eq!(cpu(u32::MAX), Duration::ZERO);
    }

    #[test]
    fn keeps_cpu_time_of_ended_threads() {
        let of = || cpu(std::process::id());
        let start = of();
        let worked = Duration::from_millis(50);
        let reached = std::thread::spawn(move || {
            burn(|| of() > start + worked);
            of()
        });
        let reached = reached.join().unwrap();
        assert!(reached > start + worked && of() >= reached);
    }
}
