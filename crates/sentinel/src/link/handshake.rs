//! The handshake with a sentinel: protocol, authentication, identity and subscription.

use std::net::SocketAddr;

use super::messages::{LinkError, LinkEvent};
use super::sentinel_connection::SentinelConnection;
use super::{LinkConfig, notice, subscription};
use crate::MyId;
use crate::link::auth::{Credentials, Denied};
use crate::link::connection::{Protocol, RespConnection};
use crate::link::login::ServerLogin;
use crate::link::poll::{PollOutcome, SENTINEL_AUTH};
use crate::link::reply::Reply;
use crate::link::rotation::{CredentialsId, Presented};
use crate::net::transport::Transport;

/// Opens a connection with credentials that the sentinel accepts, and returns which ones these are.
pub(super) async fn open_connection(
    addr: SocketAddr,
    config: &LinkConfig,
    login: &ServerLogin,
) -> Result<(SentinelConnection, CredentialsId), LinkError> {
    loop {
        let presented = login.present();
        match open_with(addr, login.transport(), config, presented.credentials.as_ref()).await {
            Ok(connection) => {
                login.accept(presented.id);
                return Ok((connection, presented.id));
            }
            // Others may be accepted: those before a change that has not reached the sentinel yet.
            Err(LinkError::Denied(denied)) if login.refuse(presented.id, &denied) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Opens a connection that is to replace an established one, when no other renewal does.
pub(super) async fn replace(
    config: &LinkConfig,
    addr: SocketAddr,
    transport: Transport,
    newest: Presented,
    subscribed: bool,
) -> (CredentialsId, Result<(SentinelConnection, Vec<LinkEvent>), LinkError>) {
    let opening = async {
        let credentials = newest.credentials.as_ref();
        let mut connection = open_with(addr, &transport, config, credentials).await?;
        let events = poll_once(&mut connection, config, subscribed).await?;
        Ok((connection, events))
    };
    (newest.id, config.env.permit.clone().run(opening).await)
}

/// Polls once: what the established connection may do, this one must be allowed to do.
async fn poll_once(
    connection: &mut SentinelConnection,
    config: &LinkConfig,
    subscribed: bool,
) -> Result<Vec<LinkEvent>, LinkError> {
    if subscribed && !connection.subscribed {
        let (command, rule) = ("SUBSCRIBE", "+subscribe allchannels");
        return Err(LinkError::Denied(Denied::NotPermitted { command, rule }));
    }
    let (mut events, timeout) = (Vec::new(), config.env.timeouts().command * 2);
    let polling = async {
        while connection.poll.is_some() {
            events.append(&mut connection.wait().await?);
        }
        Ok::<(), LinkError>(())
    };
    tokio::time::timeout(timeout, polling)
        .await
        .unwrap_or(Err(LinkError::Unresponsive(timeout)))?;
    for event in &events {
        if let LinkEvent::Polled { outcome: PollOutcome::Denied(denied), .. } = event {
            return Err(LinkError::Denied(denied.clone()));
        }
    }
    Ok(events)
}

/// Connects, authenticates, reads the identity, subscribes and starts the first poll.
async fn open_with(
    addr: SocketAddr,
    transport: &Transport,
    config: &LinkConfig,
    credentials: Option<&Credentials>,
) -> Result<SentinelConnection, LinkError> {
    let timeouts = config.env.timeouts();
    let timeout = timeouts.connect + timeouts.command * 2;
    let opening = async {
        let mut queries =
            RespConnection::connect(addr, transport, timeouts.connect, timeouts.user).await?;
        hello(&mut queries, credentials).await?;
        let mut replies = Vec::new();
        let name_and_id = [&["CLIENT", "SETNAME", "pointsman"][..], &["SENTINEL", "MYID"]];
        queries.ask(&name_and_id, &mut replies).await?;
        let answer = replies.last().unwrap_or(&Reply::Null);
        if let Some(line) = answer.error() {
            let denied = Denied::read(line, "SENTINEL MYID", "+sentinel|myid", SENTINEL_AUTH);
            return Err(denied.map_or(LinkError::NoIdentity, LinkError::Denied));
        }
        let id = answer.text().and_then(MyId::parse).ok_or(LinkError::NoIdentity)?;
        let mut events = None;
        if queries.protocol == Protocol::Resp2 {
            let mut second =
                RespConnection::connect(addr, transport, timeouts.connect, timeouts.user).await?;
            authenticate(&mut second, credentials).await?;
            events = Some(second);
        }
        // Without a subscription switches are found by polling only.
        let subscriber = events.as_mut().unwrap_or(&mut queries);
        let subscribed = subscription::subscribe(subscriber, notice::CHANNELS).await?;
        let mut connection = SentinelConnection::new(id, queries, events, subscribed);
        connection.queued.extend(config.masters.borrow().iter().cloned());
        connection.begin_poll(timeouts.command * 2).await?;
        Ok(connection)
    };
    tokio::time::timeout(timeout, opening)
        .await
        .unwrap_or(Err(LinkError::Unresponsive(timeouts.command * 2)))
}

/// Switches to RESP3, or stays with RESP2 if the server does not support or does not permit HELLO.
///
/// # Errors
///
/// The server refuses the credentials, or the connection ended.
pub async fn hello(
    connection: &mut RespConnection,
    credentials: Option<&Credentials>,
) -> Result<(), LinkError> {
    // The reply to a successful HELLO 3 is RESP3 already; an error line is the same in both.
    connection.protocol = Protocol::Resp3;
    let words = credentials.map_or_else(|| vec!["HELLO", "3"], Credentials::hello);
    let reply = connection.ask_one(&words).await?;
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
    let reply = connection.ask_one(&credentials.auth()).await?;
    let denied = reply.error().and_then(|line| Denied::read(line, "AUTH", "+auth", SENTINEL_AUTH));
    denied.map_or(Ok(()), |denied| Err(denied.into()))
}
