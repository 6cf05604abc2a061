//! Connections to a target that several clients share.
//!
//! With a connection of its own per client, a proxy pays two receives and two sends per request.
//! Requests of many clients that leave in one write, and their replies in one read, cost less than
//! half of that, for the proxy and for Redis. The price is that a mistake in matching replies would
//! hand one client's data to another, so every rule here prefers closing a connection to a doubt.
//! `docs/shared-upstreams.md` has the rules, with their reasons.
//!
//! The pump of a session that shares is that of any other session, with a [`Member`] in place of a
//! socket. So fence, gate, drain, limits and timeouts are the same code. What is written to a
//! member waits until its [`Connection`] takes it in its turn. Until then the bytes are the
//! session's, and move with it: they count as sent only when a write that contains them has begun.
//! The session records them in its ledger when it is polled next, which is before it decides
//! anything. All of it belongs to one worker, without locks.
//!
//! From the decisions, which are pure, to the sessions:
//!
//! - [`group_key`]: which clients may share a connection.
//! - [`commands`]: how each request is handled; [`command_table`] asks the server for its own table
//!   ([`server_table`]), and whether it [limits clients](server_limits).
//! - [`turn_queue`]: the order in which requests leave, and how many of each client;
//!   [`reply_window`]: how many requests of one client may be in flight.
//! - [`upstream_ledger`]: the requests in flight on one connection, and whose each reply is.
//! - [`connection`], [`member`]: the I/O around these.
//! - [`pool`]: the connections of a worker, and the task of each; [`access`]: whether a server
//!   admits clients without credentials; [`verifiers`]: connections on which clients are verified.
//! - [`linger`]: how long a session keeps a connection of its own.
//!
//! A first connection is not dialled: the first request opens or joins a shared one. At a master
//! change a session is carried without a replay of its own, since its group's connection to the new
//! target is replayed once. A request that needs its own connection ends the pump at a boundary,
//! and the session resumes on a connection of its own, as if it were carried to the same target.

mod access;
mod commands;
mod connection;
mod gathering;
mod group_key;
#[cfg(any(test, fuzzing))]
#[allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    unreachable_pub,
    reason = "tests report by a clear panic; the fuzz target uses it, too"
)]
pub(crate) mod isolation;
pub(crate) mod linger;
mod member;
mod member_state;
pub(crate) mod pool;
mod reply_window;
mod server_limits;
mod server_table;
mod turn_queue;
#[cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "the fuzz target uses it"))]
mod upstream_ledger;
pub(crate) mod verifiers;

#[cfg(test)]
mod access_tests;
#[cfg(test)]
mod interrupt_tests;
#[cfg(test)]
mod reader_tests;
#[cfg(test)]
mod server_tests;
#[cfg(test)]
pub(crate) mod shared_tests;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod upstream_ledger_tests;
#[cfg(test)]
mod verifier_tests;

pub(crate) use connection::{Connection, ConnectionEnd};
pub(crate) use member::{Member, Offer, RestingMember};
pub(crate) use member_state::Promotion;
#[cfg(fuzzing)]
pub use upstream_ledger::{Desync, Load, MemberId, UpstreamLedger};
