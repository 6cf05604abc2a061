//! Threads of their own for what may block, and the priority of the one that must not.
//!
//! The main thread runs discovery, signals, reloads and the drain on one single-threaded runtime.
//! Whatever may wait for a disk, a file system or another process runs on a thread of its own
//! ([`aside`]), never on the runtime's pool of blocking threads: name look-ups that hang can occupy
//! that whole.
//!
//! What stays on the main thread reads `/proc`, `/sys/fs/cgroup` and resource limits. These are
//! answered from the kernel's memory without any input or output, so they cannot hang on a device
//! or a server.

use std::io::{self, Write as _};
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::debug;

/// Niceness of the thread that runs discovery, where the system allows it.
const HURRY: i32 = -10;

/// How long anything waits for the reader of the standard error.
const SAY: Duration = Duration::from_secs(1);

/// The niceness with which the process was started.
static USUAL: OnceLock<i32> = OnceLock::new();

/// Notes the niceness of the process. Called once, before [`hurry`].
pub(crate) fn note_priority() {
    USUAL.get_or_init(|| rustix::process::getpriority_process(None).unwrap_or(0));
}

/// Asks the system to let this thread go first. It does little, but in a planned failover Sentinel
/// leaves 50 to 90 ms between naming a candidate and promoting it, and traffic has to be held by
/// then. On a machine with a load of five on two cores it was seen to wait for 70 ms. All other
/// threads are there by now, and stay as nice as they are; for those that come later see
/// [`at_ease`].
pub(crate) fn hurry() {
    if let Err(error) = rustix::process::setpriority_process(None, HURRY) {
        // In most containers. It works as well, if there is CPU.
        debug!(%error, "discovery gets no priority");
    }
}

/// What a thread does first that is made later: it inherits the priority of the thread that made
/// it, and gives it up.
pub(crate) fn at_ease() {
    let Some(usual) = USUAL.get() else { return };
    // Every thread may make itself nicer.
    if let Err(error) = rustix::process::setpriority_process(None, *usual) {
        debug!(%error, "a thread keeps discovery's priority");
    }
}

/// Runs `work` on a thread of its own, which nobody has to wait for. A thread that panics drops the
/// other end.
///
/// # Errors
///
/// If the system gives no thread.
pub(crate) fn aside<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<oneshot::Receiver<T>> {
    let (tell, told) = oneshot::channel();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        at_ease();
        // The caller may have gone.
        let _ = tell.send(work());
    })?;
    Ok(told)
}

/// Writes to the standard error, and waits for its reader at most [`SAY`]: the other end may be a
/// pipe that nobody reads.
pub(crate) fn say(text: String) {
    let (tell, told) = sync_channel(1);
    let said = aside("say", move || {
        // What cannot be said has nobody to read it.
        let _ = io::stderr().lock().write_all(text.as_bytes());
        // The other end may have waited long enough.
        let _ = tell.send(());
    });
    if said.is_ok() {
        let _in_time = told.recv_timeout(SAY);
    }
}
