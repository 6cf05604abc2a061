//! Moving bytes between two sockets: buffers, back-pressure, splicing, and the forwarding policy.

pub(crate) mod bulk;
pub(crate) mod connection;
pub(crate) mod end;
pub(crate) mod flow;
pub(crate) mod forwarding;
pub(crate) mod kept;
pub(crate) mod pipe;
pub(crate) mod scratch;
pub(crate) mod sockopt;

#[cfg(test)]
mod bulk_tests;
#[cfg(test)]
mod flow_tests;
#[cfg(test)]
mod forwarding_tests;
