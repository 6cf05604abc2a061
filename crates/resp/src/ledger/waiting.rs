//! `WAIT` and `WAITAOF`: they speak of the writes made on this very connection.
//!
//! On another connection the server would answer at once, and about nothing
//! (`redis:src/replication.c`, `waitCommand`, compares with the offset of the client's own last
//! write). So who waits now and then stays where its writes were made, and who was carried over and
//! only then begins to wait must not be given that answer.

/// What is known of the session's way with `WAIT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Waiting {
    /// It never asked.
    #[default]
    Never,
    /// It asked on the connection that its writes were made on.
    Stays,
    /// It has not asked on this connection; but writes may have been made on the one before.
    Carried,
    /// It was carried over and then asked.
    Forfeit,
}

impl Waiting {
    /// It asks.
    pub(crate) fn asked(self) -> Self {
        match self {
            Self::Never | Self::Stays => Self::Stays,
            Self::Carried | Self::Forfeit => Self::Forfeit,
        }
    }
}
