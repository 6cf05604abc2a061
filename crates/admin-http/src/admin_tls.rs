//! TLS of the network addresses: the handshake, and what needs it.
//!
//! Probes are answered on the same port without TLS and without a client certificate. They reveal
//! nothing, and a supervisor that is refused restarts the process: neither a certificate that was
//! forgotten nor a probe that was configured before TLS may do that (`docs/decisions/tls.md`).
//! Everything else needs TLS and, if the rules say so, a client certificate. Therefore a
//! certificate is asked for in the handshake and required by the request.
//!
//! A certificate is verified again at each request, since connections live longer than certificates
//! and authorities do. A connection whose handshake was under earlier settings is closed after the
//! response, so that clients that keep connections get the new certificate.
//!
//! A handshake counts in the time for the first request ([`connection_clock`]), and takes part in
//! the eviction of connections.
//!
//! Sessions are not resumed: they would outlive the rules under which a client was verified.
//!
//! [`connection_clock`]: crate::connection_clock

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tls::ServerTls;
use tls::rustls::ServerConfig;
use tls::rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::listener::Stream;
use crate::routes::{PROBES, Reply};

/// The content type of the record that begins a handshake.
const HANDSHAKE: u8 = 22;

/// A stream of requests, over TLS or not.
pub(crate) type Channel = Either<Box<TlsStream<TcpStream>>, Stream>;

/// What the clients of the network addresses need.
#[derive(Debug, Clone)]
pub struct TlsRules {
    /// The settings of sessions. They must ask for client certificates without requiring them, and
    /// not resume sessions.
    pub server: ServerTls,
    /// Whether everything except probes needs a valid client certificate.
    pub certificate_required: bool,
}

/// TLS of the network addresses. Cheap to clone; all clones share the rules, which can be replaced
/// while the server runs.
#[derive(Debug, Clone)]
pub struct AdminTls(Arc<ArcSwap<TlsRules>>);

/// What is known of a session.
#[derive(Debug)]
pub(crate) struct Session {
    /// The settings of its handshake.
    config: Arc<ServerConfig>,
    /// What the client showed.
    chain: Vec<CertificateDer<'static>>,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It came without TLS.
    Plaintext,
    /// Its client has shown no valid certificate.
    Uncertified,
}

impl AdminTls {
    /// These rules.
    #[must_use]
    pub fn new(rules: TlsRules) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(rules)))
    }

    /// Replaces the rules. They apply to the next request of every connection.
    pub fn set(&self, rules: TlsRules) {
        self.0.store(Arc::new(rules));
    }

    /// Completes a handshake, if the client begins one. A client that sends anything else is served
    /// without TLS, which answers probes only.
    ///
    /// # Errors
    ///
    /// The handshake failed; `NotConnected` if the client closed without a byte.
    pub(crate) async fn open(&self, stream: Stream) -> io::Result<(Channel, Option<Session>)> {
        let Either::Left(socket) = stream else { return Ok((Either::Right(stream), None)) };
        let mut first = [0; 1];
        if socket.peek(&mut first).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::NotConnected));
        }
        if first != [HANDSHAKE] {
            return Ok((Either::Right(Either::Left(socket)), None));
        }
        let config = self.0.load().server.config();
        let stream = TlsAcceptor::from(Arc::clone(&config)).accept(socket).await?;
        let (_, connection) = stream.get_ref();
        let chain = connection.peer_certificates().map(<[_]>::to_vec).unwrap_or_default();
        Ok((Either::Left(Box::new(stream)), Some(Session { config, chain })))
    }

    /// The refusal of a request. `session` is missing without TLS.
    pub(crate) fn refuse(&self, path: &str, session: Option<&Session>) -> Option<Refusal> {
        if PROBES.contains(&path) {
            return None;
        }
        let Some(session) = session else { return Some(Refusal::Plaintext) };
        let rules = self.0.load();
        let is_refused = rules.certificate_required && !rules.server.accepts_client(&session.chain);
        is_refused.then_some(Refusal::Uncertified)
    }

    /// Whether the handshake of a session was under the current settings.
    pub(crate) fn is_current(&self, session: &Session) -> bool {
        Arc::ptr_eq(&session.config, &self.0.load().server.config())
    }
}

impl Refusal {
    pub(crate) fn reply(self) -> Reply {
        match self {
            Self::Plaintext => Reply::text(
                400,
                "this port accepts HTTPS only: use https://; probes are answered without TLS, too\n",
            ),
            Self::Uncertified => Reply::text(
                403,
                "a client certificate is required, which an authority in admin.tls.client_ca_file \
                 has issued and which has not expired\n",
            ),
        }
    }
}
