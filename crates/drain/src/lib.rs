//! The phases of a shutdown, their deadlines, and the ticket each session holds.
//!
//! A closing railway station: first it is taken off the timetable while late passengers are still
//! let in, then the doors close and the passengers leave one after the other, at last the lights go
//! out for whoever is still there. One signal starts it; nobody sleeps for a fixed time, because
//! every phase ends as soon as its purpose is fulfilled and at its deadline at the latest.
//!
//! The crate has three parts. [`Plan`] decides: it is given orders, arrivals, counts and the time,
//! and says what is to be done and when it wants to be asked again. [`Controller`] acts: it drives
//! one plan with real timers. [`Drain`], [`Ticket`] and [`AcceptPermit`] are what everybody else holds: a
//! cheap handle, one guard for each session, one for each listener.
//!
//! ```no_run
//! # async fn example(settings: drain::Settings) {
//! let (drain, controller) = drain::new(settings);
//! let ended = tokio::spawn(controller.run());
//! let door = drain.door(); // a listener: accept until `drain.reached(Phase::Draining)`, empty the queue, drop the door
//! let ticket = drain.ticket(); // a session: look at `is_asked()` at every boundary, wait for `asked()` when idle
//! drain.order(drain::StopRequest::Drain); // SIGTERM
//! ticket.close(drain::Exit::Left);
//! drop(door);
//! let summary = ended.await;
//! # }
//! ```
//!
//! Deliberately absent: signals, sockets, logs and metrics, and any idea of what a session does.
//! Nobody is closed from here; sessions are asked, and those who do not go are told that they are
//! cut.

mod controller;
mod plan;
mod shared;
mod ticket;

#[cfg(test)]
mod controller_tests;
#[cfg(test)]
mod plan_tests;
#[cfg(test)]
mod ticket_tests;

pub use controller::{Controller, Summary, new};
pub use plan::{Action, CUT_GRACE, Event, Phase, Plan, REPEAT_WINDOW, Settings, StopRequest};
pub use shared::Tally;
pub use ticket::{AcceptPermit, Drain, Exit, Ticket};
