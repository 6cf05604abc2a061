//! The shared connections of one worker, and the task of each.
//!
//! Sessions share a connection if the server treats them alike ([`GroupKey`]). The first one of a
//! group opens it: the state of the group is replayed, and all of it must be accepted. If that
//! fails, every session that waits for it opens a connection of its own, with all that implies for
//! permits, holds and refusals; so nothing of that is here.
//!
//! Deliberately absent: a limit for the time that a request takes. A connection that a script
//! blocks would be no faster with another one beside it.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use aws_lc_rs::{hmac, rand};
use resp::{Ledger, Replay};
use share::{Commands, GroupKey};
use target::Target;

use crate::context::{ServiceContext, WorkerContext};
use crate::io::shared::{Connection, ConnectionEnd, Member, Offer, Promotion};
use crate::io::upstream::Upstream;
use crate::options::UpstreamMode;
use crate::runtime::tasks::following;
use crate::runtime::timers::LazyTimer;
use crate::service::Hint;
use crate::session::carry::replay::{self, Failed};
use crate::session::dial;
use crate::session::shared::access::{Access, Admission};
use crate::session::shared::command_table::CommandTable;
use crate::shared_counters::TableSource;

/// A connection without members is kept for so long.
const UNUSED: Duration = Duration::from_secs(10);

/// Interval of looks whether clients have read what keeps their connection from being read.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Maximum number of connections per worker.
const MAX_CONNECTIONS: usize = 512;

/// A shared connection, and who may share it.
struct Entry {
    service: Arc<ServiceContext>,
    target: Arc<Target>,
    key: GroupKey,
    connection: Rc<Connection>,
    table: Rc<CommandTable>,
    access: Rc<Access>,
}

/// The connections of a worker.
struct Pool {
    /// The key of the digests of secrets, so that no digest means anything outside.
    digest_key: hmac::Key,
    entries: Vec<Entry>,
}

thread_local! {
    static POOL: RefCell<Option<Pool>> = const { RefCell::new(None) };
}

/// Offers what a session has written. Joins a connection if it needs one.
pub(crate) fn offer(
    member: &mut Member,
    ledger: &Ledger,
    (context, target): (&Arc<WorkerContext>, &Arc<Target>),
) {
    if member.offer() == Offer::Nothing {
        return;
    }
    match connection(member, ledger, (context, target)) {
        Some(Found::Connection(connection)) => member.join(&connection),
        Some(Found::Later) => {}
        None => member.promote(Promotion::NotConnected),
    }
}

/// What there is for a session that may share.
enum Found {
    Connection(Rc<Connection>),
    /// It is woken when it is known which connections it may share.
    Later,
}

/// The connection for a session in the state of `ledger`; a new one if there are too few. `None` if
/// it cannot share any.
fn connection(
    member: &mut Member,
    ledger: &Ledger,
    (context, target): (&Arc<WorkerContext>, &Arc<Target>),
) -> Option<Found> {
    let UpstreamMode::Shared(most) = context.shared.service.options.now().upstream else {
        return None;
    };
    POOL.with_borrow_mut(|pool| {
        let Pool { digest_key, entries } = match pool {
            Some(pool) => pool,
            None => pool.insert(Pool::new()?),
        };
        let key = GroupKey::new(&ledger.shared_state()?, |secret| digest(digest_key, secret));
        let admission = |access: &Rc<Access>| access.admission(member, (context, target));
        let fitting = match Fitting::of(entries, &key, (context, target), admission) {
            Ok(fitting) => fitting,
            Err(Admission::Later) => return Some(Found::Later),
            Err(_) => return None,
        };
        let Fitting { count, least, server } = fitting;
        let is_full = entries.len() >= MAX_CONNECTIONS;
        if let Some(least) = least
            && (count >= most.get() || least.len() == 0 || is_full)
        {
            return Some(Found::Connection(Rc::clone(least)));
        }
        if is_full {
            return None;
        }
        let replay = Replay::of_shared(ledger, false)?;
        let connection = Rc::new(Connection::new());
        let table = server.map_or_else(Rc::default, |entry| Rc::clone(&entry.table));
        let access = server.map_or_else(Rc::default, |entry| Rc::clone(&entry.access));
        let driver = Driver {
            connection: Rc::clone(&connection),
            table: Rc::clone(&table),
            access: Rc::clone(&access),
            context: Arc::clone(context),
            target: Arc::clone(target),
            state: (key.resp3(), key.is_authenticated()),
        };
        following::spawn(driver.run(replay));
        entries.push(Entry {
            service: Arc::clone(&context.shared),
            target: Arc::clone(target),
            key,
            connection: Rc::clone(&connection),
            table,
            access,
        });
        Some(Found::Connection(connection))
    })
}

/// The connections that a session may share.
struct Fitting<'a> {
    count: u16,
    /// The one with the fewest members.
    least: Option<&'a Rc<Connection>>,
    /// Any one to the server.
    server: Option<&'a Entry>,
}

