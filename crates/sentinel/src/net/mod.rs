//! Address lookups, the loop guard, the allowlist of nodes, and streams with or without TLS, used
//! by all modules that open connections.

pub(crate) mod allowlist;
pub(crate) mod host;
pub(crate) mod loop_guard;
pub(crate) mod resolve;
pub(crate) mod stream;
pub(crate) mod transport;
