//! One session from its ticket to its close.
//!
//! A straight line: get to a target (waiting at the gate where there is none), pump, say goodbye;
//! and in between, if the points move and the session can go on, another target. Whatever happens
//! on it, the end is the `Drop` of the session: there and nowhere else it is counted, logged, and
//! given out of the drain. So a panic is counted, too.
//!
//! Deliberately absent: a second place that knows the connection to the target. It is opened,
//! checked and owned in [`reach`](Session::reach)'s caller, which replaces it by what
//! [`carry`](crate::session::carry) brings.

pub(crate) mod access_log;
pub(crate) mod answers;
pub(crate) mod broken;
pub(crate) mod carry;
pub(crate) mod dial;
pub(crate) mod dial_permits;
pub(crate) mod end_reason;
pub(crate) mod finish;
pub(crate) mod hold;
pub(crate) mod idle;
pub(crate) mod kick;
pub(crate) mod leave;
pub(crate) mod not_carried;
pub(crate) mod pump;
pub(crate) mod resume;

#[cfg(test)]
pub(crate) mod carry_blanks;
#[cfg(test)]
pub(crate) mod carry_client;
#[cfg(test)]
pub(crate) mod carry_model;
#[cfg(test)]
mod carry_property_tests;
#[cfg(test)]
pub(crate) mod carry_testing;
#[cfg(test)]
mod carry_tests;
#[cfg(test)]
mod dial_permits_tests;
#[cfg(test)]
mod idle_tests;
#[cfg(test)]
mod pool_tests;
#[cfg(test)]
pub(crate) mod proof_tests;
#[cfg(test)]
mod pump_tests;
#[cfg(test)]
mod replica_tests;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod target_tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use drain::Ticket;
use target::{Generation, Target, TargetRef};

use crate::address::Peer;
use crate::context::WorkerContext;
use crate::io::stream::SocketStream;
use crate::limits::Admission;
use crate::maintenance::notice;
use crate::service::{DialFailure, Hint, Service};
use crate::session::carry::{CarryState, Connected, MigratingSession, is_overtaken, overtaken};
use crate::session::dial_permits::Turn;
use crate::session::end_reason::EndReason;
use crate::session::hold::Held;
use crate::session::not_carried::{NotCarried, Uncarried};
use crate::session::pump::{After, Pump, Start, Stopped};
use crate::session::resume::Followed;

/// The first pause after a failed dial; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// A session that is moved to make shares equal is not served for this long at most.
const MOVE_WITHIN: Duration = Duration::from_millis(if cfg!(test) { 30_000 } else { 250 });

/// A client that was let in.
#[derive(Debug)]
pub(crate) struct Session {
    peer: Peer,
    context: Arc<WorkerContext>,
    ticket: Ticket,
    _admission: Admission,
    reason: EndReason,
    target: Option<TargetRef>,
    bytes: (u64, u64),
    commands: u32,
    /// It lost its server and could not go on.
    uncarried: Option<Box<Uncarried>>,
    /// When it began, in microseconds of its worker's.
    since: u64,
}

/// A target, and the connection to it.
type Connection = (TargetRef, SocketStream);

/// The same, and what is pumped to begin with.
type Arrived = (TargetRef, SocketStream, Start);

/// Why a session ends, and what its client is still told.
type Goodbye = (EndReason, Vec<u8>);

/// How far the attempts to reach one target have come.
struct Attempts {
    generation: Generation,
    /// When to give up. One attempt never takes longer than `connect_timeout`.
    until: Instant,
    pause: Duration,
}

impl Session {
    /// Counts the client in.
    pub(crate) fn new(peer: Peer, context: Arc<WorkerContext>, admission: Admission) -> Self {
        context.counters.accepted.increment();
        let (ticket, since) = (context.drain.ticket(), context.counters.measured.elapsed());
        let (reason, target, bytes, commands) = (EndReason::Aborted, None, (0, 0), 0);
        Self {
            peer,
            context,
            ticket,
            _admission: admission,
            reason,
            target,
            bytes,
            commands,
            uncarried: None,
            since,
        }
    }

