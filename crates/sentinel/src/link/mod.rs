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
pub(crate) mod messages;
pub(crate) mod notice;
pub(crate) mod poll;
pub(crate) mod poll_queue;
pub(crate) mod reply;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::link::auth::Credentials;
use crate::link::backoff::Backoff;
use crate::link::connection::{ConnectionError, RespConnection};
use crate::link::messages::{DriverMessage, LinkError, LinkEvent, LinkId, Timeouts};
use crate::link::poll::{PollOutcome, REPLIES_PER_POLL, put_command};
use crate::link::poll_queue::PollQueue;
use crate::link::reply::Reply;
use crate::net::own_addresses::OwnAddresses;
use crate::net::resolve::{Lookup, Resolver};
use crate::{MyId, NodeAddr};

/// A torn poll is repeated after this time, and after twice as long each further time, up to
/// the second bound.
const RETRY_MIN: Duration = Duration::from_millis(2);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// One poll in this many asks for the sentinel's number of connections, too, as a bound of the
/// fleet's size. Not every poll, since it makes the reply three times as long.
const CONNECTIONS_EVERY: u32 = 16;

/// Configuration of a link.
#[derive(Debug)]
pub(crate) struct LinkConfig {
    pub(crate) id: LinkId,
    pub(crate) sentinel: NodeAddr,
    pub(crate) credentials: Option<Credentials>,
    /// Set for a sentinel that was learned from other sentinels: the link is used only if its MYID
    /// is one that they announced.
    pub(crate) expected_ids: watch::Receiver<Option<BTreeSet<MyId>>>,
    /// The masters to poll.
    pub(crate) masters: watch::Receiver<Vec<Arc<str>>>,
    /// Requests for polls.
    pub(crate) polls: Arc<PollQueue>,
    pub(crate) timeouts: Timeouts,
    /// For names.
    pub(crate) resolver: Resolver,
    /// Our own listeners, which must not be dialled.
    pub(crate) own: OwnAddresses,
}

/// Runs until its owner drops it.
pub(crate) async fn run(mut config: LinkConfig, out: mpsc::Sender<DriverMessage>) {
    let mut lookup = Lookup::new(&config.resolver, &config.sentinel.host, config.sentinel.port);
    let mut backoff = Backoff::new(config.timeouts.reconnect_min, config.timeouts.reconnect_max);
    loop {
        let began = Instant::now();
        let error = match connection(&mut config, &mut lookup, &out).await {
            Ok(()) => return,
            Err(error) => error,
        };
        if began.elapsed() > Duration::from_secs(5) {
            backoff.reset();
        }
        if out.send(DriverMessage::Link(config.id, LinkEvent::Down(error))).await.is_err() {
            return;
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// Runs one connection. `Ok` only when the receiver of the events is gone.
async fn connection(
    config: &mut LinkConfig,
    lookup: &mut Lookup,
    out: &mpsc::Sender<DriverMessage>,
) -> Result<(), LinkError> {
    let addr = lookup.address(config.timeouts.command).await?;
    if config.own.contain(addr) {
        lookup.failed();
        return Err(LinkError::LeadsBack);
    }
    let timeout = config.timeouts.command * 2;
    let greeting = tokio::time::timeout(
        config.timeouts.connect + timeout,
        handshake::open_connection(addr, config),
    );
    let greeted = greeting.await.unwrap_or(Err(LinkError::Unresponsive(timeout)));
    let mut connection = greeted.inspect_err(|_| lookup.failed())?;
    let id = connection.id.clone();
    if config.expected_ids.borrow().as_ref().is_some_and(|expected| !expected.contains(&id)) {
        lookup.failed();
        return Err(LinkError::WrongIdentity);
    }
    lookup.worked(addr);
    let up = LinkEvent::Up {
        id,
        addr,
        protocol: connection.queries.protocol,
        events: connection.subscribed,
    };
    if out.send(DriverMessage::Link(config.id, up)).await.is_err() {
        return Ok(());
    }
    loop {
        let (deadline, retry_at) = (connection.deadline, connection.retry_at);
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
    /// Polls so far, modulo [`CONNECTIONS_EVERY`].
    polls: u32,
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
            polls: 0,
            queued,
            torn,
            deadline: None,
            retry_at,
            retry_pause,
        }
    }

    /// Starts the queued poll, unless one is in progress.
    async fn begin_poll(&mut self, timeout: Duration) -> Result<(), LinkError> {
        if self.poll.is_some() || self.queued.is_empty() {
            return Ok(());
        }
        let masters: Vec<Arc<str>> = std::mem::take(&mut self.queued).into_iter().collect();
        let mut commands = BytesMut::new();
        let info: &[&str] = if self.polls == 0 { &["INFO"] } else { &["INFO", "sentinel"] };
        put_command(&mut commands, info);
        self.polls = (self.polls + 1) % CONNECTIONS_EVERY;
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
        let connections = answers.first().and_then(poll::read_connections);
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
        let polled = outcomes.into_iter().map(|(master, outcome)| LinkEvent::Polled {
            master,
            asked_at,
            received_at,
            outcome,
        });
        connections.map(LinkEvent::Connections).into_iter().chain(polled).collect()
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
