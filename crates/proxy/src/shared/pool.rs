//! The shared connections of one worker, and the task of each.
//!
//! Sessions share a connection if the server treats them alike ([`GroupKey`]). The first one of a
//! group opens it: the state of the group is replayed, and all of it must be accepted. If that
//! fails, every session that waits for it opens a connection of its own, with all that implies for
//! permits, holds and refusals; so nothing of that is here.
//!
//! A server that runs a script for long, or pauses clients, reads nothing more from the connection
//! on which it was told to, and still answers on others: that it is busy, or reads. So when nothing
//! has arrived for a second although replies are awaited, nothing more is sent on the connection,
//! and as soon as a member with nothing in flight has a request, another connection is opened. When
//! the server has accepted its state, it [takes over](Entry::retire_silent): the silent one is
//! closed after the last reply. A server that answers nobody does not accept it, and then the
//! requests wait where they are.
//!
//! There is no limit for the time that a request takes.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::shared::commands::Commands;
use crate::shared::group_key::GroupKey;
use crate::shared::member_state::LOOK_AGAIN;
use aws_lc_rs::{hmac, rand};
use resp::{Ledger, Replay, SharedState};
use target::Target;

use crate::context::WorkerContext;
use crate::durability::ConfirmedStream;
use crate::io::stream::ByteStream;
use crate::options::{Durability, Options, UpstreamMode};
use crate::runtime::tasks;
use crate::runtime::timers::LazyTimer;
use crate::service::Hint;
use crate::session::carry::replay::{Failed, Server};
use crate::session::dial;
use crate::session::upstream::{Upstream, UpstreamPart};
use crate::shared::access::{Access, Admission};
use crate::shared::{Connection, ConnectionEnd, Member, Offer, Promotion};
use crate::shared_counters::TableSource;

/// A connection without members is kept for so long.
const UNUSED: Duration = Duration::from_secs(10);

/// How long a connection receives nothing while replies are awaited before it counts as silent.
/// Checked at this interval, so the actual time may be twice as long.
const SILENT: Duration = Duration::from_secs(1);

/// How long no connection is opened to a server that limits what it keeps for a client.
const LIMITED: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });

/// Maximum number of connections per worker.
const MAX_CONNECTIONS: usize = 512;

/// A shared connection, who may share it, and what its [task](Driver) needs.
struct Entry {
    context: Arc<WorkerContext>,
    target: Arc<Target>,
    key: GroupKey,
    connection: Rc<Connection>,
    /// How its writes are confirmed, and whether it has TLS, whatever the options say since.
    durability: Option<Durability>,
    has_tls: bool,
    access: Rc<Access>,
    /// It was opened in place of a silent one. Nobody joins it before it is open.
    succeeds: bool,
}

impl Entry {
    /// A connection that a task of its own opens, in the state of `replay`. It takes the place of a
    /// silent one if it `succeeds` that.
    fn add(
        entries: &mut Vec<Rc<Self>>,
        key: GroupKey,
        context: &Arc<WorkerContext>,
        target: &Arc<Target>,
        replay: Replay,
        succeeds: bool,
    ) -> Rc<Connection> {
        let is_known =
            |it: &&Rc<Self>| it.is_to(context, target) && (succeeds || !it.connection.is_closed());
        let server = entries.iter().find(is_known);
        let options = context.shared.service.options.now();
        let entry = Rc::new(Self {
            context: Arc::clone(context),
            target: Arc::clone(target),
            key,
            connection: Rc::new(Connection::new()),
            durability: options.durability,
            has_tls: options.target_tls.is_some(),
            access: server.map_or_else(Rc::default, |entry| Rc::clone(&entry.access)),
            succeeds,
        });
        let driver = Driver(Rc::clone(&entry));
        tasks::spawn_following(async move { driver.0.run(replay).await });
        let connection = Rc::clone(&entry.connection);
        entries.push(entry);
        connection
    }

    fn is_to(&self, context: &WorkerContext, target: &Arc<Target>) -> bool {
        Arc::ptr_eq(&self.context.shared, &context.shared) && Arc::ptr_eq(&self.target, target)
    }

    /// Whether it is as new connections are.
    fn is_current(&self, options: &Options) -> bool {
        self.durability == options.durability && self.has_tls == options.target_tls.is_some()
    }

