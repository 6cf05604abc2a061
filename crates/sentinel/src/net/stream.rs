//! A connected socket to a server, plain or over TLS.
//!
//! Every failure is an [`io::Error`]; one of TLS carries its [`Fault`], or the error of the library
//! that [`fault`] reads as one. Reading is cancel-safe.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tls::rustls::{Error, InvalidMessage};
use tls::{CertificateFacts, ClientTls, Fault, FaultKind, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::net::host::ByteStream;

/// What was negotiated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsFacts {
    pub(crate) version: Version,
    /// The server's.
    pub(crate) certificate: Option<CertificateFacts>,
}

/// A connected socket. See the module's header.
#[derive(Debug)]
pub(crate) struct Stream {
    io: Box<dyn ByteStream>,
    /// What was negotiated; `None` without TLS.
    pub(crate) tls: Option<TlsFacts>,
}

impl Stream {
    pub(crate) fn plain(io: Box<dyn ByteStream>) -> Self {
        Self { io, tls: None }
    }

    /// Completes a handshake of TLS on `socket`. `dialled` is the name or address that was dialled.
    /// `verified` is false for a connection that only looks at the certificate.
    pub(crate) async fn over_tls(
        socket: TcpStream,
        tls: &ClientTls,
        dialled: &str,
        verified: bool,
    ) -> io::Result<Self> {
        let connect =
            if verified { ClientTls::connect_in_full } else { ClientTls::connect_unverified };
        let unusable =
            |it: &dyn ToString| io::Error::new(io::ErrorKind::InvalidInput, it.to_string());
        let (config, name) = connect(tls, dialled).map_err(|problem| unusable(&problem))?;
        let opening = TlsConnector::from(config).connect(name, socket).await;
        let stream = opening.map_err(handshake_error)?;
        let (_, session) = stream.get_ref();
        let certificate = session.peer_certificates().and_then(CertificateFacts::of_peer);
        let version = session.protocol_version().and_then(Version::of);
        let tls = version.map(|version| TlsFacts { version, certificate });
        Ok(Self { io: Box::new(stream), tls })
    }

    /// Reads at least one byte into `into`; 0 at the end.
    pub(crate) async fn read(&mut self, into: &mut BytesMut) -> io::Result<usize> {
        match self.io.read_buf(into).await {
            // The peer closed the socket without ending the TLS session.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            read => read,
        }
    }

    /// Writes all of it.
    pub(crate) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let writing = async {
            self.io.write_all(bytes).await?;
            self.io.flush().await
        };
        let Err(error) = writing.await else { return Ok(()) };
        // A server that refuses our certificate says so, and closes: with TLS 1.3 after the
        // handshake is complete here. Its reason says more than the broken pipe.
        let mut rest = BytesMut::new();
        while self.tls.is_some()
            && let Ok(read) =
                tokio::time::timeout(Duration::ZERO, self.io.read_buf(&mut rest)).await
        {
            match read {
                Ok(1..) => {}
                Err(reason) if fault(&reason).is_some() => return Err(reason),
                Ok(0) | Err(_) => break,
            }
        }
        Err(error)
    }
}

/// The fault of TLS that this error stands for.
pub(crate) fn fault(error: &io::Error) -> Option<Fault> {
    let reason = error.get_ref()?;
    let of_library = || reason.downcast_ref().map(Fault::of);
    reason.downcast_ref::<Fault>().cloned().or_else(of_library)
}

/// The error of a handshake, which ends before or with the first record of a server without TLS.
fn handshake_error(error: io::Error) -> io::Error {
    let reason = error.get_ref().and_then(|reason| reason.downcast_ref());
    io::Error::other(match reason {
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => Fault::not_tls(),
        Some(reason) => Fault::of(reason),
        None if error.kind() == io::ErrorKind::UnexpectedEof => Fault::closed(),
        None => return error,
    })
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
    match Stream::over_tls(socket, tls, &addr.ip().to_string(), true).await {
        Ok(_) => true,
        // An alert, or another version: TLS in any case.
        Err(error) => fault(&error)
            .is_some_and(|fault| fault.kind != FaultKind::NotTls && fault != Fault::closed()),
    }
}

