//! Durability: an acknowledged write is on as many replicas as its service demands.
//!
//! A master acknowledges a write before its replicas have it. If it dies then, the write is lost
//! although its client was told otherwise. `WAIT` makes a master ask its replicas at once, and one
//! `WAIT` covers every write before it on the same connection. So the proxy sends one after each
//! run of writes, and holds their replies until it is answered ([`confirmations`]). It does that
//! between the session and its connection ([`ConfirmedStream`]), and between the clients of a
//! shared connection and that. Neither knows of it.
//!
//! `docs/durability.md` says what is promised, and what is not.

mod confirmations;
#[cfg(test)]
mod confirmations_tests;
mod stream;

pub(crate) use stream::ConfirmedStream;
