//! Why a run did not start, or ended early.

use crate::process::inherit::InheritError;
use crate::process::takeover::TakeoverError;
use crate::system::descriptors::TooFewFiles;
use crate::system::unix_sockets::UnixSocketError;

/// Why a run did not start, or ended without a signal to stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The limit on open files is too low.
    #[error(transparent)]
    Files(#[from] TooFewFiles),
    /// The certificates for clients cannot be used.
    #[error("TLS cannot be served: {0}")]
    Tls(String),
    /// An address for clients cannot be bound.
    #[error(transparent)]
    Listen(#[from] proxy::BindError),
    /// An address of the admin server cannot be bound.
    #[error(transparent)]
    Admin(#[from] admin_http::BindError),
    /// The system refused a thread, a runtime or a signal handler.
    #[error("a thread, the runtime or a signal handler could not be created")]
    System(#[from] std::io::Error),
    /// A worker cannot be started.
    #[error(transparent)]
    Workers(#[from] proxy::StartError),
    /// A worker ended early.
    #[error(transparent)]
    Worker(#[from] proxy::WorkerError),
    /// A Unix socket for clients or commands cannot be opened.
    #[error(transparent)]
    Unix(#[from] UnixSocketError),
    /// The admin server cannot be started.
    #[error(transparent)]
    Probe(#[from] admin_http::StartError),
    /// A socket of the service manager cannot be used.
    #[error(transparent)]
    Inherited(#[from] InheritError),
    /// Sockets cannot be taken over or handed over.
    #[error(transparent)]
    Takeover(#[from] TakeoverError),
    /// A part that the process depends on has ended.
    #[error("{0} has ended unexpectedly; see the log")]
    Lost(&'static str),
}
