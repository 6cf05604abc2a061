//! RESP2 and RESP3 on the wire, incrementally: frame boundaries, command classes, and the ledger of requests owed and
//! replies seen.

mod class;
mod ledger;
mod limits;
mod standing;

pub use class::{Class, Group};
pub use ledger::Ledger;
pub use limits::Limits;
pub use standing::{Answer, Counts, Direction, Hint, Standing};
