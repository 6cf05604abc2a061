//! HTTP in, a report out: liveness, readiness, start-up, metrics, status and a page.
//!
//! A gatekeeper with a telephone of its own. It lives on its own thread with its own small runtime,
//! so that a data plane that is busy, or stuck, cannot make a probe fail by keeping a worker to
//! itself, and so that a stuck one can be seen. What it answers it asks of a [`Reporter`]; that is
//! all the two know of each other.
//!
//! Everything is bounded. There are so many connections and no more, and when one more comes the
//! one that has kept us waiting longest has to go, so a crowd of silent connections never keeps a
//! probe out. Every wait for a client has a deadline ([`Settings`]). When the process is out of
//! file descriptors, a few kept in reserve answer the probes.
//!
//! Binding comes early and serving late: [`Server::bind`] fails at start, where the operator sees
//! it, and a probe that comes between the two waits in the queue instead of being refused.
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
//! `/healthz` means liveness, because that is what a supervisor that knows only this one path
//! restarts for. Further paths can be added with [`Server::route`].
//!
//! Beside the network there may be a Unix socket for certain users ([`Server::owners`]); a handler
//! can tell which way a request came ([`Request::is_owners`]).
//!
//! Deliberately absent: any idea of Redis, TLS, authentication on the network, and anything that
//! changes the state of the process. Who can reach the address can read the report.

mod accept;
mod connection;
mod door;
mod life;
mod negotiate;
mod registry;
mod report;
mod routes;
mod server;

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod life_tests;
#[cfg(test)]
mod orders_tests;
#[cfg(test)]
mod server_tests;
#[cfg(test)]
mod testing;

pub use registry::{Counted, Stats};
pub use report::{Format, Reporter, Verdict};
pub use routes::{Body, Handler, Method, NONCE, Reply, Request, StreamPermit};
pub use server::{BindError, Handle, Server, Settings, StartError};
