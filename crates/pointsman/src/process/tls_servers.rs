//! The TLS settings of all services' clients: made at the start, and replaced whole by a reload.
//!
//! The settings of a service stay one handle as long as it has certificates. Established sessions
//! keep what they began with; the keys of session tickets outlive a rotation of certificates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proxy::TlsListening;
use tls::{BuiltServerTls, CertificateFacts, ServerTls};

use crate::config::{Config, ServerTlsConfig, ServiceConfig};
use crate::process::admin_tls::words;

/// The settings of one service, and what they were made of.
#[derive(Debug)]
struct Made {
    from: ServerTlsConfig,
    server: ServerTls,
}

/// What a reload changes, built and not in use yet.
#[derive(Debug)]
pub(crate) struct PreparedServers {
    changed: Vec<(String, ServerTlsConfig, Change)>,
    /// The services that have certificates.
    kept: BTreeSet<String>,
}

#[derive(Debug)]
enum Change {
    New(ServerTls),
    Replaced(Box<BuiltServerTls>),
}

/// The settings of all services. Cheap to clone; all clones share them.
#[derive(Debug, Clone)]
pub(crate) struct TlsServers {
    services: Arc<Mutex<BTreeMap<String, Made>>>,
    /// How many handshakes of a service may wait for their clients.
    max_waiting: usize,
}

impl TlsServers {
    /// Makes the settings of a configuration.
    ///
    /// # Errors
    ///
    /// The service concerned, and what is wrong.
    pub(crate) fn new(config: &Config) -> Result<Self, String> {
        let max_waiting = match config.process.max_handshakes {
            0 => usize::MAX,
            most => most,
        };
        let servers = Self { services: Arc::default(), max_waiting };
        servers.commit(servers.prepare(config)?);
        Ok(servers)
    }

    /// Builds the settings of services that are new, and of those that have changed. Nothing is in
    /// use before [`commit`](Self::commit).
    ///
    /// # Errors
    ///
    /// The service concerned, and what is wrong.
    pub(crate) fn prepare(&self, config: &Config) -> Result<PreparedServers, String> {
        let services = self.lock();
        let with_tls =
            config.services.iter().filter(|service| !service.tls.certificate_files.is_empty());
        let mut prepared = PreparedServers {
            changed: Vec::new(),
            kept: with_tls.map(|service| service.name.clone()).collect(),
        };
        for service in &config.services {
            let running = services.get(&service.name);
            if running.is_some_and(|made| made.from == service.tls) {
                continue;
            }
            let Some(settings) = service.tls.server_settings() else { continue };
            let built = match running {
                Some(made) => made.server.prepare(&settings).map(Box::new).map(Change::Replaced),
                None => ServerTls::new(&settings).map(Change::New),
            };
            let of = || format!("service {}", service.name);
            let change = built.map_err(|problems| words(&of(), &problems))?;
            prepared.changed.push((service.name.clone(), service.tls.clone(), change));
        }
        Ok(prepared)
    }

    /// Uses prepared settings for new connections.
    pub(crate) fn commit(&self, prepared: PreparedServers) {
        let mut services = self.lock();
        for (name, from, change) in prepared.changed {
            match change {
                Change::New(server) => {
                    services.insert(name, Made { from, server });
                }
                Change::Replaced(built) => {
                    if let Some(made) = services.get_mut(&name) {
                        made.server.commit(&built);
                        made.from = from;
                    }
                }
            }
        }
        services.retain(|name, _| prepared.kept.contains(name));
    }

    /// The options of a service's listeners for TLS; `None` without certificates.
    pub(crate) fn listening(&self, service: &ServiceConfig) -> Option<TlsListening> {
        let settings = self.lock().get(&service.name)?.server.clone();
        let handshake_timeout = service.tls.handshake_timeout;
        Some(TlsListening { settings, handshake_timeout, max_waiting: self.max_waiting })
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
