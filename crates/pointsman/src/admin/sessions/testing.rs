//! Rows for tests.

use std::net::IpAddr;
use std::time::Duration;

use proxy::{ListedClient, ListedState, SessionId, SessionRow, WaitsFor};

/// A row whose numbers follow from `number`.
pub(in crate::admin) fn row(number: u32) -> SessionRow {
    SessionRow {
        id: SessionId::parse(&format!("0000abcd-0-{number}-0")).unwrap(),
        service: "shop".into(),
        client: Some(([10, 0, 0, 1], 1000).into()),
        listener: None,
        client_tls: None,
        target_tls: None,
        said: ListedClient::default(),
        state: ListedState::Idle,
        waits_for: WaitsFor::Request,
        not_carried: None,
        unknown_command: None,
        upstream: None,
        connection: None,
        promotion: None,
        age: Duration::from_secs(number.into()),
        idle: None,
        bytes: (number.into(), 0),
        commands: number.into(),
        in_flight: Some(0),
    }
}

/// A row of a client with this address.
pub(in crate::admin) fn row_from(ip: Option<IpAddr>) -> SessionRow {
    SessionRow { client: ip.map(|ip| (ip, 1000).into()), ..row(1) }
}
