//! A TLS session with an admin server, bounded in time, and why there is none.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tls::rustls::{ClientConnection, Error as TlsError, StreamOwned};
use tls::{ClientTls, Fault, FaultKind};

use super::admin_server::AdminServer;

/// A connection over TLS.
type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Begins a session on a connected socket. `host` is the name to verify.
///
/// # Errors
///
/// Of the connection, or a [`TlsProblem`].
pub(super) fn connect(
    socket: TcpStream,
    host: &str,
    tls: &ClientTls,
    server: &AdminServer,
    timeout: Duration,
) -> io::Result<TlsStream> {
    let (config, name) = tls.connect(host).map_err(|error| io::Error::other(error.to_string()))?;
    let connection = ClientConnection::new(config, name);
    let connection = connection.map_err(|error| TlsProblem::of(&error, server))?;
    let mut stream = StreamOwned::new(connection, socket);
    handshake(&mut stream, server, timeout)?;
    Ok(stream)
}

/// Completes the handshake.
fn handshake(stream: &mut TlsStream, server: &AdminServer, timeout: Duration) -> io::Result<()> {
    let deadline = Instant::now() + timeout;
    let StreamOwned { conn, sock } = stream;
    while conn.is_handshaking() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        sock.set_read_timeout(Some(left))?;
        sock.set_write_timeout(Some(left))?;
        while conn.wants_write() {
            conn.write_tls(sock)?;
        }
        if !conn.is_handshaking() {
            break;
        }
        if conn.read_tls(sock)? == 0 {
            let what = "the connection was closed in the TLS handshake; does this port have TLS?";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        if let Err(error) = conn.process_new_packets() {
            // The alert is a courtesy: the server's log then names the reason.
            let _ = conn.write_tls(sock);
            return Err(TlsProblem::of(&error, server).into());
        }
    }
    Ok(())
}

/// An error of a connection, with what an error of TLS means.
pub(super) fn explained(error: io::Error, server: &AdminServer) -> io::Error {
    match error.get_ref().and_then(|it| it.downcast_ref()) {
        Some(fault) => TlsProblem::of(fault, server).into(),
        None => error,
    }
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
