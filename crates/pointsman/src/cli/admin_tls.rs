//! A TLS session with an admin server, bounded in time, and why there is none.

use std::io;

use tls::rustls::Error as TlsError;
use tls::{ClientTls, Fault, FaultKind};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::admin_server::AdminServer;

/// Begins a session on a connected socket. `host` is the name to verify. Cancel-safe.
///
/// # Errors
///
/// Of the connection, or a [`TlsProblem`].
pub(super) async fn connect(
    socket: TcpStream,
    host: &str,
    tls: &ClientTls,
    server: &AdminServer,
) -> io::Result<TlsStream<TcpStream>> {
    let (config, name) = tls.connect(host).map_err(|error| io::Error::other(error.to_string()))?;
    let session = TlsConnector::from(config).connect(name, socket).await;
    session.map_err(|error| match TlsProblem::of_io(&error, server) {
        Some(problem) => problem.into(),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            let what = "the connection was closed in the TLS handshake; does this port have TLS?";
            io::Error::new(io::ErrorKind::UnexpectedEof, what)
        }
        None => error,
    })
}

/// Why there is no TLS session with an admin server, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{what}; {remedy}")]
pub(super) struct TlsProblem {
    what: String,
    remedy: String,
}

impl TlsProblem {
    /// What an error of the library means for this server.
    pub(super) fn of(error: &TlsError, server: &AdminServer) -> Self {
        if matches!(error, TlsError::InvalidMessage(_)) {
            let what = "it answers without TLS".to_owned();
            return Self { what, remedy: format!("use --admin {}", server.addr) };
        }
        let fault = Fault::of(error);
        let known = |what: &str, remedy: &str| Self { what: what.into(), remedy: remedy.into() };
        match fault.kind {
            FaultKind::UnknownIssuer => known(
                "its certificate is not issued by a known authority, or is not the one in \
                 admin.tls.certificate_file of this configuration",
                "name its authority: --admin https://NAME:PORT --admin-ca FILE; if its certificate \
                 was replaced a moment ago, try again",
            ),
            FaultKind::WrongName => Self {
                what: fault.what,
                remedy: "use one of its names: --admin https://NAME:PORT".to_owned(),
            },
            FaultKind::Refused => known(
                "it refuses the certificate that it is shown",
                "show one that an authority in admin.tls.client_ca_file has issued and that has \
                 not expired: --admin-certificate and --admin-key",
            ),
            FaultKind::NoCommonProtocol => known(
                "there is no common version of TLS",
                "compare admin.tls.min_version and admin.tls.max_version: this client speaks 1.2 \
                 and 1.3",
            ),
            FaultKind::Expired | FaultKind::NotYetValid => {
                Self { what: fault.what, remedy: fault.remedy.to_owned() }
            }
            _ => Self {
                what: fault.what,
                remedy: "check that this is the admin address of a pointsman with TLS".to_owned(),
            },
        }
    }

    /// What an error of a connection means if it is one of TLS.
    pub(super) fn of_io(error: &io::Error, server: &AdminServer) -> Option<Self> {
        Some(Self::of(error.get_ref()?.downcast_ref()?, server))
    }

    /// The problem that an error of a connection contains.
    pub(super) fn in_error(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<TlsProblem> for io::Error {
    fn from(problem: TlsProblem) -> Self {
        Self::new(io::ErrorKind::InvalidData, problem)
    }
}
