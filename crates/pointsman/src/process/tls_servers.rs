//! The TLS settings of all clients, those of services and those of the admin server: made at the
//! start, and replaced whole by a reload.
//!
//! The settings of a service stay one handle as long as it has certificates. Established sessions
//! keep what they began with; the keys of session tickets outlive a rotation of certificates.
//!
//! Whether the admin server has TLS is decided at the start. A reload that turned it on or off
//! would change how a supervisor has to reach the probes of a running process, for example of the
//! pods that a rollout has not replaced yet and whose configuration is a volume that they share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use admin_http::{AdminTls, TlsRules};
use proxy::TlsListening;
use tls::{BuiltServerTls, CertificateFacts, Problem, ServerSettings, ServerTls};

use crate::config::{Config, ServiceConfig};

/// The admin server, in the place of a service's name.
const ADMIN: &str = "";

/// What a reload reports if it would turn TLS of the admin server on or off.
const PENDING: &str = "admin.tls (on or off)";

/// The settings of one service, and what they were made of.
#[derive(Debug)]
struct Made {
    from: ServerSettings,
    server: ServerTls,
}

/// What a reload changes, built and not in use yet.
#[derive(Debug)]
pub(crate) struct PreparedServers {
    changed: Vec<(String, ServerSettings, Change)>,
    /// The services that have certificates.
    kept: BTreeSet<String>,
    /// Whether the admin server requires a client certificate. `None` without its section, which
    /// changes nothing before a restart.
    certificate_required: Option<bool>,
}

#[derive(Debug)]
enum Change {
    New(ServerTls),
    Replaced(Box<BuiltServerTls>),
}

/// The settings of all services and of the admin server. Cheap to clone; all clones share them.
#[derive(Debug, Clone)]
pub(crate) struct TlsServers {
    servers: Arc<Mutex<BTreeMap<String, Made>>>,
    /// The rules for the admin server; `None` without TLS.
    pub(crate) admin: Option<AdminTls>,
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
        let mut servers = Self { servers: Arc::default(), admin: None, max_waiting };
        if let Some(from) = config.admin.tls.server_settings() {
            let server = ServerTls::new(&from).map_err(|problems| words(ADMIN, &problems))?;
            let certificate_required = config.admin.tls.requires_certificate();
            let rules = TlsRules { server: server.clone(), certificate_required };
            servers.admin = Some(AdminTls::new(rules));
            servers.lock().insert(ADMIN.to_owned(), Made { from, server });
        }
        servers.commit(servers.prepare(config)?);
        Ok(servers)
    }

    /// Builds the settings of servers that are new, and of those that have changed. Nothing is in
    /// use before [`commit`](Self::commit).
    ///
    /// # Errors
    ///
    /// The service concerned, and what is wrong.
    pub(crate) fn prepare(&self, config: &Config) -> Result<PreparedServers, String> {
        let servers = self.lock();
        let services = config.services.iter().map(|it| (&*it.name, it.tls.server_settings()));
        let admin = self.admin.as_ref().map(|_| (ADMIN, config.admin.tls.server_settings()));
        let required = config.admin.tls.requires_certificate();
        let mut prepared = PreparedServers {
            changed: Vec::new(),
            kept: BTreeSet::from([ADMIN.to_owned()]),
            certificate_required: config.admin.tls.server_settings().map(|_| required),
        };
        for (name, settings) in services.chain(admin) {
            let Some(settings) = settings else { continue };
            prepared.kept.insert(name.to_owned());
            let running = servers.get(name);
            if running.is_some_and(|made| made.from == settings) {
                continue;
            }
            let built = match running {
                Some(_) => ServerTls::prepare(&settings).map(Box::new).map(Change::Replaced),
                None => ServerTls::new(&settings).map(Change::New),
            };
            let change = built.map_err(|problems| words(name, &problems))?;
            prepared.changed.push((name.to_owned(), settings, change));
        }
        Ok(prepared)
    }

    /// Uses prepared settings for new connections.
    pub(crate) fn commit(&self, prepared: PreparedServers) {
        let mut servers = self.lock();
        for (name, from, change) in prepared.changed {
            match change {
                Change::New(server) => {
                    servers.insert(name, Made { from, server });
                }
                Change::Replaced(built) => {
                    if let Some(made) = servers.get_mut(&name) {
                        made.server.commit(&built);
                        made.from = from;
                    }
                }
            }
        }
        servers.retain(|name, _| prepared.kept.contains(name));
        if let (Some(admin), Some(made), Some(certificate_required)) =
            (&self.admin, servers.get(ADMIN), prepared.certificate_required)
        {
            admin.set(TlsRules { server: made.server.clone(), certificate_required });
        }
    }

    /// What of a configuration needs a restart.
    pub(crate) fn pending(&self, config: &Config) -> Option<String> {
        let wanted = config.admin.tls.certificate_file.is_some();
        (wanted != self.admin.is_some()).then(|| PENDING.to_owned())
    }

    /// The options of a service's listeners for TLS; `None` without certificates.
    pub(crate) fn listening(&self, service: &ServiceConfig) -> Option<TlsListening> {
        let settings = self.lock().get(&service.name)?.server.clone();
        let handshake_timeout = service.tls.handshake_timeout;
        Some(TlsListening { settings, handshake_timeout, max_waiting: self.max_waiting })
    }

    /// The certificates in use, each with its service; without a name for the admin server.
    pub(crate) fn certificates(&self) -> Vec<(String, CertificateFacts)> {
        let servers = self.lock();
        let of = |(name, made): (&String, &Made)| {
            let facts = made.server.certificates();
            facts.iter().map(|facts| (name.clone(), facts.clone())).collect::<Vec<_>>()
        };
        servers.iter().flat_map(of).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Made>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is wrong with the TLS settings of a service, or of the admin server.
fn words(name: &str, problems: &[Problem]) -> String {
    let of = if name == ADMIN { "admin.tls".to_owned() } else { format!("service {name}") };
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    format!("{of}: {}", problems.join("; "))
}
