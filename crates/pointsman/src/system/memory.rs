//! The memory limit of the process, its memory use, and the number of connections that the limit
//! allows.
//!
//! The limit comes from where the kernel enforces it: the cgroup's `memory.max` and `memory.high`
//! (version 2) or `memory.limit_in_bytes` (version 1), the smallest from our own cgroup up to the
//! mount point; without one, the memory that the machine has available at the start. Socket buffers
//! count against a cgroup's limit (the kernel's cgroup-v2 documentation, "Memory", `sock`), and the
//! OOM killer ends the process for them, so a proxy is sized by this limit and never by its limit
//! on open files.
//!
//! The cost of a connection is in part an assumption, since it depends on what clients do. While
//! the process runs, [`Memory::is_scarce`] therefore compares the use with the limit, and near it
//! new clients are refused.
//!
//! Memory is not reclaimed from sessions.

use std::path::Path;

use crate::system::cgroup::{self, Cgroup, CgroupVersion, ReadFile, field};

/// The estimated memory of a session, in bytes. Measured on Linux 6.18 with 3000 idle sessions: 2
/// KiB in the process, 5.5 KiB in the kernel for its two sockets. The rest is an assumption about
/// the average of all sessions: bytes in transit in four socket buffers, and 16 KiB in a buffer of
/// the process for each direction whose receiver is slow (the proxy enforces that; it uses at most
/// 16 MiB per worker beyond it). The kernel's own buffers for one very slow reader of large values
/// can cost some MiB.
pub const SESSION_BYTES: u64 = 32 * 1024;
/// The estimated memory that TLS on one side of a session adds, in bytes. Measured with 2,000 idle
/// sessions of clients: 4.0 KiB with TLS 1.3 and 3.9 KiB with TLS 1.2. The rest is an assumption
/// about the average: records of up to 16 KiB that have arrived or were accepted by the socket in
/// part.
pub const TLS_BYTES: u64 = 8 * 1024;
/// The estimated memory of the process before its first session: code, stacks, the workers'
/// buffers, logs.
const PROCESS_BYTES: u64 = 24 * 1024 * 1024;
/// Numbers from this one on mean no limit in version 1 of cgroups, which has no other notation for
/// it.
const NO_LIMIT: u64 = 1 << 60;

/// The memory limit of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Memory {
    /// In bytes.
    pub limit: u64,
    /// The cgroup that enforces it; `None` if it is only what the machine had available.
    cgroup: Option<Cgroup>,
}

/// Returns the files that hold a limit; "max" means none.
fn limit_files(version: CgroupVersion) -> &'static [&'static str] {
    match version {
        CgroupVersion::One => &["memory.limit_in_bytes"],
        // Above `high` the kernel slows the process down until it hardly runs, which is no better
        // than a kill.
        CgroupVersion::Two => &["memory.max", "memory.high"],
    }
}

/// Returns the file with the current use, and the field of `memory.stat` that is reclaimable at any
/// time.
fn usage_files(version: CgroupVersion) -> (&'static str, &'static str) {
    match version {
        CgroupVersion::One => ("memory.usage_in_bytes", "total_inactive_file"),
        CgroupVersion::Two => ("memory.current", "inactive_file"),
    }
}

impl Memory {
    /// Finds the limit of this process. `None` if the kernel reports nothing.
    pub(crate) fn find(read: ReadFile<'_>) -> Option<Self> {
        let total = meminfo(read, "MemTotal:");
        let cgroups = cgroup::of("memory", read).into_iter().flatten();
        let least = cgroups
            .filter_map(|it| Some((limit(&it, read)?, it)))
            .filter(|(limit, _)| *limit < total.unwrap_or(NO_LIMIT))
            .min_by_key(|(limit, _)| *limit);
        match least {
            Some((limit, cgroup)) => Some(Self { limit, cgroup: Some(cgroup) }),
            None => {
                meminfo(read, "MemAvailable:").or(total).map(|limit| Self { limit, cgroup: None })
            }
        }
    }

    /// Returns the number of connections that the limit allows, at least one, if sessions have TLS
    /// on this number of sides.
    pub(crate) fn max_connections(&self, tls_sides: u64) -> usize {
        // A quarter stays free for what the assumption omits.
        let for_sessions = (self.limit / 4 * 3).saturating_sub(PROCESS_BYTES);
        let each = SESSION_BYTES + tls_sides * TLS_BYTES;
        usize::try_from(for_sessions / each).unwrap_or(usize::MAX).max(1)
    }

    /// Whether new clients should be refused: less than a tenth of the limit is free, or, if it
    /// `was` so before, less than an eighth. Always `false` if no cgroup enforces the limit: the
    /// memory use of other processes is not a reason to refuse clients.
    pub(crate) fn is_scarce(&self, read: ReadFile<'_>, was: bool) -> bool {
        let Some(used) = self.cgroup.as_ref().and_then(|cgroup| used(cgroup, read)) else {
            return false;
        };
        let least = if was { self.limit / 8 } else { self.limit / 10 };
        self.limit.saturating_sub(used) < least
    }

