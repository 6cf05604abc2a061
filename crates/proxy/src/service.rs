//! A service as the workers see it: its name, its target, its settings, and the receiver of hints
//! about the target.

use std::fmt::Debug;
use std::sync::Arc;

use target::{Target, TargetSource};

use crate::labelled::labelled;
use crate::options::LiveOptions;

/// The settings and handles that all sessions of one service share.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its name, for logs and metrics: Sentinel's name for the master.
    pub name: Arc<str>,
    /// Where its sessions are connected to.
    pub route: TargetSource,
    /// Its settings.
    pub options: LiveOptions,
    /// Receives what its sessions notice about the target.
    pub hints: Arc<dyn Hints>,
}

/// A sign, noticed by a session, that the target may not be the master any more. Never a proof: the
/// receiver examines the target itself, and backs off, because each sign has harmless causes, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hint {
    /// A connection to the target could not be opened.
    DialFailed(DialFailure),
    /// The target closed a session that its client had not closed.
    UpstreamEnded,
    /// A reply began with an error that a healthy master rarely sends.
    Replied(resp::Hint),
}

labelled! {
    /// Why a connection to a target could not be opened.
    pub enum DialFailure {
        /// Connection refused, by the host or a firewall.
        Refused = "refused",
        /// No answer within `connect_timeout`.
        TimedOut = "timed_out",
        /// No route, or host or network down.
        Unreachable = "unreachable",
        /// No memory or local ports left on this host; says nothing about the target.
        Exhausted = "exhausted",
        /// No file descriptors left in this process or host; says nothing about the target.
        OutOfFiles = "out_of_files",
        /// Anything else.
        Other = "other",
        /// The connection was opened, but no TLS session over it: see
        /// [`TargetTlsSnapshot`](crate::TargetTlsSnapshot).
        Tls = "tls",
    }
}

impl DialFailure {
    /// Whether the cause is on this host, so that it says nothing about the target.
    #[must_use]
    pub const fn is_ours(self) -> bool {
        matches!(self, Self::Exhausted | Self::OutOfFiles)
    }
}

/// The receiver of hints. It is called on a worker's thread between its sessions, so it must not
/// block or take long, and must handle ten thousand calls in a row.
pub trait Hints: Debug + Send + Sync {
    /// A session that used `target` noticed `hint`.
    fn hint(&self, target: &Target, hint: Hint);
}

/// Ignores all hints.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHints;

impl Hints for NoHints {
    fn hint(&self, _target: &Target, _hint: Hint) {}
}
