//! The messages of links, node probers and name lookups to the driver, and the timeouts of the
//! links.

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
    /// The longest pause; pauses double in between, with jitter.
    pub reconnect_max: Duration,
    /// How long sent bytes may stay unacknowledged.
    pub user: Duration,
}

/// A message to the driver.
#[derive(Debug)]
pub(crate) enum DriverMessage {
    Link(LinkId, What),
    NodeProber(usize, NodeAddr, ProbeEvent),
    /// The seed with this index now has these addresses.
    Seed(usize, Vec<SocketAddr>),
}
