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
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use resp::{Direction, Ledger, MaintenanceHandshake, RefusedCommand};

use crate::context::WorkerContext;
use crate::end_reason::EndReason;
use crate::invariant;
use crate::io::buffer::KeptBytes;
use crate::io::stream::{self, ByteStream};
use crate::maintenance_kind::MaintenanceKind;

/// The longest refusal of the handshake that is held back. A real one has less than 100 bytes.
const LONGEST_REFUSAL: usize = 1024;

/// The part of the time until the cut that a client gets to move. The rest is for clients that were
/// asked to move and stay.
const MOVE_PART: f64 = 0.75;

/// The longest time that a client gets to move. It reconnects after half of it, and need not wait
/// for a long drain to end.
const LONGEST_MOVE: Duration = Duration::from_secs(10);

/// Bytes that have to go between the replies of one session, or wait there: the pushes that it
/// still has to send, and the refusal that it holds back.
#[derive(Debug, Default)]
pub(crate) struct PendingPushes {
    /// At most one of each kind.
    due: Vec<MaintenancePush>,
    /// The beginning of the server's refusal of the handshake; received and not delivered.
    pub(crate) refusal: Vec<u8>,
    /// The refused command that it answers, if it is not that of the handshake.
    pub(crate) refused: Option<RefusedCommand>,
    /// Read from the target, and not to be examined yet; see the module `superseded` of the pump.
    pub(crate) withheld: Option<KeptBytes>,
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
        MaintenanceHandshake::On => Some(options.moving_to.as_deref()?),
    };
    let time = worker.listener.drain.time_left()?.mul_f64(MOVE_PART).min(LONGEST_MOVE);
    let seconds = whole_seconds(time);
    let number = *worker.listener.moving.get_or_init(event_number);
    Some((seconds, MaintenancePush::moving(number, seconds, to)))
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
    worker.counters.notices.increment(MaintenanceKind::FailedOver as usize);
    MaintenancePush::failed_over(event_number()).text.into_bytes()
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
    let seconds = whole_seconds(worker.shared.service.options.now().hold_timeout);
    let push = MaintenancePush::failing_over(event_number(), seconds).text;
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
        !self.due.is_empty() || !self.refusal.is_empty() || self.withheld.is_some()
    }

    /// Makes a push due, in the place of an earlier one of its kind.
    pub(crate) fn announce(&mut self, push: MaintenancePush) {
        self.cancel(push.kind);
        self.due.push(push);
    }

    /// Cancels a push that was not sent yet. Whether there was one.
    fn cancel(&mut self, kind: MaintenanceKind) -> bool {
        let before = self.due.len();
        self.due.retain(|it| it.kind != kind);
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
        let cancelled_or_due = pending
            .is_some_and(|it| it.cancel(opposite) || it.due.iter().any(|due| due.kind == kind));
        if cancelled_or_due || closed == ledger.failover_announced() {
            return None;
        }
        let seconds = whole_seconds(worker.shared.service.options.now().hold_timeout);
        let number = event_number();
        Some(match closed {
            true => MaintenancePush::failing_over(number, seconds),
            false => MaintenancePush::failed_over(number),
        })
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
        if !whole && self.refusal.len() <= LONGEST_REFUSAL && ledger.awaits_handshake_reply() {
            return Vec::new();
        }
        let refusal = std::mem::take(&mut self.refusal);
        if let Some(refused) = self.refused.take().filter(|_| whole) {
            return refused.reply().into_bytes();
        }
        let enabled = worker.shared.service.options.now().maintenance_push;
        if whole && enabled && is_unknown_command(&refusal) && ledger.accept_handshake() {
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
            match push.kind {
                MaintenanceKind::Moving => {}
                kind => ledger.set_failover_announced(kind == MaintenanceKind::FailingOver),
            }
            worker.counters.notices.increment(push.kind as usize);
            bytes.extend_from_slice(push.text.as_bytes());
        }
        bytes
    }
}

// Maintenance pushes as they are on the wire.
//
// They are those of Redis Software ("smart client handoffs"), as the sources of redis-py,
// go-redis, node-redis, Lettuce and Jedis parse them. `MOVING` announces the end of the
// connection: a client opens another one, moves to it between two commands, and closes this one by
// itself. Without an address it reconnects to the same one, after half of the seconds; that form
// is only sent to clients that asked for it, because node-redis fails on it otherwise.
// `FAILING_OVER` makes a client wait longer for replies than usual, until `FAILED_OVER`. The list
// of shards at the end of both is there because Lettuce expects one; it is empty, because no
// client uses it.
//
// `MIGRATING` and `MIGRATED`, which announce another cause of a pause, are not sent.

