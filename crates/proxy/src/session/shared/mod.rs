//! Sessions that share connections to the target.
//!
//! - [`access`]: whether a server admits clients without credentials.
//! - [`command_table`]: what the server itself says of its commands.
//! - [`pool`]: the shared connections of a worker, and the task of each.
//! - [`rest`]: what is kept of a session whose client is idle.
//! - [`transitions`]: when a session gets a connection of its own, and when it returns.
//! - [`verifiers`]: connections on which clients are verified, one after another.
//!
//! The pump of a session that shares is the same as that of any other one, with a
//! [`Member`](crate::io::shared::Member) in place of a socket. So fence, gate, drain, limits and
//! timeouts are the same code. What differs:
//!
//! - A first connection is not dialled: the first request opens or joins a shared one.
//! - At a master change, a session is carried without a replay of its own: its group's connection
//!   to the new target is replayed once.
//! - A request that needs its own connection ends the pump at a boundary. The session resumes on
//!   its own connection, as if it were carried to the same target, and returns later.
//!
//! Deliberately absent: the order of requests, and whose each reply is
//! ([`io::shared`](crate::io::shared)).

mod access;
#[cfg(test)]
mod access_tests;
mod command_table;
#[cfg(test)]
mod interrupt_tests;
pub(crate) mod pool;
#[cfg(test)]
mod reader_tests;
pub(crate) mod rest;
#[cfg(test)]
mod rest_tests;
#[cfg(test)]
mod shared_tests;
#[cfg(test)]
mod table_tests;
pub(crate) mod transitions;
#[cfg(test)]
mod verifier_tests;
pub(crate) mod verifiers;
