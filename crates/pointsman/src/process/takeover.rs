//! Takeover: hands the listening sockets of a running process to a newly started one.
//!
//! The new process asks the old one through a Unix socket in the state folder, receives duplicates
//! of its listening sockets (`SCM_RIGHTS`), starts all its parts, and sends "serving" once it has a
//! master. Only then does the old process stop accepting and drain. At every moment at least one
//! process accepts, and each socket keeps its one queue (a second socket of an `SO_REUSEPORT` group
//! would have a queue of its own, and lose it). If the new process fails before it sends "serving",
//! the old one is not affected.
//!
//! ```text
//!   new                          old
//!   pointsman takeover 2  --->
//!                         <---   ADDRESS NAME (with a socket), ..., end
//!   (starts, finds a master)
//!   serving               --->
//!                         <---   confirm
//!   serving               --->   (closes its listeners)
//!                         <---   leaving
//!   (renames its own socket over the old one's, closes)
//! ```
//!
//! Either process may be stopped, or die, between any two of these messages. Hence these rules:
//!
//! - **The new process waits.** A process that is stopped keeps its connections in the queue and
//!   answers later. The new process logs this at growing intervals and never gives up: it is the
//!   one that serves, or is about to, so its exit would not help.
//! - **The old process leaves only if the new one is still there.** A message that was read late
//!   may come from a process that has died since. The answer to "confirm" is fresh, or the
//!   connection is closed.
//! - **A closed connection proves nothing.** The new process dials again. If no process listens,
//!   the old one is dead and its socket path is free; otherwise the conversation begins anew.
//! - **A process always listens on the takeover socket.** The old process keeps its socket until
//!   the new one has renamed its own over it, so a third process finds one of the two, and never
//!   binds the addresses beside them.
//!
//! Only processes of the same user may ask: the socket file has mode 0600, and the peer's user id
//! is checked. There is one conversation at a time; further processes wait in the queue.
//!
//! Sessions are not handed over: they stay with the old process until they end.

mod offer;
mod predecessor;
#[cfg(any(test, fuzzing))]
pub(crate) mod rig;
mod successor;
#[cfg(test)]
mod tests;
mod wire;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::admin::service_registry::OfferMark;
use crate::config::TAKEOVER_SOCKET;
use crate::process::inherit::NamedSocket;

pub(crate) use offer::{HandedOver, OfferedSockets};
pub(crate) use predecessor::{TakeoverSocket, TakeoverThread};
pub(crate) use successor::{TakenSockets, is_unused, take};

/// Deadline of one step of a conversation with a process that runs.
pub(crate) const STEP: Duration = Duration::from_secs(5);
/// How long the new process may take until it serves.
const START: Duration = Duration::from_secs(30);

const HELLO: &str = "pointsman takeover 2";
const END: &str = "end";
const SERVING: &str = "serving";
const CONFIRM: &str = "confirm";
const LEAVING: &str = "leaving";

/// Why sockets could not be handed over, or the state folder could not be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TakeoverError {
    /// The folder, or the socket in it, is not usable.
    #[error(
        "the socket {0} cannot be used; is process.state_dir a folder that this user may write to?"
    )]
    Socket(PathBuf, #[source] io::Error),
    /// The file would be overwritten.
    #[error("{0} exists and is not a socket; set process.state_dir to another folder")]
    Other(PathBuf),
    /// Another process uses the state folder.
    #[error(
        "another pointsman uses {0}; start with --takeover, or set process.state_dir to another \
         folder"
    )]
    Occupied(PathBuf),
    /// The conversation failed.
    #[error(
        "takeover failed: the running pointsman did not hand over its sockets and continues to \
         serve"
    )]
    Refused(#[source] io::Error),
    /// The new process would have no master to serve.
    #[error(
        "takeover failed: no master was found within {0:?}; the running pointsman continues to \
         serve"
    )]
    NoMaster(Duration),
    /// `--takeover` requires a state folder.
    #[error("--takeover requires process.state_dir")]
    NoFolder,
}

/// Returns the sockets that are handed over, and a mark to keep until the conversation has ended.
pub(crate) type Offer = Box<dyn Fn() -> io::Result<(Vec<NamedSocket>, OfferMark)> + Send>;

/// Returns the path of the takeover socket in a state folder.
pub(crate) fn path(folder: &str) -> PathBuf {
    Path::new(folder).join(TAKEOVER_SOCKET)
}
