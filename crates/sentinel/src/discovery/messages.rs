//! What links, probers and look-ups send to the driver.

use std::net::SocketAddr;
use std::time::Duration;

use crate::NodeAddr;
use crate::link::{LinkId, What};
use crate::prober::ProbeEvent;

/// Timeouts of the sentinel connections.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Of a dial.
    pub connect: Duration,
    /// Of a command.
    pub command: Duration,
    /// The shortest pause before a lost sentinel is dialled again.
    pub reconnect_min: Duration,
    /// The longest one; pauses double in between, with jitter.
    pub reconnect_max: Duration,
    /// How long sent bytes may stay unacknowledged.
    pub user: Duration,
}

/// What links, canaries and look-ups tell the loop.
#[derive(Debug)]
pub(crate) enum DriverMessage {
    Link(LinkId, What),
    NodeProber(usize, NodeAddr, ProbeEvent),
    /// The seed of this number now has these addresses.
    Seed(usize, Vec<SocketAddr>),
}
