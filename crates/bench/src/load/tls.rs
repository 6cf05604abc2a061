//! TLS towards the proxy: one version, one cipher and one key exchange, so that all proxies do the
//! same work.
//!
//! The server's certificate is not verified. Only the proxy's side of the handshakes is measured,
//! and verification would make the load the bottleneck.

use std::io::{self, BufRead as _, Read, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use harness::Client;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

/// The name that clients ask for.
const NAME: &str = "redis.bench";

/// How clients speak TLS.
#[derive(Debug, Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    handshake: Handshake,
}

/// Whether a client continues an earlier session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handshake {
    /// Each connection does a full handshake.
    Full,
    /// With a ticket from an earlier connection, if there is one.
    Resumed,
}

impl Tls {
    /// TLS 1.3 with AES-128-GCM and X25519.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn new(handshake: Handshake) -> Result<Self, String> {
        let mut provider = aws_lc_rs::default_provider();
        provider.cipher_suites = vec![cipher_suite::TLS13_AES_128_GCM_SHA256];
        provider.kx_groups = vec![kx_group::X25519];
        let mut config = harness::tls_client_with(provider);
        config.resumption = match handshake {
            Handshake::Full => Resumption::disabled(),
            Handshake::Resumed => Resumption::in_memory_sessions(64),
        };
        let name = ServerName::try_from(NAME).map_err(|error| error.to_string())?;
        Ok(Self { config: Arc::new(config), name, handshake })
    }

    /// Checks the result of a measurement.
    ///
    /// # Errors
    /// If other handshakes than intended were done.
    pub(crate) fn check(&self, connections: usize, resumed: usize) -> io::Result<()> {
        let intended = match self.handshake {
            Handshake::Full => resumed == 0,
            // A ticket may be missing for a connection now and then.
            Handshake::Resumed => resumed >= connections - connections / 20,
        };
        if intended {
            return Ok(());
        }
        let what = format!("{resumed} of {connections} sessions were resumed");
        Err(io::Error::new(io::ErrorKind::InvalidData, what))
    }

    /// A client that blocks.
    pub(crate) fn client(&self, to: SocketAddr) -> io::Result<Client> {
        Client::connect(to)?.over_tls(&self.config, NAME)
    }

    pub(crate) fn begin(&self) -> io::Result<Box<ClientConnection>> {
        let connection = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        connection.map(Box::new).map_err(io::Error::other)
    }
}

/// Encrypts as much of `text` as the connection takes. Returns how much that was.
pub(crate) fn encrypt(tls: &mut ClientConnection, text: &[u8]) -> io::Result<usize> {
    tls.writer().write(text)
}

/// Sends what is encrypted.
///
/// # Errors
/// Those of the socket, also if it does not accept all of it.
pub(crate) fn flush(tls: &mut ClientConnection, socket: &mut impl io::Write) -> io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(socket)?;
    }
    Ok(())
}

/// Decrypts what was received, and passes on each piece of plaintext.
pub(crate) fn decrypt(
    tls: &mut ClientConnection,
    mut received: &[u8],
    mut plaintext: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    while !received.is_empty() {
        tls.read_tls(&mut received as &mut dyn Read)?;
        tls.process_new_packets().map_err(io::Error::other)?;
        loop {
            let mut reader = tls.reader();
            let piece = match reader.fill_buf() {
                Ok([]) => break,
                Ok(piece) => piece,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            plaintext(piece)?;
            let length = piece.len();
            reader.consume(length);
        }
    }
    Ok(())
}
