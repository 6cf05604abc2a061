//! Decisions for upstream connections that many clients share: which client may share which
//! connection, in which order requests leave, and which reply belongs to which client.
//!
//! With a connection of its own per client, a proxy pays two receives and two sends per request.
//! Requests of many clients that leave in one write, and their replies in one read, cost less than
//! half of that, for the proxy and for Redis. The price is that a mistake in matching replies would
//! hand one client's data to another, so every rule here prefers closing a connection to a doubt.
//!
//! - [`GroupKey`]: the clients that may share a connection.
//! - [`Commands`]: how each request is handled; [`read_table`] reads the server's own table.
//! - [`limits_clients`]: whether a server would end all members for one of them.
//! - [`TurnQueue`]: the order in which requests leave, and how many of each client.
//! - [`ReplyWindow`]: how many requests of one client may be in flight.
//! - [`UpstreamLedger`]: the requests in flight on one connection, and whose each reply is.
//!
//! `docs/shared-upstreams.md` has the rules, with their reasons.
//!
//! Deliberately absent: I/O, time, and buffers of clients; when a session leaves for a connection
//! of its own and returns, which is part of the crate `proxy`; cryptography, since the caller
//! computes digests of secrets.

mod commands;
mod group;
mod server_limits;
mod server_table;
mod turn;
mod upstream;
#[cfg(test)]
mod upstream_tests;
mod window;

pub use commands::{Commands, ServerCommand};
pub use group::{GroupKey, Identity, SecretDigest};
pub use server_limits::{ASK_LIMITS, LARGEST_LIMITS, limits_clients};
pub use server_table::{LARGEST_TABLE, ask_table, read_table};
pub use turn::{Quantum, Room, Taken, TurnQueue};
pub use upstream::{Desync, Member, Piece, UpstreamLedger, UpstreamLimits};
pub use window::ReplyWindow;
