//! The old process's side of a takeover: the socket on which a later process asks for our sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, SocketType, accept_with, shutdown};
use tracing::{info, warn};

use super::successor::{Cancellation, Completion, TakenSockets};
use super::wire::{TakeoverPeer, invalid, is_closed};
use super::{CONFIRM, END, HELLO, LEAVING, Offer, SERVING, START, STEP, TakeoverError};
use crate::admin::service_registry::OfferMark;
use crate::process::inherit::NamedSocket;
use crate::system::socket_file::{self, SocketFile};
use crate::system::threads;
use crate::system::unix_sockets::TakenFiles;

/// The first and the longest pause after a failure to accept, for example for lack of file
/// descriptors.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The takeover socket of this process.
#[derive(Debug)]
pub(crate) struct TakeoverSocket {
    /// Dropped before the socket, so that a process that finds the socket closed finds no file
    /// either.
    file: Arc<SocketFile>,
    pub(super) socket: OwnedFd,
}

impl TakeoverSocket {
    /// Creates the socket, to be published later. If it `replaces` one, it takes the path of the
    /// socket of a running process. This touches the state folder, so it belongs on a thread that
    /// may block.
    ///
    /// # Errors
    ///
    /// If another process listens there, or the folder is not writable.
    pub(crate) fn open(path: &Path, replaces: bool) -> Result<Self, TakeoverError> {
        if socket_file::is_not_a_socket(path) {
            return Err(TakeoverError::Other(path.to_owned()));
        }
        let fault = |error: io::Error| TakeoverError::Socket(path.to_owned(), error);
        if !replaces {
            match TakeoverPeer::dial(path, Duration::ZERO) {
                Ok(None) => {}
                Err(error) if error.kind() != io::ErrorKind::TimedOut => return Err(fault(error)),
                // A process whose queue is full listens, too.
                _ => return Err(TakeoverError::Occupied(path.to_owned())),
            }
        }
        let (file, socket) = SocketFile::create(path, SocketType::SEQPACKET).map_err(fault)?;
        Ok(Self { file: Arc::new(file), socket })
    }

    /// Starts the takeover thread: it takes over from the process that `taken` came from, publishes
    /// the socket, and waits for a process that asks to take over in turn. `on_handover` is called
    /// when another process serves; once it returns, that process receives "leaving". The thread
    /// then ends, or when the socket is closed.
    ///
    /// # Errors
    ///
    /// If the system provides no thread.
    pub(crate) fn start(
        self,
        taken: Option<TakenSockets>,
        offer: Offer,
        on_handover: impl FnOnce() + Send + 'static,
    ) -> io::Result<TakeoverThread> {
        let (cancellation, socket, file) =
            (Cancellation::default(), self.socket.try_clone()?, Arc::clone(&self.file));
        let cancellation_of_thread = cancellation.clone();
        let thread = std::thread::Builder::new().name("takeover".to_owned()).spawn(move || {
            threads::reset_priority();
            let (files, completion) = match taken {
                Some(mut taken) => (
                    std::mem::take(&mut taken.files),
                    Some(taken.complete(&cancellation_of_thread)),
                ),
                None => (TakenFiles::default(), None),
            };
            match completion.as_ref().map(|(outcome, _)| outcome) {
                Some(Completion::Cancelled) => return,
                Some(Completion::Superseded) => {
                    warn!("another process has taken over meanwhile, leaving");
                    return on_handover();
                }
                Some(Completion::Left) => info!("takeover complete: the old process is leaving"),
                Some(Completion::Died) => info!("takeover complete: the old process has ended"),
                None => {}
            }
            // Before publishing: if the old process was stopped meanwhile, it may have removed its
            // files when it resumed.
            files.take_ownership();
            if cancellation_of_thread.within(Duration::ZERO) {
                return;
            }
            if let Err(error) = self.file.publish() {
                let path = self.file.path().display();
                warn!(%error, %path, "takeover is disabled: cannot publish the takeover socket");
                return;
            }
            // Ends the conversation, which tells the old process that its socket is no longer
            // needed.
            drop(completion);
            self.serve(&cancellation_of_thread, &offer, on_handover);
        })?;
        Ok(TakeoverThread { cancellation, socket, file, thread })
    }

