//! A connection to the proxy that is counted: how many are open, and their bytes.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::time::Duration;

use harness::{Client, pause};

use super::shared::Shared;

/// Longer than the proxy holds a request, and than a failover takes.
const TIMEOUT: Duration = Duration::from_secs(30);
const AFTER_A_REFUSAL: Duration = Duration::from_millis(40);

#[derive(Debug)]
pub(super) struct Conn<'a> {
    client: Client,
    shared: &'a Shared,
    /// The bytes sent and received that are already part of the common account.
    published: (u64, u64),
}

impl<'a> Conn<'a> {
    /// Connects through the proxy; without success, reports it and waits.
    pub(super) fn dial(shared: &'a Shared, who: &str) -> Option<Self> {
        let phase = shared.phase();
        match Client::connect_within(shared.addr, TIMEOUT) {
            Ok(client) => {
                shared.connections.fetch_add(1, Ordering::AcqRel);
                shared.open.fetch_add(1, Ordering::AcqRel);
                Some(Self { client, shared, published: (0, 0) })
            }
            Err(error) => {
                shared.broken(who, phase, &error);
                pause(AFTER_A_REFUSAL);
                None
            }
        }
    }

    /// Adds what is new to the common account of bytes.
    pub(super) fn publish(&mut self) {
        let (sent, received) = self.client.bytes();
        self.shared.sent.fetch_add(sent - self.published.0, Ordering::AcqRel);
        self.shared.received.fetch_add(received - self.published.1, Ordering::AcqRel);
        self.published = (sent, received);
    }
}

impl Deref for Conn<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Conn<'_> {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl Drop for Conn<'_> {
    fn drop(&mut self) {
        self.publish();
        self.shared.open.fetch_sub(1, Ordering::AcqRel);
    }
}