    /// Returns the enforced limit in bytes, and the use of it that is not reclaimable at once.
    /// `None` if no limit is enforced.
    pub(crate) fn enforced(&self, read: ReadFile<'_>) -> Option<(u64, Option<u64>)> {
        self.cgroup.as_ref().map(|cgroup| (self.limit, used(cgroup, read)))
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

/// Bytes in use that the kernel cannot reclaim at once.
fn used(cgroup: &Cgroup, read: ReadFile<'_>) -> Option<u64> {
    let (usage, idle) = usage_files(cgroup.version);
    let used: u64 = cgroup.file(usage, read)?.trim().parse().ok()?;
    let stat = cgroup.file("memory.stat", read).unwrap_or_default();
    Some(used.saturating_sub(field(&stat, idle).unwrap_or(0)))
}

/// Returns a line of `/proc/meminfo`, in bytes.
fn meminfo(read: ReadFile<'_>, name: &str) -> Option<u64> {
    Some(field(&read(Path::new("/proc/meminfo"))?, name)?.saturating_mul(1024))
}

/// Returns the limit of a cgroup.
fn limit(cgroup: &Cgroup, read: ReadFile<'_>) -> Option<u64> {
    let limit = |file: &&str| cgroup.file(file, read)?.trim().parse().ok();
    limit_files(cgroup.version).iter().filter_map(limit).filter(|it| *it < NO_LIMIT).min()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use super::*;

    const MEMINFO: (&str, &str) = (
        "/proc/meminfo",
        "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    8000000 kB\n",
    );
    const VERSION_TWO: [(&str, &str); 2] = [
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

    fn find(files_given: &[(&str, &str)]) -> Option<Memory> {
        let files = files(files_given);
        Memory::find(&|path| files.get(path).cloned())
    }

    #[test]
    fn uses_smallest_memory_limit() {
        let own = ("/sys/fs/cgroup/kubepods/pod1/c1/memory.max", "max\n");
        let high = ("/sys/fs/cgroup/kubepods/pod1/c1/memory.high", "314572800\n");
        let pod = ("/sys/fs/cgroup/kubepods/pod1/memory.max", "268435456\n");
        let memory = find(&[MEMINFO, VERSION_TWO[0], VERSION_TWO[1], own, high, pod]).unwrap();
        assert_eq!(memory.limit, 256 * MIB);
        assert_eq!(memory.to_string(), "256 MiB allowed by /sys/fs/cgroup/kubepods/pod1");
        let lower = ("/sys/fs/cgroup/kubepods/pod1/c1/memory.high", "104857600\n");
        assert_eq!(
            find(&[MEMINFO, VERSION_TWO[0], VERSION_TWO[1], own, lower, pod]).unwrap().limit,
            100 * MIB
        );
    }

    #[test]
    fn reads_version_1_and_host_paths() {
        let mounts = "31 24 0:27 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      32 24 0:28 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let files_given = [
            MEMINFO,
            ("/proc/self/mountinfo", mounts),
            (
                "/proc/self/cgroup",
                "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/docker/abc\n",
            ),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
        ];
        assert_eq!(find(&files_given).unwrap().limit, 512 * MIB);
        let elsewhere = ("/proc/self/cgroup", "5:memory:/../other\n");
        assert_eq!(
            find(&[files_given[0], files_given[1], elsewhere, files_given[3]]).unwrap().limit,
            512 * MIB
        );
    }

    #[test]
    fn uses_available_memory_without_limit() {
        let none = ("/sys/fs/cgroup/memory.limit_in_bytes", "9223372036854771712\n");
        for files_given in [&[MEMINFO][..], &[MEMINFO, VERSION_TWO[0], VERSION_TWO[1], none]] {
            let memory = find(files_given).unwrap();
            assert_eq!((memory.limit, memory.cgroup.is_some()), (8_000_000 * 1024, false));
            assert!(!memory.is_scarce(&|_| None, false));
        }
        assert_eq!(find(&[]), None);
    }

    #[test]
    fn leaves_quarter_of_memory_free() {
        let max_connections =
            |mib: u64| Memory { limit: mib * MIB, cgroup: None }.max_connections(0);
        assert_eq!(
            (max_connections(64), max_connections(128), max_connections(1024)),
            (768, 2304, 23_808)
        );
        assert_eq!(max_connections(16), 1);
    }

    #[test]
    fn is_scarce_below_tenth_until_eighth_is_free() {
        let limit = ("/sys/fs/cgroup/kubepods/pod1/c1/memory.max", "1000\n");
        let memory = find(&[MEMINFO, VERSION_TWO[0], VERSION_TWO[1], limit]).unwrap();
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
            "unreadable figures are no reason to refuse clients"
        );
    }
}
