//! RESP2 and RESP3 on the wire, incrementally: frame boundaries, command classes, and the ledger of
//! requests owed and replies seen.
//!
//! A proxy that only copies bytes cannot know when a connection may be touched. A [`Ledger`]
//! watches both directions of one session as they are forwarded and knows, after every byte,
//! whether a request or reply is under way, how many replies are still owed, and what the server
//! keeps for this connection; so it can say when the session is [quiet](Standing::Quiet). It reads
//! as little as it can: headers, the first words of a request, the first bytes of a line; bodies
//! are skipped by their announced length, and whoever moves them without showing them
//! ([`Ledger::body_left`]) loses nothing.
//!
//! How it stays cheap: no byte is looked at twice, nothing is allocated for the traffic of every
//! day, nothing recurses, and a pipeline of any depth is a number. How it stays safe: what it does
//! not understand, or what exceeds the [`Limits`], turns the session [opaque](Standing::Opaque). An
//! opaque session works like any other, it is only not known any more.
//!
//! Deliberately absent: I/O, time, buffers, and any value of a reply. This crate finds ends; it
//! does not parse contents.

mod book;
mod bound;
mod budget;
mod bulk;
mod class;
mod feed;
mod frames;
mod inline;
mod known;
mod ledger;
mod limits;
mod marks;
mod memory;
mod names;
mod naming;
mod novel;
mod number;
mod pin;
mod recorder;
mod refusal;
mod replay;
mod reply;
mod request;
mod run;
mod said;
mod silence;
mod stack;
mod standing;
mod stateless;
mod subscriptions;
mod verdict;
mod waiting;
mod word;
mod words;

#[cfg(test)]
mod bound_tests;
#[cfg(test)]
mod conversation_tests;
#[cfg(test)]
mod ledger_tests;
#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod model;
#[cfg(test)]
mod notices_tests;
#[cfg(test)]
mod reply_tests;
#[cfg(test)]
mod request_tests;
#[cfg(test)]
mod resubscription_tests;
#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod subscription_tests;
#[cfg(test)]
mod talk;

pub use class::{Class, Group};
pub use frames::{Frames, NotResp};
pub use ledger::Ledger;
pub use limits::Limits;
pub use novel::Notices;
pub use pin::Pin;
pub use refusal::Refusals;
pub use replay::{Refused, Replay};
pub use standing::{Answer, Counts, Direction, Fault, Hint, MustEnd, Standing};
pub use stateless::{LONGEST_NAME, NotStateless, Stateless};
pub use verdict::{Listed, Verdict, listed};
