//! A connection to a target that several clients share: the I/O around the decisions of the crate
//! `share`.
//!
//! A [`Member`] is the target's side of one session, and takes the place of a socket in its pump.
//! What is written to it waits until the [`Connection`] takes it in its turn, so that requests of
//! many clients leave in one write. Until then the bytes are the session's, and move with it: they
//! count as sent only when a write that contains them has begun. The session records them in its
//! ledger when it is polled next, which is before it decides anything.
//!
//! All of it belongs to one worker, without locks.
//!
//! Deliberately absent: opening connections, groups, and promotions
//! (module `shared` of the sessions).

mod connection;
mod connection_end;
mod id_hasher;
#[cfg(any(test, fuzzing))]
#[allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    unreachable_pub,
    reason = "tests report by a clear panic; the fuzz target uses it, too"
)]
pub(crate) mod isolation;
mod member;
mod member_state;

pub(crate) use connection::Connection;
pub(crate) use connection_end::ConnectionEnd;
pub(crate) use member::{Member, Offer, RestingMember};
pub(crate) use member_state::Promotion;
