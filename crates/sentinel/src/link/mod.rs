//! The link to one sentinel, shared by all services that use it: polls it and receives its events.
//!
//! A RESP3 connection carries both the subscription and the polls, which orders every event before
//! any later reply. A server without HELLO gets two RESP2 connections instead. Polls serve as the
//! heartbeat, too: a subscription that died silently is detected because the next poll on the same
//! connection is not answered.
//!
//! A link makes no decisions. It reports what it received, coalesces poll requests and reconnects
//! with jitter.

pub(crate) mod auth;
pub(crate) mod backoff;
pub(crate) mod connection;
pub(crate) mod handshake;
pub(crate) mod links;
pub(crate) mod login;
pub(crate) mod messages;
pub(crate) mod notice;
pub(crate) mod poll;
pub(crate) mod renewal;
pub(crate) mod reply;
pub(crate) mod rotation;
mod sentinel_connection;
pub(crate) mod subscription;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::link::backoff::Backoff;
use crate::link::login::{Login, ServerLogin};
use crate::link::messages::{DriverMessage, LinkError, LinkEvent, LinkId, Timeouts};
use crate::link::renewal::{Renewal, RenewalPermit, RenewalStep};
use crate::link::rotation::CredentialsId;
use crate::link::sentinel_connection::SentinelConnection;
use crate::net::loop_guard::OwnAddresses;
use crate::net::resolve::{Lookup, Resolver};
use crate::{MyId, NodeAddr};

/// What all connections of a process share. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Environment {
    /// For names.
    pub(crate) resolver: Resolver,
    /// Our own listeners, which must not be dialled.
    pub(crate) own: OwnAddresses,
    /// Lets one connection at a time be replaced after a change of credentials.
    pub(crate) permit: RenewalPermit,
    /// The timeouts of the links.
    pub(crate) timeouts: Arc<ArcSwap<Timeouts>>,
    /// Messages to discovery.
    pub(crate) out: mpsc::Sender<DriverMessage>,
}

impl Environment {
    pub(crate) fn timeouts(&self) -> Timeouts {
        **self.timeouts.load()
    }
}

/// Configuration of a link.
#[derive(Debug)]
pub(crate) struct LinkConfig {
    pub(crate) id: LinkId,
    pub(crate) sentinel: NodeAddr,
    /// Set for a sentinel that was learned from other sentinels: the link is used only if its MYID
    /// is one that they announced.
    pub(crate) expected_ids: watch::Receiver<Option<BTreeSet<MyId>>>,
    /// The masters to poll.
    pub(crate) masters: watch::Receiver<Vec<Arc<str>>>,
    /// Requested polls, by the master. Several services share a link, and each polls at its own
    /// interval: with fifty services, the poll of one would otherwise cover all fifty.
    pub(crate) polls: Arc<watch::Sender<BTreeSet<Arc<str>>>>,
    pub(crate) env: Environment,
}

impl LinkConfig {
    /// Adds the requested polls to `queued`.
    fn take_polls(&self, queued: &mut BTreeSet<Arc<str>>) {
        self.polls.send_if_modified(|names| {
            queued.append(names);
            false
        });
    }
}

/// Runs until its owner drops it. `logins` has the credentials to use.
pub(crate) async fn run(config: LinkConfig, mut logins: watch::Receiver<Login>) {
    let LinkConfig { sentinel, env, .. } = &config;
    let mut lookup = Lookup::new(&env.resolver, &sentinel.host, sentinel.port);
    let server = logins.borrow_and_update().register(sentinel.clone());
    let (changes, polls) = (server.changes(), config.polls.subscribe());
    let mut inputs = LinkInputs { logins, server, changes, polls };
    let pauses = |timeouts: Timeouts| (timeouts.reconnect_min, timeouts.reconnect_max);
    let mut bounds = pauses(env.timeouts());
    let mut backoff = Backoff::new(bounds.0, bounds.1);
    loop {
        let began = Instant::now();
        let Err(error) = connection(&config, &mut inputs, &mut lookup).await else { return };
        let configured = pauses(env.timeouts());
        if configured != bounds {
            bounds = configured;
            backoff = Backoff::new(bounds.0, bounds.1);
        } else if began.elapsed() > Duration::from_secs(5) {
            backoff.reset();
        }
        if env.out.send(DriverMessage::Link(config.id, LinkEvent::Down(error))).await.is_err() {
            return;
        }
        tokio::select! {
            biased;
            () = tokio::time::sleep(backoff.pause()) => {}
            // The sentinel may have refused the credentials before.
            Ok(()) = inputs.changes.changed() => backoff.reset(),
            Ok(()) = inputs.logins.changed() => inputs.adopt(),
        }
    }
}

