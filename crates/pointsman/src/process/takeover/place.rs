//! The old process's side: the place where a later process may ask for the sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, SocketType, accept_with, shutdown};
use tracing::{info, warn};

use super::successor::{Relieved, Taken};
use super::wire::{Peer, invalid, is_closed};
use super::{CONFIRM, END, HELLO, LEAVING, Offer, SERVING, START, STEP, TakeoverError};
use crate::process::inherit::Inherited;
use crate::process::threads;
use crate::system::socket_file::{self, SocketFile};
use crate::system::unix_sockets::TakenFiles;

/// The first and the longest pause after a failure to accept, such as the want of a file
/// descriptor.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Rung when the place is to be closed.
#[derive(Debug, Clone, Default)]
pub(super) struct Closing(Arc<(Mutex<bool>, Condvar)>);

impl Closing {
    fn ring(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Whether it is rung within this time.
    pub(super) fn within(&self, time: Duration) -> bool {
        let rung = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.1.wait_timeout_while(rung, time, |rung| !*rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The place where a later process may ask.
#[derive(Debug)]
pub(crate) struct Place {
    /// Dropped before the socket, so a process that finds the socket closed finds no file either.
    file: Arc<SocketFile>,
    pub(super) socket: OwnedFd,
}

impl Place {
    /// Makes it, to be published later. `instead`: of that of a running process. All of this
    /// touches the state folder, so it belongs on a thread that may block.
    ///
    /// # Errors
    ///
    /// If another process has it open, or the folder cannot be written to.
    pub(crate) fn open(path: &Path, instead: bool) -> Result<Self, TakeoverError> {
        if socket_file::is_something_else(path) {
            return Err(TakeoverError::Other(path.to_owned()));
        }
        let fault = |error: io::Error| TakeoverError::Socket(path.to_owned(), error);
        if !instead {
            match Peer::dial(path, Duration::ZERO) {
                Ok(None) => {}
                Err(error) if error.kind() != io::ErrorKind::TimedOut => return Err(fault(error)),
                // One whose queue is full is there, too.
                _ => return Err(TakeoverError::Occupied(path.to_owned())),
            }
        }
        let (file, socket) = SocketFile::make(path, SocketType::SEQPACKET).map_err(fault)?;
        Ok(Self { file: Arc::new(file), socket })
    }

    /// On a thread of its own: relieves the process that `taken` came from, publishes the place,
    /// and waits for a process that wants to take over in its turn. `agreed` is called when another
    /// process serves; once it returns, that is told that we leave. Ends with that, or when it is
    /// closed.
    ///
    /// # Errors
    ///
    /// If the system gives no thread.
    pub(crate) fn attend(
        self,
        taken: Option<Taken>,
        offer: Offer,
        agreed: impl FnOnce() + Send + 'static,
    ) -> io::Result<Closer> {
        let (closing, socket, file) =
            (Closing::default(), self.socket.try_clone()?, Arc::clone(&self.file));
        let theirs = closing.clone();
        let thread = std::thread::Builder::new().name("takeover".to_owned()).spawn(move || {
            threads::at_ease();
            let (files, relieved) = match taken {
                Some(mut taken) => (std::mem::take(&mut taken.files), Some(taken.relieve(&theirs))),
                None => (TakenFiles::default(), None),
            };
            match relieved.as_ref().map(|(outcome, _)| outcome) {
                Some(Relieved::CalledOff) => return,
                Some(Relieved::Superseded) => {
                    warn!("another process has taken over meanwhile: this one leaves");
                    return agreed();
                }
                Some(Relieved::Left) => info!("taken over: the old process leaves"),
                Some(Relieved::Died) => info!("taken over: the old process has ended"),
                None => {}
            }
            // Before it may be gone for good: the old process may have removed its files when it
            // was stopped meanwhile.
            files.own();
            if theirs.within(Duration::ZERO) {
                return;
            }
            if let Err(error) = self.file.publish() {
                let path = self.file.path().display();
                warn!(%error, %path, "takeover is disabled: its socket cannot be published");
                return;
            }
            // Ends the conversation, and so says that the old process's place is not needed any
            // more.
            drop(relieved);
            self.wait_for_another(&theirs, &offer, agreed);
        })?;
        Ok(Closer { closing, socket, file, thread })
    }

    /// Puts it where it can be found.
    #[cfg(test)]
    pub(super) fn publish(&self) -> io::Result<()> {
        self.file.publish()
    }

    fn wait_for_another(self, closing: &Closing, offer: &Offer, agreed: impl FnOnce()) {
        let mut pause = PAUSE.0;
        loop {
            let peer = match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => Peer::accepted(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                // Closed.
                Err(Errno::INVAL) => return,
                Err(error) => {
                    // The descriptors that are missing now are there later. Said at first, and each
                    // time the pause grows.
                    if pause < PAUSE.1 {
                        warn!(%error, "no process can take over at the moment, trying again");
                    }
                    if closing.within(pause) {
                        return;
                    }
                    pause = (pause * 2).min(PAUSE.1);
                    continue;
                }
            };
            pause = PAUSE.0;
            match give(&peer, offer) {
                Ok(()) => {
                    info!("another process serves our sockets now");
                    agreed();
                    self.part_with(&peer);
                    return;
                }
                Err(error) if is_closed(&error) => {
                    warn!(
                        "the takeover was not completed, continuing to serve: the new process has gone"
                    );
                }
                Err(error) => warn!(%error, "the takeover was not completed, continuing to serve"),
            }
        }
    }

    /// Keeps the place until the other process has put its own there, so that there is always one.
    fn part_with(self, peer: &Peer) {
        if let Err(error) = peer.say(LEAVING, None, Instant::now() + STEP) {
            warn!(%error, "the new process cannot be told that we leave");
            return;
        }
        match peer.hear(Instant::now() + STEP) {
            Err(error) if is_closed(&error) => {}
            other => warn!("the new process does not end the conversation: {other:?}"),
        }
    }
}

/// Closes a place that is attended.
#[derive(Debug)]
pub(crate) struct Closer {
    closing: Closing,
    socket: OwnedFd,
    file: Arc<SocketFile>,
    thread: JoinHandle<()>,
}

impl Closer {
    /// The thread of the conversation. Once the other one has agreed, it ends when that was told
    /// that we leave, or did not listen.
    pub(crate) fn thread(self) -> JoinHandle<()> {
        self.thread
    }

    /// Nobody can ask any more, and a process that is started now finds nobody. A conversation that
    /// has begun is carried on.
    pub(crate) fn close(&self) {
        self.closing.ring();
        // First the file, while it is certainly ours.
        self.file.remove();
        let _was_open = shutdown(&self.socket, Shutdown::Both);
    }
}

/// Gives the sockets, and returns when the other process serves them.
fn give(peer: &Peer, offer: &Offer) -> io::Result<()> {
    peer.same_user()?;
    peer.expect(HELLO, Instant::now() + STEP)?;
    let sockets = offer()?;
    info!(sockets = sockets.len(), "another process asks for our sockets");
    for Inherited { name, addr, listener } in &sockets {
        say_with(peer, &format!("{addr} {name}"), listener)?;
    }
    peer.say(END, None, Instant::now() + STEP)?;
    drop(sockets);
    peer.expect(SERVING, Instant::now() + START)?;
    // It may have been said long ago, by a process that has died since.
    peer.say(CONFIRM, None, Instant::now() + STEP)?;
    let (word, _) = peer.hear(Instant::now() + STEP)?;
    if word == SERVING { Ok(()) } else { Err(invalid(&word)) }
}

fn say_with(peer: &Peer, word: &str, listener: &OwnedFd) -> io::Result<()> {
    peer.say(word, Some(listener), Instant::now() + STEP)
}