    /// Serves the client to its end.
    ///
    /// A session that flows is kept small: what comes before and behind the pump is in boxes of its
    /// own, and nothing that only those need is borrowed by them, since whatever is borrowed here
    /// stays in the future to the end.
    // Not an async function, because the future of one holds what it is given twice.
    #[allow(clippy::manual_async_fn)]
    pub(crate) fn run(mut self, mut client: SocketStream) -> impl Future<Output = ()> {
        async move {
            let (reason, words) = 'served: {
                let (mut target, mut upstream, mut start) =
                    match Box::pin(self.arrive(&mut client)).await {
                        Ok(arrived) => arrived,
                        Err(goodbye) => break 'served goodbye,
                    };
                loop {
                    let target_now = &*self.target.insert(target);
                    let Stopped {
                        reason,
                        undelivered,
                        after,
                        bytes: (bytes_in, bytes_out),
                        commands,
                        uncarried,
                    } = Pump::new((&mut client, &mut upstream), &self.context, target_now, start)
                        .run(&self.ticket)
                        .await;
                    self.bytes = (self.bytes.0 + bytes_in, self.bytes.1 + bytes_out);
                    self.commands = self.commands.saturating_add(commands);
                    self.uncarried = uncarried;
                    if matches!(
                        reason,
                        EndReason::Fenced | EndReason::ReplyDropped | EndReason::TargetSilent
                    ) {
                        // What a cut-off master has not acknowledged would be sent again when it
                        // comes back.
                        upstream.reset_on_close();
                    }
                    let after = match (after.map(|after| *after), self.target.take()) {
                        (Some(After::Move(luggage)), Some(here)) => {
                            (target, upstream, start) =
                                Box::pin(self.move_over((here, upstream), luggage)).await;
                            continue;
                        }
                        (after, here) => {
                            self.target = here;
                            after
                        }
                    };
                    let Some(after) = after else {
                        // The connection to the target ends here, before the goodbye to the client.
                        drop(upstream);
                        break 'served (reason, undelivered);
                    };
                    match Box::pin(self.go_on(after, upstream, &mut client, undelivered)).await {
                        Ok(arrived) => (target, upstream, start) = arrived,
                        Err(goodbye) => {
                            let after_an_attempt =
                                NotCarried::after_an_attempt(goodbye.0).map(Uncarried::new);
                            self.uncarried = self.uncarried.take().or(after_an_attempt);
                            break 'served goodbye;
                        }
                    }
                }
            };
            self.reason = reason;
            finish::finish(&mut client, &words, self.reason).await;
        }
    }

    /// Gets to the first target, or has answers for the client.
    async fn arrive(&self, client: &mut SocketStream) -> Result<Arrived, Goodbye> {
        let mut early = Vec::new();
        match self.reach(client, &mut early).await {
            Ok((target, upstream)) => Ok((target, upstream, Start::from(early))),
            Err(reason) => {
                let mut words = answers::last_words(client, early, reason, false).await;
                if words.is_empty() {
                    words = answers::greeting(reason);
                }
                Err((reason, words))
            }
        }
    }

    /// Gets to a target that may be used at the moment this returns.
    async fn reach(
        &self,
        client: &mut SocketStream,
        early: &mut Vec<u8>,
    ) -> Result<Connection, EndReason> {
        let ticket = &self.ticket;
        let WorkerContext { shared, counters, .. } = &*self.context;
        let service = &shared.service;
        let options = &service.options;
        let hold_until = Instant::now() + options.now().hold_timeout;
        let mut attempts: Option<Attempts> = None;
        let mut turn: Option<Turn<'_>> = None;
        loop {
            let Some(target) = service.route.usable_target() else {
                // Whoever waited has waited with others: they go one after the other.
                drop(turn.take());
                turn = Some(self.wait_at_the_gate(client, early, ticket, hold_until).await?);
                continue;
            };
            // A pool may lead to an earlier target again; the points never do.
            let attempt = attempts.take().filter(|it| it.generation >= target.generation());
            let attempt = attempt.unwrap_or_else(|| Attempts {
                generation: target.generation(),
                until: hold_until.max(Instant::now() + options.now().connect_timeout),
                pause: FIRST_PAUSE,
            });
            let begin = Instant::now();
            let dialled = tokio::select! {
                biased;
                dialled = dial::connect(target.addr(), options, attempt.until) => dialled,
                () = overtaken(&self.context, &target, ticket) => {
                    // A dead master swallows the dial, and the points have moved on: no use in
                    // waiting for its timeout.
                    if ticket.is_cut() {
                        return Err(EndReason::Cut);
                    }
                    continue;
                }
            };
            match dialled {
                Ok(upstream) => {
                    counters.dials.increment();
                    counters.dialled_in.record(begin.elapsed());
                    // The points may have moved while we were dialling: then this connection leads
                    // nowhere.
                    if !is_overtaken(&target) && !target.is_closed() {
                        target.record_use();
                        return Ok((target, upstream));
                    }
                }
                Err(failure) => {
                    self.note_failure(&target, failure);
                    // Given back before the pause, in which it would keep others from their
                    // attempt.
                    let paced = turn.take().map(Turn::failed).is_some();
                    attempts = Some(self.after_failure(attempt, &target, failure, ticket).await?);
                    if paced {
                        let turns = &self.context.dial_permits;
                        turn = Some(
                            Box::pin(hold::turn(client, early, turns, ticket, hold_until)).await?,
                        );
                    }
                }
            }
        }
    }

    /// Gets to another target, in the state that the session was in, or has answers for its client
    /// behind what is `undelivered`. The connection to the target before is closed on the way.
    async fn go_on(
        &self,
        after: After,
        upstream: SocketStream,
        client: &mut SocketStream,
        undelivered: Vec<u8>,
    ) -> Result<Arrived, Goodbye> {
        let (reason, unsent, transaction, mut word) = match after {
            After::Carry(CarryState { ledger, mut unsent, lost })
            | After::Move(CarryState { ledger, mut unsent, lost }) => {
                let from = self.target.as_ref();
                let lost = from.map(|target| target.generation()).zip(lost);
                let (context, ticket, line) = (&*self.context, &self.ticket, &mut *client);
                let old = Some(upstream).filter(|_| lost.is_none());
                let mut passenger = MigratingSession {
                    context,
                    ticket,
                    client: line,
                    unsent: &mut unsent,
                    ledger,
                    from,
                    lost,
                    old,
                };
                match passenger.carry().await {
                    Ok(Connected { target, upstream, followed }) => {
                        return Ok((
                            target,
                            upstream,
                            Start { early: unsent, followed: Some(followed) },
                        ));
                    }
                    Err(reason) => {
                        passenger.old = None;
                        let word = notice::last_word(&passenger.ledger, context, reason);
                        (reason, unsent, false, word)
                    }
                }
            }
            // Our last word is behind what is undelivered.
            After::Refuse { unsent, transaction } => {
                drop(upstream);
                (EndReason::HoldTimeout, unsent, transaction, undelivered)
            }
        };
        let mut words = answers::last_words(client, unsent, reason, transaction).await;
        words.append(&mut word);
        Err((reason, words))
    }

    /// Gets to a replica with fewer sessions, or back to where it is: nothing is given up before
    /// the other connection stands, and one attempt is all.
    async fn move_over(&self, (here, upstream): Connection, luggage: CarryState) -> Arrived {
        let CarryState { ledger, unsent: early, .. } = luggage;
        let WorkerContext { shared, counters, .. } = &*self.context;
        let Service { route, options, .. } = &*shared.service;
        if let Some(there) =
            route.usable_target().filter(|there| here.has_more_sessions_than(there))
        {
            let resumed =
                resume::resume(&there, options, &ledger, Instant::now() + MOVE_WITHIN).await;
            if let Some((upstream, followed)) =
                resumed.ok().filter(|_| !is_overtaken(&there) && !there.is_closed())
            {
                counters.dials.increment();
                counters.rebalanced.increment();
                there.record_use();
                return (there, upstream, Start { early, followed: Some(followed) });
            }
        }
        let followed = Followed { ledger: *ledger, messages: Vec::new() };
        (here, upstream, Start { early, followed: Some(Box::new(followed)) })
    }

    /// Waits until a target may be used, if there is a place to wait, and then for the turn to dial
    /// it.
    async fn wait_at_the_gate(
        &self,
        client: &mut SocketStream,
        early: &mut Vec<u8>,
        ticket: &Ticket,
        until: Instant,
    ) -> Result<Turn<'_>, EndReason> {
        let WorkerContext { shared, counters, dial_permits: turns, .. } = &*self.context;
        let _place = shared.held.take().ok_or(EndReason::HoldFull)?;
        let _held = Held::new(counters);
        // In a box: a session that flows does not carry the room for this.
        Box::pin(async move {
            hold::wait(client, early, &shared.service.route, ticket, until).await?;
            hold::turn(client, early, turns, ticket, until).await
        })
        .await
    }

    fn note_failure(&self, target: &Target, failure: DialFailure) {
        self.context.counters.dial_failed(failure);
        // Out of descriptors or ports here says nothing about the target.
        if !failure.is_ours() {
            target.defer();
            self.context.counters.hints.increment();
            self.context.shared.service.hints.hint(target, Hint::DialFailed(failure));
        }
    }

    /// Pauses before the next attempt, or gives up. A master that does not take connections is
    /// about to be replaced or to come back, so its client waits for as long as any other client
    /// may be held; `connect_timeout` is for one attempt.
    async fn after_failure(
        &self,
        mut attempt: Attempts,
        target: &Target,
        failure: DialFailure,
        ticket: &Ticket,
    ) -> Result<Attempts, EndReason> {
        let route = &self.context.shared.service.route;
        if failure.is_ours() {
            return Err(EndReason::Exhausted);
        }
        // In a box: a session that flows does not carry the room for this.
        let moved = Box::pin(route.changed());
        if route.has_alternative_to(target) {
            // The points have moved, or are about to, or there is another replica: what failed is
            // not what counts.
            return Ok(attempt);
        }
        if Instant::now() + attempt.pause >= attempt.until {
            return Err(EndReason::DialFailed);
        }
        tokio::select! {
            () = ticket.cut() => return Err(EndReason::Cut),
            () = moved => {}
            () = tokio::time::sleep(attempt.pause) => {}
        }
        attempt.pause = (attempt.pause * 2).min(LONGEST_PAUSE);
        Ok(attempt)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.context.counters.close(self.reason);
        if let Some(uncarried) = &self.uncarried {
            self.context.counters.count_not_carried(uncarried.why);
        }
        let shared = &self.context.shared;
        let ended = access_log::Session {
            service: &shared.service.name,
            client: self.peer,
            target: self.target.as_deref(),
            reason: self.reason,
            lasted: Duration::from_micros(
                self.context.counters.measured.elapsed().saturating_sub(self.since),
            ),
            bytes: self.bytes,
            commands: self.commands,
            uncarried: self.uncarried.as_deref(),
        };
        ended.tell(shared.service.options.now().lines);
        self.ticket.ends_by(self.reason.exit());
    }
}
