//! How a session reports itself, to its worker's visitor and at its end to the log, and how it ends
//! on an operator's order.
//!
//! A session that pumps is asked where it checks other rare events. In every other stage the future
//! that it waits for is [watched](while_visited), and what is reported is its [stage](Stage).
//!
//! Nothing of this is stored. Age, bytes and commands are those of the session's end; the rest is
//! computed, or asked of the kernel, when it is wanted.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use drain::Ticket;
use resp::SessionState;
use target::Target;
use tracing::Level;

use crate::access_log::has_failed;
use crate::address::Peer;
use crate::context::WorkerContext;
use crate::end_reason::EndReason;
use crate::io::stream::{ByteStream, SocketFacts};
use crate::not_carried::Uncarried;
use crate::runtime::tasks::visits::{self, Visit};
use crate::runtime::wake_flag::WakeFlag;
use crate::session::leave::Leaving;
use crate::session::pump::Pump;
use crate::session::upstream::TargetStream;
use crate::session_row::{self, ConnectionUse, ListedState, SessionRow, WaitsFor};
use crate::shared::{Promotion, linger};

/// What a session does while it does not pump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Completes its TLS handshake.
    Handshaking,
    /// Dials its first target.
    Connecting,
    /// Dials another target and replays its state there.
    Moving,
    /// Waits for a target.
    AtGate,
    /// Waits for a permit to dial.
    InLine,
    /// Has ended.
    Closing,
}

/// The facts of a session that do not depend on its connection to a target.
#[derive(Debug)]
pub(crate) struct SessionBase {
    pub(crate) peer: Peer,
    pub(crate) context: Arc<WorkerContext>,
    pub(crate) ticket: Ticket,
    /// Bytes and commands on connections before the current one.
    pub(crate) bytes: (u64, u64),
    pub(crate) commands: u32,
    /// When it began, in microseconds of its worker's clock.
    pub(crate) since: u64,
    pub(crate) stage: Cell<Stage>,
    /// Why it has a connection of its own although its service shares connections.
    pub(crate) promotion: Cell<Option<Promotion>>,
    /// As what it is counted.
    counted: Cell<Option<ConnectionUse>>,
    /// Why it has ended.
    pub(crate) reason: EndReason,
}

impl SessionBase {
    pub(crate) fn new(peer: Peer, context: Arc<WorkerContext>) -> Self {
        let (ticket, since) = (context.listener.drain.ticket(), context.counters.elapsed());
        let (stage, reason) = (Cell::new(Stage::Connecting), EndReason::Aborted);
        let (bytes, commands) = ((0, 0), 0);
        let (promotion, counted) = (Cell::new(None), Cell::new(None));
        Self { peer, context, ticket, bytes, commands, since, stage, promotion, counted, reason }
    }

    /// Adds what was forwarded on a connection that it leaves.
    pub(crate) fn add(&mut self, bytes_in: u64, bytes_out: u64, commands: u32) {
        self.bytes = (self.bytes.0 + bytes_in, self.bytes.1 + bytes_out);
        self.commands = self.commands.saturating_add(commands);
        self.stage.set(Stage::Moving);
    }

    /// Counts the session as one that shares connections, or that has one of its own, or as
    /// neither.
    pub(crate) fn count_as(&self, connection: Option<ConnectionUse>) {
        let counters = &self.context.counters.shared;
        let counter = |connection| match connection {
            ConnectionUse::Dedicated => &counters.dedicated,
            ConnectionUse::Shared => &counters.sessions,
        };
        let before = self.counted.replace(connection);
        if before != connection {
            before.map(counter).inspect(|counter| counter.decrement());
            connection.map(counter).inspect(|counter| counter.increment());
        }
    }

    /// How long it has lasted.
    pub(crate) fn age(&self) -> Duration {
        let now = self.context.counters.elapsed();
        Duration::from_micros(now.saturating_sub(self.since))
    }

    fn row(&self) -> SessionRow {
        let (state, waits_for) = match self.stage.get() {
            Stage::Handshaking => (ListedState::Handshaking, WaitsFor::Handshake),
            Stage::Connecting => (ListedState::Connecting, WaitsFor::Connection),
            Stage::Moving => (ListedState::Moving, WaitsFor::Connection),
            Stage::AtGate => (ListedState::Held, WaitsFor::Target),
            Stage::InLine => (ListedState::Held, WaitsFor::Permit),
            Stage::Closing => (ListedState::Closing, WaitsFor::Close),
        };
        SessionRow {
            service: Arc::clone(&self.context.shared.service.name),
            client: self.peer.addr(),
            state,
            waits_for,
            promotion: self.promotion.get().map(linger::label),
            age: self.age(),
            bytes: self.bytes,
            commands: self.commands.into(),
            in_flight: Some(0),
            // The worker adds its name.
            ..SessionRow::default()
        }
    }
}

