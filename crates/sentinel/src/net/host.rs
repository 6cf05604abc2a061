//! What discovery needs of its host: names, connections and clocks. The operating system provides
//! them, unless the simulator does.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use target::ClockReading;
use tokio::io::{AsyncRead, AsyncWrite};

/// A future of a host.
pub type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A connection, of the operating system or of another host.
pub trait ByteStream: AsyncRead + AsyncWrite + Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Debug + Send + Unpin> ByteStream for T {}

/// A host in place of the operating system.
pub trait Host: Debug + Send + Sync {
    /// The addresses of a name; none if it does not resolve.
    fn look_up(&self, host: &str, port: u16) -> Answer<Vec<SocketAddr>>;

    /// Connects. The future is dropped when the caller's patience ends.
    fn dial(&self, addr: SocketAddr) -> Answer<io::Result<Box<dyn ByteStream>>>;

    /// The boot clock, which advances while the host is suspended, and the wall clock.
    fn clocks(&self) -> (Duration, Duration);

    /// The clocks by which workers judge the lease.
    fn lease_clocks(&self) -> ClockReading;
}
