//! The hand-over of the listening sockets to a newly started process.
//!
//! The new process asks the old one through a Unix socket in the state folder, gets second handles
//! on the very same listening sockets (`SCM_RIGHTS`), starts everything, and says "serving" once it
//! has a master. Only then does the old one stop accepting and drain. So there is no moment without
//! somebody who accepts, the queue of each socket is one queue all the time (a second socket of an
//! `SO_REUSEPORT` group would have its own, and lose it), and if the new process fails at anything
//! before that word, the old one has noticed nothing.
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
//! Either process may be stopped, or die, between any two of these words. The rules that follow
//! from it:
//!
//! - **The new process waits.** A process that is stopped keeps its connections in the queue and
//!   answers later. The new one says so in the log, less and less often, and never gives up: its
//!   end would help nobody, as it is what serves, or is about to.
//! - **The old process leaves only if the new one is there now.** A word that was read late may be
//!   that of a process that has died since. Hence "confirm": the answer to it is fresh, or a closed
//!   connection.
//! - **A closed connection says nothing by itself.** The new process dials again. If nobody is
//!   there, the old one is dead and the place is free; if somebody is, the conversation begins
//!   anew.
//! - **There is always one place to ask.** The old process keeps its socket until the new one has
//!   put its own in that place, so a third process finds one of the two, and never binds the
//!   addresses beside them.
//!
//! Only our own user may ask: the socket file has mode 0600, and the peer's user id is checked.
//! There is one conversation at a time; others wait in the queue.
//!
//! Deliberately absent: sessions. They stay with the old process until they leave it.

mod place;
mod successor;
#[cfg(test)]
mod tests;
mod wire;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::inherit::Inherited;

pub(crate) use place::{Closer, Place};
pub(crate) use successor::{Taken, is_deserted, take};

/// Name of the socket in the state folder.
pub(crate) const FILE: &str = "takeover.sock";
/// How long one step of a conversation may take with a process that runs.
pub const STEP: Duration = Duration::from_secs(5);
/// How long the new process may take until it serves.
const START: Duration = Duration::from_secs(30);

const HELLO: &str = "pointsman takeover 2";
const END: &str = "end";
const SERVING: &str = "serving";
const CONFIRM: &str = "confirm";
const LEAVING: &str = "leaving";

/// Why sockets could not be handed over, or the state folder not be used.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// The folder or the socket in it.
    #[error(
        "the socket {0} cannot be used; is process.state_dir a folder that this user may write to?"
    )]
    Socket(PathBuf, #[source] io::Error),
    /// It would be lost.
    #[error("{0} is something else than a socket; give process.state_dir another value")]
    Other(PathBuf),
    /// Somebody lives there.
    #[error(
        "a pointsman is running with the state folder of {0}; start with --takeover, or give process.state_dir another value"
    )]
    Occupied(PathBuf),
    /// The conversation failed.
    #[error("the running pointsman did not hand over its sockets and continues to serve")]
    Refused(#[source] io::Error),
    /// It would be a step back.
    #[error(
        "no master was found within {0:?}: not taking over, the running pointsman continues to serve"
    )]
    NoMaster(Duration),
    /// `--takeover` needs a place to meet.
    #[error("--takeover needs process.state_dir, the folder where the two processes meet")]
    NoFolder,
}

/// What is handed over.
pub type Offer = Box<dyn Fn() -> io::Result<Vec<Inherited>> + Send>;

/// Where the socket of a state folder is.
#[must_use]
pub fn path(folder: &str) -> PathBuf {
    Path::new(folder).join(FILE)
}