    /// Whether it is another connection of the group, to the same server.
    fn is_like(&self, other: &Self) -> bool {
        !Rc::ptr_eq(&self.connection, &other.connection)
            && self.is_to(&other.context, &other.target)
            && self.key == other.key
            && (self.connection.admits_anyone() == other.connection.admits_anyone()
                || !self.connection.is_open())
    }
}

/// The connections of a worker.
#[derive(Default)]
struct Pool {
    entries: Vec<Rc<Entry>>,
    /// Servers that limit what they keep for a client, and when they said so.
    limited: Vec<(Arc<Target>, Instant)>,
}

thread_local! {
    static POOL: RefCell<Pool> = RefCell::default();
}

/// The key of the digests of secrets, so that no digest means anything outside. `None` if the
/// system has no random numbers.
static DIGEST_KEY: LazyLock<Option<hmac::Key>> =
    LazyLock::new(|| hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new()).ok());

/// Offers what a session has written. Joins a connection if it needs one.
pub(crate) fn offer(
    member: &Member,
    ledger: &Ledger,
    context: &Arc<WorkerContext>,
    target: &Arc<Target>,
) {
    match member.offer() {
        Offer::Nothing => {}
        Offer::Join => match connection(member, ledger, context, target) {
            Ok(connection) => {
                member.join(&connection);
                if connection.is_silent() {
                    succeed(&connection, ledger, context, target);
                }
            }
            // It is woken when it is known which connections it may share.
            Err(Admission::Later) => {}
            Err(_) => member.promote(Promotion::NotConnected),
        },
        Offer::Silent(connection) => succeed(&connection, ledger, context, target),
    }
}

/// The connection for a session in the state of `ledger`; a new one if there are too few.
///
/// # Errors
///
/// It cannot share any, or it is not known yet which.
fn connection(
    member: &Member,
    ledger: &Ledger,
    context: &Arc<WorkerContext>,
    target: &Arc<Target>,
) -> Result<Rc<Connection>, Admission> {
    let options = context.shared.service.options.now();
    let UpstreamMode::Shared(most) = options.upstream else { return Err(Admission::Unknown) };
    POOL.with_borrow_mut(|pool| {
        let Pool { entries, limited } = pool;
        limited.retain(|(_, said)| said.elapsed() < LIMITED);
        if limited.iter().any(|(it, _)| Arc::ptr_eq(it, target)) {
            return Err(Admission::Unknown);
        }
        let key = ledger.shared_state().and_then(|state| key_of(&state));
        let key = key.ok_or(Admission::Unknown)?;
        let (mut count, mut least, mut known) = (0, None::<&Rc<Connection>>, None);
        // All are compared, so that the time does not depend on which is equal.
        for entry in &*entries {
            let is_usable = entry.is_to(context, target)
                && entry.is_current(&options)
                && !entry.connection.is_closed()
                && (!entry.succeeds || entry.connection.is_open());
            if entry.key != key || !is_usable {
                continue;
            }
            if let Some(admits) = entry.connection.admits_anyone() {
                let admission = || entry.access.admission(member, context, target);
                match *known.get_or_insert_with(admission) {
                    Admission::To(answer) if answer == admits => {}
                    Admission::To(_) => continue,
                    unknown => return Err(unknown),
                }
            }
            count += 1;
            // The one with the fewest members, which is not silent if there is one that is not.
            let order = |it: &Connection| (it.is_silent(), it.len());
            if least.is_none_or(|least| order(&entry.connection) < order(least)) {
                least = Some(&entry.connection);
            }
        }
        let is_full = entries.len() >= MAX_CONNECTIONS;
        if let Some(least) = least
            && (count >= most.get() || least.len() == 0 || is_full)
        {
            return Ok(Rc::clone(least));
        }
        let replay = Replay::of_shared(ledger, false).filter(|_| !is_full);
        let replay = replay.ok_or(Admission::Unknown)?;
        Ok(Entry::add(entries, key, context, target, replay, false))
    })
}

