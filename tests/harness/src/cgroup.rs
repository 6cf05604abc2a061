//! Limits CPU or memory of processes as a container runtime does, with cgroup version 2 or 1.
//!
//! Without the necessary rights it fails, and the error says why.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::wait::wait_until;

const MOUNT: &str = "/sys/fs/cgroup";
/// The period of CPU quotas in microseconds; the kernel's default.
const PERIOD: u32 = 100_000;

/// The limited resource.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quota {
    /// A share of one core.
    Cpu(f64),
    /// In bytes.
    Memory(u64),
}

/// A cgroup with a limit. Removed when dropped, after its processes have ended.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    /// Creates a cgroup with this limit.
    ///
    /// # Errors
    /// A message for people: the machine has no such controller, or does not allow it.
    pub fn new(quota: Quota) -> Result<Self, String> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let controller = match quota {
            Quota::Cpu(_) => "cpu",
            Quota::Memory(_) => "memory",
        };
        let controllers = std::fs::read_to_string(Path::new(MOUNT).join("cgroup.controllers"))
            .unwrap_or_default();
        let two = controllers.split_whitespace().any(|it| it == controller);
        let top = if two { PathBuf::from(MOUNT) } else { Path::new(MOUNT).join(controller) };
        if two {
            // The controller may already be delegated to children, or forbidden; then the next step
            // fails.
            let _ = std::fs::write(top.join("cgroup.subtree_control"), format!("+{controller}"));
        }
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let folder = top.join(format!("pointsman-harness-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder)
            .map_err(|error| format!("no cgroup can be made in {}: {error}", top.display()))?;
        let cgroup = Self { folder };
        let files = match (quota, two) {
            (Quota::Cpu(share), two) => {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a share of a core"
                )]
                let quota = (f64::from(PERIOD) * share) as u32;
                if two {
                    [("cpu.max", format!("{quota} {PERIOD}"))]
                } else {
                    [("cpu.cfs_quota_us", quota.to_string())]
                }
            }
            (Quota::Memory(bytes), true) => [("memory.max", bytes.to_string())],
            (Quota::Memory(bytes), false) => [("memory.limit_in_bytes", bytes.to_string())],
        };
        for (file, text) in files {
            std::fs::write(cgroup.folder.join(file), text)
                .map_err(|error| format!("{file}: {error}"))?;
        }
        Ok(cgroup)
    }

    /// Moves a running process into the cgroup.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn take(&self, pid: u32) {
        std::fs::write(self.processes(), pid.to_string()).expect("a process moved into a cgroup");
    }

    /// The file that takes process ids.
    #[must_use]
    pub fn processes(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// How many processes in it the OOM killer has ended.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        let read = |file: &str| std::fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        let text = read("memory.events") + &read("memory.oom_control");
        let found =
            text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        found.unwrap_or_else(|| panic!("the kernel does not count OOM kills here: {text}"))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            wait_until("the cgroup to be empty", Duration::from_secs(10), || {
                std::fs::remove_dir(&self.folder)
            });
        }
    }
}
