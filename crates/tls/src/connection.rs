//! One end of a TLS connection, without its socket: ciphertext in, plaintext out, and back.
//!
//! What was received is decrypted out of the caller's buffer. Only an incomplete record is kept
//! here, so an idle connection has no buffer. What is sent is encrypted into the caller's buffer,
//! except for messages of the protocol itself ([`TlsConnection::outgoing`]), which have to be sent
//! before any other record.

use std::ops::DerefMut;
use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, UnbufferedConnectionCommon, UnbufferedStatus,
    WriteTraffic,
};
use rustls::{ClientConfig, Error, HandshakeKind, ServerConfig};

use crate::protocol::{Version, iana_name};

/// The most plaintext in one record.
pub const MAX_RECORD: usize = 16 * 1024;

/// The most that a record is longer than its plaintext, with a key update before it.
pub const RECORD_OVERHEAD: usize = 512;

/// The most that is received and not processed: a handshake message of the maximum length.
pub const MAX_WAITING: usize = 64 * 1024 + MAX_RECORD + RECORD_OVERHEAD;

mod sealed {
    /// Implemented for both sides, and for nothing else.
    pub trait Sealed {}
    impl Sealed for super::ServerSide {}
    impl Sealed for super::ClientSide {}
}

/// A side of a connection.
pub trait TlsSide: sealed::Sealed + 'static {
    /// Whether it has opened the connection.
    const OPENS: bool;
    /// What the library keeps for this side.
    type Data;
    /// The library's connection.
    type Inner: DerefMut<Target = UnbufferedConnectionCommon<Self::Data>> + Send;

    /// Processes what was received.
    fn process<'c, 'i>(
        inner: &'c mut Self::Inner,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;
}

/// The side that accepted the connection.
#[derive(Debug, Clone, Copy)]
pub struct ServerSide;

/// The side that opened the connection.
#[derive(Debug, Clone, Copy)]
pub struct ClientSide;

impl TlsSide for ServerSide {
    const OPENS: bool = false;
    type Data = ServerConnectionData;
    type Inner = UnbufferedServerConnection;

    fn process<'c, 'i>(
        inner: &'c mut Self::Inner,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        inner.process_tls_records(incoming)
    }
}

impl TlsSide for ClientSide {
    const OPENS: bool = true;
    type Data = ClientConnectionData;
    type Inner = UnbufferedClientConnection;

    fn process<'c, 'i>(
        inner: &'c mut Self::Inner,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        inner.process_tls_records(incoming)
    }
}

/// One end of a connection.
pub struct TlsConnection<S: TlsSide> {
    inner: S::Inner,
    /// Received and not processed: an incomplete record, or records of an incomplete message.
    waiting: Vec<u8>,
    /// Messages of the protocol that have to be sent next.
    outgoing: Vec<u8>,
    peer_closed: bool,
    closed: bool,
}

impl<S: TlsSide> std::fmt::Debug for TlsConnection<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsConnection")
            .field("version", &self.version())
            .field("cipher", &self.cipher())
            .finish_non_exhaustive()
    }
}

impl TlsConnection<ServerSide> {
    /// An accepted connection.
    ///
    /// # Errors
    ///
    /// The library's, such as a lack of random numbers.
    pub fn accept(config: Arc<ServerConfig>) -> Result<Self, Error> {
        UnbufferedServerConnection::new(config).map(Self::new)
    }
}

impl TlsConnection<ClientSide> {
    /// A connection to the server `name`. The handshake begins with the first
    /// [`process`](Self::process), of nothing.
    ///
    /// # Errors
    ///
    /// The library's, such as a lack of random numbers.
    pub fn connect(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, Error> {
        UnbufferedClientConnection::new(config, name).map(Self::new)
    }
}

impl<S: TlsSide> TlsConnection<S> {
    fn new(inner: S::Inner) -> Self {
        let (waiting, outgoing) = (Vec::new(), Vec::new());
        Self { inner, waiting, outgoing, peer_closed: false, closed: false }
    }

    /// Bytes received that cannot be processed yet. Together with as many new ones as there are,
    /// they have to be given to [`process`](Self::process).
    #[must_use]
    pub fn waiting(&self) -> &[u8] {
        &self.waiting
    }

    /// Processes `incoming`: the [waiting](Self::waiting) bytes and what was received after them.
    /// Each piece of plaintext is passed to `plaintext`, in order.
    ///
    /// # Errors
    ///
    /// The peer does not keep to the protocol, or is not whom it claims to be. The alert that it
    /// is sent is in [`outgoing`](Self::outgoing); nothing else can be done with the connection.
    pub fn process(
        &mut self,
        incoming: &mut [u8],
        mut plaintext: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        let processed = advance::<S>(
            &mut self.inner,
            &mut self.outgoing,
            &mut self.peer_closed,
            incoming,
            &mut plaintext,
        );
        let (at, result) = processed;
        let rest = incoming.get(at..).unwrap_or_default();
        if result.is_ok() && rest.len() > MAX_WAITING {
            return Err(Error::PeerSentOversizedRecord);
        }
        // Not kept as a buffer for the next record: most connections are idle after this one.
        self.waiting = if result.is_ok() { rest.to_vec() } else { Vec::new() };
        result
    }

