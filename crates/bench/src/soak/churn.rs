//! Many clients that connect, send at most one request and leave at once.

use std::time::Instant;

use super::conn::Conn;
use super::schedule::Act;
use super::shared::Shared;

/// Clients at a time.
const CHURN: usize = 150;

/// Many clients at once that send a request and leave, half of them with RST.
pub(super) fn churn(act: &Act, shared: &Shared) {
    let deadline = Instant::now() + act.hold;
    while Instant::now() < deadline {
        let phase = shared.phase();
        let clients: Vec<_> = (0..CHURN).map_while(|_| Conn::dial(shared, "churn")).collect();
        for (index, mut client) in clients.into_iter().enumerate() {
            if index % 3 > 0 {
                match client.cmd(&["PING"]) {
                    Ok(reply) if reply.text() == Some("PONG") => {}
                    Ok(reply) => match reply.error() {
                        Some(message) => shared.refused("churn", phase, message),
                        None => shared.finding(&format!("churn: PING was answered {reply}")),
                    },
                    Err(error) => shared.broken("churn", phase, &error),
                }
            }
            if index % 2 > 0 {
                // The client is gone either way.
                let _ = client.set_linger0();
            }
        }
    }
}
