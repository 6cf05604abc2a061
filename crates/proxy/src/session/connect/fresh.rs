//! The steps of mode fresh: the first dial, and the pause that follows a failed one.

use std::time::{Duration, Instant};

use target::{Generation, TargetRef};

use super::{Connecting, report_failure};
use crate::dial_permits::DialPermit;
use crate::end_reason::EndReason;
use crate::io::stream::ClientStream;
use crate::io::upstream::Upstream;
use crate::service::DialFailure;
use crate::session::carry::replay::Failed;
use crate::session::dial::{Dial, LateOptions, superseded};
use crate::session::hold;
use crate::session::report::Stage;

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

impl<C: ClientStream> Connecting<'_, C> {
    /// The first connection of a new session.
    pub(super) async fn dial(
        &mut self,
        target: &TargetRef,
        begin: Instant,
    ) -> Result<Upstream, Failed> {
        let (context, ticket) = (self.context, self.ticket);
        let options = &context.shared.service.options;
        if options.share() {
            // The first request opens a connection, or joins one.
            return Ok(Upstream::sharing());
        }
        let dial = match Dial::begin(target, &options.peek(), LateOptions::Yes) {
            Ok(dial) if dial.is_done() => return Ok(dial.into_upstream()),
            begun => begun,
        };
        // A pool may return to an earlier target; a writer never does.
        let kept = self.attempts.take().filter(|it| it.generation >= target.generation());
        let attempts = self.attempts.insert(kept.unwrap_or_else(|| Attempts {
            generation: target.generation(),
            until: self.until.max(begin + options.peek().connect_timeout),
            pause: FIRST_PAUSE,
        }));
        let dial = dial.map_err(Failed::Dial)?;
        tokio::select! {
            biased;
            dialled = dial.finish(target, context, attempts.until) => dialled.map_err(Failed::Dial),
            () = superseded(context, target, ticket) => Err(Failed::Superseded),
        }
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
        // A handshake costs as much as a hundred requests.
        let in_line = had_permit || failed == Failed::Dial(DialFailure::Tls);
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
                () = self.ticket.cut() => return Err(EndReason::Cut),
                () = changed => {}
                () = tokio::time::sleep(attempts.pause) => {}
            }
            attempts.pause = (attempts.pause * 2).min(MAX_PAUSE);
        }
        if in_line {
            let (permits, until) = (&self.context.dial_permits, self.until);
            self.base.stage.set(Stage::InLine);
            let permit = hold::permit(self.client, self.unsent, permits, self.ticket, until);
            self.permit = Some(match Box::pin(permit).await {
                Err(EndReason::HoldTimeout) if !had_permit => return Err(failed.end_reason()),
                permit => permit?,
            });
        }
        Ok(())
    }
}
