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

mod commands;
mod error_replies;
mod ledger;
mod replay;
mod scan;

pub use commands::carry_effect::{CarryEffect, ListedCommand, listed_commands};
pub use commands::class::{Class, ClassGroup};
pub use commands::stateless::{MAX_COMMAND_NAME, StatelessCommands, StatelessError};
pub use error_replies::ErrorReplies;
pub use ledger::Ledger;
pub use ledger::maintenance::MaintenanceHandshake;
pub use ledger::pin::Pin;
pub use ledger::session_state::{
    Direction, FrameCounts, Hint, LedgerFault, MustEnd, ReplyOutcome, SessionState,
};
pub use replay::{Replay, ReplayError};
pub use scan::frames::{Frames, NotResp};
pub use scan::limits::Limits;
