//! The pushes that tell a client of maintenance, on the wire.
//!
//! They are those of Redis Software ("smart client handoffs"), as the sources of redis-py,
//! go-redis, node-redis, Lettuce and Jedis read them. `MOVING` announces the end of the connection:
//! a client opens another one, moves to it between two commands, and closes this one by itself.
//! Without an address it goes back to the one that it has, after half of the seconds; that is only
//! sent to clients that asked for it, since node-redis breaks down when it did not. `FAILING_OVER`
//! makes a client wait for replies longer than it otherwise would, until `FAILED_OVER`. The list of
//! shards at the end of both is there because Lettuce looks for one; it is empty, as no client does
//! anything with it.
//!
//! Deliberately absent: `MIGRATING` and `MIGRATED`, which mean the same as the two for another
//! cause; and when to send what.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use resp::{Direction, Ledger, MaintenanceHandshake};

use crate::runtime::worker::WorkerContext;
use crate::session::end_reason::EndReason;
use crate::session::finish::is_heard;

/// One push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The connection ends after `seconds`; the next one is to be opened to `to`, or to the same
    /// address.
    Moving { number: u64, seconds: u64, to: Option<Arc<str>> },
    /// Replies may take so many seconds.
    FailingOver { number: u64, seconds: u64 },
    /// They take no longer than usual any more.
    FailedOver { number: u64 },
}

/// The kinds of pushes, for the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MaintenanceKind {
    /// `MOVING`.
    Moving,
    /// `FAILING_OVER`.
    FailingOver,
    /// `FAILED_OVER`.
    FailedOver,
}

impl MaintenanceKind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Moving, Self::FailingOver, Self::FailedOver];

    /// A stable word in snake case, for metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Moving => "moving",
            Self::FailingOver => "failing_over",
            Self::FailedOver => "failed_over",
        }
    }
}

impl Notice {
    pub(crate) fn kind(&self) -> MaintenanceKind {
        match self {
            Self::Moving { .. } => MaintenanceKind::Moving,
            Self::FailingOver { .. } => MaintenanceKind::FailingOver,
            Self::FailedOver { .. } => MaintenanceKind::FailedOver,
        }
    }

    /// The push as it is sent.
    pub(crate) fn encode(&self) -> String {
        match self {
            Self::Moving { number, seconds, to: None } => {
                format!(">4\r\n$6\r\nMOVING\r\n:{number}\r\n:{seconds}\r\n_\r\n")
            }
            Self::Moving { number, seconds, to: Some(to) } => {
                format!(
                    ">4\r\n$6\r\nMOVING\r\n:{number}\r\n:{seconds}\r\n${}\r\n{to}\r\n",
                    to.len()
                )
            }
            Self::FailingOver { number, seconds } => {
                format!(">4\r\n$12\r\nFAILING_OVER\r\n:{number}\r\n:{seconds}\r\n$2\r\n[]\r\n")
            }
            Self::FailedOver { number } => {
                format!(">3\r\n$11\r\nFAILED_OVER\r\n:{number}\r\n$2\r\n[]\r\n")
            }
        }
    }
}

/// A number for an event. Clients take two pushes of one number for one event, and one with a lower
/// number for an old one, also if another proxy sends it; so it is the time of the day in
/// milliseconds, which is used for nothing else.
#[allow(
    clippy::disallowed_methods,
    reason = "two processes have no other clock in common, and nothing is timed by it"
)]
pub(crate) fn number() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(0)
}

/// A time in whole seconds, at least one: half of it has to be something.
pub(crate) fn seconds(span: Duration) -> u64 {
    span.as_secs().max(1)
}

/// What is to be said before a session ends for `reason`, if its client was told of a failover: to
/// this client, that is over. node-redis counts what it was told of, beyond the end of the
/// connection.
pub(crate) fn last_word(ledger: &Ledger, seat: &WorkerContext, reason: EndReason) -> Vec<u8> {
    let agreed = ledger.maintenance_handshake() != MaintenanceHandshake::Off
        && seat.shared.service.options.now().maintenance_push;
    let place = ledger.at_boundary(Direction::Reply) && is_heard(reason);
    if !ledger.failover_announced() || !agreed || !place {
        return Vec::new();
    }
    let notice = Notice::FailedOver { number: number() };
    seat.block.noticed(notice.kind());
    notice.encode().into_bytes()
}

/// Whether this reply says that the server knows no such command. `redis:src/server.c`
/// (`rejectCommandFormat` of an unknown subcommand) from 7.0 on, `addReplySubcommandSyntaxError`
/// before. Both name the word they do not know.
pub(crate) fn is_unknown(reply: &[u8]) -> bool {
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

    use super::{Notice, is_unknown, number, seconds};

    #[test]
    fn each_is_one_push() {
        let moving = |to| Notice::Moving { number: number(), seconds: 7, to };
        for notice in [
            moving(None),
            moving(Some("redis.example:6379".into())),
            Notice::FailingOver { number: 1, seconds: 10 },
            Notice::FailedOver { number: 2 },
        ] {
            let bytes = notice.encode();
            assert!(bytes.starts_with('>'));
            assert_eq!(Frames::new(Limits::default()).end(bytes.as_bytes()), Ok(Some(bytes.len())));
        }
    }

    #[test]
    fn only_a_server_that_does_not_know_the_command_says_so() {
        for reply in [
            "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n",
            "-ERR Unknown subcommand or wrong number of arguments for 'maint_notifications'. Try CLIENT HELP.\r\n",
        ] {
            assert!(is_unknown(reply.as_bytes()));
        }
        for reply in [
            "-NOPERM User app has no permissions to run the 'client|maint_notifications' command\r\n",
            "-ERR wrong number of arguments for 'client|maint_notifications' command\r\n",
            "-ERR unknown subcommand 'MAINT'. Try CLIENT HELP.\r\n",
            "-NOAUTH Authentication required.\r\n",
            "+OK\r\n",
        ] {
            assert!(!is_unknown(reply.as_bytes()), "{reply}");
        }
    }

    #[test]
    fn there_is_always_a_second() {
        assert_eq!(
            [0, 999, 1000, 7900].map(|ms| seconds(std::time::Duration::from_millis(ms))),
            [1, 1, 1, 7]
        );
    }
}
