//! The handshake with a sentinel: protocol, authentication, identity and subscription.

use std::net::SocketAddr;

use bytes::BytesMut;

use super::messages::LinkError;
use super::{LinkConfig, SentinelConnection, notice};
use crate::MyId;
use crate::link::auth::{Credentials, Denied};
use crate::link::connection::{ConnectionError, Protocol, RespConnection};
use crate::link::poll::{SENTINEL_AUTH, put_command};
use crate::link::reply::Reply;

/// Connects, authenticates, reads the identity, subscribes and starts the first poll.
pub(super) async fn open_connection(
    addr: SocketAddr,
    config: &LinkConfig,
) -> Result<SentinelConnection, LinkError> {
    let mut queries =
        RespConnection::connect(addr, config.timeouts.connect, config.timeouts.user).await?;
    hello(&mut queries, config.credentials.as_ref()).await?;
    let mut commands = BytesMut::new();
    put_command(&mut commands, &["CLIENT", "SETNAME", "pointsman"]);
    put_command(&mut commands, &["SENTINEL", "MYID"]);
    queries.send(&commands).await?;
    queries.next().await?;
    let answer = queries.next().await?;
    if let Some(line) = answer.error() {
        let denied = Denied::read(line, "SENTINEL MYID", "+sentinel|myid", SENTINEL_AUTH);
        return Err(denied.map_or(LinkError::NoIdentity, LinkError::Denied));
    }
    let id = answer.text().and_then(MyId::parse).ok_or(LinkError::NoIdentity)?;
    let mut events = None;
    if queries.protocol == Protocol::Resp2 {
        let mut second =
            RespConnection::connect(addr, config.timeouts.connect, config.timeouts.user).await?;
        authenticate(&mut second, config.credentials.as_ref()).await?;
        events = Some(second);
    }
    let subscribed = subscribe(events.as_mut().unwrap_or(&mut queries)).await?;
    let mut connection = SentinelConnection::new(id, queries, events, subscribed);
    connection.queued.extend(config.masters.borrow().iter().cloned());
    connection.begin_poll(config.timeouts.command * 2).await?;
    Ok(connection)
}

/// Switches to RESP3, or stays with RESP2 if the server does not support or does not permit HELLO.
pub(crate) async fn hello(
    connection: &mut RespConnection,
    credentials: Option<&Credentials>,
) -> Result<(), LinkError> {
    let mut commands = BytesMut::new();
    put_command(&mut commands, &credentials.map_or_else(|| vec!["HELLO", "3"], Credentials::hello));
    connection.send(&commands).await?;
    // The reply to a successful HELLO 3 is RESP3 already; an error line is the same in both.
    connection.protocol = Protocol::Resp3;
    let reply = connection.next().await?;
    let Some(line) = reply.error() else { return Ok(()) };
    match Denied::read(line, "HELLO", "+hello", SENTINEL_AUTH) {
        Some(denied) if !matches!(denied, Denied::NotPermitted { .. }) => Err(denied.into()),
        _ => {
            connection.protocol = Protocol::Resp2;
            authenticate(connection, credentials).await
        }
    }
}

async fn authenticate(
    connection: &mut RespConnection,
    credentials: Option<&Credentials>,
) -> Result<(), LinkError> {
    let Some(credentials) = credentials else { return Ok(()) };
    let mut commands = BytesMut::new();
    put_command(&mut commands, &credentials.auth());
    connection.send(&commands).await?;
    let reply = connection.next().await?;
    let denied = reply.error().and_then(|line| Denied::read(line, "AUTH", "+auth", SENTINEL_AUTH));
    denied.map_or(Ok(()), |denied| Err(denied.into()))
}

/// Subscribes to all relevant channels. `false` if the ACL does not allow it: then switches are
/// found by polling only.
async fn subscribe(connection: &mut RespConnection) -> Result<bool, LinkError> {
    let mut commands = BytesMut::new();
    let words: Vec<&str> =
        std::iter::once("SUBSCRIBE").chain(notice::CHANNELS.iter().copied()).collect();
    put_command(&mut commands, &words);
    connection.send(&commands).await?;
    // One confirmation per channel, or one refusal for all of them; messages may arrive in between.
    let mut confirmed = 0;
    while confirmed < notice::CHANNELS.len() {
        match connection.next().await? {
            Reply::Error(_) => return Ok(false),
            Reply::Push(items) | Reply::List(items) => {
                confirmed += usize::from(items.first().and_then(Reply::text) == Some("subscribe"));
            }
            _ => return Err(ConnectionError::Malformed("an unexpected reply to SUBSCRIBE").into()),
        }
    }
    Ok(true)
}
