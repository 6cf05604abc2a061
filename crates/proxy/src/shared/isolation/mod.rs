//! Many clients on shared connections to model servers, without sockets: no client may receive a
//! byte of another one's reply, or lose or repeat a request of its own.
//!
//! [`Member`](super::Member) and [`Connection`](super::Connection) are those of the proxy. Modelled
//! are the two ends: clients with their sessions, and servers behind a wire that takes any part of
//! a write. Each step is chosen by three bytes, so that the property test and the fuzz target drive
//! the same code.
//!
//! Each request carries the number of its client and its own, and its reply depends on nothing
//! else. So what a client must receive is known in advance, and a reply of another client is
//! recognized by its first wrong byte.

mod client;
mod rig;
mod server;
#[cfg(test)]
mod tests;
mod wire;

#[cfg(fuzzing)]
pub use rig::run;
