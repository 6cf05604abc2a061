//! One client connection of a job.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::engine::Engine;

/// A client that knows what it sends and what has to come back.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: TcpStream,
    /// Bytes sent of the text that is being sent.
    sent: usize,
}

impl Peer {
    /// Connects without waiting, and is watched under `number`.
    pub(crate) fn connect(engine: &Engine, to: SocketAddr, number: usize) -> io::Result<Self> {
        let socket =
            socket2::Socket::new(socket2::Domain::for_address(to), socket2::Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&to.into()) {
            Err(error)
                if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) =>
            {
                return Err(error);
            }
            _ => {}
        }
        let stream: TcpStream = socket.into();
        engine.watch(&stream, number)?;
        Ok(Self { stream, sent: 0 })
    }

    /// Sends what is left of `text`: whether all of it is out.
    pub(crate) fn send(&mut self, text: &[u8]) -> io::Result<bool> {
        while let Some(rest) = text.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match (&self.stream).write(rest) {
                Ok(written) => self.sent += written,
                Err(error) if waits(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The next [`send`](Self::send) begins at the front.
    pub(crate) fn rewind(&mut self) {
        self.sent = 0;
    }

    /// Reads all there is. `begin` says where in the expected `reply` the first byte belongs; gives
    /// how many came.
    ///
    /// # Errors
    /// If the other side closed, or sent something else; of a long reply only the first bytes of
    /// each read are compared.
    pub(crate) fn receive(
        &mut self,
        buffer: &mut [u8],
        reply: &[u8],
        begin: usize,
    ) -> io::Result<usize> {
        let mut came = 0;
        loop {
            match (&self.stream).read(buffer) {
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the other side closed",
                    ));
                }
                Ok(read) => {
                    let at = (begin + came) % reply.len().max(1);
                    let (first, expected) = (buffer.first(), reply.get(at));
                    if first != expected {
                        let text =
                            String::from_utf8_lossy(buffer.get(..read.min(80)).unwrap_or_default())
                                .into_owned();
                        return Err(io::Error::new(
                            io::ErrorKind::InvalidData,
                            format!("unexpected reply {text:?}"),
                        ));
                    }
                    came += read;
                    if read < buffer.len() {
                        return Ok(came);
                    }
                }
                Err(error) if waits(&error) => return Ok(came),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether there is nothing to do but to wait. A socket that has not been connected yet says so in
/// another way.
fn waits(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}
