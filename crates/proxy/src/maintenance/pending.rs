//! Which client gets which maintenance notification, and when.
//!
//! A client agrees to notifications by a handshake, `CLIENT MAINT_NOTIFICATIONS`. It is forwarded
//! like any other request. If the server answers that it does not know the command, that one answer
//! is replaced by `+OK`: nothing is invented before the server has answered, so the order of
//! replies is the server's own, and a server that knows the command is left alone. The answer is
//! held back from the first byte of an error until it is complete.
//!
//! A client that agreed is sent `FAILING_OVER` when its requests begin to wait, and `FAILED_OVER`
//! when they no longer do; `MOVING` when this process is asked to stop. Each is sent at most once
//! per event, always between two whole replies: [`PendingPushes`] keeps those that are due, and the
//! pump takes them at the next frame boundary.
//!
//! The ledger does not see our own messages. They are frames that answer nothing, so it misses
//! nothing.
//!
//! Sessions that leave an ejected replica are not notified: a client library moves all of its
//! connections at such a message, not only the one that was meant.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use resp::{Direction, Ledger, MaintenanceHandshake, RefusedCommand, SessionState};

use crate::context::WorkerContext;
use crate::end_reason::EndReason;
use crate::invariant;
use crate::io::stream::{self, ByteStream};
use crate::maintenance::push::{self, MaintenancePush};
use crate::maintenance_kind::MaintenanceKind;

/// The longest refusal of the handshake that is held back. A real one has less than 100 bytes.
const LONGEST_REFUSAL: usize = 1024;

/// The part of the time until the cut that a client gets to move. The rest is for clients that were
/// asked to move and stay.
const MOVE_PART: f64 = 0.75;

/// The longest time that a client gets to move. It reconnects after half of it, and need not wait
/// for a long drain to end.
const LONGEST_MOVE: Duration = Duration::from_secs(10);

/// The pushes that one session still has to send, and the refusal it holds back.
#[derive(Debug, Default)]
pub(crate) struct PendingPushes {
    /// At most one of each kind.
    due: Vec<MaintenancePush>,
    /// The beginning of the server's refusal of the handshake; received and not delivered.
    pub(crate) refusal: Vec<u8>,
    /// The refused command that it answers, if it is not that of the handshake.
    refused: Option<RefusedCommand>,
}

/// The notifications that the client of this session agreed to; none if notifications were turned
/// off since.
pub(crate) fn agreement(ledger: &Ledger, worker: &WorkerContext) -> MaintenanceHandshake {
    let agreed = ledger.maintenance_handshake();
    let is_on = agreed != MaintenanceHandshake::Off
        && worker.shared.service.options.peek().maintenance_push;
    if is_on { agreed } else { MaintenanceHandshake::Off }
}

/// The push that asks this client to move because the process is stopping, and the seconds that it
/// gets for that. `None` if the client cannot be asked.
pub(crate) fn moving(ledger: &Ledger, worker: &WorkerContext) -> Option<(u64, MaintenancePush)> {
    let options = worker.shared.service.options.now();
    let to = match agreement(ledger, worker) {
        MaintenanceHandshake::Off => return None,
        MaintenanceHandshake::WithoutAddress => None,
        MaintenanceHandshake::On => Some(options.moving_to.clone()?),
    };
    let time = worker.listener.drain.time_left()?.mul_f64(MOVE_PART).min(LONGEST_MOVE);
    let seconds = push::whole_seconds(time);
    let number = *worker.listener.moving.get_or_init(push::event_number);
    Some((seconds, MaintenancePush::Moving { number, seconds, to }))
}

/// The push that a session must send before it ends for `reason`: `FAILED_OVER` if its client got
/// `FAILING_OVER`, because for this client the failover is over. node-redis counts the failovers
/// that were announced to it, across connections.
pub(crate) fn last_push(ledger: &Ledger, worker: &WorkerContext, reason: EndReason) -> Vec<u8> {
    let possible = ledger.at_boundary(Direction::Reply) && reason.reaches_client();
    if !ledger.failover_announced()
        || !possible
        || agreement(ledger, worker) == MaintenanceHandshake::Off
    {
        return Vec::new();
    }
    let push = MaintenancePush::FailedOver { number: push::event_number() };
    worker.counters.notices.increment(push.kind() as usize);
    push.encode().into_bytes()
}

