//! Merges the layers of the configuration: defaults, then the file, then the environment, then
//! flags.
//!
//! Flags and variables have no notion of a list of services. Their service keys apply to the only
//! service, or to the one that `--service` names. If there are several services and none is named,
//! that is a fault.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use super::schema::{self, CREDENTIALS, PASSWORD_KEYS, is_of_service};
use super::settings::{Origin, Setting, SettingMap, Settings};
use super::toml_file::ParsedFile;
use super::value::{Problem, Value};

const NAME: &str = "service.name";

/// Values from the environment or from flags, by full path, with the faults found in them. The
/// service to which the keys of `service` apply is determined in [`merge`].
#[derive(Debug, Default)]
pub(super) struct Layer {
    pub(super) values: BTreeMap<String, Setting>,
    pub(super) broken: BTreeSet<String>,
    pub(super) findings: Vec<Finding>,
    /// Values of keys of the process that nothing else sets.
    pub(super) defaults: BTreeMap<String, Setting>,
}

impl Layer {
    /// Adds a value, or records its fault.
    pub(super) fn set(&mut self, path: String, read: Result<Value, Problem>, origin: Origin) {
        match read {
            Ok(value) => {
                self.values.insert(path, Setting { value, origin });
            }
            Err(problem) => {
                self.findings.push(Finding::of(origin, path.clone(), problem));
                self.broken.insert(path);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty() && self.broken.is_empty() && self.findings.is_empty()
    }

    /// Overrides in `values` the keys for which `takes` is true. A password key of this layer
    /// replaces every password key of the same section in the layers below.
    fn apply_to(&self, values: &mut SettingMap, takes: impl Fn(&str) -> bool) {
        for section in CREDENTIALS {
            let keys = PASSWORD_KEYS.map(|name| format!("{section}.{name}"));
            if takes(section) && keys.iter().any(|key| self.values.contains_key(key)) {
                for key in &keys {
                    values.settings.remove(key);
                    values.broken.remove(key);
                }
            }
        }
        for (path, setting) in self.values.iter().filter(|(path, _)| takes(path)) {
            values.broken.remove(path);
            values.settings.insert(path.clone(), setting.clone());
        }
        for path in self.broken.iter().filter(|path| takes(path)) {
            values.settings.remove(path);
            values.broken.insert(path.clone());
        }
    }
}

/// Applies environment and flags on top of the file and fills in the defaults. Returns the faults
/// of all three as well.
pub(super) fn merge(file: ParsedFile, env: Layer, flags: Layer) -> (Settings, Vec<Finding>) {
    let ParsedFile { mut services, mut process, mut findings } = file;
    let mut layers = [env, flags];
    let name_is_broken = layers.iter().any(|layer| layer.broken.contains(NAME));
    let mut selector = None;
    for layer in &mut layers {
        findings.append(&mut layer.findings);
        selector = layer.values.remove(NAME).or(selector);
    }
    let service_setting =
        layers.iter().flat_map(|layer| layer.values.iter()).find(|(path, _)| is_of_service(path));
    let has_service_keys = service_setting.is_some()
        || layers.iter().any(|layer| layer.broken.iter().any(|p| is_of_service(p)));
    if services.is_empty() && (has_service_keys || selector.is_some()) {
        services.push(SettingMap::default());
    }
    if services.is_empty() {
        let remedy = "give --config FILE with a [[service]], or at least --sentinel HOST:PORT";
        findings.push(Finding::new(Origin::Default, "service", "no service is configured", remedy));
    }
    match select(&mut services, selector, name_is_broken, service_setting) {
        Ok(at) => {
            if let Some(service) = at.and_then(|at| services.get_mut(at)) {
                layers.iter().for_each(|layer| layer.apply_to(service, is_of_service));
            }
        }
        Err(finding) => findings.push(finding),
    }
    for layer in &layers {
        layer.apply_to(&mut process, |path| !is_of_service(path));
    }
    for (path, setting) in layers.iter().flat_map(|layer| &layer.defaults) {
        if !process.broken.contains(path) {
            process.settings.entry(path.clone()).or_insert_with(|| setting.clone());
        }
    }
    services.iter_mut().for_each(|service| fill_defaults(service, true));
    fill_defaults(&mut process, false);
    (Settings { services, process }, findings)
}

/// The index of the service to which flags and variables apply.
fn select(
    services: &mut [SettingMap],
    selector: Option<Setting>,
    name_is_broken: bool,
    service_setting: Option<(&String, &Setting)>,
) -> Result<Option<usize>, Finding> {
    if let (Some(selector), [only]) = (&selector, &mut *services)
        && only.value(NAME).is_none()
    {
        // The only service, if it has no name in the file, takes the name from `--service`.
        only.settings.insert(NAME.to_owned(), selector.clone());
        return Ok(Some(0));
    }
    let names: Vec<String> = services.iter().map(name_of).collect();
    let list = names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    match (selector, service_setting) {
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

/// The name of a service, or its default name.
fn name_of(service: &SettingMap) -> String {
    let name = match service.name() {
        "" => schema::option(NAME).and_then(|option| option.default).unwrap_or_default(),
        name => name,
    };
    name.to_owned()
}

fn fill_defaults(values: &mut SettingMap, of_service: bool) {
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
