//! What the points lead to: one verified node, frozen at the moment of its commit.

use std::fmt;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Instant;

use crate::Fence;

/// Counts the commits of one route, from 1. A higher generation is a later decision; nothing else may be read from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u64);

impl Generation {
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The bare number, for logs, metrics and the status page.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a writer asks to be committed: the address that was verified, and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The very address that was verified; sessions dial this one and resolve no name again.
    pub addr: SocketAddr,
    /// How the node was announced (`host:port`), for people. Equal to `addr` where no names are in use.
    pub name: Box<str>,
    /// Sentinel's config-epoch of the decision; 0 where none is known.
    pub epoch: u64,
    /// The node's `run_id` where it could be learnt: tells a restarted node on the same address from the old one.
    pub run_id: Option<Box<str>>,
}

/// A committed destination. Immutable but for its fence, and for the note of its first use.
#[derive(Debug)]
pub struct Target {
    generation: Generation,
    destination: Destination,
    fence: Fence,
    first_use: OnceLock<Instant>,
}

impl Target {
    pub(crate) fn new(generation: Generation, destination: Destination) -> Self {
        Self { generation, destination, fence: Fence::default(), first_use: OnceLock::new() }
    }

    /// The commit that published this target.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// What was committed.
    #[must_use]
    pub fn destination(&self) -> &Destination {
        &self.destination
    }

    /// The address to dial.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.destination.addr
    }

    /// A session has just reached this target. Only the first call takes note of the time; any other is one atomic load.
    #[inline]
    pub fn note_use(&self) {
        if self.first_use.get().is_none() {
            // Of two that come first at the same moment, either is as good.
            let _earlier = self.first_use.set(Instant::now());
        }
    }

    /// When the first session reached this target; `None` while none has.
    #[must_use]
    pub fn first_use(&self) -> Option<Instant> {
        self.first_use.get().copied()
    }

    /// The barrier before every byte to this target.
    #[must_use]
    pub fn fence(&self) -> &Fence {
        &self.fence
    }
}
