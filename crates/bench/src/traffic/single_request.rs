//! Single requests: to prepare a backend, and to find out whether a proxy answers.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use harness::{Client, Process, wait_until};

use crate::load::Workload;

/// How long a proxy may take to answer its first client.
const READY: Duration = Duration::from_secs(20);
/// How long it may take to answer another one.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Waits until a proxy answers on both routes.
///
/// # Panics
/// If it ends, or does not answer in time.
pub(super) fn wait_ready(process: &Process, at: [SocketAddr; 2]) {
    for addr in at {
        wait_until("a proxy to answer", READY, || {
            assert!(process.is_running(), "it ended at once: {}", process.log().trim());
            tell(addr, Workload::Ping)
        });
    }
}

/// Sends a request on a new connection and checks the reply.
pub(super) fn tell(to: SocketAddr, workload: Workload) -> io::Result<()> {
    let (mut client, reply) = (Client::connect_within(to, TIMEOUT)?, workload.reply());
    client.send(&workload.request())?;
    let came = client.read_exact(reply.len())?;
    if came == reply {
        Ok(())
    } else {
        Err(io::Error::other(String::from_utf8_lossy(&came).into_owned()))
    }
}