/// What a link is told while it runs: its credentials, and which polls are requested. Its services
/// may be given other credentials than those that they shared with other services so far.
struct LinkInputs {
    logins: watch::Receiver<Login>,
    server: ServerLogin,
    changes: watch::Receiver<CredentialsId>,
    polls: watch::Receiver<BTreeSet<Arc<str>>>,
}

impl LinkInputs {
    /// The link belongs to other shared credentials.
    fn adopt(&mut self) {
        self.server = self.logins.borrow_and_update().register(self.server.addr.clone());
        self.changes = self.server.changes();
    }
}

/// Runs one connection. `Ok` only when the receiver of the events is gone.
async fn connection(
    config: &LinkConfig,
    inputs: &mut LinkInputs,
    lookup: &mut Lookup,
) -> Result<(), LinkError> {
    let (mut connection, mut credentials, addr) = establish(config, &inputs.server, lookup).await?;
    if config.env.out.send(DriverMessage::Link(config.id, connection.up(addr))).await.is_err() {
        return Ok(());
    }
    let id = connection.id.clone();
    let mut renewal = Renewal::new(!inputs.server.is_newest(credentials));
    loop {
        let (deadline, retry_at) = (connection.deadline, connection.retry_at);
        let timeout = config.env.timeouts().command * 2;
        let LinkInputs { logins, server, changes, polls } = &mut *inputs;
        let events = tokio::select! {
            // Received data takes precedence over deadlines: after a stall of this process both may
            // be ready.
            biased;
            events = connection.wait() => events?,
            Ok(()) = polls.changed() => {
                config.take_polls(&mut connection.queued);
                Vec::new()
            }
            () = expiry(retry_at) => {
                connection.retry_at = None;
                connection.queued.append(&mut connection.torn);
                Vec::new()
            }
            () = expiry(deadline) => return Err(LinkError::Unresponsive(timeout)),
            Ok(()) = logins.changed() => {
                inputs.adopt();
                inputs.server.accept(credentials);
                renewal.begin_soon();
                Vec::new()
            }
            step = renewal.next(changes, server.is_over_tls()) => match step {
                RenewalStep::Due => {
                    let (to, newest) = (server.transport().clone(), server.newest());
                    let subscribed = connection.subscribed;
                    renewal.start(handshake::replace(config, addr, to, newest, subscribed));
                    Vec::new()
                }
                RenewalStep::Ended((newest, Ok((mut opened, mut events)))) if opened.id == id => {
                    server.accept(newest);
                    opened.queued.append(&mut connection.queued);
                    (connection, credentials) = (opened, newest);
                    events.insert(0, connection.up(addr));
                    events
                }
                RenewalStep::Ended((newest, outcome)) => {
                    renewal.retry_later();
                    if let Err(LinkError::Denied(denied)) = &outcome {
                        server.refuse(newest, denied);
                    }
                    // Without an error it is another sentinel: the one here may have moved.
                    outcome.err().map(LinkEvent::Unrenewed).into_iter().collect()
                }
            },
        };
        for event in events {
            if config.env.out.send(DriverMessage::Link(config.id, event)).await.is_err() {
                return Ok(());
            }
        }
        // A sentinel that keeps publishing events but does not answer polls counts as unresponsive.
        if connection.deadline.is_some_and(|at| at + timeout < Instant::now()) {
            return Err(LinkError::Unresponsive(timeout));
        }
        // A service may have been removed meanwhile.
        connection.queued.retain(|name| config.masters.borrow().contains(name));
        connection.begin_poll(timeout).await?;
    }
}

/// Opens a connection to the expected sentinel.
async fn establish(
    config: &LinkConfig,
    login: &ServerLogin,
    lookup: &mut Lookup,
) -> Result<(SentinelConnection, CredentialsId, SocketAddr), LinkError> {
    let addr = lookup.address(config.env.timeouts().command).await?;
    if config.env.own.contain(addr) {
        lookup.failed();
        return Err(LinkError::LeadsBack);
    }
    login.transport().set_name(addr, &config.sentinel.host);
    let opened = handshake::open_connection(addr, config, login).await;
    let (connection, credentials) = opened.inspect_err(|_| lookup.failed())?;
    let id = &connection.id;
    if config.expected_ids.borrow().as_ref().is_some_and(|expected| !expected.contains(id)) {
        lookup.failed();
        return Err(LinkError::WrongIdentity);
    }
    lookup.worked(addr);
    Ok((connection, credentials, addr))
}

async fn expiry(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
