//! Tells plain ports from ports with TLS by their first bytes, and reads certificates that cannot
//! be verified.
//!
//! Redis does not say which of the two a port is: it resets a plain connection to a port with TLS,
//! and a plain port waits for the rest of a command when it receives a TLS handshake. So the doctor
//! tries the other one. It sends nothing there but PING or the beginning of a handshake.

use std::net::SocketAddr;
use std::time::Duration;

use tls::{CertificateFacts, ClientSettings, ClientTls, Fault, FaultKind, Verification};
use tokio::net::TcpStream;

use sentinel::connections::{Transport, answers_in_plain_text, answers_with_tls};

use super::HANDSHAKE_TIMEOUT;
use crate::observed::ExamineError;

/// Timeout of each further connection, and of an answer to it in plain text.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Finds out whether an unsuccessful connection was one with TLS to a plain port or the other way
/// round, and adds a certificate that was not accepted.
pub(super) async fn explain<T>(
    answer: Result<T, ExamineError>,
    reached: Option<SocketAddr>,
    transport: &Transport,
    certificate: &mut Option<CertificateFacts>,
) -> Result<T, ExamineError> {
    let (Err(error), Some(addr)) = (&answer, reached) else { return answer };
    match error {
        ExamineError::Tls(fault) if fault.kind.is_about_certificate() => {
            *certificate = transport.read_certificate(addr, HANDSHAKE_TIMEOUT).await;
        }
        ExamineError::Tls(Fault { kind: FaultKind::Broken | FaultKind::Closed, .. })
        | ExamineError::Unreachable(_)
        | ExamineError::UnexpectedServer
        | ExamineError::Unresponsive
            if certificate.is_none() =>
        {
            if transport.is_tls() {
                if is_plain(addr).await {
                    return Err(ExamineError::Tls(Fault::not_tls()));
                }
            } else if is_tls(addr, patience(error)).await {
                return Err(ExamineError::Tls(Fault::not_plain()));
            }
        }
        _ => {}
    }
    answer
}

/// Whether plain text is answered here, as far as a short time tells.
pub(super) async fn is_plain(addr: SocketAddr) -> bool {
    let Some(socket) = connect(addr).await else { return false };
    tokio::time::timeout(TIMEOUT, answers_in_plain_text(socket)).await.unwrap_or(false)
}

/// Time for a handshake with a server that gave this answer to plain text. One that closed the
/// connection is alive; one that hangs will not answer a handshake either.
fn patience(error: &ExamineError) -> Duration {
    if matches!(error, ExamineError::Unresponsive) { TIMEOUT } else { HANDSHAKE_TIMEOUT }
}

/// Whether a handshake is answered here within this time.
async fn is_tls(addr: SocketAddr, patience: Duration) -> bool {
    let settings = ClientSettings { verification: Verification::None, ..ClientSettings::default() };
    let Ok(tls) = ClientTls::new(&settings) else { return false };
    let Some(socket) = connect(addr).await else { return false };
    tokio::time::timeout(patience, answers_with_tls(socket, &tls)).await.unwrap_or(false)
}

async fn connect(addr: SocketAddr) -> Option<TcpStream> {
    tokio::time::timeout(TIMEOUT, TcpStream::connect(addr)).await.ok()?.ok()
}
