//! Waiting for a master: bounded in time, bounded in bytes, and only for as long as the client is there.

use std::sync::Arc;
use std::time::Duration;

use drain::Ticket;
use route::{Route, Target};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::close::Reason;

/// What a waiting client may send ahead, in bytes. Beyond it the client is not read, and so waits itself.
const AHEAD: usize = 64 * 1024;

/// Waits until a target may be used. What the client sends meanwhile is kept in `ahead`; nothing of it has been forwarded.
pub(crate) async fn wait(
    client: &TcpStream,
    route: &Route,
    ticket: &Ticket,
    patience: Duration,
    ahead: &mut Vec<u8>,
) -> Result<Arc<Target>, Reason> {
    tokio::select! {
        biased;
        target = route.wait_open() => Ok(target),
        () = ticket.cut() => Err(Reason::Cut),
        () = ticket.asked() => Err(Reason::Drained),
        () = gone(client, ahead) => Err(Reason::GoneWaiting),
        () = tokio::time::sleep(patience) => Err(Reason::HoldTimeout),
    }
}

/// Returns when the client has closed or broken its connection. A request whose client has gone is dropped, never sent
/// late.
async fn gone(client: &TcpStream, ahead: &mut Vec<u8>) {
    let mut chunk = [0_u8; 4096];
    loop {
        let room = AHEAD.saturating_sub(ahead.len()).min(chunk.len());
        if room == 0 {
            // Only an error is noticed from here on; the end of the hold will show the rest.
            if client.ready(Interest::ERROR).await.is_err() {
                return;
            }
            return;
        }
        if client.readable().await.is_err() {
            return;
        }
        let Some(space) = chunk.get_mut(..room) else { return };
        match client.try_read(space) {
            Ok(0) => return,
            Ok(n) => ahead.extend_from_slice(space.get(..n).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
