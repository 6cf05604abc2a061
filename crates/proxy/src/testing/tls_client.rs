//! Certificates of a test, and clients that speak TLS over blocking sockets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tls::rustls::pki_types::ServerName;
use tls::rustls::{ClientConfig, ClientConnection, StreamOwned};
use tls::{
    CertificateFiles, ClientCertificates, ClientSettings, ClientTls, PemFile, Protocols, Roots,
    ServerSettings, ServerTls, Version,
};

use crate::testing::{SOON, TestProxy};
use crate::{Options, TlsListening};

pub(crate) type TlsClient = StreamOwned<ClientConnection, TcpStream>;

pub(crate) const NAME: &str = "redis.example";

fn pem(text: String) -> PemFile {
    PemFile::new(PathBuf::from("test.pem"), text)
}

/// A CA with a certificate for the proxy.
pub(crate) struct TestCa {
    issuer: CertifiedIssuer<'static, KeyPair>,
    certificate: CertificateFiles,
}

impl TestCa {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let certificate = issue(&issuer);
        Self { issuer, certificate }
    }

    pub(crate) fn file(&self) -> PemFile {
        pem(self.issuer.pem())
    }

    /// Another certificate, such as that of a client.
    pub(crate) fn issue(&self) -> CertificateFiles {
        issue(&self.issuer)
    }

    pub(crate) fn settings(&self) -> ServerSettings {
        ServerSettings { certificates: vec![self.certificate.clone()], ..ServerSettings::default() }
    }

    /// A listener with these settings.
    pub(crate) fn listening(&self, settings: &ServerSettings) -> TlsListening {
        TlsListening {
            settings: ServerTls::new(settings).unwrap(),
            handshake_timeout: SOON,
            max_waiting: 100,
        }
    }

    /// `options`, for clients that speak TLS.
    pub(crate) fn options(&self, options: Options) -> Options {
        Options { tls: Some(self.listening(&self.settings())), ..options }
    }

    /// Options for clients that have to show a certificate of this CA.
    pub(crate) fn mutual(&self) -> Options {
        let settings = ServerSettings {
            client_certificates: ClientCertificates::Required,
            client_ca: Some(self.file()),
            ..self.settings()
        };
        Options { tls: Some(self.listening(&settings)), ..Options::default() }
    }

    /// What a client trusts, with these versions and this certificate.
    pub(crate) fn client_config(
        &self,
        versions: (Version, Version),
        certificate: Option<CertificateFiles>,
    ) -> Arc<ClientConfig> {
        let client = ClientTls::new(&ClientSettings {
            roots: Roots::Own(self.file()),
            certificate,
            protocols: Protocols { min: versions.0, max: versions.1, ..Protocols::default() },
            ..ClientSettings::default()
        })
        .unwrap();
        client.connect(NAME).unwrap().0
    }

    /// A client of `proxy` that has not shaken hands yet.
    pub(crate) fn client(&self, proxy: &TestProxy) -> TlsClient {
        over(proxy.client(), self.client_config((Version::Tls12, Version::Tls13), None))
    }

    /// A client that has shaken hands.
    pub(crate) fn connected(&self, proxy: &TestProxy) -> TlsClient {
        let mut client = self.client(proxy);
        complete(&mut client);
        client
    }
}

fn issue(issuer: &CertifiedIssuer<'static, KeyPair>) -> CertificateFiles {
    let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    CertificateFiles { chain: pem(certificate.pem()), key: pem(key.serialize_pem()) }
}

/// A client over a connection.
pub(crate) fn over(socket: TcpStream, config: Arc<ClientConfig>) -> TlsClient {
    let name = ServerName::try_from(NAME).unwrap();
    StreamOwned::new(ClientConnection::new(config, name).unwrap(), socket)
}

/// Completes the handshake.
pub(crate) fn complete(client: &mut TlsClient) {
    while client.conn.is_handshaking() {
        client.conn.complete_io(&mut client.sock).unwrap();
    }
}

#[track_caller]
pub(crate) fn send(client: &mut TlsClient, bytes: &[u8]) {
    client.write_all(bytes).unwrap();
    client.flush().unwrap();
}

/// Reads exactly these bytes.
#[track_caller]
pub(crate) fn expect_tls(client: &mut TlsClient, bytes: &[u8]) {
    let mut read = vec![0; bytes.len()];
    client.read_exact(&mut read).unwrap();
    assert_eq!(String::from_utf8_lossy(&read), String::from_utf8_lossy(bytes));
}

/// Reads to the end, which must be announced: one that is not is an error.
#[track_caller]
pub(crate) fn rest_tls(client: &mut TlsClient) -> Vec<u8> {
    let mut read = Vec::new();
    client.read_to_end(&mut read).unwrap();
    read
}

/// Announces the end of the client's direction, and leaves the other open.
pub(crate) fn end_direction(client: &mut TlsClient) {
    client.conn.send_close_notify();
    while client.conn.wants_write() {
        client.conn.write_tls(&mut client.sock).unwrap();
    }
}

/// Whether nothing arrives in a short time.
pub(crate) fn is_silent_tls(client: &mut TlsClient) -> bool {
    client.sock.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let silent = client.read(&mut [0]).is_err();
    client.sock.set_read_timeout(Some(SOON)).unwrap();
    silent
}
