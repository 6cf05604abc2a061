//! Graceful shutdown: its phases, their deadlines, and the ticket that each session holds.
//!
//! A shutdown starts with one signal. The process first becomes unready while it still accepts
//! clients. Then it closes its listeners, and the sessions leave one after the other. Finally, the
//! remaining sessions are cut. No phase has a fixed length: each ends when its purpose is
//! fulfilled, and at its deadline at the latest.
//!
//! The crate has three parts. [`Plan`] decides: requests, arrivals, counts and the time go in,
//! actions and the next deadline come out. [`Controller`] acts: it drives one plan with real
//! timers. [`Drain`], [`Ticket`] and [`AcceptPermit`] are for the rest of the process: a cheap
//! handle, a guard per session, a guard per listener.
//!
//! ```no_run
//! # async fn example(settings: drain::ShutdownSettings) {
//! let (drain, controller) = drain::new(settings);
//! let ended = tokio::spawn(controller.run());
//! // A listener accepts until `drain.reached(Phase::Draining)`, then empties its queue.
//! let permit = drain.accept_permit();
//! // A session checks `is_asked()` at every boundary, and awaits `asked()` while it is idle.
//! let ticket = drain.ticket();
//! drain.request_stop(drain::StopRequest::Drain); // SIGTERM
//! ticket.close(drain::Exit::Left);
//! drop(permit);
//! let summary = ended.await;
//! # }
//! ```
//!
//! Nothing is closed from here: sessions are asked to leave, and those that do not are notified
//! that they are cut. The crate knows no signals, sockets, logs or metrics, and not what a session
//! does.

mod controller;
mod plan;
mod shared;
mod ticket;

#[cfg(test)]
mod controller_tests;
#[cfg(test)]
mod plan_property_tests;
#[cfg(test)]
mod plan_tests;
#[cfg(test)]
mod ticket_tests;

pub use controller::{Controller, Summary, new};
pub use plan::{
    CUT_GRACE, Phase, Plan, REPEAT_WINDOW, ShutdownAction, ShutdownEvent, ShutdownSettings,
    StopRequest,
};
pub use shared::{Exit, SessionCounts};
pub use ticket::{AcceptPermit, Drain, Ticket};
