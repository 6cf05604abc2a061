//! Scenarios for every hazard of Sentinel discovery, in the language of [`rig`], under the eyes of a [`witness`].

mod bootstrap;
mod failover;
mod hold;
mod master;
mod minority;
pub(super) mod rig;
mod stall;
mod voters;
mod witness;
mod zombie;

pub(super) use witness::Witness;