macro_rules! event {
    ($session:ident, $target:ident, $uncarried:ident, $level:expr) => {
        tracing::event!(
            target: "proxy::access_log",
            $level,
            service = &*$session.context.shared.service.name,
            client = %$session.peer,
            // Not `target`: in `tracing` that is the module that logs.
            upstream = $target.map(|target| tracing::field::display(target.addr())),
            reason = $session.reason.label(),
            duration_ms = u64::try_from($session.age().as_millis()).unwrap_or(u64::MAX),
            bytes_in = $session.bytes.0,
            bytes_out = $session.bytes.1,
            commands = $session.commands,
            not_carried = $uncarried.map(|it| it.why.label()),
            unknown_command = $uncarried.and_then(|it| it.command.as_deref()),
            "session ended"
        )
    };
}

/// Logs a session at its end, as the settings of its service want it.
pub(crate) fn log(session: &SessionBase, target: Option<&Target>, uncarried: Option<&Uncarried>) {
    let rule = session.context.shared.service.options.peek().lines;
    let failed = has_failed(session.reason, uncarried);
    // The level is part of a static call site, so each level needs its own.
    match rule.level(failed, |one_in| fastrand::u32(..one_in) == 0) {
        Level::ERROR => event!(session, target, uncarried, Level::ERROR),
        Level::WARN => event!(session, target, uncarried, Level::WARN),
        Level::INFO => event!(session, target, uncarried, Level::INFO),
        Level::DEBUG => event!(session, target, uncarried, Level::DEBUG),
        Level::TRACE => event!(session, target, uncarried, Level::TRACE),
    }
}

/// The result of `future`; `None` if the session was ended by an order meanwhile.
pub(crate) async fn while_visited<T>(
    base: &SessionBase,
    mut future: Pin<Box<impl Future<Output = T> + ?Sized>>,
) -> Option<T> {
    poll_fn(|cx| match visits::current() {
        None => future.as_mut().poll(cx).map(Some),
        Some(Visit::Report) => {
            session_row::leave(base.row());
            Poll::Pending
        }
        Some(Visit::End) => {
            visits::accept_end();
            Poll::Ready(None)
        }
    })
    .await
}

impl<C: ByteStream, U: TargetStream> Pump<C, U> {
    /// Does what the visitor wants.
    #[cold]
    #[inline(never)]
    pub(super) fn visited(
        &mut self,
        visit: Visit,
        base: &SessionBase,
        flag: &WakeFlag,
    ) -> Poll<EndReason> {
        match visit {
            Visit::Report => {
                // Another event may have set it before the visitor did.
                flag.set();
                self.report(base);
                Poll::Pending
            }
            Visit::End => {
                visits::accept_end();
                Poll::Ready(EndReason::Killed)
            }
        }
    }

    /// Leaves the row of this session for the visitor.
    fn report(&self, base: &SessionBase) {
        let (state, waits_for) = self.listed_state();
        let SocketFacts { listener, silent } = self.client.socket_facts();
        let (uncarried, options) = (self.why_not_carried(), &self.context.shared.service.options);
        let tracked = self.ledger.session_state() != SessionState::Opaque;
        let commands = base.commands.saturating_add(self.commands);
        let commands = u64::from(commands) + u64::from(self.ledger.uncounted_requests());
        session_row::leave(SessionRow {
            listener,
            client_tls: self.client.tls_facts(),
            target_tls: self.upstream.tls_facts(),
            said: self.ledger.client_facts().into(),
            state,
            waits_for,
            not_carried: uncarried.as_ref().map(|it| it.why),
            unknown_command: uncarried.and_then(|it| it.command),
            upstream: Some((self.target.addr(), self.target.generation().get())),
            connection: match U::SHARED {
                true => Some(ConnectionUse::Shared),
                false if options.now().shares() => Some(ConnectionUse::Dedicated),
                // Its service does not share connections.
                false => None,
            },
            idle: silent.map(|silent| silent.min(base.age())),
            bytes: (base.bytes.0 + self.requests.moved, base.bytes.1 + self.replies.moved),
            commands,
            in_flight: tracked.then(|| self.ledger.owed()),
            ..base.row()
        });
    }

    fn listed_state(&self) -> (ListedState, WaitsFor) {
        let waits_for = if !self.replies.is_clear() {
            WaitsFor::ClientToRead
        } else if self.has_waiting_requests() {
            WaitsFor::ServerToRead
        } else if self.ledger.owed() > 0 {
            WaitsFor::Reply
        } else {
            WaitsFor::Request
        };
        // The gate is closed, and a request waits for it to open.
        let held = !self.target.may_accept_requests()
            && (self.has_waiting_requests() || self.client.has_unread());
        match self.ledger.session_state() {
            SessionState::Ended => (ListedState::Closing, WaitsFor::Close),
            _ if held => (ListedState::Held, WaitsFor::Target),
            _ if self.leaving != Leaving::No => (ListedState::Draining, WaitsFor::Boundary),
            SessionState::Opaque => (ListedState::Opaque, waits_for),
            SessionState::Blocked => (ListedState::Blocked, waits_for),
            _ if self.ledger.owed() > 0 => (ListedState::InFlight, waits_for),
            SessionState::Subscribed => (ListedState::Subscribed, waits_for),
            _ if self.ledger.pin().is_some() => (ListedState::Pinned, waits_for),
            SessionState::Busy => (ListedState::InFlight, waits_for),
            SessionState::Transaction | SessionState::Pinned => (ListedState::Pinned, waits_for),
            SessionState::Quiet => (ListedState::Idle, waits_for),
        }
    }
}
