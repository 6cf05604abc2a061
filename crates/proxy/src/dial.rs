//! A connection to the master, within a deadline, and never to one that was superseded meanwhile.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use route::{Route, Target};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

use crate::options::Options;
use crate::stats::Counters;

/// Between two attempts while a master restarts.
const PAUSE: Duration = Duration::from_millis(20);

/// How a dial ended.
pub(crate) enum Dialled {
    /// Connected, and the target was still in force and its gate open after that.
    Connected(TcpStream),
    /// The points moved, or the gate shut: wait there and take what they lead to then.
    Moved,
    /// The target did not take the connection in time.
    Failed,
}

/// Dials `target` until it answers, the points move, or `options.connect_timeout` is over. An attempt that is refused is
/// repeated: a master that restarts is back in a moment.
pub(crate) async fn dial(target: &Arc<Target>, route: &Route, options: &Options, counters: &Counters) -> Dialled {
    let deadline = Instant::now() + options.connect_timeout;
    loop {
        let attempt = tokio::select! {
            biased;
            () = target.fence().fallen() => return Dialled::Moved,
            attempt = tokio::time::timeout_at(deadline, connect(target.addr(), options)) => attempt,
        };
        // Asked after the dial, because a dial takes time and the points may have moved in it.
        if target.fence().has_fallen() || route.is_shut() {
            return Dialled::Moved;
        }
        match attempt {
            Ok(Ok(upstream)) => {
                counters.dials.add(1);
                return Dialled::Connected(upstream);
            }
            Ok(Err(_)) if Instant::now() + PAUSE < deadline => {
                counters.dial_errors.add(1);
                tokio::time::sleep(PAUSE).await;
            }
            Ok(Err(_)) | Err(_) => {
                counters.dial_errors.add(1);
                return Dialled::Failed;
            }
        }
    }
}

async fn connect(addr: SocketAddr, options: &Options) -> io::Result<TcpStream> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    let upstream = socket.connect(addr).await?;
    tune(&upstream, options)?;
    Ok(upstream)
}

/// Latency before anything: no Nagle. And a peer that lost its power is noticed.
pub(crate) fn tune(stream: &TcpStream, options: &Options) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    if !options.keepalive.is_zero() {
        let keepalive = TcpKeepalive::new().with_time(options.keepalive).with_interval(Duration::from_secs(10));
        socket.set_tcp_keepalive(&keepalive.with_retries(3))?;
    }
    if !options.user_timeout.is_zero() {
        socket.set_tcp_user_timeout(Some(options.user_timeout))?;
    }
    Ok(())
}
