//! Child processes that end with this process, however it ends.
//!
//! Linux can signal a child when its parent dies, but "parent" is the thread that started it. The
//! test runner ends a thread with each test, and a cluster starts servers from several threads. So
//! a single thread that never ends starts all children. util-linux' `setpriv` sets the signal and
//! then executes the program under the same process id: doing it between fork and exec would need
//! unsafe code. Without `setpriv` the children lack this safety net.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, OnceLock};

use crate::binary::find_in_path;

type Order = (Command, SyncSender<io::Result<Child>>);

/// Starts the command on the thread that lives as long as the process.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        std::thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || {
                for (mut command, reply) in inbox {
                    // The caller waits for the reply, so this fails only if its thread is gone.
                    let _ = reply.send(command.spawn());
                }
            })
            .expect("a thread that starts processes");
        Mutex::new(orders)
    });
    let (reply, answer) = sync_channel(1);
    let gone = || io::Error::other("the thread that starts processes is gone");
    spawner.lock().map_err(|_| gone())?.send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

/// The path of `setpriv`, if this machine has one that can set the signal.
pub(crate) fn setpriv() -> Option<&'static PathBuf> {
    static SETPRIV: OnceLock<Option<PathBuf>> = OnceLock::new();
    SETPRIV
        .get_or_init(|| {
            let path = find_in_path("setpriv")?;
            let mut trial = Command::new(&path);
            trial
                .args(["--pdeathsig", "KILL", "true"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            trial.status().ok()?.success().then_some(path)
        })
        .as_ref()
}
