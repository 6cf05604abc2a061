//! Maintenance pushes as they are on the wire.
//!
//! They are those of Redis Software ("smart client handoffs"), as the sources of redis-py,
//! go-redis, node-redis, Lettuce and Jedis parse them. `MOVING` announces the end of the
//! connection: a client opens another one, moves to it between two commands, and closes this one by
//! itself. Without an address it reconnects to the same one, after half of the seconds; that form
//! is only sent to clients that asked for it, because node-redis fails on it otherwise.
//! `FAILING_OVER` makes a client wait longer for replies than usual, until `FAILED_OVER`. The list
//! of shards at the end of both is there because Lettuce expects one; it is empty, because no
//! client uses it.
//!
//! `MIGRATING` and `MIGRATED`, which announce another cause of a pause, are not sent.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::maintenance_kind::MaintenanceKind;

/// A push message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MaintenancePush {
    /// The connection ends after `seconds`; the client connects to `to` instead, or to the same
    /// address.
    Moving { number: u64, seconds: u64, to: Option<Arc<str>> },
    /// Replies may take this many seconds.
    FailingOver { number: u64, seconds: u64 },
    /// Replies take no longer than usual again.
    FailedOver { number: u64 },
}

impl MaintenancePush {
    pub(crate) fn kind(&self) -> MaintenanceKind {
        match self {
            Self::Moving { .. } => MaintenanceKind::Moving,
            Self::FailingOver { .. } => MaintenanceKind::FailingOver,
            Self::FailedOver { .. } => MaintenanceKind::FailedOver,
        }
    }

    /// The push in RESP3.
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
        let moving = |to| MaintenancePush::Moving { number: event_number(), seconds: 7, to };
        for push in [
            moving(None),
            moving(Some("redis.example:6379".into())),
            MaintenancePush::FailingOver { number: 1, seconds: 10 },
            MaintenancePush::FailedOver { number: 2 },
        ] {
            let bytes = push.encode();
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
