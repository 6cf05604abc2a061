//! One client connection of a job.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use rustls::{ClientConnection, HandshakeKind};

use super::engine::Engine;
use super::tls::{self, Tls};

/// A connection that knows what it sends and which reply it expects.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
    /// How much of the current text has been sent, or encrypted.
    sent: usize,
}

impl Peer {
    /// Connects without blocking; events arrive under `number`.
    pub(crate) fn connect(
        engine: &Engine,
        to: SocketAddr,
        tls: Option<&Tls>,
        number: usize,
    ) -> io::Result<Self> {
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
        Ok(Self { stream, tls: tls.map(Tls::begin).transpose()?, sent: 0 })
    }

    /// Sends the rest of `text`; returns whether all of it was sent.
    pub(crate) fn send(&mut self, text: &[u8]) -> io::Result<bool> {
        let Self { stream, tls, sent } = self;
        if let Some(tls) = tls {
            return send_encrypted(tls, stream, text, sent);
        }
        while let Some(rest) = text.get(*sent..).filter(|rest| !rest.is_empty()) {
            match (&*stream).write(rest) {
                Ok(written) => *sent += written,
                Err(error) if waits(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Whether its session over TLS continues an earlier one. `None` without TLS.
    pub(crate) fn is_resumed(&self) -> Option<bool> {
        let kind = self.tls.as_ref()?.handshake_kind()?;
        Some(kind == HandshakeKind::Resumed)
    }

    /// Makes the next [`send`](Self::send) start at the beginning of its text.
    pub(crate) fn rewind(&mut self) {
        self.sent = 0;
    }

    /// Reads all available bytes and returns their number. `begin` is the position of the first
    /// byte in the expected `reply`.
    ///
    /// # Errors
    /// If the peer closed the connection or sent something else; of a long reply only the first
    /// bytes of each read are compared.
    pub(crate) fn receive(
        &mut self,
        buffer: &mut [u8],
        reply: &[u8],
        begin: usize,
    ) -> io::Result<usize> {
        let Self { stream, tls, .. } = self;
        let mut came = 0;
        loop {
            match (&*stream).read(buffer) {
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the other side closed",
                    ));
                }
                Ok(read) => {
                    let received = buffer.get(..read).unwrap_or_default();
                    if let Some(tls) = tls {
                        tls::decrypt(tls, received, |piece| {
                            compare(piece, reply, begin + came)?;
                            came += piece.len();
                            Ok(())
                        })?;
                        // Messages of the handshake.
                        flush(tls, stream)?;
                    } else {
                        compare(received, reply, begin + came)?;
                        came += read;
                    }
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

/// Compares the first byte of what was received with that at its position in the reply.
fn compare(received: &[u8], reply: &[u8], position: usize) -> io::Result<()> {
    if received.first() == reply.get(position % reply.len().max(1)) {
        return Ok(());
    }
    let text = String::from_utf8_lossy(received.get(..received.len().min(80)).unwrap_or_default());
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("unexpected reply {text:?}")))
}

/// Sends the rest of `text` over TLS; returns whether all of it was sent.
fn send_encrypted(
    tls: &mut ClientConnection,
    stream: &TcpStream,
    text: &[u8],
    sent: &mut usize,
) -> io::Result<bool> {
    loop {
        let rest = text.get(*sent..).unwrap_or_default();
        *sent += tls::encrypt(tls, rest)?;
        if !flush(tls, stream)? {
            return Ok(false);
        }
        if *sent == text.len() {
            return Ok(true);
        }
        if tls.is_handshaking() {
            return Ok(false);
        }
    }
}

/// Sends what is encrypted; returns whether the socket took all of it.
fn flush(tls: &mut ClientConnection, mut stream: &TcpStream) -> io::Result<bool> {
    match tls::flush(tls, &mut stream) {
        Ok(()) => Ok(true),
        Err(error) if waits(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the operation has to wait for an event. A socket that is still connecting reports
/// another error.
fn waits(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}
