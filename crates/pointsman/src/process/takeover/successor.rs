//! The new process's side: gets the sockets, and later relieves the old process.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proxy::ListenAddr;
use rustix::process::Pid;
use tracing::{info, warn};

use super::place::Closing;
use super::wire::{Peer, invalid, is_closed};
use super::{CONFIRM, END, HELLO, LEAVING, SERVING, STEP, TakeoverError};
use crate::process::inherit::{Inherited, listens_at};
use crate::system::unix_sockets::TakenFiles;

/// How long the old process may close conversations again and again, although it is there, before
/// that counts as a refusal.
const REFUSED: Duration = Duration::from_secs(30);
/// The first and the longest pause before another attempt.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// After this time of silence it is said that the old process does not answer; then each time after
/// twice as long, up to the other one.
const SAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How often it is looked whether the wait has been called off.
const LOOK: Duration = Duration::from_millis(200);
/// The most sockets that are taken: as many as a process with many workers and addresses may have.
const MOST: usize = 4096;

/// Sockets taken from a running process, which waits for a word.
#[derive(Debug)]
pub(crate) struct Taken {
    /// The sockets.
    pub(crate) sockets: Vec<Inherited>,
    /// The files of Unix sockets among them, which are still the old process's.
    pub(crate) files: TakenFiles,
    peer: Peer,
    path: PathBuf,
}

/// How the old process was relieved.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Relieved {
    /// It leaves.
    Left,
    /// It has died.
    Died,
    /// Another process has relieved it in the meantime, and serves the same sockets.
    Superseded,
    /// This process is told to stop: the old one keeps serving.
    CalledOff,
}

/// Asks the process that listens at `path` for its sockets; `None` if there is none. Waits for as
/// long as there is one that does not answer, on a thread that may block.
///
/// # Errors
///
/// If the file cannot be used, or the process refuses.
pub(crate) fn take(path: &Path) -> Result<Option<Taken>, TakeoverError> {
    match (Conversation { path, closing: None }).begin() {
        Ok(Some((peer, sockets))) => {
            Ok(Some(Taken { sockets, files: TakenFiles::default(), peer, path: path.to_owned() }))
        }
        Ok(None) => Ok(None),
        Err(Fault::File(error)) => Err(TakeoverError::Socket(path.to_owned(), error)),
        Err(Fault::Words(error)) => Err(TakeoverError::Refused(error)),
        // Nobody can call it off.
        Err(Fault::CalledOff) => Ok(None),
    }
}

impl Taken {
    /// Whether the old process has closed the conversation.
    pub(crate) fn is_left_alone(&self) -> bool {
        self.peer.has_gone()
    }

    /// Where the old process was found.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Tells the old process that we serve, and returns when it has stopped accepting, or is not
    /// there. Waits for as long as it takes. The old process keeps its place until the peer is
    /// dropped.
    pub(super) fn relieve(self, closing: &Closing) -> (Relieved, Option<Peer>) {
        let Self { peer, path, sockets, .. } = self;
        drop(sockets);
        let old = peer.pid();
        let conversation = Conversation { path: &path, closing: Some(closing) };
        let mut peer = peer;
        loop {
            match conversation.end(&peer) {
                Ok(()) => return (Relieved::Left, Some(peer)),
                Err(Fault::CalledOff) => return (Relieved::CalledOff, None),
                Err(Fault::File(error) | Fault::Words(error)) => {
                    warn!(%error, "the takeover is not complete, trying again");
                }
            }
            // Its end of the conversation has to close, or it would wait for the next word there.
            drop(peer);
            peer = match conversation.begin_at_last(closing) {
                Ok(Some(next)) if is_other(old, next.pid()) => return (Relieved::Superseded, None),
                Ok(Some(next)) => next,
                Ok(None) => return (Relieved::Died, None),
                Err(CalledOff) => return (Relieved::CalledOff, None),
            };
        }
    }
}

/// Whether nobody listens at `path`. On a thread that may block.
pub(crate) fn is_deserted(path: &Path) -> bool {
    matches!(Peer::dial(path, Duration::ZERO), Ok(None))
}

/// Whether both are known and differ.
fn is_other(old: Option<Pid>, new: Option<Pid>) -> bool {
    old.zip(new).is_some_and(|(old, new)| old != new)
}

/// Why a conversation ended.
#[derive(Debug)]
enum Fault {
    File(io::Error),
    Words(io::Error),
    CalledOff,
}

/// This process is told to stop.
#[derive(Debug)]
struct CalledOff;

/// Conversations with whatever listens at a path, one after the other.
struct Conversation<'a> {
    path: &'a Path,
    closing: Option<&'a Closing>,
}

