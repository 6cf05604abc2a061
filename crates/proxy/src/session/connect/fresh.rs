//! The steps of a new session: the first dial, and the pause that follows a failed one.

use std::time::{Duration, Instant};

use target::{Generation, TargetRef};

use super::{Connecting, report_failure};
use crate::dial_permits::DialPermit;
use crate::end_reason::EndReason;
use crate::io::stream::ClientStream;
use crate::runtime::tasks;
use crate::service::{DialFailure, Service};
use crate::session::carry::replay::{Failed, Server};
use crate::session::dial::{Dial, may_be_used, superseded};
use crate::session::pump::Start;
use crate::session::refusals::Refused;
use crate::session::report::Stage;
use crate::session::upstream::Upstream;
use crate::session::{Ready, Session, SessionEnd, first_bytes};

/// The first pause after a failed dial; each pause is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// The state of the attempts of a new session to reach one target.
pub(super) struct Attempts {
    generation: Generation,
    /// When to give up on it. One attempt never takes longer than `connect_timeout`.
    until: Instant,
    pause: Duration,
}

/// The first dial of a session, begun before there is a future that waits for it. Within one host
/// the connection is established when the call returns, and no such future is needed.
#[derive(Debug)]
pub(in crate::session) struct FirstDial {
    /// Until it is taken.
    target: Option<TargetRef>,
    dial: Result<Dial, DialFailure>,
}

impl FirstDial {
    /// Its target, once.
    pub(super) fn take_target(&mut self) -> Option<TargetRef> {
        self.target.take()
    }
}

impl Session {
    /// Connects to the first target, if nothing has to be waited for.
    ///
    /// # Errors
    ///
    /// The connection is not established yet, or may not be used; `None` if no dial was begun.
    pub(in crate::session) fn connect_at_once(&self) -> Result<Ready, Option<FirstDial>> {
        let context = &self.base.context;
        let Service { route, options, .. } = &*context.shared.service;
        if context.silent_clients.are_frequent() {
            return Err(None);
        }
        let target = route.usable_target().ok_or(None)?;
        let upstream = if options.peek().shares() {
            // The first request opens a connection, or joins one.
            if !may_be_used(&target) {
                return Err(None);
            }
            Upstream::sharing()
        } else {
            let begin = Instant::now();
            match Dial::begin(&target, &options.peek()) {
                Ok(dial) if dial.is_done() && !target.is_unproved() && may_be_used(&target) => {
                    context.counters.dials.increment();
                    context.counters.dial_time.record(begin.elapsed());
                    dial.into_upstream()
                }
                dial => return Err(Some(FirstDial { target: Some(target), dial })),
            }
        };
        target.record_use();
        Ok((target, upstream, Start::default()))
    }

    /// Connects to the first target, or has refusals for the client.
    pub(super) async fn connect_first(
        &self,
        client: &mut impl ClientStream,
        begun: Option<FirstDial>,
    ) -> Result<Ready, SessionEnd> {
        if begun.is_none() {
            first_bytes::await_if_rare(&self.base, client).await?;
        }
        let mut early = Vec::new();
        let connected = {
            let mut connecting = Connecting::new(&self.base, client, &mut early, None);
            connecting.begun = begun;
            connecting.connect().await
        };
        match connected {
            Ok((target, upstream, _)) => {
                // Established sessions go first, which send requests.
                if self.base.context.silent_clients.are_frequent() {
                    tasks::yield_now().await;
                }
                Ok((target, upstream, Start::from(early)))
            }
            Err(reason) => {
                let refused = Some(Refused { unsent: early, transaction: false });
                Err(SessionEnd { refused, ..reason.into() })
            }
        }
    }
}

impl<C: ClientStream> Connecting<'_, C> {
    /// The first connection of a new session.
    pub(super) async fn dial(
        &mut self,
        target: &TargetRef,
        begin: Instant,
    ) -> Result<Upstream, Failed> {
        let (context, ticket) = (self.context, &self.held.base.ticket);
        let options = &context.shared.service.options;
        if options.peek().shares() {
            // The first request opens a connection, or joins one.
            return Ok(Upstream::sharing());
        }
        let begun = match self.begun.take() {
            Some(first) => first.dial,
            None => Dial::begin(target, &options.peek()),
        };
        let dial = match begun {
            Ok(dial) if dial.is_done() && !target.is_unproved() => return Ok(dial.into_upstream()),
            begun => begun,
        };
        // A pool may return to an earlier target; a writer never does.
        let kept = self.attempts.take().filter(|it| it.generation >= target.generation());
        let attempts = self.attempts.insert(kept.unwrap_or_else(|| Attempts {
            generation: target.generation(),
            until: self.held.until.max(begin + options.peek().connect_timeout),
            pause: FIRST_PAUSE,
        }));
        let dial = dial.map_err(Failed::Dial)?;
        // With TLS 1.3 a server refuses the certificate of its client after the handshake, in place
        // of its first answer.
        let is_to_answer = target.is_unproved() || options.peek().target_tls.is_some();
        let deadline = attempts.until.min(begin + options.peek().connect_timeout);
        let dialled = async {
            let dialled = dial.finish(target, context, deadline).await;
            let mut upstream = dialled.map_err(Failed::Dial)?;
            if is_to_answer {
                Server { target, context, deadline }.answers_on(&mut upstream).await?;
            }
            Ok(upstream)
        };
        let dialled = tokio::select! {
            biased;
            // In a box: a session whose dial is done has no memory for this.
            dialled = Box::pin(dialled) => dialled?,
            () = superseded(context, target, ticket) => return Err(Failed::Superseded),
        };
        if is_to_answer {
            target.record_proof();
            if let Some(permit) = self.permit.take() {
                permit.succeeded();
            }
        }
        Ok(dialled)
    }

    /// Pauses before the next attempt of a new session, or gives up. A master that does not accept
    /// connections is about to be replaced or to come back, so the client waits for as long as any
    /// client may be held; `connect_timeout` is for one attempt.
    pub(super) async fn after_failed_dial(
        &mut self,
        target: &TargetRef,
        failed: Failed,
    ) -> Result<(), EndReason> {
        report_failure(self.context, target, failed);
        // Given back before the pause, in which it would keep other sessions from their attempts.
        let had_permit = self.permit.take().map(DialPermit::failed).is_some();
        // A handshake costs as much as a hundred requests, and a server that says that it cannot
        // serve is not to be asked by all sessions at once.
        let is_cheap = matches!(failed, Failed::Dial(failure) if failure != DialFailure::Tls);
        let in_line = had_permit || !is_cheap;
        if failed.is_local() {
            return Err(failed.end_reason());
        }
        let route = &self.context.shared.service.route;
        // In a box: a session that dials has no memory for this.
        let changed = Box::pin(route.changed());
        // If the target is about to change, or there is another replica, this failure says nothing
        // about the next attempt.
        if let Some(attempts) = &mut self.attempts
            && !route.has_alternative_to(target)
        {
            if Instant::now() + attempts.pause >= attempts.until {
                return Err(failed.end_reason());
            }
            tokio::select! {
                () = self.held.base.ticket.cut() => return Err(EndReason::Cut),
                () = changed => {}
                () = tokio::time::sleep(attempts.pause) => {}
            }
            attempts.pause = (attempts.pause * 2).min(MAX_PAUSE);
        }
        if in_line {
            self.held.base.stage.set(Stage::InLine);
            self.permit = Some(match Box::pin(self.held.permit()).await {
                Err(EndReason::HoldTimeout) if !had_permit => return Err(failed.end_reason()),
                permit => permit?,
            });
        }
        Ok(())
    }
}
