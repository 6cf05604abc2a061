//! Closing a client's connection so that what it was sent arrives.
//!
//! A socket that is closed with unread input is reset, and a reset may overtake the replies before it. So the write side is
//! shut first, and input is read and thrown away until the client closes too, or for a short while.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// How long to wait for the client's own end.
const PATIENCE: Duration = Duration::from_millis(250);

/// Sends FIN, reads on briefly, closes.
pub(crate) async fn close(mut client: TcpStream) {
    if client.shutdown().await.is_err() {
        return;
    }
    // Time out or not, the connection is closed by dropping it.
    drop(tokio::time::timeout(PATIENCE, discard(&client)).await);
}

async fn discard(client: &TcpStream) {
    let mut chunk = [0_u8; 1024];
    while client.readable().await.is_ok() {
        match client.try_read(&mut chunk) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
