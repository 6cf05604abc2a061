//! One session, from accept to close.
//!
//! It [connects](connect) to a target (and waits at the gate if there is none), [pumps](pump)
//! bytes, and [finishes](finish). If its target is superseded and the session can be
//! [carried](carry), it connects to another target and pumps again. However it ends, the end is the
//! `Drop` of [`Session`]: there and nowhere else it is counted, logged, and taken out of the drain.
//! So a panic is counted, too.
//!
//! Deliberately absent: the order of these steps, which is that of its [task].

pub(crate) mod carry;
pub(crate) mod connect;
pub(crate) mod dial;
mod end;
pub(crate) mod finish;
mod first_bytes;
mod handshake;
pub(crate) mod hold;
pub(crate) mod idle;
pub(crate) mod leave;
pub(crate) mod pump;
pub(crate) mod refusals;
pub(crate) mod report;
pub(crate) mod shared;
mod task;

#[cfg(test)]
mod idle_tests;
#[cfg(test)]
mod pool_tests;
#[cfg(test)]
mod pump_tests;
#[cfg(test)]
mod replica_tests;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod target_tests;
#[cfg(test)]
mod target_tls_fault_tests;
#[cfg(test)]
mod target_tls_reader_tests;
#[cfg(test)]
mod target_tls_tests;
#[cfg(test)]
mod tls_handshake_tests;
#[cfg(test)]
mod tls_session_tests;

use std::cell::Cell;
use std::future::ready;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use target::TargetRef;
use tls::ClientSide;

use crate::access_log::SessionRecord;
use crate::address::Peer;
use crate::context::WorkerContext;
use crate::end_reason::EndReason;
use crate::invariant;
use crate::io::stream::{ByteStream, ClientStream, SocketStream};
use crate::io::tls_stream::TlsStream;
use crate::io::upstream::Upstream;
use crate::limits::Admission;
use crate::maintenance::pending;
use crate::not_carried::{NotCarried, Uncarried};
use crate::runtime::tasks::continuing::continue_as;
use crate::session::carry::{CarryState, Migration, Purpose};
use crate::session::connect::{Connected, Connecting, Mode};
use crate::session::pump::{After, Pump, Start, Stopped};
use crate::session::report::{SessionBase, Stage, while_visited};
use crate::session::shared::transitions::Linger;
use crate::session::task::SessionTask;
use crate::session_row::ConnectionUse;

/// An admitted client connection.
#[derive(Debug)]
pub(crate) struct Session {
    base: SessionBase,
    _admission: Admission,
    target: Option<TargetRef>,
    /// Set if it lost its target and could not continue.
    uncarried: Option<Box<Uncarried>>,
    /// Set if it has had a connection of its own although its service shares connections.
    linger: Option<Box<Linger>>,
    /// When it was carried because something between here and its target reset the connection, in
    /// microseconds of its worker's clock.
    reset_at: Cell<Option<NonZeroU64>>,
}

/// A connection that is reset within this time after the last one ends its session.
const RESETS_APART: Duration = Duration::from_secs(60);

/// A target, the connection to it, and what is pumped first.
type Ready = (TargetRef, Upstream, Start);

/// The step that follows a pump, the connection that it had, and the replies that the client has
/// not taken yet.
type Step = (Box<After>, Upstream, Vec<u8>);

/// Why a session ends, and what its client is still sent.
type SessionEnd = (EndReason, Vec<u8>);

/// The end by an order.
const KILLED: SessionEnd = (EndReason::Killed, Vec::new());

/// Pumps between a client and a target that speaks TLS. In a box, so that the future of a session
/// without TLS is no larger.
fn pump_tls<'a, C: ByteStream>(
    ends: (&'a mut C, &'a mut TlsStream<ClientSide>),
    base: &'a SessionBase,
    target: &TargetRef,
    start: Start,
) -> Pin<Box<dyn Future<Output = Stopped> + 'a>> {
    Box::pin(Pump::new(ends, &base.context, target, start).run(base))
}

/// Makes sure that a target that is lost receives nothing more: the kernel would send again what a
/// partitioned master has not acknowledged, when it comes back.
fn reset_if_lost(upstream: &mut Upstream, reason: EndReason) {
    if matches!(reason, EndReason::Fenced | EndReason::ReplyDropped | EndReason::TargetUnresponsive)
    {
        upstream.reset_on_close();
    }
}

/// The result of `next`, unless the session is killed meanwhile.
async fn or_killed<T>(
    base: &SessionBase,
    next: Pin<Box<impl Future<Output = Result<T, SessionEnd>>>>,
) -> Result<T, SessionEnd> {
    while_visited(base, next).await.unwrap_or(Err(KILLED))
}

