//! The TLS settings of all services' clients: made at the start, and replaced whole by a reload.
//!
//! The settings of a service stay one handle as long as it has certificates. Established sessions
//! keep what they began with; the keys of session tickets outlive a rotation of certificates.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proxy::{HandshakeLimit, TlsListening};
use tls::{CertificateFacts, ServerTls};

use crate::config::{Config, ServerTlsConfig, ServiceConfig};

/// The settings of one service, and what they were made of.
#[derive(Debug)]
struct Made {
    from: ServerTlsConfig,
    server: ServerTls,
}

/// The settings of all services. Cheap to clone; all clones share them.
#[derive(Debug, Clone)]
pub(crate) struct TlsServers {
    services: Arc<Mutex<BTreeMap<String, Made>>>,
    limit: HandshakeLimit,
}

impl TlsServers {
    /// Makes the settings of a configuration.
    ///
    /// # Errors
    ///
    /// The service concerned, and what is wrong.
    pub(crate) fn new(config: &Config) -> Result<Self, String> {
        let limit = HandshakeLimit::new(config.process.max_handshakes);
        let servers = Self { services: Arc::default(), limit };
        servers.apply(config)?;
        Ok(servers)
    }

    /// Makes the settings of services that are new, and replaces those that have changed. Nothing
    /// changes if one of them cannot be used.
    ///
    /// # Errors
    ///
    /// The service concerned, and what is wrong.
    pub(crate) fn apply(&self, config: &Config) -> Result<(), String> {
        let mut services = self.lock();
        let is_same = |service: &ServiceConfig| {
            services.get(&service.name).is_some_and(|made| made.from == service.tls)
        };
        let mut changed = Vec::new();
        for service in config.services.iter().filter(|service| !is_same(service)) {
            let Some(settings) = service.tls.server_settings() else { continue };
            let server = ServerTls::new(&settings).map_err(|problems| {
                let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
                format!("service {}: {}", service.name, problems.join("; "))
            })?;
            changed.push((service, settings, server));
        }
        for (service, settings, server) in changed {
            let from = service.tls.clone();
            match services.get_mut(&service.name) {
                // It was built once already, so it can be again.
                Some(made) if made.server.replace(&settings).is_ok() => made.from = from,
                _ => {
                    services.insert(service.name.clone(), Made { from, server });
                }
            }
        }
        services.retain(|name, _| {
            let service = config.services.iter().find(|service| service.name == *name);
            service.is_some_and(|service| !service.tls.certificate_files.is_empty())
        });
        Ok(())
    }

    /// The options of a service's listeners for TLS; `None` without certificates.
    pub(crate) fn listening(&self, service: &ServiceConfig) -> Option<TlsListening> {
        let settings = self.lock().get(&service.name)?.server.clone();
        let handshake_timeout = service.tls.handshake_timeout;
        Some(TlsListening { settings, handshake_timeout, limit: self.limit.clone() })
    }

    /// The certificates in use, each with its service.
    pub(crate) fn certificates(&self) -> Vec<(String, CertificateFacts)> {
        let services = self.lock();
        let of = |(name, made): (&String, &Made)| {
            let facts = made.server.certificates();
            facts.iter().map(|facts| (name.clone(), facts.clone())).collect::<Vec<_>>()
        };
        services.iter().flat_map(of).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Made>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
