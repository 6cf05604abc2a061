//! Finds the cgroups that limit this process, in both versions, and reads the CPU limit of one of
//! them.
//!
//! A container's CPU limit is a budget per tenth of a second. A process that has used it is stopped
//! until the next period, which looks from outside like a slow network; only the kernel's counters
//! show it.

use std::num::NonZeroUsize;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// Reads a file: [`read`] in production, a map in tests.
pub(crate) type ReadFile<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// Reads a file of the kernel.
pub(crate) fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The version of a cgroup's kernel interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CgroupVersion {
    /// One hierarchy per controller.
    One,
    /// One hierarchy for all controllers.
    Two,
}

/// A cgroup of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cgroup {
    /// Its folder.
    pub folder: PathBuf,
    /// Its version.
    pub version: CgroupVersion,
}

/// Returns the cgroups of this process that a controller applies to: for each hierarchy those from
/// the process's own one up to the mount point.
pub(crate) fn of(controller: &str, read: ReadFile<'_>) -> Vec<Vec<Cgroup>> {
    let mounts = read(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    let ours = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let found = mounts.lines().filter_map(|line| {
        // proc_pid_mountinfo(5): id, parent, device, root, mount point, options, optional fields,
        // "-", type, source, options.
        let (mount, kind) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, top) = (mount.next()?, mount.next()?);
        let mut kind = kind.split(' ');
        let (version, options) = match kind.next()? {
            "cgroup2" => (CgroupVersion::Two, ""),
            "cgroup" => (CgroupVersion::One, kind.nth(1)?),
            _ => return None,
        };
        if version == CgroupVersion::One && !options.split(',').any(|option| option == controller) {
            return None;
        }
        let path = ours.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let ours = match version {
                CgroupVersion::Two => controllers.is_empty(),
                CgroupVersion::One => controllers.split(',').any(|it| it == controller),
            };
            ours.then_some(path)
        })?;
        // Inside a container the path may be that of the host: then the mount itself is our cgroup.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        let safe = below.components().all(|part| matches!(part, Component::Normal(_)));
        let own = if safe { Path::new(top).join(below) } else { PathBuf::from(top) };
        let folders = own.ancestors().take_while(|folder| folder.starts_with(top));
        Some(folders.map(|folder| Cgroup { folder: folder.to_owned(), version }).collect())
    });
    found.collect()
}

/// Returns the number that follows a name, in lines of names and numbers.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == name).then(|| words.next()?.parse().ok())?
    })
}

/// The kernel's counters of a CPU limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CpuThrottling {
    /// CPUs allowed; `None` for no limit.
    pub cores: Option<f64>,
    /// Periods in which the limit was enforced.
    pub periods: u64,
    /// Periods in which the budget was used up.
    pub throttled: u64,
    /// Total time for which CPUs were withheld.
    pub throttled_time: Duration,
}

impl Cgroup {
    /// Returns a file in its folder.
    pub(crate) fn file(&self, name: &str, read: ReadFile<'_>) -> Option<String> {
        read(&self.folder.join(name))
    }

    /// Finds the cgroup that limits the CPU of this process: the nearest one with a limit, else its
    /// own. `None` if the kernel reports nothing.
    pub(crate) fn of_cpu(read: ReadFile<'_>) -> Option<Self> {
        let counts =
            |all: &Vec<Self>| all.first().is_some_and(|own| own.file("cpu.stat", read).is_some());
        let all = of("cpu", read).into_iter().find(counts)?;
        all.iter().find(|it| it.cores(read).is_some()).or(all.first()).cloned()
    }

    /// Returns the counters of its CPU limit; `None` where the kernel counts nothing, as in the
    /// root of version 2.
    pub(crate) fn throttling(&self, read: ReadFile<'_>) -> Option<CpuThrottling> {
        let stat = self.file("cpu.stat", read)?;
        let throttled_time = match self.version {
            CgroupVersion::One => Duration::from_nanos(field(&stat, "throttled_time")?),
            CgroupVersion::Two => Duration::from_micros(field(&stat, "throttled_usec")?),
        };
        Some(CpuThrottling {
            cores: self.cores(read),
            periods: field(&stat, "nr_periods")?,
            throttled: field(&stat, "nr_throttled")?,
            throttled_time,
        })
    }

    /// Returns the CPUs that it allows; `None` for no limit.
    fn cores(&self, read: ReadFile<'_>) -> Option<f64> {
        let (quota, period) = match self.version {
            CgroupVersion::One => {
                (self.file("cpu.cfs_quota_us", read)?, self.file("cpu.cfs_period_us", read)?)
            }
            CgroupVersion::Two => {
                let text = self.file("cpu.max", read)?;
                let (quota, period) = text.split_once(' ')?;
                (quota.to_owned(), period.to_owned())
            }
        };
        // No limit is "max" in version 2 and -1 in version 1; neither parses as an unsigned number.
        let number = |text: String| text.trim().parse::<u32>().ok();
        let (quota, period) = (number(quota)?, number(period)?);
        (period > 0).then(|| f64::from(quota) / f64::from(period))
    }
}

