//! What the kernel says of this process and its workers: CPU, memory, files.
//!
//! The kernel counts anyway, exactly, and costs the workers nothing: no clock is read on their
//! behalf. What it cannot say stays away.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::system::cgroup::field;
use crate::system::memory::Read;

/// The process at one moment. What is unknown is `None`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Own {
    /// CPU time of all threads.
    pub cpu: Duration,
    /// Bytes in RAM.
    pub resident: Option<u64>,
    /// Bytes mapped.
    pub mapped: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
    /// Open file descriptors.
    pub files: Option<u64>,
    /// How many there may be; `None` for any number.
    pub most_files: Option<u64>,
    /// Seconds since the epoch of Unix at which it started.
    pub started: Option<f64>,
}

/// CPU time of a thread, and for how long it had something to do and no CPU to do it on. `None`
/// where the kernel does not count.
#[must_use]
pub fn thread(id: u32, read: Read<'_>) -> Option<(Duration, Duration)> {
    // Documentation/scheduler/sched-stats.rst: time on the CPU, time on a run queue, timeslices; in
    // nanoseconds.
    let text = read(Path::new(&format!("/proc/self/task/{id}/schedstat")))?;
    let mut numbers =
        text.split_whitespace().map(|word| word.parse().ok().map(Duration::from_nanos));
    Some((numbers.next()??, numbers.next()??))
}

impl Own {
    /// Looks.
    #[must_use]
    pub fn look(read: Read<'_>) -> Self {
        let status = read(Path::new("/proc/self/status")).unwrap_or_default();
        let kib = |name: &str| field(&status, name).map(|kib| kib.saturating_mul(1024));
        Self {
            cpu: Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default(),
            resident: kib("VmRSS:"),
            mapped: kib("VmSize:"),
            threads: field(&status, "Threads:"),
            files: open_files(),
            most_files: getrlimit(Resource::Nofile).current,
            started: started(read),
        }
    }
}

/// Since Linux 6.2 the size of the folder is the number; before that somebody has to count, which
/// takes its time where there are many, but is done on the thread that has nothing else to do.
fn open_files() -> Option<u64> {
    let folder = Path::new("/proc/self/fd");
    match std::fs::metadata(folder).map(|it| it.size()) {
        Ok(size) if size > 0 => Some(size),
        // One is the folder itself, open while it is read.
        _ => std::fs::read_dir(folder).ok().map(|files| (files.count() as u64).saturating_sub(1)),
    }
}

/// The clock of the wall is asked nothing: the kernel knows when it booted, and how long after that
/// we came.
fn started(read: Read<'_>) -> Option<f64> {
    let booted = field(&read(Path::new("/proc/stat"))?, "btime")?;
    let stat = read(Path::new("/proc/self/stat"))?;
    // proc_pid_stat(5): the name of the program may hold anything; field 22 is the 20th behind it.
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let after = ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1);
    Some(Duration::from_millis(booted.saturating_mul(1000).saturating_add(after)).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::memory::read;

    #[test]
    fn the_kernel_says_what_it_says_of_this_very_process() {
        let before = Own::look(&read);
        assert!(before.cpu > Duration::ZERO);
        assert!(
            before.resident > Some(1 << 20)
                && before.mapped > before.resident
                && before.threads >= Some(2)
        );
        let held: Vec<_> = (0..200).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        // Other tests of this process open and close some of their own meanwhile.
        assert!(Own::look(&read).files.unwrap() + 100 > before.files.unwrap() + held.len() as u64);
        assert!(before.most_files >= before.files && before.started > Some(1.6e9));
    }

    #[test]
    fn a_thread_is_told_by_its_number() {
        let of = |text: &'static str| {
            thread(7, &move |path| {
                (path == Path::new("/proc/self/task/7/schedstat")).then(|| text.to_owned())
            })
        };
        assert_eq!(
            of("2500000000 1000000 42\n"),
            Some((Duration::from_millis(2500), Duration::from_millis(1)))
        );
        assert_eq!(of("0\n"), None);
        let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        // The kernel counts at its own pace, and some build without counting at all.
        if read(Path::new("/proc/self/schedstat")).is_some() {
            let start = std::time::Instant::now();
            while thread(id, &read).is_none_or(|(cpu, _)| cpu.is_zero()) {
                assert!(start.elapsed() < Duration::from_secs(30));
            }
        }
    }
}
