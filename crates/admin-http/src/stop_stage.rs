//! How far the stop of a server has come.

/// The stages of a stop, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum StopStage {
    /// It has not begun.
    Serving,
    /// No request is accepted any more. Responses in progress go on without a limit.
    Leaving,
    /// They have a limited time left.
    Stopping,
}
