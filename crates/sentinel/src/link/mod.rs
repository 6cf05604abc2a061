//! One sentinel, for all services that use it: asked in rounds, listened to in between.
//!
//! A RESP3 connection carries both the subscription and the questions, which orders every event
//! before any later answer. A server without HELLO gets two RESP2 connections instead. The round is
//! also the heartbeat: a subscription that died silently is noticed because the next round on the
//! same connection is not answered.
//!
//! The link decides nothing. It tells what it heard, coalesces requests to ask again, and
//! reconnects with jitter.

pub(crate) mod auth;
pub(crate) mod backoff;
pub(crate) mod conn;
pub(crate) mod links;
pub(crate) mod notice;
pub(crate) mod poll;
pub(crate) mod reply;
pub(crate) mod wanted;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::discovery::messages::{DriverMessage, Timeouts};
use crate::link::auth::{Credentials, Denied};
use crate::link::backoff::Backoff;
use crate::link::conn::{Conn, ConnError, Protocol};
use crate::link::poll::{QUESTIONS, Round, SENTINEL_AUTH, put_command};
use crate::link::reply::Reply;
use crate::link::wanted::Wanted;
use crate::net::loop_guard::leads_back;
use crate::net::resolve::{Lookup, ResolveError, Resolver};
use crate::{MyId, NodeAddr, Notice};

/// A torn round is asked again after this long, and if that one is torn too, after twice as long,
/// up to the second bound.
const RETRY_MIN: Duration = Duration::from_millis(2);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Tells links apart; never reused within a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LinkId(pub(crate) u64);

/// What a link needs to know.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) id: LinkId,
    pub(crate) sentinel: NodeAddr,
    pub(crate) credentials: Option<Credentials>,
    /// Set for a sentinel that was learnt from others: it counts only if it turns out to be one
    /// that they told of.
    pub(crate) expect: watch::Receiver<Option<BTreeSet<MyId>>>,
    /// The masters to ask about.
    pub(crate) masters: watch::Receiver<Vec<Arc<str>>>,
    /// Rung to ask about some of them now.
    pub(crate) ask: Arc<Wanted>,
    pub(crate) timeouts: Timeouts,
    /// For names.
    pub(crate) resolver: Resolver,
    /// Our own listeners, never to be dialled.
    pub(crate) own: Arc<[SocketAddr]>,
}

/// Something a link has to tell.
#[derive(Debug)]
pub(crate) enum What {
    /// Connected and greeted.
    Up { id: MyId, addr: SocketAddr, protocol: Protocol, events: bool },
    /// A round about one master was answered; its questions were written at `asked_at`, and the
    /// last answer was read from the socket at `heard_at`.
    Round { master: Arc<str>, asked_at: Instant, heard_at: std::time::Instant, round: Round },
    /// An event was published; `master` is `None` for one about the sentinel itself. Read from the
    /// socket at `heard_at`.
    Notice { master: Option<Box<str>>, notice: Notice, heard_at: std::time::Instant },
    /// The connection ended, or could not be made.
    Down(LinkError),
}

/// Why a link is down.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// Its name has no address.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The connection failed.
    #[error(transparent)]
    Conn(#[from] ConnError),
    /// It refused us.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// It did not answer a round in time.
    #[error("it does not answer within {} ms", .0.as_millis())]
    Silent(Duration),
    /// It is another sentinel than the one that was announced at this address.
    #[error("another sentinel answers at this address than the one that was announced")]
    WrongIdentity,
    /// It was announced at an address of ours.
    #[error("this address is one of our own listeners")]
    LeadsBack,
    /// It has no MYID.
    #[error("it does not know SENTINEL MYID: Sentinel 6.2 or newer is needed")]
    NoIdentity,
}