impl<'a> Fitting<'a> {
    /// Those of a group. `admission`: what is known of a server that has to admit the client.
    ///
    /// # Errors
    ///
    /// What is known does not say whether it may join.
    fn of(
        entries: &'a [Entry],
        key: &GroupKey,
        (context, target): (&Arc<WorkerContext>, &Arc<Target>),
        mut admission: impl FnMut(&Rc<Access>) -> Admission,
    ) -> Result<Self, Admission> {
        let (mut found, mut known) = (Self { count: 0, least: None, server: None }, None);
        // All are compared, so that the time does not depend on which is equal.
        for entry in entries {
            let same_server = Arc::ptr_eq(&entry.service, &context.shared)
                && Arc::ptr_eq(&entry.target, target)
                && !entry.connection.is_closed();
            if same_server {
                found.server = Some(entry);
            }
            if entry.key != *key || !same_server {
                continue;
            }
            if let Some(admits) = entry.connection.admits_anyone() {
                match *known.get_or_insert_with(|| admission(&entry.access)) {
                    Admission::To(answer) if answer == admits => {}
                    Admission::To(_) => continue,
                    unknown => return Err(unknown),
                }
            }
            found.count += 1;
            if found.least.is_none_or(|least| entry.connection.len() < least.len()) {
                found.least = Some(&entry.connection);
            }
        }
        Ok(found)
    }
}

impl Pool {
    /// `None` if the system has no random numbers.
    fn new() -> Option<Self> {
        let rng = rand::SystemRandom::new();
        let digest_key = hmac::Key::generate(hmac::HMAC_SHA256, &rng).ok()?;
        Some(Self { digest_key, entries: Vec::new() })
    }
}

fn digest(key: &hmac::Key, secret: &[u8]) -> [u8; 32] {
    let tag = hmac::sign(key, secret);
    let mut digest = [0; 32];
    // HMAC-SHA256 has 32 bytes.
    digest.iter_mut().zip(tag.as_ref()).for_each(|(to, from)| *to = *from);
    digest
}

/// What says which commands are shared, and how it differs from the built-in table.
type Table = (TableSource, Option<Rc<Commands>>);

/// The task of one connection.
struct Driver {
    connection: Rc<Connection>,
    table: Rc<CommandTable>,
    access: Rc<Access>,
    context: Arc<WorkerContext>,
    target: Arc<Target>,
    /// RESP3, and authenticated.
    state: (bool, bool),
}

impl Driver {
    async fn run(self, replay: Replay) {
        let counters = &self.context.counters.shared;
        let (mut upstream, (source, corrected)) = match self.open(replay).await {
            Ok(opened) => opened,
            Err(failed) => {
                let service = &*self.context.shared.service.name;
                let target = self.target.addr();
                let why = failed.words();
                tracing::debug!(service, %target, why, "no shared connection could be opened");
                counters.not_opened.increment();
                return self.connection.refuse();
            }
        };
        counters.opened.increment();
        let of_table = counters.by_table.get(source as usize);
        of_table.inspect(|it| it.increment());
        self.context.counters.dials.increment();
        self.connection.opened(self.state, corrected);
        let end = self.serve(&mut upstream).await;
        of_table.inspect(|it| it.decrement());
        counters.closed.increment();
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
        let until = Instant::now() + options.now().connect_timeout;
        let target = (&*self.target, &*self.context);
        let begin = Instant::now();
        let mut upstream = replay::exchange(target, &mut replay, until).await?;
        self.context.counters.dialled_in.record(begin.elapsed());
        if !replay.has_shared_state() {
            return Err(Failed::Refused);
        }
        let (admits, (_, is_authenticated)) = (!replay.is_unauthenticated(), self.state);
        if !is_authenticated {
            // From now on nobody joins by this answer alone: what follows may take long.
            self.access.answered(begin, Ok(admits));
            self.connection.set_admits_anyone(admits);
        }
        // A server closes a connection on which nobody has authenticated at a request that long.
        let table = match admits {
            true => self.table.corrected(&mut upstream, target, until).await?,
            false => (TableSource::BuiltIn, None),
        };
        if !dial::may_be_used(&self.target) {
            return Err(Failed::Superseded);
        }
        Ok((upstream, table))
    }

    /// Serves the members to the end of the connection; `None` if it has none any more.
    async fn serve(&self, upstream: &mut Upstream) -> Option<ConnectionEnd> {
        let Self { connection, context, target, .. } = self;
        let counters = &context.counters.shared;
        let (mut unused, mut stalled) = (LazyTimer::default(), LazyTimer::default());
        poll_fn(|cx| {
            let polled = match &mut *upstream {
                Upstream::Plain(socket) => connection.poll(cx, socket, target, counters),
                Upstream::Tls(stream) => connection.poll(cx, &mut **stream, target, counters),
                Upstream::Shared(_) => Poll::Ready(ConnectionEnd::Closed),
            };
            if let Poll::Ready(end) = polled {
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
            if connection.len() > 0 {
                unused.clear();
            } else if connection.is_closed()
                || target.fence().is_raised()
                || unused.is_due(cx.waker())
            {
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
                let why = desync.text();
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
            context.counters.hints.increment();
            context.shared.service.hints.hint(target, Hint::UpstreamEnded);
        }
    }
}

impl Drop for Driver {
    /// However the task ends, no member waits for it.
    fn drop(&mut self) {
        self.connection.close(&ConnectionEnd::Closed);
        // The pool is gone when the worker ends.
        let _removed = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if let Some(pool) = &mut *pool {
                pool.entries.retain(|entry| !Rc::ptr_eq(&entry.connection, &self.connection));
            }
        });
    }
}