/// A push message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MaintenancePush {
    pub(crate) kind: MaintenanceKind,
    /// In RESP3.
    pub(crate) text: String,
}

impl MaintenancePush {
    /// The connection ends after `seconds`; the client connects to `to` instead, or to the same
    /// address.
    pub(crate) fn moving(number: u64, seconds: u64, to: Option<&str>) -> Self {
        let to = to.map_or_else(|| "_".to_owned(), |to| format!("${}\r\n{to}", to.len()));
        let text = format!(">4\r\n$6\r\nMOVING\r\n:{number}\r\n:{seconds}\r\n{to}\r\n");
        Self { kind: MaintenanceKind::Moving, text }
    }

    /// Replies may take this many seconds.
    pub(crate) fn failing_over(number: u64, seconds: u64) -> Self {
        let text = format!(">4\r\n$12\r\nFAILING_OVER\r\n:{number}\r\n:{seconds}\r\n$2\r\n[]\r\n");
        Self { kind: MaintenanceKind::FailingOver, text }
    }

    /// Replies take no longer than usual again.
    pub(crate) fn failed_over(number: u64) -> Self {
        let text = format!(">3\r\n$11\r\nFAILED_OVER\r\n:{number}\r\n$2\r\n[]\r\n");
        Self { kind: MaintenanceKind::FailedOver, text }
    }
}

/// A number for an event. Clients take two pushes with the same number for one event, and a lower
/// number for an old event, also if another proxy sends it. So it is the wall clock in
/// milliseconds, which is used for nothing else.
#[allow(
    clippy::disallowed_methods,
    reason = "two processes have no other clock in common, and nothing is timed by it"
)]
pub(crate) fn event_number() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(0)
}

/// A duration in whole seconds, at least one, because clients use half of it.
pub(crate) fn whole_seconds(span: Duration) -> u64 {
    span.as_secs().max(1)
}

/// Whether this reply says that the server does not know the command. `redis:src/server.c`
/// (`rejectCommandFormat` of an unknown subcommand) from 7.0 on, `addReplySubcommandSyntaxError`
/// before. Both name the unknown word.
pub(crate) fn is_unknown_command(reply: &[u8]) -> bool {
    let Some(error) = reply.strip_prefix(b"-ERR ") else { return false };
    let starts =
        |start: &[u8]| error.get(..start.len()).is_some_and(|it| it.eq_ignore_ascii_case(start));
    let name = b"maint_notifications";
    (starts(b"unknown subcommand") || starts(b"unknown command"))
        && error.windows(name.len()).any(|it| it.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use resp::{Frames, Limits};

    use super::{MaintenancePush, event_number, is_unknown_command, whole_seconds};

    #[test]
    fn encodes_each_as_one_push() {
        let moving = |to| MaintenancePush::moving(event_number(), 7, to);
        for push in [
            moving(None),
            moving(Some("redis.example:6379")),
            MaintenancePush::failing_over(1, 10),
            MaintenancePush::failed_over(2),
        ] {
            let bytes = &push.text;
            assert!(bytes.starts_with('>'));
            assert_eq!(Frames::new(Limits::default()).end(bytes.as_bytes()), Ok(Some(bytes.len())));
        }
    }

    #[test]
    fn detects_only_an_unknown_handshake() {
        for reply in [
            "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n",
            "-ERR Unknown subcommand or wrong number of arguments for \
             'maint_notifications'. Try CLIENT HELP.\r\n",
        ] {
            assert!(is_unknown_command(reply.as_bytes()));
        }
        for reply in [
            "-NOPERM User app has no permissions to run the \
             'client|maint_notifications' command\r\n",
            "-ERR wrong number of arguments for 'client|maint_notifications' command\r\n",
            "-ERR unknown subcommand 'MAINT'. Try CLIENT HELP.\r\n",
            "-NOAUTH Authentication required.\r\n",
            "+OK\r\n",
        ] {
            assert!(!is_unknown_command(reply.as_bytes()), "{reply}");
        }
    }

    #[test]
    fn rounds_durations_to_at_least_a_second() {
        assert_eq!(
            [0, 999, 1000, 7900].map(|ms| whole_seconds(std::time::Duration::from_millis(ms))),
            [1, 1, 1, 7]
        );
    }
}
