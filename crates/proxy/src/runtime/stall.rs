//! A worker that hangs on purpose, for the test that wants liveness to see it.
//!
//! It exists only in builds with debug assertions: a released program has no such switch. Where the
//! variable names a file, a worker whose number stands in that file takes it away and sits still
//! for a while.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// Longer than liveness waits.
const SPAN: Duration = Duration::from_secs(8);

/// Hangs, if this worker was asked to.
pub(crate) fn if_asked(worker: usize) {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let file = FILE.get_or_init(|| std::env::var_os("POINTSMAN_TEST_STALL").map(PathBuf::from));
    let Some(file) = file else { return };
    let asked = std::fs::read_to_string(file).is_ok_and(|text| text.trim() == worker.to_string());
    if asked && std::fs::remove_file(file).is_ok() {
        #[allow(clippy::disallowed_methods, reason = "to hang is the purpose")]
        std::thread::sleep(SPAN);
    }
}
