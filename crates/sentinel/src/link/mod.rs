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
pub(crate) mod poll_queue;
pub(crate) mod renewal;
pub(crate) mod reply;
pub(crate) mod rotation;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::link::backoff::Backoff;
use crate::link::connection::{ConnectionError, RespConnection};
use crate::link::login::{Login, LoginChanges, ServerLogin};
use crate::link::messages::{DriverMessage, LinkError, LinkEvent, LinkId, Timeouts};
use crate::link::poll::{PollOutcome, REPLIES_PER_POLL, put_command};
use crate::link::poll_queue::PollQueue;
use crate::link::renewal::{Renewal, RenewalPermit, RenewalStep};
use crate::link::reply::Reply;
use crate::link::rotation::{CredentialsId, Presented};
use crate::net::loop_guard::leads_back;
use crate::net::resolve::{Lookup, Resolver};
use crate::{MyId, NodeAddr};

/// A torn poll is repeated after this time, and after twice as long each further time, up to
/// the second bound.
const RETRY_MIN: Duration = Duration::from_millis(2);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Configuration of a link.
#[derive(Debug)]
pub(crate) struct LinkConfig {
    pub(crate) id: LinkId,
    pub(crate) sentinel: NodeAddr,
    /// Lets one connection at a time be replaced after a change of credentials.
    pub(crate) permit: RenewalPermit,
    /// Set for a sentinel that was learned from other sentinels: the link is used only if its MYID
    /// is one that they announced.
    pub(crate) expected_ids: watch::Receiver<Option<BTreeSet<MyId>>>,
    /// The masters to poll.
    pub(crate) masters: watch::Receiver<Vec<Arc<str>>>,
    /// Requests for polls.
    pub(crate) polls: Arc<PollQueue>,
    pub(crate) timeouts: watch::Receiver<Timeouts>,
    /// For names.
    pub(crate) resolver: Resolver,
    /// Our own listeners, which must not be dialled.
    pub(crate) own: Arc<[SocketAddr]>,
}

impl LinkConfig {
    fn timeouts(&self) -> Timeouts {
        *self.timeouts.borrow()
    }
}

/// Runs until its owner drops it. `logins` has the credentials to use.
pub(crate) async fn run(
    config: LinkConfig,
    mut logins: watch::Receiver<Login>,
    out: mpsc::Sender<DriverMessage>,
) {
    let mut lookup = Lookup::new(&config.resolver, &config.sentinel.host, config.sentinel.port);
    let login = logins.borrow_and_update().register(config.sentinel.clone());
    let mut login = LinkLogin { changes: login.changes(), logins, server: login };
    let pauses = |timeouts: Timeouts| (timeouts.reconnect_min, timeouts.reconnect_max);
    let mut bounds = pauses(config.timeouts());
    let mut backoff = Backoff::new(bounds.0, bounds.1);
    loop {
        let began = Instant::now();
        let error = match connection(&config, &mut login, &mut lookup, &out).await {
            Ok(()) => return,
            Err(error) => error,
        };
        let configured = pauses(config.timeouts());
        if configured != bounds {
            bounds = configured;
            backoff = Backoff::new(bounds.0, bounds.1);
        } else if began.elapsed() > Duration::from_secs(5) {
            backoff.reset();
        }
        if out.send(DriverMessage::Link(config.id, LinkEvent::Down(error))).await.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.pause()) => {}
            // The sentinel may have refused the credentials before.
            () = login.changes.next() => backoff.reset(),
            Ok(()) = login.logins.changed() => login.adopt(),
        }
    }
}

/// The credentials of a link. Its services may be given others than those that they shared with
/// other services so far.
struct LinkLogin {
    logins: watch::Receiver<Login>,
    server: ServerLogin,
    changes: LoginChanges,
}

impl LinkLogin {
    /// The link belongs to other shared credentials.
    fn adopt(&mut self) {
        self.server = self.logins.borrow_and_update().register(self.server.addr().clone());
        self.changes = self.server.changes();
    }
}

