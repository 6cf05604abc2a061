//! Children that end with this process, whichever way it ends.
//!
//! Linux can send a child a signal when its parent dies, but "parent" means the thread that started
//! it. The test runner ends a thread with each test, and a cluster may start its servers from
//! several, so one thread that never ends starts them all. The setting itself is made by
//! util-linux' `setpriv`, which then becomes the program and keeps the process id: doing it between
//! fork and exec in here would need unsafe code. Without `setpriv` the children simply lack this
//! net.

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
                    // Whoever asked waits for the answer, so it can only be gone if that thread is.
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

/// The `setpriv` of this machine, if it has one that can set the signal.
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
