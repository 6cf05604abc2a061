//! Maintenance notifications: push messages that announce a failover, or ask the client to move, to
//! clients that asked for them.
//!
//! [`push`] has the messages as they are on the wire, [`pending`] decides which client gets which
//! of them and when. A session sees them as bytes that it inserts between two replies.

pub(crate) mod pending;

#[cfg(test)]
mod notification_tests;
