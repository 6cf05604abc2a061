//! Translates signals into requests.
//!
//! TERM and INT begin a complete shutdown, and a second one cuts; the plan in `drain` distinguishes
//! a second signal from a repeated one. USR1 drains without the accepting phase, as in haproxy.
//! QUIT ends the process at once. HUP reloads; one that arrives during the start is handled after
//! it.

use std::io;

use drain::StopRequest;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalRequest {
    /// A step of the shutdown.
    Stop(StopRequest),
    /// A reload of the configuration.
    Reload,
}

/// The signal handlers, installed at the very start.
pub(crate) struct Signals {
    term: Signal,
    int: Signal,
    usr1: Signal,
    quit: Signal,
    hup: Signal,
    /// A reload was requested during the start and is not returned yet.
    reload: bool,
}

impl Signals {
    /// Installs the handlers. Must be called inside a runtime, and before anything that takes time.
    ///
    /// # Errors
    ///
    /// If the system refuses a handler.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            usr1: signal(SignalKind::user_defined1())?,
            quit: signal(SignalKind::quit())?,
            hup: signal(SignalKind::hangup())?,
            reload: false,
        })
    }

    /// Returns the next signal.
    pub(crate) async fn next(&mut self) -> (&'static str, SignalRequest) {
        if std::mem::take(&mut self.reload) {
            return ("SIGHUP", SignalRequest::Reload);
        }
        self.any().await
    }

    /// Returns the next signal that requests a stop. A request to reload is kept for
    /// [`next`](Self::next).
    pub(crate) async fn stop(&mut self) -> (&'static str, StopRequest) {
        loop {
            match self.any().await {
                (name, SignalRequest::Stop(request)) => return (name, request),
                (_, SignalRequest::Reload) => self.reload = true,
            }
        }
    }

    async fn any(&mut self) -> (&'static str, SignalRequest) {
        tokio::select! {
            _ = self.term.recv() => ("SIGTERM", SignalRequest::Stop(StopRequest::Drain)),
            _ = self.int.recv() => ("SIGINT", SignalRequest::Stop(StopRequest::Drain)),
            _ = self.usr1.recv() => ("SIGUSR1", SignalRequest::Stop(StopRequest::DrainAtOnce)),
            _ = self.quit.recv() => ("SIGQUIT", SignalRequest::Stop(StopRequest::Cut)),
            _ = self.hup.recv() => ("SIGHUP", SignalRequest::Reload),
        }
    }
}
