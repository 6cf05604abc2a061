//! Applies a changed configuration: it is read again as at the start, checked as a whole, and every
//! value that can change is changed at once.
//!
//! `config_reader` reads on a thread of its own; this module applies the result. `config_source`
//! notices that the file has changed.
//!
//! A fault leaves everything as it was. Only a secret file that cannot be read does not prevent the
//! rest: its secret stays in use. Keys that need a restart are named and keep their value
//! until then.
//!
//! Services are added, changed and removed by `service_set`. While the process stops, a reload that
//! changes services is refused.
//!
//! A configuration from the standard input is not read again.

use admin_http::HostNames;
use drain::{Drain, Phase};
use proxy::Running;
use tracing::{error, info, warn};

use crate::admin::certificates::ServedCertificate;
use crate::admin::control::ControlAccess;
use crate::admin::effective_config::{EffectiveConfig, EffectiveSettings, ReloadOutcome};
use crate::config::{self, Config, ReloadPlan, SettingMap, Settings};
use crate::logging::{self, LogHandle};
use crate::process::launch::admin_hosts;
use crate::process::service_set::ServiceSet;
use crate::process::settings::{self, workers};
use crate::system::connection_capacity;
use crate::system::descriptors::Files;
use crate::system::memory::Memory;

/// Everything that a reload can change.
pub(crate) struct Reloader {
    /// The values in force.
    pub running: Settings,
    /// The values of services that were removed and still close their sessions.
    pub leaving: Vec<SettingMap>,
    /// The settings that reports use.
    pub effective: EffectiveConfig,
    /// The memory, for the limits on connections.
    pub memory: Option<Memory>,
    /// The level of the log.
    pub log: LogHandle,
    /// Who may give commands.
    pub(crate) control: ControlAccess,
    /// The names by which clients may address the admin server.
    pub(crate) hosts: HostNames,
}

impl Reloader {
    /// Applies what was read, and reports the result.
    pub(crate) async fn take(
        &mut self,
        why: &'static str,
        loaded: &mut config::Loaded,
        drain: &Drain,
        services: &mut ServiceSet,
        workers: &mut Running,
    ) {
        self.forget_ended(services);
        loaded.reject_expired(&self.running, &self.leaving);
        let change = match loaded.change(&self.running, &self.leaving) {
            Ok(change) => change,
            Err(faults) => {
                self.refuse(why, faults.0.iter().map(ToString::to_string).collect());
                return;
            }
        };
        match self.apply(&change, drain, services, workers, loaded.unread_secrets().len()).await {
            Ok(()) => self.report(why, &change, loaded.unread_secrets()),
            Err(fault) => self.refuse(why, vec![fault]),
        }
    }

    /// Leaves everything as it is, and reports why.
    pub(crate) fn refuse(&self, why: &'static str, faults: Vec<String>) {
        for fault in &faults {
            error!(why, "configuration not reloaded: {fault}");
        }
        self.effective.record(ReloadOutcome::Refused, faults);
    }

    /// Forgets the values of removed services that have ended, secrets included.
    pub(crate) fn forget_ended(&mut self, services: &ServiceSet) {
        self.leaving.retain(|it| services.leaving().any(|name| name == it.name()));
    }

    fn report(&mut self, why: &'static str, change: &ReloadPlan, unread: Vec<String>) {
        for secret in &unread {
            error!(why, "secret not reloaded, the one before stays in use: {secret}");
        }
        for certificate in change.settings.invalid_certificates() {
            warn!("{certificate}");
        }
        let outcome = if !unread.is_empty() {
            ReloadOutcome::Partial
        } else if change.applied.is_empty() {
            ReloadOutcome::Unchanged
        } else {
            ReloadOutcome::Applied
        };
        let old = std::mem::replace(&mut self.running, change.settings.clone());
        let names: Vec<&str> = self.running.services.iter().map(SettingMap::name).collect();
        self.leaving.extend(old.services);
        self.leaving.retain(|it| !names.contains(&it.name()));
        self.effective.record(outcome, unread);
        let (applied, hash) = (logging::list(&change.applied), &change.config.hash);
        info!(why, applied, config = %hash, "configuration reloaded");
        let pending = &self.effective.settings().pending;
        if !pending.is_empty() {
            warn!(keys = logging::list(pending), "changed keys need a restart to take effect");
        }
    }