/// Has a connection opened that takes the place of a silent one, for a member in the state of
/// `ledger`. One at most, and none while another one of the group has been replaced and still has
/// members: that one would be as silent.
fn succeed(
    silent: &Rc<Connection>,
    ledger: &Ledger,
    context: &Arc<WorkerContext>,
    target: &Arc<Target>,
) {
    if !target.accepts_requests() {
        return;
    }
    POOL.with_borrow_mut(|pool| {
        let entries = &mut pool.entries;
        let entry = entries.iter().find(|it| Rc::ptr_eq(&it.connection, silent))?;
        let mut alike = entries.iter().filter(|it| it.is_like(entry));
        let has_other = alike.any(|it| it.connection.is_closed() || !it.connection.is_open());
        if has_other || entries.len() >= MAX_CONNECTIONS {
            return None;
        }
        let options = context.shared.service.options.now();
        let mut alike = entries.iter().filter(|it| it.is_like(entry));
        if alike.any(|it| it.is_current(&options) && !it.connection.is_silent()) {
            silent.retire();
            return None;
        }
        let (key, replay) = (entry.key.clone(), Replay::of_shared(ledger, false)?.on_same_server());
        Some(Entry::add(entries, key, context, target, replay, true))
    });
}

fn key_of(state: &SharedState<'_>) -> Option<GroupKey> {
    let key = DIGEST_KEY.as_ref()?;
    Some(GroupKey::new(state, |secret| {
        let (tag, mut digest) = (hmac::sign(key, secret), [0; 32]);
        // HMAC-SHA256 has 32 bytes.
        digest.iter_mut().zip(tag.as_ref()).for_each(|(to, from)| *to = *from);
        digest
    }))
}

/// What says which commands are shared, and how it differs from the built-in table.
type Table = (TableSource, Option<Rc<Commands>>);

/// What the task of a connection does.
impl Entry {
    async fn run(&self, replay: Replay) {
        let counters = &self.context.counters.shared;
        let (upstream, (source, corrected)) = match self.open(replay).await {
            Ok(opened) => opened,
            // Nobody has joined it.
            Err(_) if self.succeeds => return,
            Err(failed) => {
                let service = &*self.context.shared.service.name;
                let target = self.target.addr();
                tracing::debug!(service, %target, ?failed, "no shared connection could be opened");
                counters.not_opened.increment();
                return self.connection.refuse();
            }
        };
        counters.opened.increment();
        counters.connections.increment();
        counters.by_table.increment(source as usize);
        self.context.counters.dials.increment();
        self.connection.opened(self.key.resp3, self.key.identity.is_some(), corrected);
        if self.succeeds {
            // Their members join this one.
            let (service, target) = (&*self.context.shared.service.name, self.target.addr());
            tracing::debug!(service, %target, "a shared connection is silent, opened another one");
            self.silent().iter().for_each(|silent| silent.retire());
        }
        let (mut upstream, end) = match upstream {
            Upstream::Plain(socket) => self.serve_confirmed(socket).await,
            Upstream::Tls(stream) => self.serve_confirmed(stream).await,
            shared @ Upstream::Shared(_) => (shared, Some(ConnectionEnd::Closed)),
        };
        counters.by_table.decrement(source as usize);
        counters.connections.decrement();
        if self.target.fence().is_raised() {
            // The kernel would send again what a partitioned master has not acknowledged, when it
            // comes back.
            upstream.reset_on_close();
        }
        drop(upstream);
        if let Some(end) = end {
            self.report(&end);
        }
    }

    /// Opens the connection, in the state of its group.
    async fn open(&self, mut replay: Replay) -> Result<(Upstream, Table), Failed> {
        let options = &self.context.shared.service.options;
        let deadline = Instant::now() + options.now().connect_timeout;
        let server = Server { target: &self.target, context: &self.context, deadline };
        let begin = Instant::now();
        let mut upstream = server.exchange(&mut replay).await?;
        self.context.counters.dial_time.record(begin.elapsed());
        // While a script runs, nothing but the user and the protocol version can be set.
        let has_key =
            || replay.shared_state().and_then(|it| key_of(&it)).as_ref() == Some(&self.key);
        if !replay.has_shared_state() || (self.succeeds && !has_key()) {
            return Err(Failed::Refused);
        }
        let admits = !replay.is_unauthenticated();
        if self.key.identity.is_none() {
            // From now on nobody joins by this answer alone: what follows may take long.
            self.access.answered(begin, Ok(admits));
            self.connection.set_admits_anyone(admits);
        }
        // A server closes a connection on which nobody has authenticated at a request that long.
        let table = match admits {
            true => self.access.1.corrected(&mut upstream, server).await,
            false => Ok((TableSource::BuiltIn, None)),
        };
        if matches!(table, Err(Failed::Refused)) {
            let said = (Arc::clone(&self.target), Instant::now());
            POOL.with_borrow_mut(|pool| pool.limited.push(said));
        }
        if !dial::may_be_used(&self.target) || (self.succeeds && self.silent().is_empty()) {
            return Err(Failed::Superseded);
        }
        Ok((upstream, table?))
    }

