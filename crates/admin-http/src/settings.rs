//! The limits of a server: its connections, its timeouts, and the bytes that it reads.

use std::time::Duration;

/// The limits of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSettings {
    /// Concurrent connections over all addresses. One more evicts the connection that has kept the
    /// server waiting longest; if there is none, the new connection is closed immediately.
    pub max_connections: usize,
    /// Concurrent endless responses. Should be well below `max_connections`; one more is answered
    /// with 503.
    pub max_streams: usize,
    /// From a new connection, or from the first byte of a later request, to the end of the
    /// request's header.
    pub header_timeout: Duration,
    /// From the end of a request's header to the end of its response, and the longest time for
    /// which a client may not read what is to be written.
    pub request_timeout: Duration,
    /// From the end of a response to the first byte of the next request.
    pub idle_timeout: Duration,
    /// Bytes of a request line and header. More is answered with 431.
    pub max_header_bytes: usize,
    /// Bytes of a request body, which is discarded. More is answered with 413.
    pub max_body_bytes: usize,
    /// How long a stop waits for responses in progress.
    pub stop_grace: Duration,
    /// Ports on which the process has IPv4 listeners of its own for other purposes.
    pub ipv4_ports: Vec<u16>,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            max_connections: 64,
            max_streams: 8,
            header_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            max_header_bytes: 16 * 1024,
            max_body_bytes: 64 * 1024,
            stop_grace: Duration::from_secs(1),
            ipv4_ports: Vec::new(),
        }
    }
}
