//! TLS of the admin server: made at the start, and replaced whole by a reload.
//!
//! Whether there is TLS is decided at the start. A reload that turned it on or off would change how
//! a supervisor has to reach the probes of a running process, for example of the pods that a
//! rollout has not replaced yet and whose configuration is a volume that they share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use admin_http::{AdminTls, TlsRules};
use tls::{BuiltServerTls, CertificateFacts, Problem, ServerTls};

use crate::config::{AdminTlsConfig, Config};

/// What a reload reports if it would turn TLS on or off.
const PENDING: &str = "admin.tls (on or off)";

/// The rules in force, and what they were made of.
#[derive(Debug)]
struct Made {
    from: AdminTlsConfig,
    server: ServerTls,
}

impl Made {
    fn rules(&self) -> TlsRules {
        let certificate_required = self.from.requires_certificate();
        TlsRules { server: self.server.clone(), certificate_required }
    }
}

/// What a reload changes, built and not in use yet; `None` if nothing.
#[derive(Debug)]
pub(crate) struct PreparedAdmin(Option<(AdminTlsConfig, BuiltServerTls)>);

/// TLS of the admin server. Cheap to clone; all clones share it.
#[derive(Debug, Clone)]
pub(crate) struct AdminCertificates(Option<(AdminTls, Arc<Mutex<Made>>)>);

impl AdminCertificates {
    /// Makes the settings of a configuration.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub(crate) fn new(config: &Config) -> Result<Self, String> {
        let from = config.admin.tls.clone();
        let Some(settings) = from.server_settings() else { return Ok(Self(None)) };
        let server = ServerTls::new(&settings).map_err(|it| words("admin.tls", &it))?;
        let made = Made { from, server };
        Ok(Self(Some((AdminTls::new(made.rules()), Arc::new(Mutex::new(made))))))
    }

    /// The rules for the admin server; `None` without TLS.
    pub(crate) fn rules(&self) -> Option<AdminTls> {
        self.0.as_ref().map(|(tls, _)| tls.clone())
    }

    /// Builds the rules of a changed configuration. Nothing is in use before
    /// [`commit`](Self::commit).
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub(crate) fn prepare(&self, config: &Config) -> Result<PreparedAdmin, String> {
        let Some((_, made)) = &self.0 else { return Ok(PreparedAdmin(None)) };
        let (made, from) = (lock(made), config.admin.tls.clone());
        let settings = from.server_settings().filter(|_| made.from != from);
        let Some(settings) = settings else { return Ok(PreparedAdmin(None)) };
        let built = made.server.prepare(&settings).map_err(|it| words("admin.tls", &it))?;
        Ok(PreparedAdmin(Some((from, built))))
    }

    /// Uses prepared rules for new connections.
    pub(crate) fn commit(&self, prepared: PreparedAdmin) {
        if let (Some((tls, made)), Some((from, built))) = (&self.0, prepared.0) {
            let mut made = lock(made);
            made.server.commit(&built);
            made.from = from;
            tls.set(made.rules());
        }
    }

    /// What of a configuration needs a restart.
    pub(crate) fn pending(&self, config: &Config) -> Option<String> {
        let wanted = config.admin.tls.certificate_file.is_some();
        (wanted != self.0.is_some()).then(|| PENDING.to_owned())
    }

    /// The certificate in use.
    pub(crate) fn certificates(&self) -> Vec<CertificateFacts> {
        let made = self.0.as_ref().map(|(_, made)| lock(made).server.certificates());
        made.map(|facts| facts.to_vec()).unwrap_or_default()
    }
}

fn lock(made: &Mutex<Made>) -> MutexGuard<'_, Made> {
    made.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is wrong with the TLS settings of a section or a service.
pub(super) fn words(of: &str, problems: &[Problem]) -> String {
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    format!("{of}: {}", problems.join("; "))
}
