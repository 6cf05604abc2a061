//! One service as the data plane sees it: a name, a route to follow, settings, and somebody to tell
//! what it notices.

use std::fmt;
use std::sync::Arc;

use target::{Target, TargetSource};

use crate::options::LiveOptions;

/// Everything the sessions of one service have in common.
#[derive(Clone)]
pub struct Service {
    /// Its name, for logs and metrics: Sentinel's name for the master.
    pub name: Arc<str>,
    /// Where its sessions go.
    pub route: TargetSource,
    /// Its settings.
    pub options: LiveOptions,
    /// Who is told what its sessions notice about the target.
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

/// What a session noticed that may mean that the target is not the master any more. Never a proof:
/// whoever gets one looks for himself, and backs off, since legitimate causes exist for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hint {
    /// A connection to the target could not be opened.
    DialFailed(DialFailure),
    /// The target ended a session that its client had not ended.
    UpstreamEnded,
    /// The target said something at the start of a reply that a healthy master rarely says.
    Replied(resp::Hint),
}

/// Why a connection to a target could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DialFailure {
    /// Nothing listens there, or a firewall says so.
    Refused,
    /// No answer within the connect timeout.
    TimedOut,
    /// No way there: no route, host or network down.
    Unreachable,
    /// This host has no memory or local ports left: says nothing about the target.
    Exhausted,
    /// This process or host has no file descriptors left: says nothing about the target.
    OutOfFiles,
    /// Anything else.
    Other,
}

impl DialFailure {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Refused,
        Self::TimedOut,
        Self::Unreachable,
        Self::Exhausted,
        Self::OutOfFiles,
        Self::Other,
    ];

    /// Whether it says nothing about the target, only about this host.
    #[must_use]
    pub const fn is_ours(self) -> bool {
        matches!(self, Self::Exhausted | Self::OutOfFiles)
    }

    /// A stable word in snake case, for metrics and logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::TimedOut => "timed_out",
            Self::Unreachable => "unreachable",
            Self::Exhausted => "exhausted",
            Self::OutOfFiles => "out_of_files",
            Self::Other => "other",
        }
    }
}

/// Where hints go. Called on a worker in the middle of its sessions: it must neither block nor take
/// long, and it must expect ten thousand calls in a row.
pub trait Hints: Send + Sync {
    /// A session that used `target` noticed `hint`.
    fn hint(&self, target: &Target, hint: Hint);
}

/// Nobody wants to know.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHints;

impl Hints for NoHints {
    fn hint(&self, _target: &Target, _hint: Hint) {}
}
