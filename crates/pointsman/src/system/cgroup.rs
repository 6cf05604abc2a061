//! Where the cgroups are that bound this process, in both versions, and what one of them says of
//! the CPU.
//!
//! A container's limit on CPU is a budget for each tenth of a second. Whoever has spent it stands
//! still until the next one, which looks from outside like a slow network; the kernel counts it,
//! and nobody else can tell.
//!
//! Deliberately absent: memory, which has rules of its own ([`memory`](crate::system::memory)).

use std::num::NonZeroUsize;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::system::memory::Read;

/// Which interface of the kernel a cgroup speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller.
    One,
    /// One for all.
    Two,
}

/// A cgroup of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    /// Where its hierarchy is mounted.
    pub top: PathBuf,
    /// Its folder, there or below.
    pub folder: PathBuf,
    /// Its version.
    pub version: Version,
}

impl Own {
    /// From the process's own folder to the top.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        self.folder.ancestors().take_while(|folder| folder.starts_with(&self.top))
    }
}

/// The cgroups of this process that have to do with a controller.
#[must_use]
pub fn of(controller: &str, read: Read<'_>) -> Vec<Own> {
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
            "cgroup2" => (Version::Two, ""),
            "cgroup" => (Version::One, kind.nth(1)?),
            _ => return None,
        };
        if version == Version::One && !options.split(',').any(|option| option == controller) {
            return None;
        }
        let path = ours.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let ours = match version {
                Version::Two => controllers.is_empty(),
                Version::One => controllers.split(',').any(|it| it == controller),
            };
            ours.then_some(path)
        })?;
        // Inside a container the path may be the host's: then the mount itself is our cgroup.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        let safe = below.components().all(|part| matches!(part, Component::Normal(_)));
        let top = PathBuf::from(top);
        let folder = if safe { top.join(below) } else { top.clone() };
        Some(Own { top, folder, version })
    });
    found.collect()
}

/// The number behind a name in lines of names and numbers.
#[must_use]
pub fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == name).then(|| words.next()?.parse().ok())?
    })
}

/// The cgroup that bounds the CPU of this process: the nearest one with a limit, else our own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpu {
    folder: PathBuf,
    version: Version,
}

/// What the kernel has counted of a limit on CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Throttling {
    /// CPUs allowed; `None` for any number.
    pub cores: Option<f64>,
    /// Periods that the limit was enforced in.
    pub periods: u64,
    /// Those in which the budget was spent.
    pub throttled: u64,
    /// For how long CPUs were held back, all of them added up.
    pub held_back: Duration,
}

impl Cpu {
    /// Finds it. `None` where the kernel does not say anything.
    #[must_use]
    pub fn find(read: Read<'_>) -> Option<Self> {
        let all = of("cpu", read);
        let own = all.iter().find(|own| read(&own.folder.join("cpu.stat")).is_some())?;
        let limited = own.folders().find(|folder| limit(folder, own.version, read).is_some());
        Some(Self { folder: limited.unwrap_or(&own.folder).to_owned(), version: own.version })
    }

    /// What it has counted by now; `None` where nothing is counted, as at the top of version 2.
    #[must_use]
    pub fn throttling(&self, read: Read<'_>) -> Option<Throttling> {
        let stat = read(&self.folder.join("cpu.stat"))?;
        let held_back = match self.version {
            Version::One => Duration::from_nanos(field(&stat, "throttled_time")?),
            Version::Two => Duration::from_micros(field(&stat, "throttled_usec")?),
        };
        Some(Throttling {
            cores: limit(&self.folder, self.version, read),
            periods: field(&stat, "nr_periods")?,
            throttled: field(&stat, "nr_throttled")?,
            held_back,
        })
    }
}

/// CPUs that the cgroups of this process allow it, the smallest number on the way up; `None` for
/// any number.
#[must_use]
pub fn cores(read: Read<'_>) -> Option<f64> {
    let limits = of("cpu", read).into_iter().flat_map(|own| {
        let limits: Vec<f64> =
            own.folders().filter_map(|folder| limit(folder, own.version, read)).collect();
        limits
    });
    limits.min_by(f64::total_cmp)
}

