//! Whether a server admits clients that send no credentials.
//!
//! It decides that once for each connection, when the connection begins. Clients on a shared
//! connection would keep what the server decided when that was opened: after a password was set,
//! every new client could still use the connection without one. So a client without credentials
//! joins a connection only if the server has been asked shortly before whether it would admit it,
//! and only one on which the server decided the same. The server is asked on a kept connection,
//! after `RESET`, or on a new one.
//!
//! It is asked only while such clients arrive, and before the last answer is too old, so that few
//! of them wait. One that has joined stays: directly it would stay connected, too.
//!
//! Clients with credentials are not checked here: the server has verified those of each client.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use resp::Replay;
use target::Target;
use tokio::sync::OnceCell;

use crate::context::WorkerContext;
use crate::runtime::tasks;
use crate::session::carry::replay::{Failed, Server};
use crate::session::upstream::Upstream;
use crate::shared::commands::Commands;
use crate::shared::server_limits::{ASK_LIMITS, LARGEST_LIMITS, limits_clients};
use crate::shared::server_table::{LARGEST_TABLE, ask_table, read_table};
use crate::shared::{Member, verifiers};
use crate::shared_counters::TableSource;

/// For so long an answer of the server counts.
pub(super) const KNOWN_FOR: Duration = Duration::from_millis(250);

/// The server is asked again from this age of its answer on.
const ASK_AGAIN: Duration = Duration::from_millis(125);

/// What is known of one server; the shared connections to it have this in common.
#[derive(Debug, Default)]
pub(super) struct Access(RefCell<State>, pub(super) CommandTable);

#[derive(Debug, Default)]
struct State {
    /// When the server was asked last, and what it answered: whether it admits such clients.
    answer: Option<(Instant, bool)>,
    /// When the server could not be asked.
    failed: Option<Instant>,
    is_asking: bool,
    /// The members that wait for the answer.
    waiting: HashMap<u64, Waker>,
}

/// Whether a client without credentials may join a shared connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// One on which the server admits such clients, or one on which it does not.
    To(bool),
    /// That is not known yet: the member has to wait.
    Later,
    /// That cannot be known now.
    Unknown,
}

impl Access {
    /// What is known, for `member`. Has the server asked if that is too little.
    pub(super) fn admission(
        self: &Rc<Self>,
        member: &Member,
        context: &Arc<WorkerContext>,
        target: &Arc<Target>,
    ) -> Admission {
        let mut state = self.0.borrow_mut();
        let now = Instant::now();
        let admission = state.admission(now);
        if admission == Admission::Later {
            // While the gate is closed nothing is asked. The session is woken when it opens.
            if !target.accepts_requests() {
                member.await_access();
                return Admission::Later;
            }
            let (id, waker) = member.await_access();
            waker.map(|waker| state.waiting.insert(id, waker));
        }
        if state.has_to_ask(now) && target.accepts_requests() {
            state.is_asking = true;
            let asking =
                Asking { access: Rc::clone(self), asked: now, answer: Err(Failed::Broken) };
            tasks::spawn(asking.run(Arc::clone(context), Arc::clone(target)));
        }
        admission
    }

    /// The server has answered what it was asked at that time.
    pub(super) fn answered(&self, asked: Instant, answer: Result<bool, Failed>) {
        let mut state = self.0.borrow_mut();
        match answer {
            Ok(admits) if state.answer.is_none_or(|(before, _)| before <= asked) => {
                (state.answer, state.failed) = (Some((asked, admits)), None);
            }
            // The gate has closed, and what that means for a member is decided by its session.
            Ok(_) | Err(Failed::Superseded) => {}
            Err(_) => state.failed = Some(Instant::now()),
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_values().for_each(Waker::wake);
    }
}

impl State {
    fn admission(&self, now: Instant) -> Admission {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < KNOWN_FOR;
        match (self.answer, self.failed) {
            (Some((asked, admits)), _) if is_recent(asked) => Admission::To(admits),
            (_, Some(failed)) if is_recent(failed) => Admission::Unknown,
            _ => Admission::Later,
        }
    }

