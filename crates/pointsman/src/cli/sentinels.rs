//! `pointsman sentinels`: queries each sentinel and node directly, and reports problems with
//! remedies.
//!
//! It needs no running proxy: the configuration, or two flags, name the sentinels and credentials,
//! and the doctor examines and diagnoses. This module translates the configuration for it, and
//! prints its report, coloured on a terminal only, or as JSON.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use doctor::{Context, Examined, Report, Severity, foreign_addresses};
use sentinel::Resolver;

use super::Variables;
use super::args::SentinelsArgs;
use super::failure::Failure;
use crate::config::{self, Config, Origin};
use crate::logging;
use crate::process::error::RunError;
use crate::process::settings;

/// Tells a script whether to look: 0 for notes, 1 for warnings, 2 for faults.
pub(super) fn exit_code(worst: Severity) -> ExitCode {
    match worst {
        Severity::Note => ExitCode::SUCCESS,
        Severity::Warning => ExitCode::from(1),
        Severity::Fault => ExitCode::from(2),
    }
}

/// Examines the services. Returns the output and the severity of the worst finding.
///
/// # Errors
///
/// Faults of the configuration; or the system provides no runtime.
pub(super) fn sentinels(
    args: &SentinelsArgs,
    env: &Variables,
) -> Result<(String, Severity), Failure> {
    let flags = args.flags();
    let loaded = config::load(&flags, env.iter().cloned());
    let config = loaded.config_without_listener_tls()?;
    let is_selected =
        |name: &str| flags.service.as_deref().is_none_or(|is_selected| is_selected == name);
    let services = config.services.iter().zip(&loaded.settings.services);
    let services = services.filter(|(service, _)| is_selected(&service.name));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(16).build();
    let runtime = runtime.map_err(|error| Failure::Run(RunError::System(error)))?;
    let now = SystemTime::UNIX_EPOCH.elapsed().ok();
    let examined: Vec<Examined> = runtime.block_on(async {
        let mut examined = Vec::new();
        for (service, values) in services {
            // The default is not one of our addresses: on this host a Redis server may listen
            // there.
            let listen = values.settings.get("service.listen");
            let is_own = listen.is_some_and(|it| it.origin != Origin::Default);
            let mut result = examine(&config, is_own, service, &args.zones(), now).await;
            if let Some(section) = loaded.listener_certificates(values) {
                result.add_listeners(&section, now);
            }
            examined.push(result);
        }
        examined
    });
    // A name lookup that hangs in the system's resolver must not delay the exit.
    runtime.shutdown_background();
    let admin = loaded.admin_certificates().map(|section| {
        let mut admin = Examined::default();
        admin.add_listeners(&section, now);
        admin
    });
    let report = Report { services: examined, admin, now };
    let text = if args.json { report.json() } else { report.text(logging::is_coloured()) };
    Ok((text, report.worst()))
}

async fn examine(
    config: &Config,
    is_own: bool,
    service: &config::ServiceConfig,
    zones: &BTreeMap<String, String>,
    now: Option<Duration>,
) -> Examined {
    let (mut own, mut foreign_listen) = (Vec::new(), Vec::new());
    if is_own {
        own.extend(service.listen.iter().filter_map(proxy::ListenAddr::tcp));
        foreign_listen = foreign_addresses(&own);
        own.extend(config.admin.listen.iter().chain(&config.admin.read_only_listen));
    }
    let patient = settings::examination(service, own);
    let context = Context {
        mapped: patient.settings.address_map.keys().cloned().collect(),
        hold_timeout: Some(service.hold_timeout),
        verify: patient.settings.rules.verify,
        sentinels_need_login: patient.settings.sentinel_auth.is_some(),
        nodes_need_login: patient.settings.auth.is_some(),
        durability_replicas: service.durability.replicas,
        zones: zones.clone(),
        foreign_listen,
        now,
    };
    let observed = doctor::examine(patient, &Resolver::default()).await;
    let findings = doctor::diagnose(&observed, &context);
    let service = Some((service.name.clone(), observed));
    Examined { service, certificates: Vec::new(), findings }
}