impl Conversation<'_> {
    /// Until the sockets are here; `None` if nobody listens.
    fn begin(&self) -> Result<Option<(Peer, Vec<Inherited>)>, Fault> {
        let (mut pause, mut closed) = (PAUSE.0, None);
        let mut silence = Silence::new();
        loop {
            let error = match Peer::dial(self.path, LOOK) {
                Ok(None) => return Ok(None),
                Ok(Some(peer)) => match self.ask(&peer, &mut silence) {
                    Ok(sockets) => return Ok(Some((peer, sockets))),
                    Err(Fault::Words(error)) if is_closed(&error) => error,
                    Err(fault) => return Err(fault),
                },
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    silence.say(None);
                    self.is_called_off(Duration::ZERO)?;
                    continue;
                }
                Err(error) => return Err(Fault::File(error)),
            };
            // It has died, has left to another process, or could not answer. The next attempt
            // tells.
            let since = *closed.get_or_insert_with(Instant::now);
            if since.elapsed() > REFUSED {
                return Err(Fault::Words(error));
            }
            self.is_called_off(pause)?;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// As [`begin`](Self::begin), however often that fails.
    fn begin_at_last(&self, closing: &Closing) -> Result<Option<Peer>, CalledOff> {
        loop {
            match self.begin() {
                Ok(found) => return Ok(found.map(|(peer, _)| peer)),
                Err(Fault::CalledOff) => return Err(CalledOff),
                Err(Fault::File(error) | Fault::Words(error)) => {
                    warn!(%error, "the old process cannot be relieved, trying again; both serve");
                    if closing.within(REFUSED) {
                        return Err(CalledOff);
                    }
                }
            }
        }
    }

    fn ask(&self, peer: &Peer, silence: &mut Silence) -> Result<Vec<Inherited>, Fault> {
        peer.same_user().map_err(Fault::Words)?;
        peer.say(HELLO, None, Instant::now() + STEP).map_err(Fault::Words)?;
        let mut sockets = Vec::new();
        while sockets.len() < MOST {
            let (word, handle) = self.hear(peer, silence)?;
            if word == END {
                return Ok(sockets);
            }
            sockets.push(inherited(&word, handle).map_err(Fault::Words)?);
        }
        Err(Fault::Words(invalid("too many sockets")))
    }

    /// From the word that we serve to the word that the old process leaves.
    fn end(&self, peer: &Peer) -> Result<(), Fault> {
        let mut silence = Silence::new();
        loop {
            peer.say(SERVING, None, Instant::now() + STEP).map_err(Fault::Words)?;
            match self.hear(peer, &mut silence)?.0.as_str() {
                CONFIRM => {}
                LEAVING => return Ok(()),
                word => return Err(Fault::Words(invalid(word))),
            }
        }
    }

    /// The next word, however long it takes.
    fn hear(&self, peer: &Peer, silence: &mut Silence) -> Result<(String, Option<OwnedFd>), Fault> {
        loop {
            self.is_called_off(Duration::ZERO)?;
            match peer.hear(Instant::now() + LOOK) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => silence.say(peer.pid()),
                Ok(heard) => {
                    silence.over();
                    return Ok(heard);
                }
                Err(error) => return Err(Fault::Words(error)),
            }
        }
    }

    fn is_called_off(&self, within: Duration) -> Result<(), Fault> {
        match self.closing {
            Some(closing) if closing.within(within) => Err(Fault::CalledOff),
            Some(_) => Ok(()),
            None => {
                // Nobody rings: the thread is given up if the process ends meanwhile.
                Closing::default().within(within);
                Ok(())
            }
        }
    }
}

/// What came with a word.
fn inherited(word: &str, handle: Option<OwnedFd>) -> io::Result<Inherited> {
    // A path may have spaces, a name has none.
    let (addr, name) = word.rsplit_once(' ').ok_or_else(|| invalid(word))?;
    let addr = ListenAddr::parse(addr).ok_or_else(|| invalid(word))?;
    let listener = handle.ok_or_else(|| invalid(word))?;
    let found = listens_at(&listener)?;
    // The path of a Unix socket is not the one that it was bound to: it got that by a rename.
    if found.tcp() != addr.tcp() {
        return Err(invalid(word));
    }
    Ok(Inherited { name: name.to_owned(), addr, listener })
}

/// Says that the other process does not answer, less and less often.
struct Silence {
    since: Instant,
    next: Duration,
}

impl Silence {
    fn new() -> Self {
        Self { since: Instant::now(), next: SAY.0 }
    }

    fn say(&mut self, pid: Option<Pid>) {
        let time = self.since.elapsed();
        if time >= self.next {
            let pid = pid.map(|pid| pid.as_raw_nonzero().get());
            warn!(
                pid,
                waited_s = time.as_secs(),
                "the running process does not answer, waiting for it; is it stopped?"
            );
            self.next = time + self.next.min(SAY.1);
        }
    }

    fn over(&mut self) {
        if self.next > SAY.0 {
            info!(
                waited_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX),
                "the running process answers"
            );
        }
        *self = Self::new();
    }
}
