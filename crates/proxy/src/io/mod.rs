//! Moving bytes between two sockets: buffers, back-pressure, and splicing.

pub(crate) mod buffer;
pub(crate) mod flow;
pub(crate) mod pipe;
pub(crate) mod socket_options;
pub(crate) mod stream;
pub(crate) mod tls_stream;
#[cfg(any(test, fuzzing))]
pub(crate) mod tls_stream_rig;
#[cfg(test)]
mod tls_stream_tests;

#[cfg(test)]
mod bulk_tests;
#[cfg(test)]
mod flow_tests;
