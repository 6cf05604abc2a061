//! The settings of the side that opens TLS sessions: towards Redis and Sentinel.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::Resumption;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::certificate::{CertificateFacts, CertificateFiles};
use crate::pem::PemFile;
use crate::problem::Problem;
use crate::protocol::Protocols;
use crate::verify::LenientVerifier;

/// Files in which systems keep the authorities that they trust, the most common first.
pub const SYSTEM_CA_FILES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Servers whose sessions can be resumed, per set of settings. A session takes about 1 KiB.
const RESUMABLE_SERVERS: usize = 64;

/// What is verified of a server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verification {
    /// That it is valid now, leads to a trusted authority and has the server's name.
    #[default]
    Full,
    /// As full, without the name. Redis verifies its masters and replicas like this.
    Chain,
    /// That it is the first one in the file of [`Roots::Own`], and nothing else: for a server whose
    /// certificate is known.
    Exact,
    /// Nothing: anybody on the path can read and change everything.
    None,
}

/// The authorities that a server's certificate may lead to.
#[derive(Debug, Clone, Default)]
pub enum Roots {
    /// None, which is possible only without verification.
    #[default]
    None,
    /// The certificates in a file. Authorities of the system in forms that cannot be used are
    /// skipped; in a file of one's own they are a fault.
    System(PemFile),
    /// The certificates in a file of the operator.
    Own(PemFile),
}

/// The settings of connections to servers.
#[derive(Debug, Clone, Default)]
pub struct ClientSettings {
    /// The authorities.
    pub roots: Roots,
    /// What is verified.
    pub verification: Verification,
    /// The certificate to show if the server asks for one.
    pub certificate: Option<CertificateFiles>,
    /// The name to ask for and to verify, in the place of the name or address that is dialled.
    pub server_name: Option<String>,
    /// Versions and ciphers.
    pub protocols: Protocols,
}

struct Current {
    config: Arc<ClientConfig>,
    /// These settings without resumption.
    full: Arc<ClientConfig>,
    /// Settings without verification and resumption, to look at a certificate.
    unverified: Arc<ClientConfig>,
    certificate: Option<CertificateFacts>,
    server_name: Option<ServerName<'static>>,
}

/// The settings of connections to servers, replaceable at run time. Cheap to clone; all clones
/// share them.
#[derive(Clone)]
pub struct ClientTls {
    current: Arc<ArcSwap<Current>>,
}

/// Handles are equal if they share their settings.
impl PartialEq for ClientTls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.current, &other.current)
    }
}

impl Eq for ClientTls {}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls")
            .field("certificate", &self.certificate())
            .finish_non_exhaustive()
    }
}

impl ClientTls {
    /// Builds the settings.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with them.
    pub fn new(settings: &ClientSettings) -> Result<Self, Vec<Problem>> {
        Ok(Self { current: Arc::new(ArcSwap::from_pointee(build(settings)?)) })
    }

    /// Replaces the settings for connections that are opened from now on.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the new ones; the old ones stay in use.
    pub fn replace(&self, settings: &ClientSettings) -> Result<(), Vec<Problem>> {
        self.current.store(Arc::new(build(settings)?));
        Ok(())
    }

    /// The configuration for a connection to `dialled`, a host name or an IP address, and the name
    /// to ask for there.
    ///
    /// # Errors
    ///
    /// `dialled` is needed and is neither.
    pub fn connect(
        &self,
        dialled: &str,
    ) -> Result<(Arc<ClientConfig>, ServerName<'static>), Problem> {
        let current = self.current.load();
        let name = match &current.server_name {
            Some(name) => name.clone(),
            None => parse_name(dialled)?,
        };
        Ok((Arc::clone(&current.config), name))
    }

    /// Like [`connect`](Self::connect), for a connection that shows the certificate: a session that
    /// is resumed does not, so that its expiry would stay unnoticed.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn connect_in_full(
        &self,
        dialled: &str,
    ) -> Result<(Arc<ClientConfig>, ServerName<'static>), Problem> {
        let (_, name) = self.connect(dialled)?;
        Ok((Arc::clone(&self.current.load().full), name))
    }

    /// Like [`connect`](Self::connect), for a connection that accepts every certificate, to find
    /// out what is wrong with one. Nothing may be sent on it.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn connect_unverified(
        &self,
        dialled: &str,
    ) -> Result<(Arc<ClientConfig>, ServerName<'static>), Problem> {
        let (_, name) = self.connect(dialled)?;
        Ok((Arc::clone(&self.current.load().unverified), name))
    }

    /// Settings with which every connection fails: no authority is trusted. In the place of
    /// settings that cannot be built, where plain text would be worse than none.
    #[must_use]
    pub fn refusing() -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let roots = Arc::new(RootCertStore::empty());
        let verifier = Arc::new(LenientVerifier::of_chain(roots, Arc::clone(&provider)));
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(rustls::ALL_VERSIONS);
        // The provider has ciphers of both versions, so there is always a configuration.
        #[expect(clippy::expect_used, reason = "constant input")]
        let config = config
            .expect("versions of the default provider")
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        let (config, certificate, server_name) = (Arc::new(config), None, None);
        let (full, unverified) = (Arc::clone(&config), Arc::clone(&config));
        let current = Current { config, full, unverified, certificate, server_name };
        Self { current: Arc::new(ArcSwap::from_pointee(current)) }
    }

    /// Whether there are other handles to these settings.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.current) > 1
    }

    /// The certificate that is shown to servers.
    #[must_use]
    pub fn certificate(&self) -> Option<CertificateFacts> {
        self.current.load().certificate.clone()
    }
}