    /// The steps that may fail come first, so that a failure leaves everything as it was.
    async fn apply(
        &self,
        change: &ReloadPlan,
        drain: &Drain,
        services: &mut ServiceSet,
        data_plane: &mut Running,
        unread: usize,
    ) -> Result<(), String> {
        let config = &change.config;
        let files = Files::allowed(config, workers(config).get());
        let plan = connection_capacity::plan(config, self.memory.as_ref(), files)
            .map_err(|error| error.to_string())?;
        files.raise(plan.connections.total).map_err(|error| error.to_string())?;
        let limits = &plan.connections.services;
        let before = self.running.to_config(&[]);
        let mut pending = change.pending.clone();
        pending.extend(services.unserved(config));
        pending.extend(services.tls.pending(config));
        let prepared = if drain.phase() == Phase::Serving {
            Some(services.prepare(config, limits, data_plane).await?)
        } else if changes_services(&before, config) {
            return Err("services are not changed while the process stops".to_owned());
        } else {
            None
        };
        let tls = services.tls.prepare(config)?;
        // Leaves the options as they were if one of them is refused.
        services.retune(config, limits, &before)?;
        // From here on nothing fails.
        services.tls.commit(tls);
        for service in &config.services {
            service.redis_tls.renew();
            service.sentinel_tls.renew();
        }
        if let Some(prepared) = prepared {
            services.apply(prepared, &before, config, limits, data_plane);
        }
        services.tune(config, limits, data_plane);
        data_plane.allow(plan.connections.total);
        self.control.set(config);
        self.hosts.set(admin_hosts(config));
        drain.configure(settings::drain(config));
        self.log.set(&config.log);
        let certificates = ServedCertificate::list(services.tls.certificates(), config);
        let settings = EffectiveSettings::of(config, plan.connections.total, files, certificates);
        self.effective.set(EffectiveSettings { unread_secrets: unread, pending, ..settings });
        Ok(())
    }
}

/// Whether the new configuration has other services, addresses or sentinels.
fn changes_services(before: &Config, after: &Config) -> bool {
    let of = |config: &Config| {
        let mut services: Vec<_> = config
            .services
            .iter()
            .map(|it| {
                let listen = it.addresses().map(|keys| keys.map(Clone::clone));
                (it.name.clone(), listen, it.sentinels.clone(), it.learn_sentinels)
            })
            .collect();
        services.sort_by(|one, other| one.0.cmp(&other.0));
        services
    };
    of(before) != of(after)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::process::tls_servers::TlsServers;

    /// A service and an admin server with a certificate for this name, as they are read from files.
    fn config(folder: &Path, name: &str) -> Config {
        let files = harness::Authority::new("ca").issue(&[name]).write(folder);
        let (chain, key) = (&files.chain, &files.key);
        let text = format!(
            "[[service]]\nsentinels=[\"s\"]\nlisten=[]\ntls_listen=[\"127.0.0.1:1\"]\n\
             [service.tls]\ncertificate_files=[{chain:?}]\nkey_files=[{key:?}]\n\
             [admin]\nlisten=[\"127.0.0.1:9\"]\n\
             [admin.tls]\ncertificate_file={chain:?}\nkey_file={key:?}\n"
        );
        let file = folder.join("pointsman.toml");
        std::fs::write(&file, text).unwrap();
        let flags = config::Flags { config: Some(file), ..config::Flags::default() };
        config::load(&flags, []).config().unwrap()
    }

    #[test]
    fn changes_no_certificate_if_another_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (one, mut two) = (config(folder.path(), "one"), config(folder.path(), "two"));
        let servers = TlsServers::new(&one).unwrap();
        let shown = || {
            let shown = servers.certificates().into_iter();
            shown.flat_map(|(_, facts)| facts.names).collect::<Vec<_>>()
        };
        // No version is left for the admin server.
        let rules = &mut two.admin.tls;
        std::mem::swap(&mut rules.min_version, &mut rules.max_version);
        let refused = servers.prepare(&two).unwrap_err();
        assert!(refused.contains("admin.tls"), "{refused}");
        assert_eq!(shown(), ["one", "one"]);

        let rules = &mut two.admin.tls;
        std::mem::swap(&mut rules.min_version, &mut rules.max_version);
        servers.commit(servers.prepare(&two).unwrap());
        assert_eq!(shown(), ["two", "two"]);
    }
}
