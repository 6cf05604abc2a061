//! Subscribes to the events of a sentinel, as far as its ACL allows.
//!
//! An ACL refuses a whole `SUBSCRIBE` because of a single channel that it does not allow. A channel
//! that only newer sentinels have is therefore subscribed to by a command of its own: an ACL that
//! lists the other channels one by one, written before that channel existed, still allows those.

use crate::link::connection::{ConnectionError, RespConnection};
use crate::link::reply::Reply;

/// Events that not every sentinel has, each with another way to the same information: polls.
pub(crate) const OPTIONAL_CHANNELS: &[&str] = &[
    // Valkey 9: a coordinated failover whose command could not be sent to the master in time.
    "-failover-abort-master-timeout",
];

/// Subscribes to `channels` and [`OPTIONAL_CHANNELS`]. `false` if the ACL does not allow the
/// former. Messages that arrive before the last confirmation are dropped.
pub(crate) async fn subscribe(
    connection: &mut RespConnection,
    channels: &[&'static str],
) -> Result<bool, ConnectionError> {
    let groups = std::iter::once(channels).chain(OPTIONAL_CHANNELS.chunks(1));
    let command = |group: &[&'static str]| [&["SUBSCRIBE"], group].concat();
    connection.send(&groups.clone().map(command).collect::<Vec<_>>()).await?;
    let mut granted = Vec::new();
    for group in groups {
        granted.push(confirmed(connection, group.len()).await?);
    }
    Ok(granted.first() == Some(&true))
}

/// Reads one confirmation per channel, or one refusal for all of them; messages may arrive in
/// between.
async fn confirmed(
    connection: &mut RespConnection,
    channels: usize,
) -> Result<bool, ConnectionError> {
    let mut confirmed = 0;
    while confirmed < channels {
        match connection.next().await? {
            Reply::Error(_) => return Ok(false),
            Reply::Push(items) | Reply::List(items) => {
                confirmed += usize::from(items.first().and_then(Reply::text) == Some("subscribe"));
            }
            _ => return Err(ConnectionError::Malformed("an unexpected reply to SUBSCRIBE")),
        }
    }
    Ok(true)
}
