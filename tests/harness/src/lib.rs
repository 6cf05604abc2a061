//! Starts real redis-server, redis-sentinel and pointsman processes for tests, the demo and the
//! benchmarks.
//!
//! A test against a fake shows only that the fake and the program agree. Everything here starts the
//! programs that people run, waits until they are ready, and stops them. Three rules make that
//! possible for many tests at once. No fixed ports: each [`Cluster`] claims a loopback address, and
//! the kernel chooses the ports on it. No waiting for time: every wait names a condition
//! ([`wait_until`]), and a failure reports what was awaited and what was seen last. No leftovers: a
//! process ends with the value that owns it, or with the test runner if that is killed
//! ([`Process`]).
//!
//! There is no async runtime (threads and blocking sockets are enough, compile fast, and share no
//! bug with the program under test), no retry of failed tests, and no use of the crates under test.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "this is test code: a clear panic is how it reports, and the tail of a log on the way down is what one needs"
)]

mod absences;
mod address;
mod agent;
mod binary;
mod certificates;
mod cgroup;
mod client;
mod clock;
mod cluster;
mod cut;
mod events;
mod haproxy;
mod http;
mod https;
mod load;
mod lost_dial;
mod netns;
mod node_certificates;
mod own;
mod pointsman;
mod process;
mod service;
mod slow_link;
mod spawner;
mod tls;
mod tls_server;
mod value;
mod wait;
mod watch;
mod web;

pub use absences::Absences;
pub use address::{Address, Family};
pub use binary::{Binary, Release, find_in_path, server_release, server_version};
pub use certificates::{Authority, Certificate, CertificatePaths};
pub use cgroup::{Cgroup, Quota};
pub use client::{Client, Ending, Login, encode};
pub use clock::Clock;
pub use cluster::{Builder, Cluster, Failover, Group, HARNESS, Node, PROXY};
pub use cut::Cut;
pub use events::{Event, Events};
pub use haproxy::{Haproxy, Shape};
pub use http::http_get;
pub use https::{HttpsClient, HttpsResponse};
pub use load::{Counts, Gap, Load, LoadBuilder, Verdict};
pub use lost_dial::LostDial;
pub use netns::{
    Counter, Filter, Partition, in_private_namespace, loopback_up, overtaken, own_source, reorder,
    shape,
};
pub use node_certificates::{CertificateFiles, Certificates, tls_client, tls_client_with};
pub use own::{alone, raise_files, unshare};
pub use pointsman::{Pointsman, PointsmanBuilder};
pub use process::{Launch, Process};
pub use rustix::process::Signal;
pub use rustls::version::{TLS12, TLS13};
pub use rustls::{ClientConfig, HandshakeKind};
pub use service::Service;
pub use slow_link::SlowLink;
pub use tls::Tls;
pub use tls_server::TlsServer;
pub use value::{Value, parse};
pub use wait::{Condition, pause, wait_until};
pub use watch::Watch;
pub use web::{BROWSERS, axe_core, has_axe_core};
