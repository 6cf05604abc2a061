//! The new process's side of a takeover: receives the sockets, and later completes the takeover.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use proxy::ListenAddr;
use rustix::process::Pid;
use tracing::{info, warn};

use super::wire::{TakeoverPeer, invalid, is_closed};
use super::{CONFIRM, END, HELLO, LEAVING, SERVING, STEP, TakeoverError};
use crate::process::inherit::{NamedSocket, listens_at};
use crate::system::unix_sockets::TakenFiles;

/// How long the old process may close conversations repeatedly, although it listens, before that
/// counts as a refusal.
const REFUSAL_AFTER: Duration = Duration::from_secs(30);
/// The first and the longest pause before another attempt.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// When an unanswered request is first logged. The interval then doubles up to the second value.
const REPORT_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How often a wait checks whether it was cancelled.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of sockets: more than a process with many workers and addresses has.
const MAX_SOCKETS: usize = 4096;

/// Signals that the takeover socket is to be closed.
#[derive(Debug, Clone, Default)]
pub(super) struct Cancellation(Arc<(Mutex<bool>, Condvar)>);

impl Cancellation {
    pub(super) fn cancel(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Waits for the signal for at most this time. Returns whether it was given.
    pub(super) fn within(&self, time: Duration) -> bool {
        let cancelled = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.1.wait_timeout_while(cancelled, time, |cancelled| !*cancelled);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Sockets received from a running process, which waits for "serving".
#[derive(Debug)]
pub(crate) struct TakenSockets {
    /// The sockets.
    pub(crate) sockets: Vec<NamedSocket>,
    /// The files of Unix sockets among them, which still belong to the old process.
    pub(crate) files: TakenFiles,
    peer: TakeoverPeer,
    /// The path of the old process's takeover socket.
    pub(crate) path: PathBuf,
}

/// How a takeover was completed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Completion {
    /// The old process leaves.
    Left,
    /// The old process has died.
    Died,
    /// Another process has taken over from the old one meanwhile, and serves on the same sockets.
    Superseded,
    /// This process received a signal to stop: the old one continues to serve.
    Cancelled,
}

/// Asks the process that listens at `path` for its sockets; `None` if there is none. Waits without
/// limit for a process that does not answer, on a thread that may block.
///
/// # Errors
///
/// If the file cannot be used, or the process refuses.
pub(crate) fn take(path: &Path) -> Result<Option<TakenSockets>, TakeoverError> {
    // Cannot be cancelled: the thread is abandoned if the process ends meanwhile.
    let cancellation = &Cancellation::default();
    match (Conversation { path, cancellation }).begin() {
        Ok(Some((peer, sockets))) => Ok(Some(TakenSockets {
            sockets,
            files: TakenFiles::default(),
            peer,
            path: path.to_owned(),
        })),
        Ok(None) | Err(ConversationError::Cancelled) => Ok(None),
        Err(ConversationError::File(error)) => Err(TakeoverError::Socket(path.to_owned(), error)),
        Err(ConversationError::Protocol(error)) => Err(TakeoverError::Refused(error)),
    }
}

impl TakenSockets {
    /// Whether the old process has closed the conversation.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.peer.has_gone()
    }

    /// Reports to the old process that we serve, and returns when it has stopped accepting, or has
    /// ended. Waits without limit. The old process keeps its socket until the returned peer is
    /// dropped.
    pub(super) fn complete(
        self,
        cancellation: &Cancellation,
    ) -> (Completion, Option<TakeoverPeer>) {
        let Self { mut peer, path, sockets, .. } = self;
        drop(sockets);
        let old = peer.pid();
        let conversation = Conversation { path: &path, cancellation };
        loop {
            match conversation.end(&peer) {
                Ok(()) => return (Completion::Left, Some(peer)),
                Err(ConversationError::Cancelled) => return (Completion::Cancelled, None),
                Err(ConversationError::File(error) | ConversationError::Protocol(error)) => {
                    warn!(%error, "takeover not complete, retrying");
                }
            }
            // Closes this conversation first: the old process would otherwise wait for the next
            // message.
            drop(peer);
            peer = match conversation.begin_until_success() {
                Ok(Some(next)) if is_other(old, next.pid()) => {
                    return (Completion::Superseded, None);
                }
                Ok(Some(next)) => next,
                Ok(None) => return (Completion::Died, None),
                Err(Cancelled) => return (Completion::Cancelled, None),
            };
        }
    }
}

/// One conversation to its end over a connection that exists, for the rig.
#[cfg(any(test, fuzzing))]
pub(super) fn converse(peer: &TakeoverPeer) -> Result<Vec<NamedSocket>, String> {
    let conversation = Conversation { path: Path::new(""), cancellation: &Cancellation::default() };
    let sockets = conversation.request(peer, &mut SilenceReport::new());
    let sockets = sockets.map_err(|error| format!("{error:?}"))?;
    conversation.end(peer).map_err(|error| format!("{error:?}"))?;
    Ok(sockets)
}

/// Whether no process listens at `path`. Call it on a thread that may block.
pub(crate) fn is_unused(path: &Path) -> bool {
    matches!(TakeoverPeer::dial(path, Duration::ZERO), Ok(None))
}

/// Whether both ids are known and differ.
fn is_other(old: Option<Pid>, new: Option<Pid>) -> bool {
    old.zip(new).is_some_and(|(old, new)| old != new)
}

/// Why a conversation ended.
#[derive(Debug)]
enum ConversationError {
    File(io::Error),
    Protocol(io::Error),
    Cancelled,
}

impl From<io::Error> for ConversationError {
    fn from(error: io::Error) -> Self {
        Self::Protocol(error)
    }
}

/// This process received a signal to stop.
#[derive(Debug)]
struct Cancelled;

/// Conversations with the process that listens at a path, one after the other.
struct Conversation<'a> {
    path: &'a Path,
    cancellation: &'a Cancellation,
}

