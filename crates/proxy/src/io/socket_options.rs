//! The options of a session's sockets that the configuration sets.

use std::io;
use std::time::Duration;

use socket2::{Socket, TcpKeepalive};

use crate::options::Options;

/// Unanswered keepalive probes that end a connection.
const KEEPALIVE_PROBES: u32 = 3;

/// Sets no-delay, keepalive and user timeout as configured. To be called before connect or bind, so
/// that they apply from the first byte.
pub(crate) fn set(socket: &Socket, options: &Options) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    if !options.keepalive.is_zero() {
        // The kernel counts in whole seconds.
        let idle = options.keepalive.max(Duration::from_secs(1));
        let between = (idle / 4).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new()
            .with_time(idle)
            .with_interval(between)
            .with_retries(KEEPALIVE_PROBES);
        socket.set_tcp_keepalive(&keepalive)?;
    } else {
        socket.set_keepalive(false)?;
    }
    socket.set_tcp_user_timeout(Some(options.user_timeout))?;
    Ok(())
}
