//! The server's side of TLS, for fake servers.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::node_certificates::CertificateFiles;

/// A server's certificate. It asks clients for none.
#[derive(Clone)]
pub struct TlsServer(Arc<ServerConfig>);

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsServer")
    }
}

impl TlsServer {
    /// A server that shows this certificate.
    ///
    /// # Panics
    /// If the files cannot be read.
    #[must_use]
    pub fn new(files: &CertificateFiles) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_file_iter(&files.certificate).expect("a file").collect();
        let key = PrivateKeyDer::from_pem_file(&files.key).expect("a key");
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain.expect("certificates"), key);
        Self(Arc::new(config.expect("a certificate with its key")))
    }

    /// Completes a handshake with the client.
    ///
    /// # Errors
    /// An error of the connection; `InvalidData` if either side refuses.
    pub fn accept(&self, stream: TcpStream) -> io::Result<impl Read + Write + use<>> {
        let connection = ServerConnection::new(Arc::clone(&self.0)).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(stream)
    }
}