impl Conversation<'_> {
    /// Dials until the sockets are received; `None` if no process listens.
    fn begin(&self) -> Result<Option<(TakeoverPeer, Vec<NamedSocket>)>, ConversationError> {
        let (mut pause, mut closed) = (PAUSE.0, None);
        let mut silence = SilenceReport::new();
        loop {
            let error = match TakeoverPeer::dial(self.path, CHECK_INTERVAL) {
                Ok(None) => return Ok(None),
                Ok(Some(peer)) => match self.request(&peer, &mut silence) {
                    Ok(sockets) => return Ok(Some((peer, sockets))),
                    Err(ConversationError::Protocol(error)) if is_closed(&error) => error,
                    Err(fault) => return Err(fault),
                },
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    silence.report(None);
                    self.check_cancelled(Duration::ZERO)?;
                    continue;
                }
                Err(error) => return Err(ConversationError::File(error)),
            };
            // It has died, has left to another process, or could not answer. The next attempt shows
            // which.
            let since = *closed.get_or_insert_with(Instant::now);
            if since.elapsed() > REFUSAL_AFTER {
                return Err(error.into());
            }
            self.check_cancelled(pause)?;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Repeats [`begin`](Self::begin) until it succeeds.
    fn begin_until_success(&self) -> Result<Option<TakeoverPeer>, Cancelled> {
        loop {
            match self.begin() {
                Ok(found) => return Ok(found.map(|(peer, _)| peer)),
                Err(ConversationError::Cancelled) => return Err(Cancelled),
                Err(ConversationError::File(error) | ConversationError::Protocol(error)) => {
                    warn!(%error, "cannot complete the takeover, retrying; both processes serve");
                    if self.cancellation.within(REFUSAL_AFTER) {
                        return Err(Cancelled);
                    }
                }
            }
        }
    }

    fn request(
        &self,
        peer: &TakeoverPeer,
        silence: &mut SilenceReport,
    ) -> Result<Vec<NamedSocket>, ConversationError> {
        peer.same_user()?;
        peer.send(HELLO, None, Instant::now() + STEP)?;
        let mut sockets = Vec::new();
        while sockets.len() < MAX_SOCKETS {
            let (message, handle) = self.receive(peer, silence)?;
            if message == END {
                return Ok(sockets);
            }
            sockets.push(parse_socket(&message, handle)?);
        }
        Err(invalid("too many sockets").into())
    }

    /// Sends "serving" until the old process sends "leaving".
    fn end(&self, peer: &TakeoverPeer) -> Result<(), ConversationError> {
        let mut silence = SilenceReport::new();
        loop {
            peer.send(SERVING, None, Instant::now() + STEP)?;
            match self.receive(peer, &mut silence)?.0.as_str() {
                CONFIRM => {}
                LEAVING => return Ok(()),
                message => return Err(invalid(message).into()),
            }
        }
    }

    /// Receives the next message, without a time limit.
    fn receive(
        &self,
        peer: &TakeoverPeer,
        silence: &mut SilenceReport,
    ) -> Result<(String, Option<OwnedFd>), ConversationError> {
        loop {
            self.check_cancelled(Duration::ZERO)?;
            match peer.receive(Instant::now() + CHECK_INTERVAL) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => silence.report(peer.pid()),
                Ok(received) => {
                    silence.over();
                    return Ok(received);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn check_cancelled(&self, within: Duration) -> Result<(), ConversationError> {
        if self.cancellation.within(within) { Err(ConversationError::Cancelled) } else { Ok(()) }
    }
}

/// Parses a message that carries a socket.
fn parse_socket(message: &str, handle: Option<OwnedFd>) -> io::Result<NamedSocket> {
    // A path may contain spaces, a name contains none.
    let (addr, name) = message.rsplit_once(' ').ok_or_else(|| invalid(message))?;
    let addr = ListenAddr::parse(addr).ok_or_else(|| invalid(message))?;
    let listener = handle.ok_or_else(|| invalid(message))?;
    let found = listens_at(&listener)?;
    // A Unix socket reports the path that it was bound to, before the file was renamed.
    if found.tcp() != addr.tcp() {
        return Err(invalid(message));
    }
    Ok(NamedSocket { name: name.to_owned(), addr, listener })
}

/// Logs at growing intervals that the other process does not answer.
struct SilenceReport {
    since: Instant,
    next: Duration,
}

impl SilenceReport {
    fn new() -> Self {
        Self { since: Instant::now(), next: REPORT_AFTER.0 }
    }

    fn report(&mut self, pid: Option<Pid>) {
        let time = self.since.elapsed();
        if time >= self.next {
            let pid = pid.map(|pid| pid.as_raw_nonzero().get());
            warn!(
                pid,
                waited_s = time.as_secs(),
                "waiting for the running process, which does not answer; is it stopped?"
            );
            self.next = time + self.next.min(REPORT_AFTER.1);
        }
    }

    fn over(&mut self) {
        if self.next > REPORT_AFTER.0 {
            info!(
                waited_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX),
                "the running process answers"
            );
        }
        *self = Self::new();
    }
}
