//! An established connection to a sentinel: its polls and its subscription.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::notice;
use crate::MyId;
use crate::link::connection::{ConnectionError, RespConnection};
use crate::link::messages::{LinkError, LinkEvent};
use crate::link::poll::{self, PollOutcome, REPLIES_PER_POLL, poll_commands};
use crate::link::reply::Reply;

/// A torn poll is repeated after this time, and after twice as long each further time, up to
/// the second bound.
const RETRY_MIN: Duration = Duration::from_millis(2);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// One poll in this many asks for the sentinel's number of connections, too, as a bound of the
/// fleet's size. Not every poll, since it makes the reply three times as long.
const CONNECTIONS_EVERY: u32 = 16;

/// The connection to a sentinel, with its polls and subscription.
pub(super) struct SentinelConnection {
    pub(super) id: MyId,
    pub(super) queries: RespConnection,
    /// The second connection of RESP2.
    pub(super) events: Option<RespConnection>,
    pub(super) subscribed: bool,
    pub(super) poll: Option<PendingPoll>,
    /// Polls so far, modulo [`CONNECTIONS_EVERY`].
    polls: u32,
    /// A number of connections was reported.
    is_counted: bool,
    /// The masters to be polled after the poll in progress.
    pub(super) queued: BTreeSet<Arc<str>>,
    /// The masters whose last poll was torn.
    pub(super) torn: BTreeSet<Arc<str>>,
    /// When the poll in progress has to be complete.
    pub(super) deadline: Option<Instant>,
    /// When to repeat a torn poll, and how long the previous pause was.
    pub(super) retry_at: Option<Instant>,
    pub(super) retry_pause: Duration,
}

/// A poll in progress.
pub(super) struct PendingPoll {
    masters: BTreeSet<Arc<str>>,
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
    pub(super) fn new(
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
            is_counted: false,
            queued,
            torn,
            deadline: None,
            retry_at,
            retry_pause,
        }
    }

    /// The event that this connection is established.
    pub(super) fn up(&self, addr: SocketAddr) -> LinkEvent {
        LinkEvent::Up {
            id: self.id.clone(),
            addr,
            protocol: self.queries.protocol,
            events: self.subscribed,
            tls: self.queries.tls().map(|it| it.version),
        }
    }

    /// Starts the queued poll, unless one is in progress.
    pub(super) async fn begin_poll(&mut self, timeout: Duration) -> Result<(), LinkError> {
        if self.poll.is_some() || self.queued.is_empty() {
            return Ok(());
        }
        let masters = std::mem::take(&mut self.queued);
        let info: &[&str] = if self.polls == 0 { &["INFO"] } else { &["INFO", "sentinel"] };
        self.polls = (self.polls + 1) % CONNECTIONS_EVERY;
        let polls: Vec<_> = masters.iter().flat_map(|master| poll_commands(master)).collect();
        let commands: Vec<&[&str]> =
            std::iter::once(info).chain(polls.iter().map(<[_; 3]>::as_slice)).collect();
        let (asked_at, answers, pong_owed) = (Instant::now(), Vec::new(), self.events.is_some());
        self.poll = Some(PendingPoll { masters: masters.clone(), asked_at, answers, pong_owed });
        self.deadline = Some(asked_at + timeout);
        let (queries, events) = (&mut self.queries, &mut self.events);
        let sending = async {
            if let Some(events) = events {
                events.send(&[["PING"]]).await?;
            }
            queries.send(&commands).await
        };
        let sent = tokio::time::timeout(timeout, sending);
        Ok(sent.await.map_err(|_| LinkError::Unresponsive(timeout))??)
    }

    /// Waits for the next events. Cancel-safe.
    pub(super) async fn wait(&mut self) -> Result<Vec<LinkEvent>, ConnectionError> {
        let (reply, second) = match &mut self.events {
            None => (self.queries.next().await?, false),
            Some(events) => tokio::select! {
                biased;
                reply = self.queries.next() => (reply?, false),
                event = events.next() => (event?, true),
            },
        };
        let from = self.events.as_ref().filter(|_| second).unwrap_or(&self.queries);
        let received_at = from.read_at;
        match reply {
            Reply::Push(_) => Ok(read_event(&reply, received_at).into_iter().collect()),
            Reply::List(ref items) if second && is_message(items) => {
                Ok(read_event(&reply, received_at).into_iter().collect())
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

    /// The number of connections to report, if this answer to INFO changes it. If INFO is not
    /// permitted any more, the last number must not slow down this proxy for good.
    fn connections(&mut self, info: Option<&Reply>) -> Option<u32> {
        let info = info?;
        let is_withdrawn = info.error().is_some() && std::mem::take(&mut self.is_counted);
        let connections = poll::read_connections(info).or(is_withdrawn.then_some(0));
        self.is_counted |= connections.is_some_and(|count| count > 0);
        connections
    }

    fn finish_poll(&mut self, received_at: std::time::Instant) -> Vec<LinkEvent> {
        let Some(PendingPoll { masters, asked_at, answers, .. }) =
            self.poll.take_if(|poll| poll.is_over())
        else {
            return Vec::new();
        };
        self.deadline = None;
        let tilt = answers.first().is_some_and(poll::read_tilt);
        let connections = self.connections(answers.first());
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

fn read_event(message: &Reply, received_at: std::time::Instant) -> Option<LinkEvent> {
    let (channel, payload) = message.message()?;
    let (master, notice) = notice::parse(channel, payload)?;
    Some(LinkEvent::Notice { master: master.map(Box::from), notice, received_at })
}
