//! Reads `POINTSMAN_...` environment variables.
//!
//! An empty variable counts as absent, because Compose files and charts use it for "not set". An
//! unknown `POINTSMAN_...` variable causes a warning and not a fault, because an environment is
//! shared. In particular, Kubernetes sets variables named after every Service in every pod of the
//! namespace, and a Service in front of this program is likely to be called pointsman. Variables of
//! those forms are ignored without a warning; a test asserts that no variable of this program has
//! such a form.

use std::ffi::OsString;

use super::finding::{Finding, nearest};
use super::merge::Layer;
use super::schema;
use super::settings::Origin;
use super::value::Problem;

/// The variable that names the configuration file.
pub(crate) const CONFIG: &str = "POINTSMAN_CONFIG";
/// The variable of the image with the default of `admin.listen`. A usual variable would override
/// the file.
const DEFAULT_ADMIN: &str = "POINTSMAN_DEFAULT_ADMIN";
const PREFIX: &str = "POINTSMAN_";

/// Reads the variables and returns warnings about unknown ones. `referenced` are the variables that
/// the configuration names, for example in `password_env`.
pub(super) fn read(vars: &[(OsString, OsString)], referenced: &[String]) -> (Layer, Vec<Finding>) {
    let (mut layer, mut warnings) = (Layer::default(), Vec::new());
    let mut defaults = Layer::default();
    for (name, value) in vars {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX) && *name != CONFIG)
        else {
            continue;
        };
        if value.is_empty() || is_service_link(name) || referenced.iter().any(|known| known == name)
        {
            continue;
        }
        let origin = Origin::Env(name.to_owned());
        let (target, variable) = match name {
            DEFAULT_ADMIN => (&mut defaults, "POINTSMAN_ADMIN"),
            _ => (&mut layer, name),
        };
        let Some((section, option)) =
            schema::options().find(|(section, option)| section.variable(option.key) == variable)
        else {
            warnings.push(Finding::new(
                origin,
                "environment",
                "unknown variable, ignored",
                remedy(name),
            ));
            continue;
        };
        let path = section.path_of(option.key);
        match value.to_str() {
            Some(text) => target.set(path, option.kind.parse(text), origin),
            None => {
                let problem = Problem::new("the value is not UTF-8 text", "give UTF-8 text");
                target.set(path, Err(problem), origin);
            }
        }
    }
    layer.findings.append(&mut defaults.findings);
    layer.defaults = defaults.values;
    (layer, warnings)
}

fn remedy(name: &str) -> String {
    let known: Vec<String> =
        schema::options().map(|(section, option)| section.variable(option.key)).collect();
    match nearest(name, known.iter().map(String::as_str).chain([CONFIG])) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`pointsman config` lists the keys".to_owned(),
    }
}

/// Whether a variable has the form of a Kubernetes or Docker service link: `X_SERVICE_HOST`,
/// `X_SERVICE_PORT[_NAME]`, `X_PORT`, `X_PORT_6379_TCP[_PROTO|_PORT|_ADDR]`, where X begins with
/// POINTSMAN.
pub(super) fn is_service_link(name: &str) -> bool {
    let has = |part: &str| name.contains(part);
    name.ends_with("_PORT")
        || has("_SERVICE_HOST")
        || has("_SERVICE_PORT_")
        || has("_PORT_") && ["_TCP", "_UDP", "_SCTP"].into_iter().any(has)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::value::Value;

    fn vars(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn ignores_kubernetes_service_links() {
        let injected = vars(&[
            ("POINTSMAN_SERVICE_HOST", "10.96.0.7"),
            ("POINTSMAN_SERVICE_PORT", "6379"),
            ("POINTSMAN_SERVICE_PORT_REDIS", "6379"),
            ("POINTSMAN_PORT", "tcp://10.96.0.7:6379"),
            ("POINTSMAN_PORT_6379_TCP", "tcp://10.96.0.7:6379"),
            ("POINTSMAN_PORT_6379_TCP_PROTO", "tcp"),
            ("POINTSMAN_PORT_6379_TCP_PORT", "6379"),
            ("POINTSMAN_PORT_6379_TCP_ADDR", "10.96.0.7"),
            ("POINTSMAN_ADMIN_SERVICE_HOST", "10.96.0.8"),
            ("POINTSMAN_ADMIN_PORT_8888_TCP_ADDR", "10.96.0.8"),
        ]);
        let (layer, warnings) = read(&injected, &[]);
        assert!(layer.is_empty() && warnings.is_empty(), "{layer:?} {warnings:?}");
    }

    #[test]
    fn reads_known_variables_and_warns_of_unknown_ones() {
        let given = vars(&[
            ("POINTSMAN_LISTEN", "127.0.0.1:1, [::1]:2"),
            ("POINTSMAN_SHUTDOWN_ACCEPT_MIN", ""),
            ("POINTSMAN_SENTINELS", "a"),
            ("POINTSMAN_PORT_NUMBER", "1"),
            ("POINTSMAN_MINE", "x"),
            ("OTHER", "x"),
        ]);
        let (layer, warnings) = read(&given, &["POINTSMAN_MINE".to_owned()]);
        let listen = layer.values.get("service.listen").unwrap();
        assert_eq!(
            listen.value,
            Value::Listen(
                ["127.0.0.1:1", "[::1]:2"].map(|it| proxy::ListenAddr::parse(it).unwrap()).into()
            )
        );
        assert_eq!(layer.values.len(), 1);
        let shown: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(shown.len(), 2, "{shown:?}");
        assert!(shown[0].contains("did you mean `POINTSMAN_SENTINEL`?"), "{shown:?}");
    }
}
