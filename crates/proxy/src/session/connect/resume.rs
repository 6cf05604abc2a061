//! The steps of a session that resumes: why the connection was lost, the permit for the next one,
//! and what follows a failed attempt.

use std::pin::pin;
use std::time::Instant;

use target::TargetRef;

use super::{Connecting, report_failure};
use crate::end_reason::EndReason;
use crate::io::stream::ClientStream;
use crate::maintenance::pending;
use crate::session::carry::kick;
use crate::session::carry::replay::Failed;
use crate::session::hold::{CHECK_INTERVAL, HeldClient};
use crate::session::report::Stage;

impl<C: ClientStream> Connecting<'_, C> {
    /// Lets sessions with a request go first, unless this is one.
    pub(super) async fn yield_to_requests(&self) {
        if self.held.unsent.is_empty() && !self.held.client.is_readable() {
            self.context.dial_permits.yield_to_requests().await;
        }
    }

    /// If a replica ended the connection: returns when it is known that it did not mean this
    /// session.
    pub(super) async fn examine_loss(&mut self) -> Result<(), EndReason> {
        let Some(migration) = &mut self.migration else { return Ok(()) };
        let replica = migration.from.filter(|from| from.replica_status().is_some());
        if let (Some(from), Some((_, reason))) = (replica, migration.lost) {
            migration.lost = None;
            kick::decide(&mut self.held, from, reason).await?;
        }
        Ok(())
    }

    /// Waits for a permit to resume, and before that at the gate if there is no target.
    pub(super) async fn permit_to_resume(&mut self, at_gate: bool) -> Result<(), EndReason> {
        let Some(migration) = &mut self.migration else { return Ok(()) };
        let stage = &self.held.base.stage;
        if at_gate {
            // A failover is under way: whatever ended the connection is part of it.
            (migration.lost, migration.old, migration.failed) = (None, None, None);
            stage.set(Stage::AtGate);
            // In a box: a session that waits for its permit has no memory for this.
            Box::pin(self.announce_failover()).await?;
            Box::pin(self.held.wait()).await?;
            self.yield_to_requests().await;
        }
        stage.set(Stage::InLine);
        let Some(migration) = &mut self.migration else { return Ok(()) };
        let permit = {
            let mut permit = pin!(self.held.permit());
            // The old connection is closed when it is this session's turn, or when that takes long.
            let old = migration.old.take();
            let first = match old.is_some() {
                true => tokio::time::timeout(CHECK_INTERVAL, permit.as_mut()).await.ok(),
                false => None,
            };
            match first {
                Some(permit) => permit,
                None => {
                    drop(old);
                    permit.await
                }
            }
        };
        self.permit = Some(match permit {
            Err(EndReason::HoldTimeout) => {
                return Err(migration.failed.unwrap_or(EndReason::HoldTimeout));
            }
            permit => permit?,
        });
        Ok(())
    }

    /// Decides how a session resumes after a failed attempt, or that it does not.
    pub(super) async fn after_failed_resume(
        &mut self,
        target: &TargetRef,
        failed: Failed,
    ) -> Result<(), EndReason> {
        let Some(migration) = &mut self.migration else { return Ok(()) };
        if failed == Failed::Refused {
            return Err(EndReason::CarryRefused);
        }
        // The target does not answer, so it did not end this session on purpose.
        migration.lost = None;
        report_failure(self.context, target, failed);
        let reason = failed.end_reason();
        // A failure of one replica says nothing about another one.
        let permit = self.permit.take();
        if self.context.shared.service.route.has_alternative_to(target) {
            drop(permit);
        } else {
            migration.failed = Some(reason);
            if let Some(permit) = permit {
                permit.failed();
            }
        }
        self.announce_failover().await?;
        if Instant::now() >= self.held.until { Err(reason) } else { Ok(()) }
    }

    /// Tells the client, unless it is behind with its replies.
    async fn announce_failover(&mut self) -> Result<(), EndReason> {
        let HeldClient { client, until, .. } = &mut self.held;
        match &mut self.migration {
            Some(migration) if !migration.is_behind => {
                let ledger = &mut migration.ledger;
                pending::announce_failover(*client, ledger, self.context, *until).await
            }
            _ => Ok(()),
        }
    }
}
