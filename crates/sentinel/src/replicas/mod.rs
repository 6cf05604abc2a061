//! Which replicas serve reads: eligibility is decided here, and published to the pool.

pub(crate) mod eligibility;
pub(crate) mod publisher;