    /// The silent connections of its group that still take members.
    fn silent(&self) -> Vec<Rc<Connection>> {
        POOL.with_borrow(|pool| {
            let silent = pool.entries.iter().filter(|it| it.is_like(self)).map(|it| &it.connection);
            silent.filter(|it| it.is_silent() && !it.is_closed()).map(Rc::clone).collect()
        })
    }

    /// [Serves](Self::serve) the members. Writes are confirmed if the service demands that.
    async fn serve_confirmed(
        &self,
        mut stream: impl UpstreamPart,
    ) -> (Upstream, Option<ConnectionEnd>) {
        let Some(rule) = self.durability else {
            let end = self.serve(&mut stream).await;
            return (stream.into(), end);
        };
        let ledger = Ledger::of_protocol(self.key.resp3);
        let mut stream = ConfirmedStream::new(stream, rule, ledger, &self.context, &self.target);
        let end = self.serve(&mut stream).await;
        (stream.into(), end)
    }

    /// Serves the members to the end of the connection; `None` if it has none any more.
    async fn serve(&self, stream: &mut impl ByteStream) -> Option<ConnectionEnd> {
        let Self { connection, context, target, .. } = self;
        let counters = &context.counters.shared;
        let (mut unused, mut stalled) = (LazyTimer::default(), LazyTimer::default());
        // The number of reads when the timer was set. A reply was awaited then, so it is a
        // different one when that has arrived, however long nothing was awaited since.
        let (mut silence, mut reads_then) = (LazyTimer::default(), None);
        poll_fn(|cx| {
            if let Poll::Ready(end) = connection.poll(cx, stream, target, counters) {
                return Poll::Ready(Some(end));
            }
            if connection.is_stalled() {
                let is_due = stalled.is_due(cx.waker());
                if is_due {
                    connection.resume(Instant::now());
                }
                if is_due || !stalled.is_set() {
                    stalled.set(LOOK_AGAIN, cx.waker());
                }
            }
            if connection.is_over() {
                return Poll::Ready(None);
            }
            let reads = connection.awaited_after();
            if reads.is_some() && (!silence.is_set() || silence.has_elapsed()) {
                silence.set(SILENT, cx.waker());
                if reads_then == reads && target.accepts_requests() {
                    connection.set_silent();
                }
                reads_then = reads;
            }
            if connection.len() > 0 {
                unused.clear();
            } else if target.fence().is_raised() || unused.is_due(cx.waker()) {
                return Poll::Ready(None);
            } else if !unused.is_set() {
                unused.set(UNUSED, cx.waker());
            }
            Poll::Pending
        })
        .await
    }

    /// Ends the members that had requests in flight, and reports why.
    fn report(&self, end: &ConnectionEnd) {
        let Self { connection, context, target, .. } = self;
        let counters = &context.counters.shared;
        let lost = connection.close(end);
        counters.members_lost.add(lost as u64);
        let (service, addr) = (&*context.shared.service.name, target.addr());
        match end {
            ConnectionEnd::Desync(desync) => {
                counters.desyncs.increment();
                let why = desync.label();
                tracing::error!(
                    service, target = %addr, why, sessions = lost,
                    "closed a shared connection whose replies do not match its requests"
                );
            }
            ConnectionEnd::Closed => {
                tracing::debug!(service, target = %addr, lost, "a shared connection was closed");
            }
            ConnectionEnd::Failed(error) => {
                dial::note_error(context, target, error);
                tracing::debug!(service, target = %addr, lost, %error, "a shared connection failed");
            }
        }
        // Members report it as well; one without requests in flight does not.
        if !target.fence().is_raised() {
            context.hint(target, Hint::UpstreamEnded);
        }
    }
}

/// The task of a connection. However it ends, no member waits for it.
struct Driver(Rc<Entry>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.connection.close(&ConnectionEnd::Closed);
        // The pool is gone when the worker ends.
        let _removed = POOL.try_with(|pool| {
            pool.borrow_mut().entries.retain(|entry| !Rc::ptr_eq(entry, &self.0));
        });
    }
}
