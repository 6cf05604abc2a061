//! Replicas that serve reads: `eligibility` decides which replicas qualify, `publisher` publishes
//! them to the pool.

pub(crate) mod eligibility;
pub(crate) mod publisher;