fn parse_name(text: &str) -> Result<ServerName<'static>, Problem> {
    ServerName::try_from(text.to_owned()).map_err(|_| {
        let what = format!("{text:?} is not the name of a server");
        Problem::of_setting(what, "give a host name or an IP address, without a port")
    })
}

fn build(settings: &ClientSettings) -> Result<Current, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut noted = |problem: Problem| problems.push(problem);
    let provider = settings.protocols.provider().map_err(&mut noted).ok();
    let roots = settings.roots().map_err(&mut noted).ok();
    let name = settings.server_name.as_deref().map(parse_name).transpose();
    let name = name.map_err(&mut noted).ok();
    let identity = provider.as_ref().and_then(|provider| {
        let files = settings.certificate.as_ref()?;
        files.load(provider).map_err(|fault| noted(fault.into_problem())).ok()
    });
    let (Some(provider), Some(roots), Some(server_name), true) =
        (provider, roots, name, problems.is_empty())
    else {
        return Err(problems);
    };
    let unusable = |error: &dyn fmt::Display| {
        let what = format!("the settings cannot be used: {error}");
        vec![Problem::of_setting(what, "check versions, ciphers and authorities")]
    };
    let roots = Arc::new(roots);
    let unverified = Arc::new(LenientVerifier::of_nothing(Arc::clone(&provider)));
    let verifier: Arc<dyn ServerCertVerifier> = match settings.verification {
        Verification::Full => {
            WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
                .build()
                .map_err(|error| unusable(&error))?
        }
        Verification::Chain => Arc::new(LenientVerifier::of_chain(roots, Arc::clone(&provider))),
        Verification::Exact => {
            let known = settings.known().map_err(|problem| vec![problem])?;
            Arc::new(LenientVerifier::of_exactly(known, Arc::clone(&provider)))
        }
        Verification::None => Arc::new(LenientVerifier::of_nothing(Arc::clone(&provider))),
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&settings.protocols.versions())
        .map_err(|error| unusable(&error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let (mut config, certificate) = match identity {
        Some((key, facts)) => {
            let resolver = rustls::sign::SingleCertAndKey::from(key);
            (builder.with_client_cert_resolver(Arc::new(resolver)), Some(facts))
        }
        None => (builder.with_no_client_auth(), None),
    };
    // No session of an unverified connection may be resumed by a verified one.
    config.resumption = Resumption::disabled();
    let (full, mut lenient) = (Arc::new(config.clone()), config.clone());
    lenient.dangerous().set_certificate_verifier(unverified);
    config.resumption = Resumption::in_memory_sessions(RESUMABLE_SERVERS);
    let (config, unverified) = (Arc::new(config), Arc::new(lenient));
    Ok(Current { config, full, unverified, certificate, server_name })
}

impl ClientSettings {
    /// The certificate that the server must have: the first in the file. Never empty.
    fn known(&self) -> Result<Vec<CertificateDer<'static>>, Problem> {
        match &self.roots {
            Roots::Own(file) => file.certificates().map(|all| all.into_iter().take(1).collect()),
            _ => Err(Problem::of_setting(
                "there is no certificate to compare with",
                "name the file of the server's certificate",
            )),
        }
    }

    fn roots(&self) -> Result<RootCertStore, Problem> {
        let mut store = RootCertStore::empty();
        let (file, strict) = match (&self.roots, self.verification) {
            // Certificates to compare with need not be of authorities.
            (Roots::None, Verification::None) | (_, Verification::Exact) => return Ok(store),
            (Roots::None, _) => {
                return Err(Problem::of_setting(
                    "there is no CA to verify servers with",
                    "name the file of the CA that issues their certificates",
                ));
            }
            (Roots::System(file), _) => (file, false),
            (Roots::Own(file), _) => (file, true),
        };
        for certificate in file.certificates()? {
            if let Err(error) = store.add(certificate)
                && strict
            {
                return Err(Problem::of_file(
                    file.path(),
                    &format!("has a certificate that cannot be used as a CA: {error}"),
                    "remove it, or replace it",
                ));
            }
        }
        if store.is_empty() && self.verification != Verification::None {
            let what = "has no certificate that can be used as a CA";
            return Err(Problem::of_file(file.path(), what, "write one into it"));
        }
        Ok(store)
    }
}
