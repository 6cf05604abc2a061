//! The kinds of maintenance notifications, by which they are counted.
//!
//! Below both the counters (`stats`) and the module that sends the notifications (`maintenance`),
//! which counts through the worker's context.

/// The kind of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MaintenanceKind {
    /// `MOVING`.
    Moving,
    /// `FAILING_OVER`.
    FailingOver,
    /// `FAILED_OVER`.
    FailedOver,
}

impl MaintenanceKind {
    /// Every kind, in numerical order.
    pub const ALL: [Self; 3] = [Self::Moving, Self::FailingOver, Self::FailedOver];

    /// The label in metrics, in snake case. It does not change between releases.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Moving => "moving",
            Self::FailingOver => "failing_over",
            Self::FailedOver => "failed_over",
        }
    }
}
