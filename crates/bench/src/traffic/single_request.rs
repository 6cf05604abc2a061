//! Single requests: to prepare a backend, and to find out whether a proxy answers.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use harness::{Client, Process, pause};

use crate::load::Workload;

/// How long a proxy may take to answer its first client.
const READY: Duration = Duration::from_secs(20);
/// How long it may take to answer another one.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Waits until a proxy answers on both routes.
pub(super) fn wait_ready(process: &Process, at: [SocketAddr; 2]) -> Result<(), String> {
    let deadline = Instant::now() + READY;
    for addr in at {
        while let Err(error) = tell(addr, Workload::Ping) {
            if !process.is_running() {
                return Err(format!("it ended at once: {}", process.log().trim()));
            }
            if Instant::now() > deadline {
                return Err(format!("it does not answer: {error}"));
            }
            pause(Duration::from_millis(20));
        }
    }
    Ok(())
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