/// Sends `FAILING_OVER` to a client between two connections to Redis, unless it has it already. All
/// its replies are delivered, so no frame is interrupted. `FAILED_OVER` follows when the session is
/// connected again.
///
/// # Errors
///
/// Why the session has to end: the client is gone, or does not read.
pub(crate) async fn announce_failover(
    client: &mut impl ByteStream,
    ledger: &mut Ledger,
    worker: &WorkerContext,
    until: Instant,
) -> Result<(), EndReason> {
    if ledger.failover_announced() || agreement(ledger, worker) == MaintenanceHandshake::Off {
        return Ok(());
    }
    let seconds = push::whole_seconds(worker.shared.service.options.now().hold_timeout);
    let push = MaintenancePush::FailingOver { number: push::event_number(), seconds }.encode();
    // The socket takes so few bytes at once unless the client reads nothing: then it cannot be
    // notified at all.
    let written = poll_fn(|cx| Poll::Ready(client.poll_write(cx, push.as_bytes()))).await;
    let written = match written {
        Poll::Pending if client.has_begun_write() => 0,
        Poll::Pending => return Ok(()),
        Poll::Ready(written) => written.map_err(|_| EndReason::HoldAbandoned)?,
    };
    ledger.set_failover_announced(true);
    worker.counters.notices.increment(MaintenanceKind::FailingOver as usize);
    let rest =
        invariant::rest_after(push.as_bytes(), written).map_err(|_| EndReason::InternalError)?;
    match tokio::time::timeout_at(until.into(), stream::write_all(client, rest)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(EndReason::HoldAbandoned),
    }
}

impl PendingPushes {
    /// Whether there is anything to send or to hold back.
    pub(crate) fn is_needed(&self) -> bool {
        !self.due.is_empty() || !self.refusal.is_empty()
    }

    /// Makes a push due, in the place of an earlier one of its kind.
    pub(crate) fn announce(&mut self, push: MaintenancePush) {
        self.due.retain(|it| it.kind() != push.kind());
        self.due.push(push);
    }

    fn is_due(&self, kind: MaintenanceKind) -> bool {
        self.due.iter().any(|it| it.kind() == kind)
    }

    /// Cancels a push that was not sent yet. Whether there was one.
    fn cancel(&mut self, kind: MaintenanceKind) -> bool {
        let before = self.due.len();
        self.due.retain(|it| it.kind() != kind);
        self.due.len() < before
    }

    /// The push that announces that the gate has closed or opened, once per change. `None` if it is
    /// due or sent already. If the opposite is due and not sent yet, that is cancelled and nothing
    /// is announced.
    pub(crate) fn for_gate(
        pending: Option<&mut Self>,
        closed: bool,
        ledger: &Ledger,
        worker: &WorkerContext,
    ) -> Option<MaintenancePush> {
        let (kind, opposite) = match closed {
            true => (MaintenanceKind::FailingOver, MaintenanceKind::FailedOver),
            false => (MaintenanceKind::FailedOver, MaintenanceKind::FailingOver),
        };
        let cancelled_or_due =
            pending.is_some_and(|pending| pending.cancel(opposite) || pending.is_due(kind));
        if cancelled_or_due || closed == ledger.failover_announced() {
            return None;
        }
        let number = push::event_number();
        Some(if closed {
            let hold_timeout = worker.shared.service.options.now().hold_timeout;
            MaintenancePush::FailingOver { number, seconds: push::whole_seconds(hold_timeout) }
        } else {
            MaintenancePush::FailedOver { number }
        })
    }

    /// Whether part of the server's refusal is held back.
    pub(crate) fn is_holding_back(&self) -> bool {
        !self.refusal.is_empty()
    }

    /// The error that follows answers a command that was refused before it reached the server.
    pub(crate) fn replace_next(&mut self, refused: Option<RefusedCommand>) {
        self.refused = self.refused.or(refused);
    }

    /// Holds back a piece of the server's refusal of the handshake, which the ledger has seen.
    /// Returns the part that is to be delivered.
    pub(crate) fn hold_back(
        &mut self,
        piece: &[u8],
        ledger: &mut Ledger,
        worker: &WorkerContext,
    ) -> Vec<u8> {
        let whole = ledger.at_boundary(Direction::Reply);
        self.refusal.extend_from_slice(piece);
        if !whole
            && self.refusal.len() <= LONGEST_REFUSAL
            && ledger.session_state() != SessionState::Opaque
        {
            return Vec::new();
        }
        let refusal = std::mem::take(&mut self.refusal);
        if let Some(refused) = self.refused.take().filter(|_| whole) {
            return refused.reply().into_bytes();
        }
        let enabled = worker.shared.service.options.now().maintenance_push;
        if whole && enabled && push::is_unknown_command(&refusal) && ledger.accept_handshake() {
            worker.counters.maintenance_handshakes.increment();
            return b"+OK\r\n".to_vec();
        }
        refusal
    }

    /// Takes the pushes that are due, if the replies are at a frame boundary.
    pub(crate) fn take_due(&mut self, ledger: &mut Ledger, worker: &WorkerContext) -> Vec<u8> {
        if !self.refusal.is_empty() || self.due.is_empty() {
            return Vec::new();
        }
        if ledger.maintenance_handshake() == MaintenanceHandshake::Off {
            // The client went back to RESP2, or left the protocol.
            self.due.clear();
        }
        if !ledger.at_boundary(Direction::Reply) {
            return Vec::new();
        }
        let mut bytes = Vec::new();
        for push in self.due.drain(..) {
            match push.kind() {
                MaintenanceKind::Moving => {}
                kind => ledger.set_failover_announced(kind == MaintenanceKind::FailingOver),
            }
            worker.counters.notices.increment(push.kind() as usize);
            bytes.extend_from_slice(push.encode().as_bytes());
        }
        bytes
    }
}
