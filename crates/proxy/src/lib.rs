//! The data plane: client connections from accept to close.
//!
//! A client is admitted by an accept loop (`listener`), connected to its target (`session`), and
//! then bytes are forwarded both ways (`session::pump`) until either end closes, the target changes
//! (the fence) or the process stops (the drain). Every session ends in one place with one reason
//! ([`EndReason`]).
//!
//! The data plane consists of workers: one thread each, with one event loop and one listening
//! socket per address. A session stays on the worker that accepted it, so nothing on the path of a
//! byte is locked, shared or sent through a channel. The large buffer belongs to the worker: an
//! idle session has none. Before every write to a target two atomics are read, its fence and the
//! gate, and nothing more is needed to stop it.
//!
//! ```no_run
//! # use std::error::Error;
//! # fn example(service: proxy::Service, drain: drain::Drain) -> Result<(), Box<dyn Error>> {
//! let (workers, addr) = (proxy::worker_count(), "0.0.0.0:6379".parse()?);
//! let plan = proxy::AddressPlan::new(workers, &[addr], Vec::new());
//! let listener = plan.bind(addr, &service.options.now())?;
//! println!("listening on {}", listener.addr);
//! let mut running = proxy::Running::start(workers, 10_000, &drain)?;
//! let number = running.add_service(service);
//! running.open(number, listener, false);
//! println!("{:?}", running.stats.service("mymaster"));
//! running.join()?; // returns when the drain is over
//! # Ok(())
//! # }
//! ```
//!
//! How a target is found and trusted is decided in `sentinel`. The conversation of clients and
//! servers is not changed, except for the notifications that a client has asked for
//! (`maintenance`).

mod access_log;
mod address;
mod context;
mod counter;
mod dial_permits;
mod durability;
mod end_reason;
mod invariant;
mod io;
mod labelled;
mod latency;
mod limits;
mod listener;
mod log_rate;
mod maintenance;
mod maintenance_kind;
mod not_carried;
mod options;
mod proxy_protocol;
mod rejection;
mod runtime;
mod service;
mod session;
mod session_row;
mod shared;
mod shared_counters;
mod silent_clients;
mod stats;
mod target_tls;
mod tls_listening;
mod workers;

#[cfg(test)]
mod churn_tests;
#[cfg(test)]
mod dial_permits_tests;
#[cfg(test)]
mod proxy_tests;
#[cfg(test)]
mod service_set_tests;
#[cfg(test)]
mod testing;

pub use access_log::{AccessLog, LoggedSessions};
pub use address::{ListenAddr, ListenerId};
pub use end_reason::{EndReason, Side};
/// For the fuzz target of TLS streams.
#[cfg(fuzzing)]
pub use io::tls_stream_rig::run as run_tls_stream;
pub use latency::Distribution;
pub use limits::{Limit, ResourceShortage};
pub use listener::sockets::{Socket, Sockets};
pub use listener::{AddressPlan, BindError, InheritedSockets, NewListener};
pub use maintenance_kind::MaintenanceKind;
pub use not_carried::NotCarried;
pub use options::{
    Durability, LiveOptions, OnTimeout, Options, Sessions, Splice, Subscriptions, UpstreamMode,
};
pub use proxy_protocol::parse::{ProxyHeader, parse as parse_proxy_header};
pub use rejection::Rejection;
pub use resp::{
    CarryEffect, DEFAULT_REFUSALS, ListedCommand, MAX_COMMAND_NAME, Pin, Refusals, RefusedCommand,
    ServerCommands, StatelessCommands, StatelessError, listed_commands,
};
pub use runtime::heartbeat::{Heartbeat, STALL, Stalls};
pub use service::{DialFailure, Hint, Hints, NoHints, Service};
pub use session_row::{
    ConnectionUse, ListedClient, ListedState, SessionId, SessionRow, TlsFacts, WaitsFor,
};
/// For the fuzz target of shared connections.
#[cfg(fuzzing)]
pub use shared::isolation::run as run_isolation;
/// For the fuzz target of replies on shared connections.
#[cfg(fuzzing)]
pub use shared::{Desync, Load, MemberId, UpstreamLedger};
pub use shared_counters::SharedSnapshot;
pub use stats::{ServiceCounters, ServiceSnapshot, Stats};
pub use target::{Network, Networks};
pub use target_tls::TargetTlsSnapshot;
/// The versions of TLS, for [`TlsFacts`].
pub use tls::Version as TlsVersion;
pub use tls_listening::{TlsFailure, TlsListening};
pub use workers::{
    KillError, NoAnswer, Running, SessionBatch, SessionVisits, StartError, WorkerError,
    worker_count,
};