/// Returns the CPUs that the cgroups of this process allow, the smallest number on the way to the
/// root; `None` for no limit.
pub(crate) fn cores(read: ReadFile<'_>) -> Option<f64> {
    of("cpu", read).iter().flatten().filter_map(|it| it.cores(read)).min_by(f64::total_cmp)
}

/// Returns the number of workers for a process that may run on `cpus` CPUs and use `cores` of them:
/// one per whole core, and at least one.
///
/// A fraction of a core gets no worker. When the budget is used up the kernel stops all threads
/// until the next period, discovery and the admin server included. The CPU time that workers leave
/// unused lets those run while all workers are busy.
pub(crate) fn workers(cpus: NonZeroUsize, cores: Option<f64>) -> NonZeroUsize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast truncates and saturates"
    )]
    let whole = cores.map_or(usize::MAX, |cores| cores as usize);
    NonZeroUsize::new(whole).map_or(NonZeroUsize::MIN, |whole| whole.min(cpus))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn cpu(files: &[(&str, &str)]) -> Option<CpuThrottling> {
        let files: BTreeMap<PathBuf, String> =
            files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
        let read = |path: &Path| files.get(path).cloned();
        Cgroup::of_cpu(&read)?.throttling(&read)
    }

    #[test]
    fn reads_counters_of_version_2() {
        let files = [
            (
                "/proc/self/mountinfo",
                "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n",
            ),
            ("/proc/self/cgroup", "0::/pod/c\n"),
            ("/sys/fs/cgroup/pod/c/cpu.max", "max 100000\n"),
            (
                "/sys/fs/cgroup/pod/c/cpu.stat",
                "usage_usec 9\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
            ),
            ("/sys/fs/cgroup/pod/cpu.max", "150000 100000\n"),
            (
                "/sys/fs/cgroup/pod/cpu.stat",
                "usage_usec 9\nnr_periods 70\nnr_throttled 7\nthrottled_usec 2500000\n",
            ),
        ];
        let expected = CpuThrottling {
            cores: Some(1.5),
            periods: 70,
            throttled: 7,
            throttled_time: Duration::from_millis(2500),
        };
        assert_eq!(cpu(&files), Some(expected));
        let unlimited =
            CpuThrottling { cores: None, periods: 0, throttled: 0, throttled_time: Duration::ZERO };
        assert_eq!(cpu(&files[..4]), Some(unlimited));
        // Where the controller is disabled, nothing is counted.
        let bare = [files[0], files[1], ("/sys/fs/cgroup/pod/c/cpu.stat", "usage_usec 9\n")];
        assert_eq!(cpu(&bare), None);
    }

    #[test]
    fn uses_smallest_cpu_limit() {
        let files = [
            (
                "/proc/self/mountinfo",
                "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n",
            ),
            ("/proc/self/cgroup", "0::/pod/c\n"),
            ("/sys/fs/cgroup/pod/c/cpu.max", "300000 100000\n"),
            ("/sys/fs/cgroup/pod/cpu.max", "150000 100000\n"),
        ];
        let of = |known: &[(&str, &str)]| {
            let files: BTreeMap<_, _> =
                known.iter().map(|(path, text)| (PathBuf::from(path), *text)).collect();
            cores(&|path: &Path| files.get(path).map(|text| (*text).to_owned()))
        };
        assert_eq!(
            (of(&files), of(&files[..3]), of(&files[..2]), of(&[])),
            (Some(1.5), Some(3.0), None, None)
        );
    }

    #[test]
    fn starts_one_worker_per_whole_core() {
        let on_eight = |cores| workers(NonZeroUsize::new(8).unwrap(), cores).get();
        let quotas = [0.0, 0.2, 1.0, 1.5, 1.99, 2.0, 3.8, 8.0, 64.0, f64::MAX];
        assert_eq!(quotas.map(|quota| on_eight(Some(quota))), [1, 1, 1, 1, 1, 2, 3, 8, 8, 8]);
        assert_eq!(on_eight(None), 8);
    }

    #[test]
    fn reads_counters_of_version_1() {
        let files = [
            (
                "/proc/self/mountinfo",
                "31 24 0:27 /docker/a /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup \
                 rw,cpu,cpuacct\n",
            ),
            ("/proc/self/cgroup", "5:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "20000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            (
                "/sys/fs/cgroup/cpu,cpuacct/cpu.stat",
                "nr_periods 10\nnr_throttled 4\nthrottled_time 1500000000\n",
            ),
        ];
        let expected = CpuThrottling {
            cores: Some(0.2),
            periods: 10,
            throttled: 4,
            throttled_time: Duration::from_millis(1500),
        };
        assert_eq!(cpu(&files), Some(expected));
        let mut unlimited = files;
        unlimited[2].1 = "-1\n";
        assert_eq!(cpu(&unlimited).and_then(|it| it.cores), None);
        assert_eq!(cpu(&[]), None);
    }
}