    /// Encrypts at most [`MAX_RECORD`] bytes into `out`, which is long enough with
    /// [`RECORD_OVERHEAD`] more, and returns the length of the record.
    ///
    /// # Errors
    ///
    /// The handshake is not complete, the connection is closed, or its keys are used up.
    pub fn encrypt(&mut self, plaintext: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        self.with_traffic(|traffic| traffic.encrypt(plaintext, out))
    }

    /// Makes the message that ends our direction [outgoing](Self::outgoing), once.
    ///
    /// # Errors
    ///
    /// As [`encrypt`](Self::encrypt).
    pub fn close(&mut self) -> Result<(), Error> {
        if self.closed {
            return Ok(());
        }
        let mut record = [0; RECORD_OVERHEAD];
        let length = self.with_traffic(|traffic| traffic.queue_close_notify(&mut record))?;
        self.closed = true;
        self.outgoing.extend_from_slice(record.get(..length).unwrap_or_default());
        Ok(())
    }

    fn with_traffic<R>(
        &mut self,
        act: impl FnOnce(&mut WriteTraffic<'_, S::Data>) -> Result<R, EncryptError>,
    ) -> Result<R, Error> {
        // Usually the first state. Anything before it was caused by what was received, and does
        // not repeat: each step takes something out of the connection.
        loop {
            // With what is waiting, because the library remembers how far it has read there.
            match S::process(&mut self.inner, &mut self.waiting).state? {
                ConnectionState::WriteTraffic(mut traffic) => {
                    return act(&mut traffic).map_err(|error| match error {
                        EncryptError::EncryptExhausted => Error::EncryptError,
                        EncryptError::InsufficientSize(_) => {
                            Error::General("a buffer for a record is too short".to_owned())
                        }
                    });
                }
                ConnectionState::EncodeTlsData(mut message) => {
                    encode(&mut self.outgoing, |out| message.encode(out))?;
                }
                ConnectionState::TransmitTlsData(message) => message.done(),
                ConnectionState::PeerClosed => self.peer_closed = true,
                _ => return Err(Error::HandshakeNotComplete),
            }
        }
    }

    /// Messages of the protocol, which have to be sent before anything else that is encrypted after
    /// them. The caller removes what it has sent.
    pub fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    /// Whether application data cannot be sent yet.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.inner.is_handshaking()
    }

    /// Whether the peer has ended its direction, so that nothing more can have been cut off.
    #[must_use]
    pub fn peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// Whether the session was resumed. `None` during the handshake.
    #[must_use]
    pub fn is_resumed(&self) -> Option<bool> {
        let kind = self.inner.handshake_kind().filter(|_| !self.is_handshaking());
        kind.map(|kind| kind == HandshakeKind::Resumed)
    }

    /// The negotiated version.
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        Version::of(self.inner.protocol_version()?)
    }

    /// The negotiated cipher, as IANA registers it.
    #[must_use]
    pub fn cipher(&self) -> Option<&'static str> {
        self.inner.negotiated_cipher_suite().map(iana_name)
    }

    /// Bytes of heap that are kept here, apart from those of the library.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.waiting.capacity() + self.outgoing.capacity()
    }
}

/// Processes `incoming` as far as possible. Returns how much of it was processed.
fn advance<S: TlsSide>(
    inner: &mut S::Inner,
    outgoing: &mut Vec<u8>,
    peer_closed: &mut bool,
    incoming: &mut [u8],
    plaintext: &mut impl FnMut(&[u8]),
) -> (usize, Result<(), Error>) {
    let mut at = 0;
    let mut failed = None;
    loop {
        // After a fault only what is to be sent is taken out, and nothing more is read.
        if let Some(error) = failed.take_if(|_| !inner.wants_write()) {
            return (at, Err(error));
        }
        let rest = incoming.get_mut(at..).unwrap_or_default();
        let UnbufferedStatus { discard, state, .. } = S::process(inner, rest);
        let mut last = false;
        match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                while let Some(record) = traffic.next_record() {
                    match record {
                        Ok(record) => plaintext(record.payload),
                        Err(error) => return (at, Err(error)),
                    }
                }
            }
            Ok(ConnectionState::EncodeTlsData(mut message)) => {
                if let Err(error) = encode(outgoing, |out| message.encode(out)) {
                    return (at, Err(error));
                }
            }
            Ok(ConnectionState::TransmitTlsData(message)) => message.done(),
            Ok(ConnectionState::PeerClosed) => *peer_closed = true,
            // Early data is never offered, so there is none.
            Ok(_) => last = true,
            Err(error) => failed = Some(error),
        }
        at = at.saturating_add(discard).min(incoming.len());
        if last {
            return (at, failed.map_or(Ok(()), Err));
        }
    }
}

/// Appends a message to `outgoing`.
fn encode(
    outgoing: &mut Vec<u8>,
    mut message: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> Result<(), Error> {
    let before = outgoing.len();
    let length = match message(&mut []) {
        Err(EncodeError::InsufficientSize(needed)) => {
            outgoing.resize(before.saturating_add(needed.required_size), 0);
            message(outgoing.get_mut(before..).unwrap_or_default())
        }
        result => result,
    };
    let length = length.map_err(|error| Error::General(error.to_string()))?;
    outgoing.truncate(before.saturating_add(length));
    Ok(())
}
