//! A connected socket to a server, plain or over TLS.
//!
//! TLS is the connection of the `tls` crate, which the data plane uses, too: one implementation to
//! trust, and no buffer in an idle connection
//! (`docs/decisions/tls.md#the-login-says-how-to-connect`). Reading and flushing are cancel-safe:
//! ciphertext that was received or is to be sent stays here.

use std::io;

use bytes::BytesMut;
use tls::{
    CertificateFacts, ClientSide, ClientTls, Fault, FaultKind, MAX_RECORD, RECORD_OVERHEAD,
    TlsConnection, Version,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::net::host::ByteStream;

/// Why a stream is unusable.
#[derive(Debug)]
pub(crate) enum StreamError {
    /// The socket failed.
    Io(io::Error),
    /// TLS failed.
    Tls(Fault),
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What was negotiated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsFacts {
    pub(crate) version: Version,
    /// The server's.
    pub(crate) certificate: Option<CertificateFacts>,
}

/// A connected socket. See the module's header.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
    Simulated(Box<dyn ByteStream>),
}

impl Stream {
    /// Reads at least one byte into `into`; 0 at the end.
    pub(crate) async fn read(&mut self, into: &mut BytesMut) -> Result<usize, StreamError> {
        match self {
            Self::Plain(socket) => Ok(socket.read_buf(into).await?),
            Self::Tls(stream) => stream.read(into).await,
            Self::Simulated(stream) => Ok(stream.read_buf(into).await?),
        }
    }

    /// Writes all of it.
    pub(crate) async fn write_all(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        match self {
            Self::Plain(socket) => Ok(socket.write_all(bytes).await?),
            Self::Tls(stream) => stream.write_all(bytes).await,
            Self::Simulated(stream) => Ok(stream.write_all(bytes).await?),
        }
    }

    /// What was negotiated; `None` without TLS.
    pub(crate) fn tls(&self) -> Option<TlsFacts> {
        match self {
            Self::Plain(_) | Self::Simulated(_) => None,
            Self::Tls(stream) => stream.facts(),
        }
    }
}

/// A connection over TLS.
#[derive(Debug)]
pub(crate) struct TlsStream {
    socket: TcpStream,
    tls: TlsConnection<ClientSide>,
    /// Ciphertext to send.
    sending: BytesMut,
    /// Ciphertext that was received and not processed. Empty between reads.
    received: BytesMut,
    /// Plaintext that was not read yet.
    plaintext: BytesMut,
    /// A first byte was received, and it was one of TLS.
    began: bool,
}

impl TlsStream {
    /// Completes a handshake on `socket`. `dialled` is the name or address that was dialled.
    /// `verified` is false for a connection that only looks at the certificate.
    pub(crate) async fn open(
        socket: TcpStream,
        tls: &ClientTls,
        dialled: &str,
        verified: bool,
    ) -> Result<Self, StreamError> {
        let connect = if verified { ClientTls::connect } else { ClientTls::connect_unverified };
        let broken = |error: &dyn std::error::Error| {
            StreamError::Io(io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))
        };
        let (config, name) = connect(tls, dialled).map_err(|error| broken(&error))?;
        let tls = TlsConnection::connect(config, name).map_err(|error| broken(&error))?;
        let (sending, received, plaintext) = (BytesMut::new(), BytesMut::new(), BytesMut::new());
        let mut stream = Self { socket, tls, sending, received, plaintext, began: false };
        stream.process()?;
        while stream.tls.is_handshaking() {
            if stream.receive().await? == 0 {
                return Err(StreamError::Tls(Fault::closed()));
            }
        }
        stream.flush().await?;
        Ok(stream)
    }

    fn facts(&self) -> Option<TlsFacts> {
        let certificate = self.tls.peer_certificate();
        self.tls.version().map(|version| TlsFacts { version, certificate })
    }

    /// Reads at least one byte into `into`; 0 at the end. Cancel-safe.
    async fn read(&mut self, into: &mut BytesMut) -> Result<usize, StreamError> {
        while self.plaintext.is_empty() {
            if self.tls.peer_closed() || self.receive().await? == 0 {
                return Ok(0);
            }
        }
        let length = self.plaintext.len();
        into.extend_from_slice(&self.plaintext);
        // An idle connection keeps no buffer.
        self.plaintext = BytesMut::new();
        Ok(length)
    }

    /// Encrypts all of it and writes it. If this is cancelled, the rest is written before anything
    /// else.
    async fn write_all(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        let mut record = vec![0; bytes.len().min(MAX_RECORD) + RECORD_OVERHEAD];
        for piece in bytes.chunks(MAX_RECORD) {
            let length = self.tls.encrypt(piece, &mut record).map_err(|error| fault(&error))?;
            // Messages of the protocol that this caused come first.
            self.take_outgoing();
            self.sending.extend_from_slice(record.get(..length).unwrap_or_default());
        }
        let Err(error) = self.flush().await else { return Ok(()) };
        // A server that refuses our certificate says so, and closes: with TLS 1.3 after the
        // handshake is complete here. Its reason says more than the broken pipe.
        while self.socket.try_read_buf(&mut self.received).is_ok_and(|read| read > 0) {
            self.process()?;
        }
        Err(error)
    }

    /// Sends what is waiting, then receives and processes once. Returns the number of bytes that
    /// were received. Cancel-safe.
    async fn receive(&mut self) -> Result<usize, StreamError> {
        self.flush().await?;
        self.received.reserve(MAX_RECORD);
        let read = self.socket.read_buf(&mut self.received).await?;
        if read > 0 {
            self.process()?;
        }
        Ok(read)
    }

    /// Processes what was received.
    fn process(&mut self) -> Result<(), StreamError> {
        let received = std::mem::take(&mut self.received);
        match received.first() {
            // The content types of all versions of TLS.
            Some(first) if !self.began && !(20..=24).contains(first) => {
                return Err(StreamError::Tls(Fault::not_tls()));
            }
            first => self.began |= first.is_some(),
        }
        let mut incoming = [self.tls.waiting(), &received].concat();
        let plaintext = &mut self.plaintext;
        let processed = self.tls.process(&mut incoming, |piece| plaintext.extend_from_slice(piece));
        self.take_outgoing();
        processed.map_err(|error| {
            // The alert is a courtesy: the server's log then names the reason.
            let _ = self.socket.try_write(&self.sending);
            fault(&error)
        })
    }

    fn take_outgoing(&mut self) {
        let outgoing = self.tls.outgoing();
        self.sending.extend_from_slice(outgoing);
        outgoing.clear();
    }

    async fn flush(&mut self) -> Result<(), StreamError> {
        while !self.sending.is_empty() {
            if self.socket.write_buf(&mut self.sending).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
        }
        Ok(())
    }
}