/// How many workers suit a process that may run on so many CPUs and use `cores` of them: one a
/// whole core, and at least one.
///
/// A part of a core gets no worker. When a budget is spent the kernel stops all threads until the
/// next tenth of a second, discovery and the probes with them; so what workers leave over is what
/// lets those run while all workers are busy.
#[must_use]
pub fn workers(cpus: NonZeroUsize, cores: Option<f64>) -> NonZeroUsize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast cuts off the part, and saturates"
    )]
    let whole = cores.map_or(usize::MAX, |cores| cores as usize);
    NonZeroUsize::new(whole).map_or(NonZeroUsize::MIN, |whole| whole.min(cpus))
}

/// CPUs that the cgroup in this folder allows; `None` for any number.
fn limit(folder: &Path, version: Version, read: Read<'_>) -> Option<f64> {
    let one = |file: &str| Some(read(&folder.join(file))?.trim().to_owned());
    let (quota, period) = match version {
        Version::One => (one("cpu.cfs_quota_us")?, one("cpu.cfs_period_us")?),
        Version::Two => {
            let text = one("cpu.max")?;
            let (quota, period) = text.split_once(' ')?;
            (quota.to_owned(), period.to_owned())
        }
    };
    // No limit is "max" in version 2 and -1 in version 1; neither is a number here.
    let (quota, period): (u32, u32) = (quota.parse().ok()?, period.parse().ok()?);
    (period > 0).then(|| f64::from(quota) / f64::from(period))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn cpu(files: &[(&str, &str)]) -> Option<Throttling> {
        let files: BTreeMap<PathBuf, String> =
            files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
        let read = |path: &Path| files.get(path).cloned();
        Cpu::find(&read)?.throttling(&read)
    }

    #[test]
    fn version_2_counts_where_the_limit_is() {
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
        let expected = Throttling {
            cores: Some(1.5),
            periods: 70,
            throttled: 7,
            held_back: Duration::from_millis(2500),
        };
        assert_eq!(cpu(&files), Some(expected));
        let unlimited =
            Throttling { cores: None, periods: 0, throttled: 0, held_back: Duration::ZERO };
        assert_eq!(cpu(&files[..4]), Some(unlimited));
        // Where the controller is not turned on, nothing is counted.
        let bare = [files[0], files[1], ("/sys/fs/cgroup/pod/c/cpu.stat", "usage_usec 9\n")];
        assert_eq!(cpu(&bare), None);
    }

    #[test]
    fn the_smallest_limit_on_the_way_up_is_what_there_is_to_use() {
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
    fn whole_cores_get_a_worker_and_parts_of_one_do_not() {
        let on_eight = |cores| workers(NonZeroUsize::new(8).unwrap(), cores).get();
        let quotas = [0.0, 0.2, 1.0, 1.5, 1.99, 2.0, 3.8, 8.0, 64.0, f64::MAX];
        assert_eq!(quotas.map(|quota| on_eight(Some(quota))), [1, 1, 1, 1, 1, 2, 3, 8, 8, 8]);
        assert_eq!(on_eight(None), 8);
    }

    #[test]
    fn version_1_has_a_hierarchy_of_its_own_and_nanoseconds() {
        let files = [
            (
                "/proc/self/mountinfo",
                "31 24 0:27 /docker/a /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n",
            ),
            ("/proc/self/cgroup", "5:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "20000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            (
                "/sys/fs/cgroup/cpu,cpuacct/cpu.stat",
                "nr_periods 10\nnr_throttled 4\nthrottled_time 1500000000\n",
            ),
        ];
        let expected = Throttling {
            cores: Some(0.2),
            periods: 10,
            throttled: 4,
            held_back: Duration::from_millis(1500),
        };
        assert_eq!(cpu(&files), Some(expected));
        let mut unlimited = files;
        unlimited[2].1 = "-1\n";
        assert_eq!(cpu(&unlimited).and_then(|it| it.cores), None);
        assert_eq!(cpu(&[]), None);
    }
}