    /// Publishes the socket.
    #[cfg(test)]
    pub(super) fn publish(&self) -> io::Result<()> {
        self.file.publish()
    }

    fn serve(self, cancellation: &Cancellation, offer: &Offer, on_handover: impl FnOnce()) {
        let mut pause = PAUSE.0;
        loop {
            let peer = match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => TakeoverPeer(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                // Closed.
                Err(Errno::INVAL) => return,
                Err(error) => {
                    // Descriptors that are missing now may be available later. Logged at first, and
                    // each time the pause grows.
                    if pause < PAUSE.1 {
                        warn!(%error, "cannot accept on the takeover socket, retrying");
                    }
                    if cancellation.within(pause) {
                        return;
                    }
                    pause = (pause * 2).min(PAUSE.1);
                    continue;
                }
            };
            pause = PAUSE.0;
            match hand_over(&peer, offer) {
                Ok(_mark) => {
                    info!("handed over: another process serves on our sockets");
                    on_handover();
                    self.finish_handover(&peer);
                    return;
                }
                Err(error) if is_closed(&error) => {
                    warn!("takeover failed, continuing to serve: the new process has ended");
                }
                Err(error) => warn!(%error, "takeover failed, continuing to serve"),
            }
        }
    }

    /// Keeps the socket until the other process has renamed its own over it, so that one always
    /// exists.
    fn finish_handover(self, peer: &TakeoverPeer) {
        if let Err(error) = peer.send(LEAVING, None, Instant::now() + STEP) {
            warn!(%error, "cannot notify the new process that this one leaves");
            return;
        }
        match peer.receive(Instant::now() + STEP) {
            Err(error) if is_closed(&error) => {}
            Err(error) => warn!(%error, "the new process did not end the conversation"),
            Ok(_) => warn!("the new process sent a message instead of ending the conversation"),
        }
    }
}

/// A handle on the takeover thread.
#[derive(Debug)]
pub(crate) struct TakeoverThread {
    cancellation: Cancellation,
    socket: OwnedFd,
    file: Arc<SocketFile>,
    thread: JoinHandle<()>,
}

impl TakeoverThread {
    /// Returns the thread of the conversation. After a handover it ends when the new process has
    /// received "leaving", or did not read it.
    pub(crate) fn thread(self) -> JoinHandle<()> {
        self.thread
    }

    /// Closes the socket: no process can ask any more. A conversation in progress is completed.
    pub(crate) fn close(&self) {
        self.cancellation.cancel();
        // The file first, while it certainly belongs to this process.
        self.file.remove();
        let _was_open = shutdown(&self.socket, Shutdown::Both);
    }
}

/// Sends the sockets, and returns when the other process serves on them.
pub(super) fn hand_over(peer: &TakeoverPeer, offer: &Offer) -> io::Result<OfferMark> {
    peer.same_user()?;
    peer.expect(HELLO, Instant::now() + STEP)?;
    let (sockets, mark) = offer()?;
    info!(sockets = sockets.len(), "another process requests our sockets");
    for NamedSocket { name, addr, listener } in &sockets {
        send_socket(peer, &format!("{addr} {name}"), listener)?;
    }
    peer.send(END, None, Instant::now() + STEP)?;
    drop(sockets);
    peer.expect(SERVING, Instant::now() + START)?;
    // The message may be old, and its sender dead.
    peer.send(CONFIRM, None, Instant::now() + STEP)?;
    let (message, _) = peer.receive(Instant::now() + STEP)?;
    if message == SERVING { Ok(mark) } else { Err(invalid(&message)) }
}

fn send_socket(peer: &TakeoverPeer, message: &str, listener: &OwnedFd) -> io::Result<()> {
    peer.send(message, Some(listener), Instant::now() + STEP)
}
