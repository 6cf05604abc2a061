//! The client's side of TLS for tests: what it trusts, which name it asks for, and its certificate.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};

use crate::certificates::{Authority, Certificate};

/// How a client speaks TLS.
#[derive(Debug, Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Tls {
    /// A client that trusts one authority and expects a server of this name.
    ///
    /// # Panics
    /// If the name is none.
    #[must_use]
    pub fn new(authority: &Authority, name: &str) -> Self {
        Self::with(authority, name, None, rustls::ALL_VERSIONS)
    }

    /// A client that shows a certificate, if there is one, and supports these versions.
    ///
    /// # Panics
    /// If the name is none, or the certificate cannot be used.
    #[must_use]
    pub fn with(
        authority: &Authority,
        name: &str,
        own: Option<&Certificate>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(authority.der()).expect("an authority");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots);
        let mut config = match own {
            Some(Certificate { chain, key }) => {
                let chain = CertificateDer::from_pem_slice(chain.as_bytes()).expect("PEM");
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(vec![chain], key).expect("a certificate")
            }
            None => builder.with_no_client_auth(),
        };
        // Every connection is verified by itself.
        config.resumption = Resumption::disabled();
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        Self { config: Arc::new(config), name }
    }

    /// What a client sends first.
    ///
    /// # Panics
    /// If the library has no random numbers.
    #[must_use]
    pub fn hello(&self) -> Vec<u8> {
        let connection = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let mut hello = Vec::new();
        connection.expect("a connection").write_tls(&mut hello).expect("a hello");
        hello
    }

    /// Completes the handshake.
    ///
    /// # Errors
    /// An error of the connection; `InvalidData` if either side refuses.
    pub(crate) fn connect(&self, stream: &mut TcpStream) -> io::Result<Box<ClientConnection>> {
        let connection = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let mut connection = Box::new(connection.map_err(io::Error::other)?);
        while connection.is_handshaking() {
            connection.complete_io(stream)?;
        }
        while connection.wants_write() {
            connection.write_tls(stream)?;
        }
        Ok(connection)
    }
}

/// Sends bytes, encrypted if there is a connection for that.
pub(crate) fn write_all(
    tls: Option<&mut ClientConnection>,
    stream: &mut TcpStream,
    bytes: &[u8],
) -> io::Result<()> {
    match tls {
        Some(tls) => {
            let mut stream = rustls::Stream::new(tls, stream);
            stream.write_all(bytes)?;
            stream.flush()
        }
        None => stream.write_all(bytes),
    }
}

/// Receives bytes; none at the orderly end, which over TLS is `close_notify`.
pub(crate) fn read(
    tls: Option<&mut ClientConnection>,
    stream: &mut TcpStream,
    bytes: &mut [u8],
) -> io::Result<usize> {
    let Some(tls) = tls else { return stream.read(bytes) };
    rustls::Stream::new(tls, stream).read(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            io::Error::new(io::ErrorKind::ConnectionAborted, "closed without close_notify")
        }
        _ => error,
    })
}
