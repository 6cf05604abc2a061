//! The kinds of maintenance notifications, by which they are counted.
//!
//! Below both the counters (`stats`) and the module that sends the notifications (`maintenance`),
//! which counts through the worker's context.

use crate::labelled::labelled;

labelled! {
    /// The kind of a push.
    pub enum MaintenanceKind {
        /// `MOVING`.
        Moving = "moving",
        /// `FAILING_OVER`.
        FailingOver = "failing_over",
        /// `FAILED_OVER`.
        FailedOver = "failed_over",
    }
}
