//! The cores that this program may use, and what runs on which.

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// The cores that this thread may use.
///
/// # Errors
/// A message for people.
pub(crate) fn allowed() -> Result<Vec<usize>, String> {
    let allowed = sched_getaffinity(None)
        .map_err(|error| format!("the CPU cores cannot be read: {error}"))?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect())
}

/// Pins this thread, and all that it starts, to a core.
///
/// # Errors
/// A message for people.
pub(crate) fn pin(core: usize) -> Result<(), String> {
    pin_thread(None, core)
}

/// Moves all threads of a process to a core, and those that they start.
///
/// # Errors
/// A message for people.
pub(crate) fn move_to(core: usize, process: u32) -> Result<(), String> {
    for task in setup::files::list(format!("/proc/{process}/task"))? {
        let number = task.file_name().and_then(|name| name.to_str()?.parse().ok());
        if let Some(thread) = number.and_then(Pid::from_raw) {
            pin_thread(Some(thread), core)?;
        }
    }
    Ok(())
}

fn pin_thread(thread: Option<Pid>, core: usize) -> Result<(), String> {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(thread, &cores)
        .map_err(|error| format!("core {core} cannot be chosen: {error}"))
}
