//! One client connection from accept to close.
//!
//! A train on the line: it is let in (`entrance`), gets its track from the points (`dial`), and
//! then carries bytes both ways (`pump`) until either end stops, the points move under it (the
//! fence), or the house closes (the drain). However it ends, it ends in one place with one word
//! ([`EndReason`]).
//!
//! The data plane is made of workers: one thread each, one single-threaded event loop, one
//! listening socket for each address. A session lives and dies on the worker that accepted it, so
//! nothing on the way of a byte is locked, shared or sent through a channel. The large buffer
//! belongs to the worker: an idle session holds none. Before every byte to a target two atomics are
//! looked at, its fence and the gate of the route, and that is all that is ever needed to stop.
//!
//! ```no_run
//! # fn example(service: proxy::Service, drain: drain::Drain) -> Result<(), Box<dyn std::error::Error>> {
//! let listen = vec!["0.0.0.0:6379".parse()?];
//! let bound = proxy::Bound::bind(proxy::worker_count(), 10_000, [(service, listen)])?;
//! println!("listening on {:?}", bound.local_addrs());
//! let running = bound.serve(&drain)?;
//! println!("{:?}", running.stats().service("mymaster"));
//! running.join()?; // returns when the drain is over
//! # Ok(())
//! # }
//! ```
//!
//! Deliberately absent: how a target is found or trusted (that is `sentinel`), names of metrics,
//! and any change to what clients and servers say to each other, but for what a client asks to be
//! told (`notice`).

mod io;
mod latency;
mod listener;
mod live_options;
mod maintenance;
mod options;
mod runtime;
mod service;
mod session;
mod stats;

#[cfg(test)]
mod churn_tests;
#[cfg(test)]
mod proxy_tests;
#[cfg(test)]
mod testing;

pub use latency::Distribution;
pub use listener::address::ListenAddr;
pub use listener::limits::{Limit, ResourceShortage};
pub use listener::sockets::{Socket, Sockets};
pub use listener::{BindError, Bound, InheritedSockets};
pub use live_options::LiveOptions;
pub use maintenance::notice::MaintenanceKind;
pub use options::{Options, Sessions, Splice, Subscriptions};
pub use resp::{
    CarryEffect, ListedCommand, MAX_COMMAND_NAME, Pin, StatelessCommands, StatelessError,
    listed_commands,
};
pub use runtime::heartbeat::{Heartbeat, STALL, Stalls};
pub use runtime::worker::{Running, StartError, WorkerError, worker_count};
pub use service::{DialFailure, Hint, Hints, NoHints, Service};
pub use session::access_log::{AccessLog, LoggedSessions};
pub use session::end_reason::{EndReason, Side};
pub use session::not_carried::NotCarried;
pub use stats::{Snapshot, Stats};
