//! Maintenance notifications: push messages that announce a failover to clients that asked for them.

pub(crate) mod notice;

#[cfg(test)]
mod notices_tests;
