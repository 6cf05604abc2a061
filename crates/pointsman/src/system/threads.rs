//! Threads for blocking work, and the priority of the main thread, which must not block.
//!
//! The main thread runs discovery, signals, reloads and the drain on one single-threaded runtime.
//! Work that may wait for a disk, a file system or another process runs on a thread of its own
//! ([`spawn`]), never on the runtime's pool of blocking threads: name lookups that hang can occupy
//! that pool completely.
//!
//! The main thread itself reads only `/proc`, `/sys/fs/cgroup` and resource limits. The kernel
//! answers these from memory without input or output, so they cannot hang on a device or a server.

use std::io::{self, Write as _};
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::debug;

/// Niceness of the thread that runs discovery, where the system allows it.
const DISCOVERY_NICENESS: i32 = -10;

/// Maximum wait for the reader of the standard error.
const STDERR_TIMEOUT: Duration = Duration::from_secs(1);

/// The niceness with which the process was started.
static INITIAL_NICENESS: OnceLock<i32> = OnceLock::new();

/// Records the niceness of the process. Called once, before [`raise_priority`].
pub(crate) fn note_priority() {
    INITIAL_NICENESS.get_or_init(|| rustix::process::getpriority_process(None).unwrap_or(0));
}

/// Raises the priority of this thread. The thread does little, but in a planned failover Sentinel
/// leaves 50 to 90 ms between naming a candidate and promoting it, and traffic must be held by
/// then. On a machine with a load of five on two cores it was seen to wait for 70 ms. All other
/// threads exist by now and keep their priority; later ones call [`reset_priority`].
pub(crate) fn raise_priority() {
    if let Err(error) = rustix::process::setpriority_process(None, DISCOVERY_NICENESS) {
        // Not permitted in most containers. Discovery works without it, as long as there is CPU.
        debug!(%error, "cannot raise the priority of discovery");
    }
}

/// Resets the priority of a thread that is started later: it inherits the raised priority of its
/// parent.
pub(crate) fn reset_priority() {
    let Some(initial) = INITIAL_NICENESS.get() else { return };
    // Every thread may raise its own niceness.
    if let Err(error) = rustix::process::setpriority_process(None, *initial) {
        debug!(%error, "cannot reset the priority of a thread");
    }
}

/// Runs `work` on a thread of its own. If the thread panics, the returned receiver reports a closed
/// channel.
///
/// # Errors
///
/// If the system provides no thread.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<oneshot::Receiver<T>> {
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        reset_priority();
        // The caller may have stopped waiting.
        let _ = sender.send(work());
    })?;
    Ok(receiver)
}

/// Writes to the standard error, and waits for its reader for at most [`STDERR_TIMEOUT`]: the other
/// end may be a pipe without a reader.
pub(crate) fn write_stderr(text: String) {
    let (sender, receiver) = sync_channel(1);
    let started = spawn("stderr", move || {
        // Without a reader the text is lost, which is not an error.
        let _ = io::stderr().lock().write_all(text.as_bytes());
        // The caller may have stopped waiting.
        let _ = sender.send(());
    });
    if started.is_ok() {
        let _in_time = receiver.recv_timeout(STDERR_TIMEOUT);
    }
}
