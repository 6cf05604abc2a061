//! The settings of the side that accepts TLS sessions.
//!
//! Sessions are resumed by tickets only: the client keeps the state, encrypted with a key that
//! only this process has and replaces every six hours, and a ticket is accepted for at most twice
//! that long. So resumption takes no memory here. The keys survive a replacement of the
//! certificates, since otherwise every rotation would make all clients do full handshakes at once.
//!
//! A server that asks clients for certificates issues no tickets. A ticket stands for a client that
//! was verified hours ago, and a session that is refused after its resumption would be tried with
//! the same ticket again: a client that has renewed its certificate would stay out until the ticket
//! ends. A server whose clients have permissions by their certificate can verify it again
//! ([`ServerTls::accepts_client`]), since connections outlive certificates and authorities.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ProducesTickets, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

use crate::certificate::{CertificateFacts, CertificateFiles};
use crate::pem::PemFile;
use crate::problem::Problem;
use crate::protocol::Protocols;
use crate::resolver::CertificatesByName;

/// Maximum number of certificates of one listener.
const MAX_CERTIFICATES: usize = 1024;

/// Tickets per handshake of TLS 1.3. A client uses one per connection and receives one with each,
/// so a second one would be made and encrypted for nothing.
const TICKETS: usize = 1;

/// Whether clients have to show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    /// They are not asked for one.
    #[default]
    None,
    /// A client may show one; it is verified then.
    Optional,
    /// A client without a valid one is refused.
    Required,
}

/// The settings of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerSettings {
    /// The certificates, selected by the name that the client asks for; at least one. The first is
    /// the default.
    pub certificates: Vec<CertificateFiles>,
    /// Whether clients have to show a certificate.
    pub client_certificates: ClientCertificates,
    /// The authorities of the clients' certificates.
    pub client_ca: Option<PemFile>,
    /// Versions and ciphers.
    pub protocols: Protocols,
    /// The protocols that may be negotiated inside (ALPN), such as `http/1.1`; usually none.
    pub application_protocols: Vec<Vec<u8>>,
    /// Whether every session begins with a full handshake, which verifies the client's certificate.
    pub without_resumption: bool,
}

/// What the settings were built into.
struct Current {
    config: Arc<ServerConfig>,
    /// Verifies the certificates of clients; `None` if they are not asked for one.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    certificates: Arc<[CertificateFacts]>,
}

/// The settings of a listener, replaceable while it runs. Cheap to clone; all clones share them.
#[derive(Clone)]
pub struct ServerTls {
    current: Arc<ArcSwap<Current>>,
    /// The keys of tickets.
    tickets: Arc<dyn ProducesTickets>,
}

/// Handles are equal if they share their settings.
impl PartialEq for ServerTls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.current, &other.current)
    }
}

impl Eq for ServerTls {}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let certificates = self.certificates();
        f.debug_struct("ServerTls").field("certificates", &certificates).finish_non_exhaustive()
    }
}

impl ServerTls {
    /// Builds the settings.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with them.
    pub fn new(settings: &ServerSettings) -> Result<Self, Vec<Problem>> {
        let built = Built::of(settings)?;
        let tickets = new_ticketer().map_err(|problem| vec![problem])?;
        let current = built.current(Arc::clone(&tickets));
        Ok(Self { current: Arc::new(ArcSwap::from_pointee(current)), tickets })
    }

    /// Builds settings that can take the place of these.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with them.
    pub fn prepare(settings: &ServerSettings) -> Result<BuiltServerTls, Vec<Problem>> {
        Built::of(settings).map(BuiltServerTls)
    }

    /// Replaces the settings for sessions that begin from now on by some that were built before,
    /// for a change of several parts that happens as a whole or not at all.
    pub fn commit(&self, built: &BuiltServerTls) {
        self.current.store(Arc::new(built.0.current(Arc::clone(&self.tickets))));
    }

    /// The configuration for a session that begins now.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.load().config)
    }

    /// Whether the chain that a client showed is valid now, for the current authorities.
    #[must_use]
    pub fn accepts_client(&self, chain: &[CertificateDer<'_>]) -> bool {
        let current = self.current.load();
        let (Some(verifier), Some((client, issuers))) = (&current.verifier, chain.split_first())
        else {
            return false;
        };
        verifier.verify_client_cert(client, issuers, UnixTime::now()).is_ok()
    }

    /// The certificates in use, the default one first.
    #[must_use]
    pub fn certificates(&self) -> Arc<[CertificateFacts]> {
        Arc::clone(&self.current.load().certificates)
    }
}