#[cfg(test)]
mod tests {
    use tls::rustls::HandshakeKind;
    use tls::{
        CertificateFiles, ClientCertificates, ClientSettings, PemFile, Roots, ServerSettings,
        ServerTls,
    };
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// A server with a certificate of its own, and the settings of a client that trusts it.
    fn tls_of(client_certificates: ClientCertificates) -> (ServerTls, ClientTls) {
        let signed = rcgen::generate_simple_self_signed(["redis.example".to_owned()]).unwrap();
        let file = |text: String| PemFile::new("file.pem".into(), text);
        let (chain, key) = (file(signed.cert.pem()), file(signed.signing_key.serialize_pem()));
        let server = ServerTls::new(&ServerSettings {
            certificates: vec![CertificateFiles { chain: chain.clone(), key }],
            client_certificates,
            client_ca: (client_certificates != ClientCertificates::None).then(|| chain.clone()),
            ..ServerSettings::default()
        });
        let settings = ClientSettings { roots: Roots::Own(chain), ..ClientSettings::default() };
        (server.unwrap(), ClientTls::new(&settings).unwrap())
    }

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (dialled, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn exchanges_bytes_and_ends_without_close_notify() {
        let (server, client) = tls_of(ClientCertificates::Optional);
        let (dialled, accepted) = pair().await;
        let serving = tokio::spawn(async move {
            let mut accepted = TlsAcceptor::from(server.config()).accept(accepted).await.unwrap();
            let mut received = [0; 4];
            accepted.read_exact(&mut received).await.unwrap();
            accepted.write_all(&received).await.unwrap();
            accepted.flush().await.unwrap();
        });
        let mut stream = Stream::over_tls(dialled, &client, "redis.example", true).await.unwrap();
        let facts = stream.tls.clone().unwrap();
        assert_eq!((facts.version, facts.certificate.is_some()), (Version::Tls13, true));
        stream.write_all(b"PING").await.unwrap();
        let mut answer = BytesMut::new();
        assert_eq!(stream.read(&mut answer).await.unwrap(), 4);
        assert_eq!(&answer[..], b"PING");
        serving.await.unwrap();
        assert_eq!(stream.read(&mut answer).await.unwrap(), 0);
    }

    /// A resumed session would not show that the certificate has expired.
    #[tokio::test]
    async fn verifies_the_certificate_of_each_connection() {
        let (server, client) = tls_of(ClientCertificates::None);
        for _ in 0..2 {
            let (dialled, accepted) = pair().await;
            let accepting = TlsAcceptor::from(server.config()).accept(accepted);
            let serving = tokio::spawn(async move {
                let mut accepted = accepting.await.unwrap();
                accepted.write_all(b"+PONG\r\n").await.unwrap();
                accepted.flush().await.unwrap();
                accepted.get_ref().1.handshake_kind()
            });
            let mut stream =
                Stream::over_tls(dialled, &client, "redis.example", true).await.unwrap();
            stream.read(&mut BytesMut::new()).await.unwrap();
            assert_eq!(serving.await.unwrap(), Some(HandshakeKind::Full));
        }
    }

    /// With TLS 1.3 the server says so after the handshake is complete for the client.
    #[tokio::test]
    async fn names_refusal_of_client_without_certificate() {
        let (server, client) = tls_of(ClientCertificates::Required);
        for is_closed_at_write in [false, true] {
            let (dialled, accepted) = pair().await;
            let accepting = TlsAcceptor::from(server.config()).accept(accepted);
            let serving = tokio::spawn(async move { drop(accepting.await) });
            let opening = Stream::over_tls(dialled, &client, "redis.example", true);
            let mut stream = opening.await.unwrap();
            if is_closed_at_write {
                serving.await.unwrap();
            }
            let mut failed = None;
            for _ in 0..100 {
                if let Err(error) = stream.write_all(b"PING").await {
                    failed = fault(&error);
                    break;
                }
                if !is_closed_at_write {
                    let error = stream.read(&mut BytesMut::new()).await.unwrap_err();
                    failed = fault(&error);
                    break;
                }
            }
            assert_eq!(failed.map(|it| it.kind), Some(FaultKind::Refused), "{is_closed_at_write}");
        }
    }

    #[tokio::test]
    async fn tells_plain_server_from_one_that_closes() {
        let (_, client) = tls_of(ClientCertificates::Optional);
        for (answer, kind) in [
            (&b"-ERR unknown command\r\n"[..], FaultKind::NotTls),
            (b"HTTP/1.1 400 Bad Request\r\n", FaultKind::NotTls),
            (b"", FaultKind::Closed),
            (b"\x15\x03\x03\x00\x02\x02\x28", FaultKind::NoCommonProtocol),
        ] {
            let (dialled, mut accepted) = pair().await;
            tokio::spawn(async move {
                accepted.read_buf(&mut BytesMut::with_capacity(4096)).await.unwrap();
                accepted.write_all(answer).await.unwrap();
            });
            let opened = Stream::over_tls(dialled, &client, "redis.example", true).await;
            assert_eq!(fault(&opened.unwrap_err()).unwrap().kind, kind, "{answer:?}");
        }
    }
}
