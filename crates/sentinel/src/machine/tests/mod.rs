//! Scenarios for every hazard of Sentinel discovery, in the language of [`rig`], under the eyes of a [`witness`].

mod bootstrap;
mod failover;
mod hold;
mod master;
mod minority;
mod rig;
mod stall;
mod voters;
mod witness;
mod zombie;

pub(super) use rig::{Answer, Rig};
pub(super) use witness::Witness;
