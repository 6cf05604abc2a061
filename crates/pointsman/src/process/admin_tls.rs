//! TLS of the admin server: made at the start, and replaced whole by a reload.
//!
//! Whether there is TLS is decided at the start. A reload that turned it on or off would change how
//! a supervisor has to reach the probes of a running process, for example of the pods that a
//! rollout has not replaced yet and whose configuration is a volume that they share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use admin_http::{AdminTls, TlsRules};
use tls::{CertificateFacts, ServerTls};

use crate::config::{AdminTlsConfig, Config};

/// What a reload reports if it would turn TLS on or off.
const PENDING: &str = "admin.tls (on or off)";

/// The rules in force, and what they were made of.
#[derive(Debug)]
struct Made {
    from: AdminTlsConfig,
    server: ServerTls,
}

/// What a reload changes, built and not in use yet; `None` if nothing.
#[derive(Debug)]
pub(crate) struct PreparedAdmin(Option<(Made, TlsRules)>);

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
        let Some((made, rules)) = make(&config.admin.tls)? else { return Ok(Self(None)) };
        Ok(Self(Some((AdminTls::new(rules), Arc::new(Mutex::new(made))))))
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
        if lock(made).from == config.admin.tls {
            return Ok(PreparedAdmin(None));
        }
        make(&config.admin.tls).map(PreparedAdmin)
    }

    /// Uses prepared rules for new connections.
    pub(crate) fn commit(&self, prepared: PreparedAdmin) {
        if let (Some((tls, made)), Some((new, rules))) = (&self.0, prepared.0) {
            tls.set(rules);
            *lock(made) = new;
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

fn make(config: &AdminTlsConfig) -> Result<Option<(Made, TlsRules)>, String> {
    let Some(settings) = config.server_settings() else { return Ok(None) };
    let server = ServerTls::new(&settings).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        format!("admin.tls: {}", problems.join("; "))
    })?;
    let certificate_required = config.requires_certificate();
    let rules = TlsRules { server: server.clone(), certificate_required };
    Ok(Some((Made { from: config.clone(), server }, rules)))
}