fn new_ticketer() -> Result<Arc<dyn ProducesTickets>, Problem> {
    Ticketer::new().map_err(|error| {
        let what = format!("no key for session tickets can be made: {error}");
        Problem::of_setting(what, "check the system's source of random numbers")
    })
}

/// Settings that were found sound and are not in use.
pub struct BuiltServerTls(Built);

impl fmt::Debug for BuiltServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let certificates = &self.0.certificates;
        f.debug_struct("BuiltServerTls").field("certificates", certificates).finish_non_exhaustive()
    }
}

/// Settings that were found sound.
struct Built {
    config: ServerConfig,
    certificates: Vec<CertificateFacts>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    resumes: bool,
}

impl Built {
    fn of(settings: &ServerSettings) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut noted = |problem: Problem| problems.push(problem);
        let provider = settings.protocols.provider().map_err(&mut noted).ok();
        let keys = provider.as_ref().map(|provider| {
            let load = |files: &CertificateFiles| {
                files.load(provider).map_err(|fault| noted(fault.into_problem())).ok()
            };
            settings.certificates.iter().take(MAX_CERTIFICATES).filter_map(load).collect::<Vec<_>>()
        });
        let authorities = settings.authorities().map_err(&mut noted).ok();
        if settings.certificates.is_empty() {
            noted(Problem::of_setting("no certificate is set", "add a certificate and its key"));
        } else if settings.certificates.len() > MAX_CERTIFICATES {
            let what = format!("there are more than {MAX_CERTIFICATES} certificates");
            noted(Problem::of_setting(what, "leave only those that clients ask for"));
        }
        let (Some(provider), Some(keys), Some(authorities), true) =
            (provider, keys, authorities, problems.is_empty())
        else {
            return Err(problems);
        };
        let unusable = |error: &dyn fmt::Display| {
            let what = format!("the settings cannot be used: {error}");
            vec![Problem::of_setting(what, "check versions, ciphers and authorities")]
        };
        let verifier = settings.verifier(authorities, &provider);
        let verifier = verifier.map_err(|error| unusable(&error))?;
        let (resolver, certificates) = CertificatesByName::new(keys);
        let asks = settings.client_certificates != ClientCertificates::None;
        let asked = Some(Arc::clone(&verifier)).filter(|_| asks);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&settings.protocols.versions())
            .map_err(|error| unusable(&error))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(resolver));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = TICKETS;
        config.alpn_protocols.clone_from(&settings.application_protocols);
        let resumes = !settings.without_resumption && !asks;
        if !resumes {
            config.send_tls13_tickets = 0;
        }
        Ok(Self { config, certificates, verifier: asked, resumes })
    }

    fn current(&self, ticketer: Arc<dyn ProducesTickets>) -> Current {
        let mut config = self.config.clone();
        if self.resumes {
            config.ticketer = ticketer;
        }
        Current {
            config: Arc::new(config),
            verifier: self.verifier.clone(),
            certificates: self.certificates.clone().into(),
        }
    }
}

impl ServerSettings {
    /// The authorities of the clients' certificates; none if no certificate is asked for.
    fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, Problem> {
        match (self.client_certificates, &self.client_ca) {
            (ClientCertificates::None, None) => Ok(Vec::new()),
            (ClientCertificates::None, Some(ca)) => Err(Problem::of_file(
                ca.path(),
                "is the CA of client certificates, and clients are not asked for one",
                "set client certificates to \"required\" or \"optional\", or remove the CA",
            )),
            (_, None) => Err(Problem::of_setting(
                "client certificates cannot be verified without a CA",
                "name the file of the CA that issues them",
            )),
            (_, Some(ca)) => ca.certificates(),
        }
    }

    fn verifier(
        &self,
        authorities: Vec<CertificateDer<'static>>,
        provider: &Arc<rustls::crypto::CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, Box<dyn std::error::Error>> {
        if self.client_certificates == ClientCertificates::None {
            return Ok(WebPkiClientVerifier::no_client_auth());
        }
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority)?;
        }
        let builder =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
        Ok(match self.client_certificates {
            ClientCertificates::Optional => builder.allow_unauthenticated().build()?,
            _ => builder.build()?,
        })
    }
}
