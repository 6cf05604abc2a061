//! The admin HTTP server: liveness, readiness, start-up, metrics, status and a page.
//!
//! It runs on a thread and a runtime of its own, so a data plane that is busy or stuck cannot fail
//! a probe by occupying a worker, and a stuck one is visible. It gets every answer from a
//! [`Reporter`] and knows nothing else of the process.
//!
//! Everything is bounded. The number of connections is limited, and one more evicts the connection
//! that has kept the server waiting longest, so many silent connections never lock out a probe.
//! Every wait for a client has a deadline ([`ServerSettings`]). When the process has run out of
//! file descriptors, a few kept in reserve serve the probes.
//!
//! It binds early and serves late: [`Server::bind`] fails at the start, where the operator sees it,
//! and a probe that arrives in between waits in the queue instead of being refused.
//!
//! | Path | Answer |
//! |---|---|
//! | `/alive`, `/livez`, `/healthz` | 200 or 503 by [`Reporter::alive`] |
//! | `/ready`, `/readyz` | 200 or 503 by [`Reporter::ready`] |
//! | `/startup` | 200 or 503 by [`Reporter::started`] |
//! | `/metrics` | Prometheus or OpenMetrics text, as the `Accept` header prefers |
//! | `/status` | JSON |
//! | `/` | the page |
//!
//! `/healthz` means liveness, because a supervisor that knows only this path uses it to decide on
//! restarts. Further paths can be added with [`Server::route`].
//!
//! In addition to the network there may be a Unix socket for certain users
//! ([`Server::unix_socket`]); a handler can tell whether a request came from it
//! ([`Origin::is_owner`]).
//!
//! A web page that a browser loads from elsewhere must not read or control the process through a
//! name that its author points at this server. So a request must name a host that is ours
//! ([`HostNames`]). Further rules of who may read come from a [`Guard`], and an address can refuse
//! all commands ([`Server::read_only`]). Probes are always answered.
//!
//! The network addresses may have TLS ([`AdminTls`]). Probes need neither it nor a certificate.
//!
//! This crate knows neither Redis nor the rules of who may read, and changes nothing in the
//! process.

mod accept;
mod admin_tls;
mod connection;
mod connection_clock;
mod hosts;
mod listener;
mod log_limit;
mod negotiate;
mod registry;
mod report;
mod routes;
mod server;
mod settings;
mod stop_stage;

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod commands_tests;
#[cfg(test)]
mod connection_clock_tests;
#[cfg(test)]
mod corpus_tests;
#[cfg(test)]
mod permission_tests;
#[cfg(test)]
mod server_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tls_tests;

pub use admin_tls::{AdminTls, TlsRules};
pub use hosts::HostNames;
pub use registry::{ServerCounts, ServerStats};
pub use report::{Format, Reporter, Verdict};
pub use routes::{Body, Method, NONCE, Origin, Reply, Request, StreamPermit};
pub use server::{BindError, Handle, Server, StartError};
pub use settings::ServerSettings;
