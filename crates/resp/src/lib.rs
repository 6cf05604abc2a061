//! Incremental tracking of RESP2 and RESP3 sessions: frame boundaries, command classes, and a
//! ledger of the replies that a session is owed.
//!
//! A proxy that only copies bytes cannot know when a connection may be closed or replaced. A
//! [`Ledger`] observes both directions of one session as they are forwarded. After every byte it
//! knows whether a request or reply is incomplete, how many replies are owed, and what state the
//! server keeps for this connection, and therefore whether the session is
//! [quiet](SessionState::Quiet). It reads as little as possible: headers, the first words of a
//! request, the first bytes of a line. Bodies are skipped by their announced length and need not be
//! shown to the ledger at all ([`Ledger::body_left`]).
//!
//! Cost: no byte is examined twice, ordinary traffic allocates nothing, nothing recurses, and a
//! pipeline of any depth is a counter. Safety: bytes that are not understood, or that exceed the
//! [`Limits`], make the session [opaque](SessionState::Opaque). An opaque session is forwarded like
//! any other and is no longer tracked.
//!
//! There is no I/O, no time, no buffer and no value of a reply here: this crate finds frame
//! boundaries and does not parse contents.

#[macro_use]
mod labelled;

mod commands;
mod error_replies;
mod ledger;
mod replay;
mod scan;

pub use commands::carry_effect::{CarryEffect, ListedCommand, listed_commands};
pub use commands::class::Class;
pub use commands::may_write::{NAME_WITHIN, may_write};
pub use commands::refused::{DEFAULT_REFUSALS, Refusals, RefusedCommand};
pub use commands::server_commands::{CommandInfo, ServerCommands, is_questionable, is_unlisted};
pub use commands::sharing::{PromotionReason, Sharing, sharing_of};
pub use commands::stateless::{MAX_COMMAND_NAME, StatelessCommands, StatelessError};
pub use error_replies::ErrorReplies;
pub use ledger::Ledger;
pub use ledger::client_state::ClientFacts;
pub use ledger::client_state::SharedState;
pub use ledger::maintenance::MaintenanceHandshake;
pub use ledger::resting::RestingLedger;
pub use ledger::session_state::Pin;
pub use ledger::session_state::{
    Direction, FrameCounts, LedgerFault, MustEnd, ReplyOutcome, SessionState,
};
pub use replay::{RESET, Replay, ReplayError};
pub use scan::frames::{Frames, NotResp};
pub use scan::interrupt::{split_authentication, split_interrupt};
pub use scan::limits::Limits;
pub use scan::message_kind::Hint;
pub use scan::screen::Screened;
pub use scan::whole_requests::{NextRequest, WholeRequests};
