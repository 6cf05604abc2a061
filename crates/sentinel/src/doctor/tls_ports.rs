//! Tells plain ports from ports with TLS by their first bytes, and reads certificates that cannot
//! be verified.
//!
//! Redis does not say which of the two a port is: it resets a plain connection to a port with TLS,
//! and a plain port waits for the rest of a command when it receives a TLS handshake. So the doctor
//! tries the other one. It sends nothing there but PING or the beginning of a handshake.

use std::net::SocketAddr;
use std::time::Duration;

use tls::{CertificateFacts, ClientSettings, ClientTls, Fault, FaultKind, Verification};

use super::observed::ExamineError;
use crate::net::stream::{answers_in_plain_text, answers_with_tls};
use crate::net::transport::Transport;

/// Timeout of each further connection.
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
            *certificate = transport.read_certificate(addr, TIMEOUT).await;
        }
        ExamineError::Tls(Fault {
            kind: FaultKind::Broken | FaultKind::Closed | FaultKind::TimedOut,
            ..
        })
        | ExamineError::Unreachable(_)
        | ExamineError::UnexpectedServer
        | ExamineError::Unresponsive
            if certificate.is_none() =>
        {
            let other = async {
                if transport.is_tls() {
                    return answers_in_plain_text(addr).await.then(Fault::not_tls);
                }
                let settings = ClientSettings {
                    verification: Verification::None,
                    ..ClientSettings::default()
                };
                let tls = ClientTls::new(&settings).ok()?;
                answers_with_tls(addr, &tls).await.then(Fault::not_plain)
            };
            if let Ok(Some(fault)) = tokio::time::timeout(TIMEOUT, other).await {
                return Err(ExamineError::Tls(fault));
            }
        }
        _ => {}
    }
    answer
}
