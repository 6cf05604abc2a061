//! Address lookups and the loop guard, used by all modules that open connections.

pub(crate) mod loop_guard;
pub(crate) mod own_addresses;
pub(crate) mod resolve;
