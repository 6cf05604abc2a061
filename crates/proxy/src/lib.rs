//! One client connection from accept to close.
//!
//! A train on the line: it is let in (`entrance`), gets its track from the points (`dial`), and
//! then carries bytes both ways (`pump`) until either end stops, the points move under it (the
//! fence), or the house closes (the drain). However it ends, it ends in one place with one word
//! ([`Reason`]).
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

mod accept;
mod address;
mod alarm;
mod answers;
mod broken;
mod bulk;
mod carry;
mod clock;
mod close;
mod dial;
mod end;
mod entrance;
mod finish;
mod flow;
mod handover;
mod heartbeat;
mod hold;
mod kept;
mod kick;
mod latency;
mod leave;
mod limits;
mod line;
mod listener;
mod not_carried;
mod notice;
mod options;
mod pipe;
mod pump;
mod reactor;
mod resume;
mod run_queue;
mod scratch;
mod service;
mod session;
mod silence;
mod sockets;
mod sockopt;
mod sources;
#[cfg(debug_assertions)]
mod stall;
mod stats;
mod tasks;
mod tell;
mod tuning;
mod turns;
mod valve;
mod watch;
mod worker;

#[cfg(test)]
mod bulk_tests;
#[cfg(test)]
mod carry_blanks;
#[cfg(test)]
mod carry_client;
#[cfg(test)]
mod carry_model;
#[cfg(test)]
mod carry_property_tests;
#[cfg(test)]
mod carry_testing;
#[cfg(test)]
mod carry_tests;
#[cfg(test)]
mod churn_tests;
#[cfg(test)]
mod entrance_tests;
#[cfg(test)]
mod flow_tests;
#[cfg(test)]
mod house_tests;
#[cfg(test)]
mod listener_tests;
#[cfg(test)]
mod notices_tests;
#[cfg(test)]
mod points_tests;
#[cfg(test)]
mod pool_tests;
#[cfg(test)]
mod proof_tests;
#[cfg(test)]
mod pump_tests;
#[cfg(test)]
mod reactor_tests;
#[cfg(test)]
mod replica_tests;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod silence_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod turns_tests;
#[cfg(test)]
mod valve_tests;

pub use address::ListenAddr;
pub use close::{Reason, Side};
pub use heartbeat::{Heartbeat, STALL, Stalls};
pub use latency::Distribution;
pub use limits::{Limit, Scarcity};
pub use listener::{BindError, Bound, Given};
pub use not_carried::NotCarried;
pub use notice::NoticeKind;
pub use options::{Options, Sessions, Splice, Subscriptions};
pub use resp::{LONGEST_NAME, Listed, NotStateless, Pin, Stateless, Verdict, listed};
pub use service::{DialFailure, Hint, Hints, NoHints, Service};
pub use sockets::{Socket, Sockets};
pub use stats::{Snapshot, Stats};
pub use tell::{Lines, Which};
pub use tuning::Tuning;
pub use worker::{Running, StartError, WorkerError, worker_count};