    fn has_to_ask(&self, now: Instant) -> bool {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < ASK_AGAIN;
        let known = self.answer.is_some_and(|(asked, _)| is_recent(asked));
        !self.is_asking && !known && !self.failed.is_some_and(is_recent)
    }
}

/// The server is being asked. However that ends, nobody waits for it any more.
struct Asking {
    access: Rc<Access>,
    asked: Instant,
    answer: Result<bool, Failed>,
}

impl Asking {
    async fn run(mut self, context: Arc<WorkerContext>, target: Arc<Target>) {
        self.answer = ask(&context, &target).await;
        let number = match self.answer {
            Ok(true) => 0,
            Ok(false) => 1,
            Err(_) => 2,
        };
        context.counters.shared.access_checks.increment(number);
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.access.0.borrow_mut().is_asking = false;
        self.access.answered(self.asked, self.answer);
    }
}

/// Asks the server whether it admits clients without credentials.
async fn ask(context: &Arc<WorkerContext>, target: &Arc<Target>) -> Result<bool, Failed> {
    let deadline = Instant::now() + context.shared.service.options.now().connect_timeout;
    let server = Server { target, context, deadline };
    // A server that runs a script has decided before it says so.
    let replay = || Replay::of_new().on_same_server();
    if let Some(mut upstream) = verifiers::take(target, context) {
        let mut replay = replay().on_used_connection();
        // Whatever is wrong with it is not wrong with a new one.
        if server.exchange_on(&mut upstream, &mut replay).await.is_ok() {
            verifiers::put_back(upstream, target, context);
            return Ok(!replay.is_unauthenticated());
        }
    }
    let mut replay = replay();
    let upstream = server.exchange(&mut replay).await?;
    context.counters.dials.increment();
    verifiers::keep(upstream, target, context);
    Ok(!replay.is_unauthenticated())
}

// The server's own table of commands, read once for all shared connections to a server.
//
// It is read on a shared connection, before the first request is: so no request is shared that the
// server's table excludes. The credentials are those of the connection's clients. Where these may
// not run `COMMAND INFO`, the built-in table counts alone for them. A connection that is opened
// beside others to the same server uses what these have read. When all of them are gone the table
// is, too: the next server, or the same one after a restart, may differ.
//
// Together with its table the server is asked [whether it limits](limits_clients) what it keeps
// for a client. Then no connection to it is shared.

/// What is known of the table of a server; the connections to it share this. `None` in it: the
/// server's table changes nothing.
#[derive(Debug, Default)]
pub(super) struct CommandTable(OnceCell<Option<Rc<Commands>>>);

impl CommandTable {
    /// How the server's table differs from the built-in one, if it is known. Read on `upstream` if
    /// that was not done; meanwhile all other connections to the server wait.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub(super) async fn corrected(
        &self,
        upstream: &mut Upstream,
        server: Server<'_>,
    ) -> Result<(TableSource, Option<Rc<Commands>>), Failed> {
        match self.0.get_or_try_init(|| read(upstream, server)).await {
            Ok(corrected) => Ok((TableSource::Server, corrected.clone())),
            Err(None) => Ok((TableSource::BuiltIn, None)),
            Err(Some(failed)) => Err(failed),
        }
    }
}

/// Reads the table.
///
/// # Errors
///
/// Why that failed; `None` if the server refuses to show it, or it cannot be understood.
async fn read(
    upstream: &mut Upstream,
    server: Server<'_>,
) -> Result<Option<Rc<Commands>>, Option<Failed>> {
    let Server { target, context, .. } = server;
    let reply = server.ask(upstream, &ask_table(), LARGEST_TABLE).await?;
    let (service, addr) = (&*context.shared.service.name, target.addr());
    if limits_clients(&server.ask(upstream, ASK_LIMITS, LARGEST_LIMITS).await?) {
        if let Some(unlogged) = context.shared.logs.limited_clients.due(0, Instant::now()) {
            tracing::warn!(
                service, upstream = %addr, unlogged,
                "connections are not shared: the server limits what it keeps for a client \
                 (client-output-buffer-limit normal or maxmemory-clients) and would close them for \
                 one client's large reply"
            );
        }
        return Err(Some(Failed::Refused));
    }
    let Some(table) = read_table(&reply) else {
        tracing::debug!(service, target = %addr, "the server does not show its table of commands");
        return Err(None);
    };
    let commands = Commands::new(&table);
    if commands.is_built_in() {
        return Ok(None);
    }
    tracing::info!(
        service, target = %addr, excluded = commands.excluded(),
        "the server's table of commands differs, and fewer commands are shared"
    );
    Ok(Some(Rc::new(commands)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn counts_an_answer_from_the_question_on() {
        let access = Rc::<Access>::default();
        let begin = Instant::now();
        let after = |ms: u32| {
            let state = access.0.borrow();
            (state.admission(begin + ms * MS), state.has_to_ask(begin + ms * MS))
        };
        assert_eq!(after(0), (Admission::Later, true));
        access.answered(begin, Ok(true));
        assert_eq!(after(0), (Admission::To(true), false));
        assert_eq!(after(124), (Admission::To(true), false));
        assert_eq!(after(125), (Admission::To(true), true));
        assert_eq!(after(249), (Admission::To(true), true));
        assert_eq!(after(250), (Admission::Later, true));
        // An answer to an older question does not count.
        access.answered(begin + 300 * MS, Ok(false));
        access.answered(begin + 200 * MS, Ok(true));
        assert_eq!(after(400), (Admission::To(false), false));
    }

    #[test]
    fn admits_nobody_for_a_while_after_a_failure() {
        let access = Rc::<Access>::default();
        let begin = Instant::now();
        access.answered(begin, Err(Failed::Superseded));
        assert_eq!(access.0.borrow().admission(begin), Admission::Later);
        access.answered(begin, Err(Failed::Broken));
        let failed = access.0.borrow().failed.unwrap();
        let state = |ms: u32| {
            let state = access.0.borrow();
            (state.admission(failed + ms * MS), state.has_to_ask(failed + ms * MS))
        };
        assert_eq!(state(0), (Admission::Unknown, false));
        assert_eq!(state(124), (Admission::Unknown, false));
        assert_eq!(state(249), (Admission::Unknown, true));
        assert_eq!(state(250), (Admission::Later, true));
        access.answered(failed, Ok(true));
        assert_eq!(state(0), (Admission::To(true), false));
    }
}
