//! The layers laid over each other: file, environment, flags, and the defaults under all.
//!
//! Flags and variables know nothing of a list of services, so what they say of "the service" is
//! meant for the only one, or for the one that `--service` names. Where neither holds, that is a
//! fault rather than a guess.

use super::finding::Finding;
use super::layer::Layer;
use super::schema::{self, is_of_service};
use super::section::FromValues as _;
use super::sections::{Admin, Log, Metrics, Process, Service, Shutdown};
use super::value::Value;
use super::values::{Origin, Setting, Values};
use super::{Config, file};

const NAME: &str = "service.name";

/// The effective values of everything, with their origins.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// In the order of the file.
    pub services: Vec<Values>,
    /// The sections of the process.
    pub process: Values,
}

/// Lays environment and flags over the file and fills in the defaults; notes the faults of all
/// three.
pub(super) fn assemble(file: file::Reading, env: Layer, flags: Layer) -> (Settings, Vec<Finding>) {
    let file::Reading { services, mut process, mut findings, damaged } = file;
    let mut services = services;
    let mut layers = [env, flags];
    let name_is_broken = layers.iter().any(|layer| layer.broken.contains(NAME));
    let mut selector = None;
    for layer in &mut layers {
        findings.append(&mut layer.findings);
        selector = layer.values.remove(NAME).or(selector);
    }
    let concerned =
        layers.iter().flat_map(|layer| layer.values.iter()).find(|(path, _)| is_of_service(path));
    let concerns_service = concerned.is_some()
        || layers.iter().any(|layer| layer.broken.iter().any(|p| is_of_service(p)));
    if services.is_empty() && (concerns_service || selector.is_some()) {
        services.push(Values::default());
    }
    if services.is_empty() && !damaged {
        let remedy = "give --config FILE with a [[service]], or at least --sentinel HOST:PORT";
        findings.push(Finding::new(Origin::Default, "service", "no service is configured", remedy));
    }
    match select(&mut services, selector, name_is_broken, concerned) {
        Ok(at) => {
            if let Some(service) = at.and_then(|at| services.get_mut(at)) {
                layers.iter().for_each(|layer| layer.lay_over(service, is_of_service));
            }
        }
        Err(finding) => findings.push(finding),
    }
    for layer in &layers {
        layer.lay_over(&mut process, |path| !is_of_service(path));
    }
    services.iter_mut().for_each(|service| fill_defaults(service, true));
    fill_defaults(&mut process, false);
    (Settings { services, process }, findings)
}

/// The place in the list of the service that flags and variables mean.
fn select(
    services: &mut [Values],
    selector: Option<Setting>,
    name_is_broken: bool,
    concerned: Option<(&String, &Setting)>,
) -> Result<Option<usize>, Finding> {
    if let (Some(selector), [only]) = (&selector, &mut *services)
        && only.value(NAME).is_none()
    {
        // A sole service without a name of its own takes the given one.
        only.settings.insert(NAME.to_owned(), selector.clone());
        return Ok(Some(0));
    }
    let names: Vec<String> = services.iter().map(name_of).collect();
    let list = names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    match (selector, concerned) {
        (Some(Setting { value: Value::Text(wanted), origin }), _) if !names.is_empty() => {
            let missing = || {
                let what = format!("no service is called {wanted:?}");
                Finding::new(origin.clone(), NAME, what, format!("the file has {list}"))
            };
            names.iter().position(|name| *name == wanted).map(Some).ok_or_else(missing)
        }
        (None, _) if names.len() == 1 => Ok(Some(0)),
        (None, Some((path, setting))) if names.len() > 1 && !name_is_broken => {
            let remedy = format!("say which one by --service: {list}");
            Err(Finding::new(
                setting.origin.clone(),
                path.clone(),
                "the file has several services",
                remedy,
            ))
        }
        _ => Ok(None),
    }
}

/// The name that a service has or will have.
fn name_of(service: &Values) -> String {
    match service.value(NAME) {
        Some(Value::Text(name)) => name.clone(),
        _ => schema::option(NAME).and_then(|option| option.default).unwrap_or_default().to_owned(),
    }
}

fn fill_defaults(values: &mut Values, of_service: bool) {
    for (section, option) in
        schema::options().filter(|(section, _)| section.is_of_service() == of_service)
    {
        let path = section.path_of(option.key);
        if let Some(value) = option.default_value()
            && !values.broken.contains(&path)
        {
            values.settings.entry(path).or_insert(Setting { value, origin: Origin::Default });
        }
    }
}

impl Settings {
    /// The plain structs. Meant for settings without faults.
    pub(super) fn to_config(&self, warnings: &[Finding]) -> Config {
        Config {
            services: self.services.iter().map(|values| Service::read(values, "service")).collect(),
            admin: Admin::read(&self.process, "admin"),
            metrics: Metrics::read(&self.process, "metrics"),
            shutdown: Shutdown::read(&self.process, "shutdown"),
            log: Log::read(&self.process, "log"),
            process: Process::read(&self.process, "process"),
            hash: super::hash::hash(self),
            warnings: warnings.iter().map(ToString::to_string).collect(),
        }
    }
}
