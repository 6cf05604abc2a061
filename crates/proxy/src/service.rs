//! A service as the workers see it: its name, its target, its settings, and the receiver of hints
//! about the target.

use std::fmt;
use std::sync::Arc;

use target::{Target, TargetSource};

use crate::options::LiveOptions;

/// The settings and handles that all sessions of one service share.
#[derive(Clone)]
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

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("name", &self.name)
            .field("options", &self.options.now())
            .finish_non_exhaustive()
    }
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

/// Why a connection to a target could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DialFailure {
    /// Connection refused, by the host or a firewall.
    Refused,
    /// No answer within `connect_timeout`.
    TimedOut,
    /// No route, or host or network down.
    Unreachable,
    /// No memory or local ports left on this host; says nothing about the target.
    Exhausted,
    /// No file descriptors left in this process or host; says nothing about the target.
    OutOfFiles,
    /// Anything else.
    Other,
    /// The connection was opened, but no TLS session over it: see
    /// [`TargetTlsFailure`](crate::TargetTlsFailure).
    Tls,
}

impl DialFailure {
    /// Every kind, in numerical order.
    pub const ALL: [Self; 7] = [
        Self::Refused,
        Self::TimedOut,
        Self::Unreachable,
        Self::Exhausted,
        Self::OutOfFiles,
        Self::Other,
        Self::Tls,
    ];

    /// Whether the cause is on this host, so that it says nothing about the target.
    #[must_use]
    pub const fn is_ours(self) -> bool {
        matches!(self, Self::Exhausted | Self::OutOfFiles)
    }

    /// The label in metrics and logs, in snake case. It does not change between releases.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::TimedOut => "timed_out",
            Self::Unreachable => "unreachable",
            Self::Exhausted => "exhausted",
            Self::OutOfFiles => "out_of_files",
            Self::Other => "other",
            Self::Tls => "tls",
        }
    }
}

/// The receiver of hints. It is called on a worker's thread between its sessions, so it must not
/// block or take long, and must handle ten thousand calls in a row.
pub trait Hints: Send + Sync {
    /// A session that used `target` noticed `hint`.
    fn hint(&self, target: &Target, hint: Hint);
}

/// Ignores all hints.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHints;

impl Hints for NoHints {
    fn hint(&self, _target: &Target, _hint: Hint) {}
}