impl Session {
    /// Counts the client in.
    pub(crate) fn new(peer: Peer, context: Arc<WorkerContext>, admission: Admission) -> Self {
        context.counters.accepted.increment();
        let base = SessionBase::new(peer, context);
        let reset_at = Cell::new(None);
        Self { base, _admission: admission, target: None, uncarried: None, linger: None, reset_at }
    }

    /// Serves a client that speaks TLS to its end.
    pub(crate) async fn run_tls(self, socket: SocketStream) {
        let handshake = Box::pin(handshake::accept(&self.base, socket));
        match or_killed(&self.base, handshake).await {
            Ok(client) if self.shares() => continue_as(self.run_sharing(client)),
            Ok(client) => continue_as(self.run(client)),
            Err((reason, _)) => self.end(reason),
        }
    }

    /// Whether its service shares connections.
    pub(crate) fn shares(&self) -> bool {
        self.base.context.shared.service.options.share()
    }

    /// Ends with nothing to say to its client.
    fn end(mut self, reason: EndReason) {
        self.base.reason = reason;
    }

    /// Serves the client to its end.
    pub(crate) fn run<C: ClientStream + 'static>(self, client: C) -> SessionTask<C> {
        SessionTask::new(self, client)
    }

    /// Records that the session is connected to `target`. Returns what a pump is made of.
    fn connected(&mut self, target: TargetRef, by: ConnectionUse) -> (&SessionBase, &TargetRef) {
        self.base.count_as(Some(by));
        (&self.base, self.target.insert(target))
    }

    /// Records what a pump has done.
    ///
    /// # Errors
    ///
    /// The end of the session, if nothing follows. The connection to the target is closed then,
    /// before the client's.
    fn note_stop(&mut self, stopped: Stopped, mut upstream: Upstream) -> Result<Step, SessionEnd> {
        let Stopped { reason, undelivered, after, bytes, commands, is_answered, uncarried } =
            stopped;
        self.base.add(bytes, commands);
        self.base.count_as(None);
        self.uncarried = uncarried;
        reset_if_lost(&mut upstream, reason);
        match after {
            Some(after) => Ok((after, upstream, undelivered)),
            None => {
                if is_answered {
                    upstream.close_answered();
                }
                Err((reason, undelivered))
            }
        }
    }

    /// Takes the step that follows a pump, if one does.
    fn follow<'a>(
        &'a mut self,
        step: Result<Step, SessionEnd>,
        client: &'a mut impl ClientStream,
    ) -> Pin<Box<dyn Future<Output = Result<Ready, SessionEnd>> + 'a>> {
        match step {
            Ok(step) => Box::pin(self.continue_with(step, client)),
            Err(ending) => Box::pin(ready(Err(ending))),
        }
    }

    /// Takes the step that follows a pump.
    async fn continue_with(
        &mut self,
        (after, upstream, undelivered): Step,
        client: &mut impl ClientStream,
    ) -> Result<Ready, SessionEnd> {
        let after = match (*after, self.target.take()) {
            (After::Rebalance(state), Some(here)) => {
                let moved = connect::rebalance(&self.base.context, (here, upstream), state);
                return while_visited(&self.base, Box::pin(moved)).await.ok_or(KILLED);
            }
            (After::Return(state), Some(here)) => {
                return Ok(self.return_to_shared(state, upstream, here));
            }
            (after, here) => {
                self.target = here;
                after
            }
        };
        let how = self.purpose(&after, &upstream);
        let next = self.continue_after(after, (upstream, how), client, undelivered);
        match or_killed(&self.base, Box::pin(next)).await {
            Ok(ready) => Ok(self.continued(ready)),
            Err(ending) => Err(self.not_continued(ending)),
        }
    }

    /// Closes the client's connection.
    async fn finish<C: ByteStream>(&mut self, client: &mut C, (reason, last_bytes): SessionEnd) {
        self.base.reason = reason;
        if finish::is_needed::<C>(reason) {
            self.base.stage.set(Stage::Closing);
            let finish = finish::finish(client, &last_bytes, reason);
            // An order changes nothing of why it ends.
            let _done = while_visited(&self.base, Box::pin(finish)).await;
        }
    }

    /// Notes why the session could not continue.
    fn not_continued(&mut self, ending: SessionEnd) -> SessionEnd {
        let failed = NotCarried::after_an_attempt(ending.0).map(Uncarried::new);
        self.uncarried = self.uncarried.take().or(failed);
        ending
    }

    /// Connects to another target in the state that the session was in, or has refusals for its
    /// client, to be sent after what is `undelivered`. Closes `upstream`.
    async fn continue_after(
        &self,
        after: After,
        (upstream, (purpose, returns_after)): (Upstream, (Purpose, Option<Duration>)),
        client: &mut impl ClientStream,
        undelivered: Vec<u8>,
    ) -> Result<Ready, SessionEnd> {
        let (reason, unsent, transaction, mut push) = match after {
            After::Rest(_) => {
                return Err((
                    invariant::report("a session rests that does not share"),
                    undelivered,
                ));
            }
            After::Carry(state)
            | After::Rebalance(state)
            | After::Return(state)
            | After::Promote(state, _) => {
                let mut unsent = Vec::new();
                match self.carry(state, upstream, client, (&mut unsent, purpose)).await {
                    Ok(Connected { target, upstream, replayed }) => {
                        let start = Start { early: unsent, replayed, returns_after };
                        return Ok((target, upstream, start));
                    }
                    Err((reason, push)) => (reason, unsent, false, push),
                }
            }
            After::LeaveClean => {
                if let Some(target) = &self.target {
                    self.give_up(upstream, target, true);
                }
                return Err((EndReason::ClientClosed, undelivered));
            }
            // Our last push comes after what is undelivered.
            After::Refuse { unsent, transaction } => {
                drop(upstream);
                (EndReason::HoldTimeout, unsent, transaction, undelivered)
            }
        };
        let mut refusals = refusals::refuse(client, unsent, reason, transaction).await;
        refusals.append(&mut push);
        Err((reason, refusals))
    }

    /// Whether the target did not end the idle connection, and another one is worth an attempt. A
    /// server ends one on which it has answered everything in order. Routers forget idle
    /// connections, and reset them or answer no more.
    fn was_forgotten(&self, reason: EndReason) -> bool {
        if !matches!(reason, EndReason::UpstreamReset | EndReason::UpstreamLost) {
            return false;
        }
        let now = self.base.context.counters.measured.elapsed();
        let before = self.reset_at.replace(NonZeroU64::new(now));
        let since = |before: NonZeroU64| Duration::from_micros(now.saturating_sub(before.get()));
        before.is_none_or(|before| since(before) >= RESETS_APART)
    }

    /// Carries the session to another target. On failure returns why it ends, and our last push.
    async fn carry(
        &self,
        state: CarryState,
        upstream: Upstream,
        client: &mut impl ClientStream,
        (unsent, purpose): (&mut Vec<u8>, Purpose),
    ) -> Result<Connected, SessionEnd> {
        let CarryState { ledger, unsent: requests, lost } = state;
        *unsent = requests;
        let from = self.target.as_ref();
        let old = Some(upstream).filter(|_| lost.is_none());
        let lost = lost.filter(|reason| !self.was_forgotten(*reason));
        let lost = from.map(|target| target.generation()).zip(lost);
        let (failed, reused, is_interrupt) = (None, Cell::new(false), false);
        let migration =
            Migration { ledger, from, lost, old, failed, purpose, reused, is_interrupt };
        let mode = Mode::Resume(migration);
        let mut connecting = Connecting::new(&self.base, client, unsent, mode);
        match connecting.connect().await {
            Ok(connected) => Ok(connected),
            Err(reason) => {
                let push = match &mut connecting.mode {
                    // The client has ended its direction, and may wait for the replies even so. A
                    // connection of its own would have taken its requests already.
                    Mode::Resume(migration)
                        if purpose.is_promotion() && reason == EndReason::HoldAbandoned =>
                    {
                        let (context, unsent) = (&self.base.context, &mut *connecting.unsent);
                        // In a box: a session that waits for a target has no memory for this.
                        let promoted = Box::pin(migration.promote_once(context, unsent)).await;
                        return promoted.ok_or((reason, Vec::new()));
                    }
                    Mode::Resume(migration) => {
                        pending::last_push(&migration.ledger, &self.base.context, reason)
                    }
                    Mode::Fresh => Vec::new(),
                };
                Err((reason, push))
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.base.count_as(None);
        let SessionBase { context, peer, bytes, commands, .. } = &self.base;
        context.counters.close(self.base.reason);
        first_bytes::record(&self.base);
        if let Some(uncarried) = &self.uncarried {
            context.counters.count_not_carried(uncarried.why);
        }
        let shared = &context.shared;
        let record = SessionRecord {
            service: &shared.service.name,
            client: *peer,
            target: self.target.as_deref(),
            reason: self.base.reason,
            lasted: self.base.age(),
            bytes: *bytes,
            commands: *commands,
            uncarried: self.uncarried.as_deref(),
        };
        record.log(shared.service.options.peek().lines);
        self.base.ticket.ends_by(self.base.reason.exit());
    }
}
