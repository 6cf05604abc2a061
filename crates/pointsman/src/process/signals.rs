//! Signals to orders.
//!
//! TERM and INT begin the whole shutdown, and a second one cuts; the plan in `drain` tells a second
//! from a repeated one. USR1 drains without the accepting phase, as haproxy's users know it. QUIT
//! ends at once. HUP is for a reload; one that comes during the start is carried out after it.

use std::io;

use drain::StopRequest;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// A step of the shutdown.
    Stop(StopRequest),
    /// A reload of the configuration.
    Reload,
}

/// The signals this process listens to, from its first moment on.
pub struct Signals {
    term: Signal,
    int: Signal,
    usr1: Signal,
    quit: Signal,
    hup: Signal,
    /// A reload was asked for and is not reported yet.
    reload: bool,
}

impl Signals {
    /// Takes the signals over. Must be called inside a runtime, and before anything that takes
    /// time.
    ///
    /// # Errors
    ///
    /// If the system does not let us.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            usr1: signal(SignalKind::user_defined1())?,
            quit: signal(SignalKind::quit())?,
            hup: signal(SignalKind::hangup())?,
            reload: false,
        })
    }

    /// The next one.
    pub async fn next(&mut self) -> (&'static str, Asked) {
        if std::mem::take(&mut self.reload) {
            return ("SIGHUP", Asked::Reload);
        }
        self.any().await
    }

    /// The next one that asks for the end. One that asks for a reload is kept for
    /// [`next`](Self::next).
    pub async fn stop(&mut self) -> (&'static str, StopRequest) {
        loop {
            match self.any().await {
                (name, Asked::Stop(order)) => return (name, order),
                (_, Asked::Reload) => self.reload = true,
            }
        }
    }

    async fn any(&mut self) -> (&'static str, Asked) {
        tokio::select! {
            _ = self.term.recv() => ("SIGTERM", Asked::Stop(StopRequest::Drain)),
            _ = self.int.recv() => ("SIGINT", Asked::Stop(StopRequest::Drain)),
            _ = self.usr1.recv() => ("SIGUSR1", Asked::Stop(StopRequest::DrainAtOnce)),
            _ = self.quit.recv() => ("SIGQUIT", Asked::Stop(StopRequest::Cut)),
            _ = self.hup.recv() => ("SIGHUP", Asked::Reload),
        }
    }
}
