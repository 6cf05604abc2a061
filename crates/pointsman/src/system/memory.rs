//! How much memory the process may use, how much it uses, and how many connections that carries.
//!
//! The bound comes from where the kernel enforces it: the cgroup's `memory.max` and `memory.high`
//! (version 2) or `memory.limit_in_bytes` (version 1), the smallest on the way from our own cgroup
//! to the top of what is mounted; without one, what the machine has available at the start.
//! Sockets' buffers count against a cgroup's bound (the kernel's cgroup-v2 documentation, "Memory",
//! `sock`), and the OOM killer ends the process for them, so a proxy is sized by this and never by
//! its limit on open files.
//!
//! What a connection costs is in part an assumption, since it depends on what clients do. So while
//! the process runs [`Memory::is_scarce`] compares what is used with the bound, and near it nobody
//! new is let in.
//!
//! Deliberately absent: the clock that asks again, and any way to take memory back from sessions.

use std::path::{Path, PathBuf};

use crate::system::cgroup::{self, Own, Version, field};

/// What a session is counted with, in bytes. Measured on Linux 6.18 with 3000 idle sessions: 2 KiB
/// of our own, 5.5 KiB of the kernel's for its two sockets. The rest is an assumption on the
/// average of all sessions: bytes on their way in four socket buffers, and 16 KiB in a buffer of
/// ours for each direction whose receiver is slow (the proxy sees to that; it allows itself 16 MiB
/// a worker beyond it). The kernel's own buffers for one very slow reader of large values can cost
/// some MiB.
pub const A_SESSION: u64 = 32 * 1024;
/// What the process is counted with before its first session: code, stacks, the workers' buffers,
/// logs.
const THE_PROCESS: u64 = 24 * 1024 * 1024;
/// Numbers as high as this stand for no limit in version 1 of cgroups, which has no word for it.
const NO_LIMIT: u64 = 1 << 60;

/// What the kernel lets the process have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// In bytes.
    pub limit: u64,
    /// Where that is enforced; `None` if it is only what the machine had available.
    cgroup: Option<Cgroup>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Cgroup {
    folder: PathBuf,
    version: Version,
}

/// Files that hold a limit; "max" stands for none.
fn limit_files(version: Version) -> &'static [&'static str] {
    match version {
        Version::One => &["memory.limit_in_bytes"],
        // Above `high` the process is slowed down until it hardly runs, which is no better than its
        // end.
        Version::Two => &["memory.max", "memory.high"],
    }
}

/// The file with the present use, and the field of `memory.stat` that can be taken back at any
/// time.
fn usage_files(version: Version) -> (&'static str, &'static str) {
    match version {
        Version::One => ("memory.usage_in_bytes", "total_inactive_file"),
        Version::Two => ("memory.current", "inactive_file"),
    }
}

/// How files are read: the real ones by [`read`], a test's own by a map.
pub type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// Reads a file of the kernel's.
#[must_use]
pub fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

impl Memory {
    /// Finds the bound that holds for this process. `None` where the kernel does not say anything.
    #[must_use]
    pub fn find(read: Read<'_>) -> Option<Self> {
        let total = machine(read, "MemTotal:");
        let cgroup = cgroup::of("memory", read).into_iter().flat_map(|own| limits(read, &own));
        let least = cgroup
            .filter(|(limit, _)| *limit < total.unwrap_or(NO_LIMIT))
            .min_by_key(|(limit, _)| *limit);
        match least {
            Some((limit, cgroup)) => Some(Self { limit, cgroup: Some(cgroup) }),
            None => {
                machine(read, "MemAvailable:").or(total).map(|limit| Self { limit, cgroup: None })
            }
        }
    }

    /// How many connections it carries, at least one.
    #[must_use]
    pub fn carries(&self) -> usize {
        // A quarter stays free for what the assumption leaves out.
        let for_sessions = (self.limit / 4 * 3).saturating_sub(THE_PROCESS);
        usize::try_from(for_sessions / A_SESSION).unwrap_or(usize::MAX).max(1)
    }

    /// Whether so little is left that nobody new should be let in: below a tenth of the bound, and
    /// if it `was` so before, below an eighth. Never where no cgroup enforces the bound, because
    /// what others use of a machine is not ours to answer for.
    #[must_use]
    pub fn is_scarce(&self, read: Read<'_>, was: bool) -> bool {
        let Some(used) = self.cgroup.as_ref().and_then(|cgroup| cgroup.used(read)) else {
            return false;
        };
        let least = if was { self.limit / 8 } else { self.limit / 10 };
        self.limit.saturating_sub(used) < least
    }

    /// What is enforced, in bytes, and what of it is in use and cannot be taken back at once.
    /// `None` where nothing is enforced.
    #[must_use]
    pub fn enforced(&self, read: Read<'_>) -> Option<(u64, Option<u64>)> {
        self.cgroup.as_ref().map(|cgroup| (self.limit, cgroup.used(read)))
    }

    /// Whether [`is_scarce`](Self::is_scarce) can ever say so.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.cgroup.is_some()
    }
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} MiB ", self.limit / (1024 * 1024))?;
        match &self.cgroup {
            Some(cgroup) => write!(f, "allowed by {}", cgroup.folder.display()),
            None => f.write_str("available on the machine"),
        }
    }
}