/// Runs one connection. `Ok` only when the receiver of the events is gone.
async fn connection(
    config: &LinkConfig,
    login: &mut LinkLogin,
    lookup: &mut Lookup,
    out: &mpsc::Sender<DriverMessage>,
) -> Result<(), LinkError> {
    let (mut connection, mut credentials, addr) = establish(config, &login.server, lookup).await?;
    if out.send(DriverMessage::Link(config.id, connection.up(addr))).await.is_err() {
        return Ok(());
    }
    let id = connection.id.clone();
    let mut renewal = Renewal::new(!login.server.is_newest(credentials));
    loop {
        let (deadline, retry_at) = (connection.deadline, connection.retry_at);
        let timeout = config.timeouts().command * 2;
        let LinkLogin { logins, server, changes } = &mut *login;
        let events = tokio::select! {
            // Received data takes precedence over deadlines: after a stall of this process both may
            // be ready.
            biased;
            events = connection.wait() => events?,
            () = config.polls.requested() => {
                connection.queued.append(&mut config.polls.take());
                Vec::new()
            }
            () = expiry(retry_at) => {
                connection.retry_at = None;
                connection.queued.append(&mut connection.torn);
                Vec::new()
            }
            () = expiry(deadline) => return Err(LinkError::Unresponsive(timeout)),
            Ok(()) = logins.changed() => {
                login.adopt();
                login.server.accept(credentials);
                renewal.begin_soon();
                Vec::new()
            }
            step = renewal.next(changes) => match step {
                RenewalStep::Due => {
                    let newest = server.newest();
                    if newest.id != credentials {
                        renewal.start(replace(config, addr, newest, connection.subscribed));
                    }
                    Vec::new()
                }
                RenewalStep::Ended((newest, Ok((opened, mut events)))) if opened.id == id => {
                    server.accept(newest);
                    (connection, credentials) = (opened, newest);
                    events.insert(0, connection.up(addr));
                    events
                }
                RenewalStep::Ended((newest, outcome)) => {
                    if let Err(LinkError::Denied(denied)) = outcome {
                        server.refuse(newest, &denied);
                    }
                    renewal.retry_later();
                    Vec::new()
                }
            },
        };
        for event in events {
            if out.send(DriverMessage::Link(config.id, event)).await.is_err() {
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
    let addr = lookup.address(config.timeouts().command).await?;
    if leads_back(addr, &config.own) {
        lookup.failed();
        return Err(LinkError::LeadsBack);
    }
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

type Replacement = Result<(SentinelConnection, Vec<LinkEvent>), LinkError>;

/// Opens a connection that replaces the present one; see `renewal`.
async fn replace(
    config: &LinkConfig,
    addr: SocketAddr,
    newest: Presented,
    subscribed: bool,
) -> (CredentialsId, Replacement) {
    let opening =
        handshake::open_replacement(addr, config, newest.credentials.as_ref(), subscribed);
    (newest.id, config.permit.clone().run(opening).await)
}

async fn expiry(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

struct SentinelConnection {
    id: MyId,
    queries: RespConnection,
    /// The second connection of RESP2.
    events: Option<RespConnection>,
    subscribed: bool,
    poll: Option<PendingPoll>,
    /// The masters to be polled after the poll in progress.
    queued: BTreeSet<Arc<str>>,
    /// The masters whose last poll was torn.
    torn: BTreeSet<Arc<str>>,
    /// When the poll in progress has to be complete.
    deadline: Option<Instant>,
    /// When to repeat a torn poll, and how long the previous pause was.
    retry_at: Option<Instant>,
    retry_pause: Duration,
}

/// A poll in progress.
struct PendingPoll {
    masters: Vec<Arc<str>>,
    asked_at: Instant,
    answers: Vec<Reply>,
    /// The second connection of RESP2 owes a reply, too: it could be dead while the first one is
    /// alive.
    pong_owed: bool,
}

impl PendingPoll {
    fn is_over(&self) -> bool {
        !self.pong_owed && self.answers_owed() == 0
    }

    fn answers_owed(&self) -> usize {
        (1 + REPLIES_PER_POLL * self.masters.len()).saturating_sub(self.answers.len())
    }
}

impl SentinelConnection {
    fn new(
        id: MyId,
        queries: RespConnection,
        events: Option<RespConnection>,
        subscribed: bool,
    ) -> Self {
        let (retry_at, retry_pause) = (None, RETRY_MIN);
        let (queued, torn) = (BTreeSet::new(), BTreeSet::new());
        Self {
            id,
            queries,
            events,
            subscribed,
            poll: None,
            queued,
            torn,
            deadline: None,
            retry_at,
            retry_pause,
        }
    }

    /// The event that this connection is established.
    fn up(&self, addr: SocketAddr) -> LinkEvent {
        LinkEvent::Up {
            id: self.id.clone(),
            addr,
            protocol: self.queries.protocol,
            events: self.subscribed,
        }
    }

    /// Starts the queued poll, unless one is in progress.
    async fn begin_poll(&mut self, timeout: Duration) -> Result<(), LinkError> {
        if self.poll.is_some() || self.queued.is_empty() {
            return Ok(());
        }
        let masters: Vec<Arc<str>> = std::mem::take(&mut self.queued).into_iter().collect();
        let mut commands = BytesMut::new();
        put_command(&mut commands, &["INFO", "sentinel"]);
        for master in &masters {
            poll::put_poll(&mut commands, master);
        }
        let (asked_at, pong_owed) = (Instant::now(), self.events.is_some());
        self.poll = Some(PendingPoll { masters, asked_at, answers: Vec::new(), pong_owed });
        self.deadline = Some(asked_at + timeout);
        let (queries, events) = (&mut self.queries, &mut self.events);
        let sending = async {
            if let Some(events) = events {
                let mut ping = BytesMut::new();
                put_command(&mut ping, &["PING"]);
                events.send(&ping).await?;
            }
            queries.send(&commands).await
        };
        let sent = tokio::time::timeout(timeout, sending);
        Ok(sent.await.map_err(|_| LinkError::Unresponsive(timeout))??)
    }

    /// Waits for the next events. Cancel-safe.
    async fn wait(&mut self) -> Result<Vec<LinkEvent>, ConnectionError> {
        let (reply, second) = match &mut self.events {
            None => (self.queries.next().await?, false),
            Some(events) => tokio::select! {
                reply = self.queries.next() => (reply?, false),
                event = events.next() => (event?, true),
            },
        };
        let from = self.events.as_ref().filter(|_| second).unwrap_or(&self.queries);
        let received_at = from.read_at();
        match reply {
            Reply::Push(items) => Ok(read_event(&items, received_at).into_iter().collect()),
            Reply::List(items) if second && is_message(&items) => {
                Ok(read_event(&items, received_at).into_iter().collect())
            }
            answer => {
                match &mut self.poll {
                    // A pong, or a refusal of PING: the connection is alive.
                    Some(poll) if second => poll.pong_owed = false,
                    Some(poll) if poll.answers_owed() > 0 => poll.answers.push(answer),
                    _ => return Err(ConnectionError::Malformed("a reply without a request")),
                }
                Ok(self.finish_poll(received_at))
            }
        }
    }

    fn finish_poll(&mut self, received_at: std::time::Instant) -> Vec<LinkEvent> {
        let Some(PendingPoll { masters, asked_at, answers, .. }) =
            self.poll.take_if(|poll| poll.is_over())
        else {
            return Vec::new();
        };
        self.deadline = None;
        let tilt = answers.first().is_some_and(poll::read_tilt);
        let replies = answers.get(1..).unwrap_or_default().chunks(REPLIES_PER_POLL);
        let read = |answers: &[Reply]| poll::read_poll(answers, tilt);
        let outcomes: Vec<(Arc<str>, PollOutcome)> =
            masters.into_iter().zip(replies.map(read)).collect();
        for (master, outcome) in &outcomes {
            self.torn.remove(master);
            if *outcome == PollOutcome::Torn {
                self.torn.insert(Arc::clone(master));
            }
        }
        if outcomes.iter().any(|(_, outcome)| *outcome == PollOutcome::Torn) {
            // The first repetition follows at once, since a switch tears one poll; the pause grows
            // for a sentinel that keeps answering inconsistently.
            self.retry_at = Some(Instant::now() + self.retry_pause);
            self.retry_pause = (self.retry_pause * 2).min(RETRY_MAX);
        } else if self.torn.is_empty() {
            self.retry_pause = RETRY_MIN;
        }
        outcomes
            .into_iter()
            .map(|(master, outcome)| LinkEvent::Polled { master, asked_at, received_at, outcome })
            .collect()
    }
}

/// Whether an array on the second connection of RESP2 is a message or a subscription confirmation,
/// and not a reply to a command.
fn is_message(items: &[Reply]) -> bool {
    matches!(items.first().and_then(Reply::text), Some("message" | "subscribe" | "unsubscribe"))
}

fn read_event(items: &[Reply], received_at: std::time::Instant) -> Option<LinkEvent> {
    match items {
        [kind, channel, payload] if kind.text() == Some("message") => {
            let (master, notice) = notice::parse(channel.text()?, payload.text()?)?;
            Some(LinkEvent::Notice { master: master.map(Box::from), notice, received_at })
        }
        _ => None,
    }
}