fn fault(error: &tls::rustls::Error) -> StreamError {
    StreamError::Tls(Fault::of(error))
}

/// Whether these first bytes of a server are a record of TLS: an alert or a handshake message.
pub(crate) fn is_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [21 | 22, 3, 0..=4, ..])
}

/// Whether a plain server answers on this new connection: with RESP, to PING.
pub async fn answers_in_plain_text(mut socket: TcpStream) -> bool {
    let asking = async {
        socket.write_all(b"PING\r\n").await.ok()?;
        let mut answer = [0; 1];
        socket.read_exact(&mut answer).await.ok()?;
        Some(matches!(answer, [b'+' | b'-']))
    };
    asking.await.unwrap_or(false)
}

/// Whether the first bytes of the answer to a TLS handshake on this new connection are those of
/// TLS. The settings must not verify anything.
pub async fn answers_with_tls(socket: TcpStream, tls: &ClientTls) -> bool {
    let Ok(addr) = socket.peer_addr() else { return false };
    match TlsStream::open(socket, tls, &addr.ip().to_string(), true).await {
        Ok(_) => true,
        // An alert, or another version: TLS in any case.
        Err(StreamError::Tls(fault)) => fault.kind != FaultKind::NotTls && fault != Fault::closed(),
        Err(StreamError::Io(_)) => false,
    }
}