impl Cgroup {
    /// Bytes in use that the kernel cannot take back at once.
    fn used(&self, read: Read<'_>) -> Option<u64> {
        let (usage, idle) = usage_files(self.version);
        let used: u64 = read(&self.folder.join(usage))?.trim().parse().ok()?;
        let stat = read(&self.folder.join("memory.stat")).unwrap_or_default();
        Some(used.saturating_sub(field(&stat, idle).unwrap_or(0)))
    }
}

/// A line of `/proc/meminfo`, in bytes.
fn machine(read: Read<'_>, name: &str) -> Option<u64> {
    Some(field(&read(Path::new("/proc/meminfo"))?, name)?.saturating_mul(1024))
}

/// Every limit on the way from a cgroup's folder to the top of its mount.
fn limits(read: Read<'_>, own: &Own) -> Vec<(u64, Cgroup)> {
    let version = own.version;
    let files = own
        .folders()
        .flat_map(|folder| limit_files(version).iter().map(move |file| (folder, file)));
    let limit = |(folder, file): (&Path, &&str)| {
        let limit: u64 = read(&folder.join(file))?.trim().parse().ok()?;
        (limit < NO_LIMIT).then(|| (limit, Cgroup { folder: folder.to_owned(), version }))
    };
    files.filter_map(limit).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const MEMINFO: (&str, &str) = (
        "/proc/meminfo",
        "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    8000000 kB\n",
    );
    const TWO: [(&str, &str); 2] = [
        (
            "/proc/self/mountinfo",
            "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
        ),
        ("/proc/self/cgroup", "0::/kubepods/pod1/c1\n"),
    ];
    const MIB: u64 = 1024 * 1024;

    fn files(files: &[(&str, &str)]) -> BTreeMap<PathBuf, String> {
        files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect()
    }

    fn find(given: &[(&str, &str)]) -> Option<Memory> {
        let files = files(given);
        Memory::find(&|path| files.get(path).cloned())
    }

    #[test]
    fn the_smallest_limit_on_the_way_up_counts() {
        let own = ("/sys/fs/cgroup/kubepods/pod1/c1/memory.max", "max\n");
        let high = ("/sys/fs/cgroup/kubepods/pod1/c1/memory.high", "314572800\n");
        let pod = ("/sys/fs/cgroup/kubepods/pod1/memory.max", "268435456\n");
        let memory = find(&[MEMINFO, TWO[0], TWO[1], own, high, pod]).unwrap();
        assert_eq!(memory.limit, 256 * MIB);
        assert_eq!(memory.to_string(), "256 MiB allowed by /sys/fs/cgroup/kubepods/pod1");
        let lower = ("/sys/fs/cgroup/kubepods/pod1/c1/memory.high", "104857600\n");
        assert_eq!(find(&[MEMINFO, TWO[0], TWO[1], own, lower, pod]).unwrap().limit, 100 * MIB);
    }

    #[test]
    fn version_1_and_the_paths_of_the_host_are_understood() {
        let mounts = "31 24 0:27 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      32 24 0:28 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let given = [
            MEMINFO,
            ("/proc/self/mountinfo", mounts),
            (
                "/proc/self/cgroup",
                "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/docker/abc\n",
            ),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
        ];
        assert_eq!(find(&given).unwrap().limit, 512 * MIB);
        let elsewhere = ("/proc/self/cgroup", "5:memory:/../other\n");
        assert_eq!(find(&[given[0], given[1], elsewhere, given[3]]).unwrap().limit, 512 * MIB);
    }

    #[test]
    fn without_a_limit_it_is_what_the_machine_has_available() {
        let none = ("/sys/fs/cgroup/memory.limit_in_bytes", "9223372036854771712\n");
        for given in [&[MEMINFO][..], &[MEMINFO, TWO[0], TWO[1], none]] {
            let memory = find(given).unwrap();
            assert_eq!((memory.limit, memory.is_enforced()), (8_000_000 * 1024, false));
            assert!(!memory.is_scarce(&|_| None, false));
        }
        assert_eq!(find(&[]), None);
    }

    #[test]
    fn what_a_bound_carries_leaves_a_quarter_free() {
        let carries = |mib: u64| Memory { limit: mib * MIB, cgroup: None }.carries();
        assert_eq!((carries(64), carries(128), carries(1024)), (768, 2304, 23_808));
        assert_eq!(carries(16), 1);
    }

    #[test]
    fn scarce_is_a_tenth_and_stays_until_an_eighth_is_free_again() {
        let limit = ("/sys/fs/cgroup/kubepods/pod1/c1/memory.max", "1000\n");
        let memory = find(&[MEMINFO, TWO[0], TWO[1], limit]).unwrap();
        let scarce = |used: &str, was: bool| {
            let folder = "/sys/fs/cgroup/kubepods/pod1/c1";
            let (current, stat) =
                (format!("{folder}/memory.current"), format!("{folder}/memory.stat"));
            let files = files(&[(&current, used), (&stat, "anon 5\ninactive_file 100\n")]);
            memory.is_scarce(&|path| files.get(path).cloned(), was)
        };
        assert!(!scarce("1000\n", false) && scarce("1001\n", false));
        assert!(scarce("980\n", true) && !scarce("970\n", true));
        assert!(
            !memory.is_scarce(&|_| None, true),
            "what cannot be read is no reason to refuse anybody"
        );
    }
}