/// Runs until its owner drops it.
pub(crate) async fn run(mut spec: Spec, out: mpsc::Sender<DriverMessage>) {
    let mut lookup = Lookup::new(&spec.resolver, &spec.sentinel.host, spec.sentinel.port);
    let mut backoff = Backoff::new(spec.timeouts.reconnect_min, spec.timeouts.reconnect_max);
    loop {
        let began = Instant::now();
        let error = match session(&mut spec, &mut lookup, &out).await {
            Ok(()) => return,
            Err(error) => error,
        };
        if began.elapsed() > Duration::from_secs(5) {
            backoff.reset();
        }
        if out.send(DriverMessage::Link(spec.id, What::Down(error))).await.is_err() {
            return;
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// One connection's life. `Ok` only when nobody listens to this link any more.
async fn session(
    spec: &mut Spec,
    lookup: &mut Lookup,
    out: &mpsc::Sender<DriverMessage>,
) -> Result<(), LinkError> {
    let addr = lookup.address(spec.timeouts.command).await?;
    if leads_back(addr, &spec.own) {
        lookup.failed();
        return Err(LinkError::LeadsBack);
    }
    let patience = spec.timeouts.command * 2;
    let greeting = tokio::time::timeout(spec.timeouts.connect + patience, greet(addr, spec));
    let greeted = greeting.await.unwrap_or(Err(LinkError::Silent(patience)));
    let mut session = greeted.inspect_err(|_| lookup.failed())?;
    let id = session.id.clone();
    if spec.expect.borrow().as_ref().is_some_and(|expected| !expected.contains(&id)) {
        lookup.failed();
        return Err(LinkError::WrongIdentity);
    }
    lookup.worked(addr);
    let up = What::Up { id, addr, protocol: session.queries.protocol, events: session.subscribed };
    if out.send(DriverMessage::Link(spec.id, up)).await.is_err() {
        return Ok(());
    }
    loop {
        let (deadline, retry_at) = (session.deadline, session.retry_at);
        let heard = tokio::select! {
            // What has arrived counts before what has not: after a stall of this process both may
            // be true.
            biased;
            heard = session.listen() => heard?,
            () = spec.ask.rung() => {
                session.again.append(&mut spec.ask.take());
                Vec::new()
            }
            () = expiry(retry_at) => {
                session.retry_at = None;
                session.again.append(&mut session.torn);
                Vec::new()
            }
            () = expiry(deadline) => return Err(LinkError::Silent(patience)),
        };
        for what in heard {
            if out.send(DriverMessage::Link(spec.id, what)).await.is_err() {
                return Ok(());
            }
        }
        // Whoever keeps publishing but does not answer is silent all the same.
        if session.deadline.is_some_and(|at| at + patience < Instant::now()) {
            return Err(LinkError::Silent(patience));
        }
        // A service may have left meanwhile.
        session.again.retain(|name| spec.masters.borrow().contains(name));
        session.begin_wanted_round(patience).await?;
    }
}

async fn expiry(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

struct Session {
    id: MyId,
    queries: Conn,
    /// The second connection of RESP2.
    events: Option<Conn>,
    subscribed: bool,
    round: Option<Asking>,
    /// The masters that somebody wants to be asked about after this round.
    again: BTreeSet<Arc<str>>,
    /// Those whose last round was torn.
    torn: BTreeSet<Arc<str>>,
    /// The round under way has to be over by then.
    deadline: Option<Instant>,
    /// A round was torn: when to ask again, and how long that pause was.
    retry_at: Option<Instant>,
    retry_pause: Duration,
}

/// A round under way.
struct Asking {
    masters: Vec<Arc<str>>,
    asked_at: Instant,
    answers: Vec<Reply>,
    /// The second connection of RESP2 owes an answer too: it could be dead while the first one
    /// lives.
    pong_owed: bool,
}

impl Asking {
    fn is_over(&self) -> bool {
        !self.pong_owed && self.answers_owed() == 0
    }

    fn answers_owed(&self) -> usize {
        (1 + QUESTIONS * self.masters.len()).saturating_sub(self.answers.len())
    }
}

impl Session {
    fn new(id: MyId, queries: Conn, events: Option<Conn>, subscribed: bool) -> Self {
        let (retry_at, retry_pause) = (None, RETRY_MIN);
        let (again, torn) = (BTreeSet::new(), BTreeSet::new());
        Self {
            id,
            queries,
            events,
            subscribed,
            round: None,
            again,
            torn,
            deadline: None,
            retry_at,
            retry_pause,
        }
    }

    /// Starts the round that is wanted, if none is under way.
    async fn begin_wanted_round(&mut self, patience: Duration) -> Result<(), LinkError> {
        if self.round.is_some() || self.again.is_empty() {
            return Ok(());
        }
        let masters: Vec<Arc<str>> = std::mem::take(&mut self.again).into_iter().collect();
        let mut commands = BytesMut::new();
        put_command(&mut commands, &["INFO", "sentinel"]);
        for master in &masters {
            poll::put_round(&mut commands, master);
        }
        let (asked_at, pong_owed) = (Instant::now(), self.events.is_some());
        self.round = Some(Asking { masters, asked_at, answers: Vec::new(), pong_owed });
        self.deadline = Some(asked_at + patience);
        let (queries, events) = (&mut self.queries, &mut self.events);
        let sending = async {
            if let Some(events) = events {
                let mut ping = BytesMut::new();
                put_command(&mut ping, &["PING"]);
                events.send(&ping).await?;
            }
            queries.send(&commands).await
        };
        let sent = tokio::time::timeout(patience, sending);
        Ok(sent.await.map_err(|_| LinkError::Silent(patience))??)
    }

    /// Waits for something to tell. Safe to drop.
    async fn listen(&mut self) -> Result<Vec<What>, ConnError> {
        let (reply, second) = match &mut self.events {
            None => (self.queries.next().await?, false),
            Some(events) => tokio::select! {
                reply = self.queries.next() => (reply?, false),
                event = events.next() => (event?, true),
            },
        };
        let from = self.events.as_ref().filter(|_| second).unwrap_or(&self.queries);
        let heard_at = from.read_at();
        match reply {
            Reply::Push(items) => Ok(read_event(&items, heard_at).into_iter().collect()),
            Reply::List(items) if second && is_message(&items) => {
                Ok(read_event(&items, heard_at).into_iter().collect())
            }
            answer => {
                match &mut self.round {
                    // A pong, or a refusal to give one: somebody is there.
                    Some(round) if second => round.pong_owed = false,
                    Some(round) if round.answers_owed() > 0 => round.answers.push(answer),
                    _ => return Err(ConnError::Malformed("it answers what was not asked")),
                }
                Ok(self.finish_round(heard_at))
            }
        }
    }

    fn finish_round(&mut self, heard_at: std::time::Instant) -> Vec<What> {
        let Some(Asking { masters, asked_at, answers, .. }) =
            self.round.take_if(|round| round.is_over())
        else {
            return Vec::new();
        };
        self.deadline = None;
        let tilt = answers.first().is_some_and(poll::read_tilt);
        let rounds = answers.get(1..).unwrap_or_default().chunks(QUESTIONS);
        let read = |answers: &[Reply]| poll::read_round(answers, tilt);
        let rounds: Vec<(Arc<str>, Round)> = masters.into_iter().zip(rounds.map(read)).collect();
        for (master, round) in &rounds {
            self.torn.remove(master);
            if *round == Round::Torn {
                self.torn.insert(Arc::clone(master));
            }
        }
        if rounds.iter().any(|(_, round)| *round == Round::Torn) {
            // Once at once, as a switch tears one round; more and more seldom for whoever answers
            // like that for ever.
            self.retry_at = Some(Instant::now() + self.retry_pause);
            self.retry_pause = (self.retry_pause * 2).min(RETRY_MAX);
        } else if self.torn.is_empty() {
            self.retry_pause = RETRY_MIN;
        }
        rounds
            .into_iter()
            .map(|(master, round)| What::Round { master, asked_at, heard_at, round })
            .collect()
    }
}

/// Whether an array on the second connection of RESP2 is a message, or a confirmation, rather than
/// an answer.
fn is_message(items: &[Reply]) -> bool {
    matches!(items.first().and_then(Reply::text), Some("message" | "subscribe" | "unsubscribe"))
}

fn read_event(items: &[Reply], heard_at: std::time::Instant) -> Option<What> {
    match items {
        [kind, channel, payload] if kind.text() == Some("message") => {
            let (master, notice) = notice::parse(channel.text()?, payload.text()?)?;
            Some(What::Notice { master: master.map(Box::from), notice, heard_at })
        }
        _ => None,
    }
}

/// Authenticates, learns the identity, subscribes.
async fn greet(addr: SocketAddr, spec: &Spec) -> Result<Session, LinkError> {
    let mut queries = Conn::connect(addr, spec.timeouts.connect, spec.timeouts.user).await?;
    hello(&mut queries, spec.credentials.as_ref()).await?;
    let mut commands = BytesMut::new();
    put_command(&mut commands, &["CLIENT", "SETNAME", "pointsman"]);
    put_command(&mut commands, &["SENTINEL", "MYID"]);
    queries.send(&commands).await?;
    queries.next().await?;
    let answer = queries.next().await?;
    if let Some(line) = answer.error() {
        let denied = Denied::read(line, "SENTINEL MYID", "+sentinel|myid", SENTINEL_AUTH);
        return Err(denied.map_or(LinkError::NoIdentity, LinkError::Denied));
    }
    let id = answer.text().and_then(MyId::parse).ok_or(LinkError::NoIdentity)?;
    let mut events = None;
    if queries.protocol == Protocol::Resp2 {
        let mut second = Conn::connect(addr, spec.timeouts.connect, spec.timeouts.user).await?;
        authenticate(&mut second, spec.credentials.as_ref()).await?;
        events = Some(second);
    }
    let subscribed = subscribe(events.as_mut().unwrap_or(&mut queries)).await?;
    let mut session = Session::new(id, queries, events, subscribed);
    session.again.extend(spec.masters.borrow().iter().cloned());
    session.begin_wanted_round(spec.timeouts.command * 2).await?;
    Ok(session)
}

/// Switches to RESP3, or stays with RESP2 where the server does not know better or does not allow
/// it.
pub(crate) async fn hello(
    conn: &mut Conn,
    credentials: Option<&Credentials>,
) -> Result<(), LinkError> {
    let mut commands = BytesMut::new();
    put_command(&mut commands, &credentials.map_or_else(|| vec!["HELLO", "3"], Credentials::hello));
    conn.send(&commands).await?;
    // The reply to a successful HELLO 3 is RESP3 already; an error line reads alike in both.
    conn.protocol = Protocol::Resp3;
    let reply = conn.next().await?;
    let Some(line) = reply.error() else { return Ok(()) };
    match Denied::read(line, "HELLO", "+hello", SENTINEL_AUTH) {
        Some(denied) if !matches!(denied, Denied::NotPermitted { .. }) => Err(denied.into()),
        _ => {
            conn.protocol = Protocol::Resp2;
            authenticate(conn, credentials).await
        }
    }
}

async fn authenticate(conn: &mut Conn, credentials: Option<&Credentials>) -> Result<(), LinkError> {
    let Some(credentials) = credentials else { return Ok(()) };
    let mut commands = BytesMut::new();
    put_command(&mut commands, &credentials.auth());
    conn.send(&commands).await?;
    let reply = conn.next().await?;
    let denied = reply.error().and_then(|line| Denied::read(line, "AUTH", "+auth", SENTINEL_AUTH));
    denied.map_or(Ok(()), |denied| Err(denied.into()))
}

/// Subscribes to every channel of interest. `false` if the ACL does not allow it: then only polling
/// finds a switch.
async fn subscribe(conn: &mut Conn) -> Result<bool, LinkError> {
    let mut commands = BytesMut::new();
    let words: Vec<&str> =
        std::iter::once("SUBSCRIBE").chain(notice::CHANNELS.iter().copied()).collect();
    put_command(&mut commands, &words);
    conn.send(&commands).await?;
    // One confirmation for each channel, or one refusal for all; messages may come in between
    // already.
    let mut confirmed = 0;
    while confirmed < notice::CHANNELS.len() {
        match conn.next().await? {
            Reply::Error(_) => return Ok(false),
            Reply::Push(items) | Reply::List(items) => {
                confirmed += usize::from(items.first().and_then(Reply::text) == Some("subscribe"));
            }
            _ => return Err(ConnError::Malformed("an answer to SUBSCRIBE that is none").into()),
        }
    }
    Ok(true)
}
