//! The kernel's figures of this process and its workers: CPU, memory, files.
//!
//! The kernel counts exactly and in any case, which costs the workers nothing: they read no clock
//! for it. Figures that the kernel does not provide are left out.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::system::cgroup::ReadFile;
use crate::system::cgroup::field;

/// The figures of the process at one moment. Unknown ones are `None`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ProcessUsage {
    /// CPU time of all threads.
    pub cpu: Duration,
    /// Resident memory in bytes.
    pub resident: Option<u64>,
    /// Mapped memory in bytes.
    pub mapped: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
    /// Open file descriptors.
    pub files: Option<u64>,
    /// The limit on open files; `None` for no limit.
    pub max_files: Option<u64>,
    /// The start time, in seconds since the Unix epoch.
    pub started: Option<f64>,
}

/// Returns the CPU time of a thread, and the time for which it was runnable without a CPU. `None`
/// if the kernel does not count.
pub(crate) fn thread_times(id: u32, read: ReadFile<'_>) -> Option<(Duration, Duration)> {
    // Documentation/scheduler/sched-stats.rst: time on the CPU, time on a run queue, timeslices; in
    // nanoseconds.
    let text = read(Path::new(&format!("/proc/self/task/{id}/schedstat")))?;
    let mut numbers =
        text.split_whitespace().map(|word| word.parse().ok().map(Duration::from_nanos));
    Some((numbers.next()??, numbers.next()??))
}

impl ProcessUsage {
    /// Reads the figures.
    pub(crate) fn read_now(read: ReadFile<'_>) -> Self {
        let status = read(Path::new("/proc/self/status")).unwrap_or_default();
        let kib = |name: &str| field(&status, name).map(|kib| kib.saturating_mul(1024));
        Self {
            cpu: Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default(),
            resident: kib("VmRSS:"),
            mapped: kib("VmSize:"),
            threads: field(&status, "Threads:"),
            files: open_files(),
            max_files: getrlimit(Resource::Nofile).current,
            started: started(read),
        }
    }
}

/// Since Linux 6.2 the size of the folder is the number of files. Before, they must be counted,
/// which takes time with many files, but runs on the admin server's thread.
fn open_files() -> Option<u64> {
    let folder = Path::new("/proc/self/fd");
    match std::fs::metadata(folder).map(|it| it.size()) {
        Ok(size) if size > 0 => Some(size),
        // One entry is the folder itself, open while it is read.
        _ => std::fs::read_dir(folder).ok().map(|files| (files.count() as u64).saturating_sub(1)),
    }
}

/// Computed from the kernel's boot time and the start time of the process since boot, not from the
/// wall clock.
fn started(read: ReadFile<'_>) -> Option<f64> {
    let booted = field(&read(Path::new("/proc/stat"))?, "btime")?;
    let stat = read(Path::new("/proc/self/stat"))?;
    // proc_pid_stat(5): the program's name may contain any character; field 22 is the 20th after
    // it.
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let after = ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1);
    Some(Duration::from_millis(booted.saturating_mul(1000).saturating_add(after)).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::cgroup::read;

    #[test]
    fn reads_figures_of_this_process() {
        let before = ProcessUsage::read_now(&read);
        assert!(before.cpu > Duration::ZERO);
        assert!(
            before.resident > Some(1 << 20)
                && before.mapped > before.resident
                && before.threads >= Some(2)
        );
        let held: Vec<_> = (0..200).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        // Other tests of this process open and close files meanwhile.
        assert!(
            ProcessUsage::read_now(&read).files.unwrap() + 100
                > before.files.unwrap() + held.len() as u64
        );
        assert!(before.max_files >= before.files && before.started > Some(1.6e9));
    }

    #[test]
    fn reads_times_of_thread_by_id() {
        let of = |text: &'static str| {
            thread_times(7, &move |path| {
                (path == Path::new("/proc/self/task/7/schedstat")).then(|| text.to_owned())
            })
        };
        assert_eq!(
            of("2500000000 1000000 42\n"),
            Some((Duration::from_millis(2500), Duration::from_millis(1)))
        );
        assert_eq!(of("0\n"), None);
        let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        // The kernel updates its counters at intervals, and some kernels are built without them.
        if read(Path::new("/proc/self/schedstat")).is_some() {
            let start = std::time::Instant::now();
            while thread_times(id, &read).is_none_or(|(cpu, _)| cpu.is_zero()) {
                assert!(start.elapsed() < Duration::from_secs(30));
            }
        }
    }
}
