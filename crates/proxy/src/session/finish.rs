//! The end of a client's connection: its last bytes, then an orderly close.
//!
//! A socket that is closed with unread bytes in it sends a reset, and a reset can overtake the last
//! reply on its way to the client's program. So our direction is closed first, and what the client
//! still sends is read and discarded for a moment. Most clients close at once when they see the
//! end.

use std::future::poll_fn;
use std::io;
use std::time::Duration;

use crate::io::stream::{self, ByteStream};

/// How long to wait for the client.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);

/// Maximum bytes discarded: a client that sends more ignores the end.
const MAX_DISCARDED: usize = 4 * 1024 * 1024;

/// Delivers `undelivered` and closes the connection of a client that can still be reached.
pub(crate) async fn finish(client: &mut impl ByteStream, undelivered: &[u8]) {
    // After an error the client is gone, and after the timeout it ignores the end: both finish it.
    drop(tokio::time::timeout(CLOSE_TIMEOUT, close_in_order(client, undelivered)).await);
}

async fn close_in_order(client: &mut impl ByteStream, undelivered: &[u8]) -> io::Result<()> {
    stream::write_all(client, undelivered).await?;
    poll_fn(|cx| client.poll_shutdown(cx)).await?;
    let mut discarded = 0;
    while discarded < MAX_DISCARDED {
        let length = |read: io::Result<&[u8]>| read.map(<[u8]>::len);
        match poll_fn(|cx| stream::poll_parse(client, cx, usize::MAX, length)).await? {
            0 => break,
            read => discarded += read,
        }
    }
    Ok(())
}
