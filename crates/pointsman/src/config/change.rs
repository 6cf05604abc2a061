//! From the configuration in force and one read anew: what changes now, and what waits for a
//! restart.
//!
//! Value by value, by what the table of options says of each. What is in force afterwards is the
//! old configuration with the new values of those options that a running process can change; it is
//! checked as a whole like any other, because the mixture is one that nobody wrote. Services are
//! matched by their names.
//!
//! Deliberately absent: carrying it out.

use super::Config;
use super::check;
use super::finding::Faults;
use super::schema;
use super::section::Reload;
use super::settings::Settings;
use super::value::Value;
use super::values::Values;

/// What a reload brings.
#[derive(Debug, Clone)]
pub struct Change {
    /// The values in force from now on.
    pub settings: Settings,
    /// The same as plain structs.
    pub config: Config,
    /// The keys that change now, each with the service it is about.
    pub applied: Vec<String>,
    /// The keys that are written otherwise but need a restart.
    pub pending: Vec<String>,
}

impl Change {
    /// Lays what can change of `new` over `running`.
    ///
    /// # Errors
    ///
    /// Faults of the mixture.
    pub(super) fn of(running: &Settings, new: &Settings) -> Result<Self, Faults> {
        let (mut settings, mut applied, mut pending) = (running.clone(), Vec::new(), Vec::new());
        lay_over(&mut settings.process, &new.process, None, (&mut applied, &mut pending));
        for service in &mut settings.services {
            let name = name_of(service);
            match new.services.iter().find(|other| name_of(other) == name) {
                Some(other) => lay_over(service, other, Some(&name), (&mut applied, &mut pending)),
                None => pending.push(format!("service {name} (removed)")),
            }
        }
        let known: Vec<String> = settings.services.iter().map(name_of).collect();
        let added = new.services.iter().map(name_of).filter(|name| !known.contains(name));
        pending.extend(added.map(|name| format!("service {name} (added)")));
        match Faults::of(check::faults(&settings, false)) {
            Some(faults) => Err(faults),
            None => Ok(Self { config: settings.to_config(&[]), settings, applied, pending }),
        }
    }
}

fn lay_over(
    old: &mut Values,
    new: &Values,
    service: Option<&str>,
    (applied, pending): (&mut Vec<String>, &mut Vec<String>),
) {
    let named =
        |path: &str| service.map_or_else(|| path.to_owned(), |name| format!("{path} ({name})"));
    let options =
        schema::options().filter(|(section, _)| section.is_of_service() == service.is_some());
    for (section, option) in options {
        let path = section.path_of(option.key);
        if old.value(&path) == new.value(&path) {
            continue;
        }
        if option.reload == Reload::Restart {
            pending.push(named(&path));
            continue;
        }
        match new.setting(&path) {
            Some(setting) => old.settings.insert(path.clone(), setting.clone()),
            None => old.settings.remove(&path),
        };
        applied.push(named(&path));
    }
    // The keys may be the same, and what they lead to another.
    for (section, secret) in &new.passwords {
        if old.passwords.get(section).is_some_and(|known| known != secret) {
            pending.push(named(&format!("{section}: the secret itself")));
        }
    }
}

fn name_of(service: &Values) -> String {
    match service.value("service.name") {
        Some(Value::Text(name)) => name.clone(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flags, load};

    fn settings(text: &str) -> Settings {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pointsman.toml");
        std::fs::write(&file, text).unwrap();
        let loaded = load(&Flags { config: Some(file), ..Flags::default() }, []);
        loaded.config().unwrap();
        loaded.settings().clone()
    }

    fn change(old: &str, new: &str) -> Change {
        Change::of(&settings(old), &settings(new)).unwrap()
    }

    const A: &str = "[[service]]\nname=\"a\"\nsentinels=[\"s\"]\nlisten=[\"127.0.0.1:1\"]\n";
    const B: &str = "[[service]]\nname=\"b\"\nsentinels=[\"s\"]\nlisten=[\"127.0.0.1:2\"]\n";

    #[test]
    fn what_can_change_changes_and_the_rest_is_named() {
        let new = format!(
            "{A}hold_timeout=\"3s\"\nverify=\"ping\"\n{B}[log]\nlevel=\"warn\"\nformat=\"json\"\n"
        );
        let change = change(&format!("{A}{B}"), &new);
        assert_eq!(change.applied, ["log.level", "service.hold_timeout (a)"]);
        assert_eq!(change.pending, ["log.format", "service.verify (a)"]);
        assert_eq!(change.config.services[0].hold_timeout.as_secs(), 3);
        assert_eq!(change.config.services[1].hold_timeout.as_secs(), 10);
        assert_eq!(change.config.services[0].verify.as_str(), "role");
    }

    #[test]
    fn the_same_again_changes_nothing_and_keeps_the_hash() {
        let change = change(&format!("{A}{B}"), &format!("# a remark\n{A}{B}"));
        assert!(change.applied.is_empty() && change.pending.is_empty());
        assert_eq!(change.config.hash, settings(&format!("{A}{B}")).to_config(&[]).hash);
    }

    #[test]
    fn services_that_come_and_go_wait_for_a_restart_and_their_order_means_nothing() {
        let change = change(
            &format!("{A}{B}"),
            &format!("{}{B}hold_timeout=\"4s\"\n", A.replace("\"a\"", "\"c\"")),
        );
        assert_eq!(change.pending, ["service a (removed)", "service c (added)"]);
        assert_eq!(change.applied, ["service.hold_timeout (b)"]);
    }

    #[test]
    fn a_mixture_that_contradicts_itself_is_a_fault() {
        let old = format!("{A}[process]\nmax_connections=10\n");
        let new = format!("{A}max_connections=50\n[process]\nmax_connections=100\n");
        let faults = Change::of(&settings(&old), &settings(&new)).unwrap_err();
        assert!(faults.to_string().contains("process.max_connections"), "{faults}");
    }

    #[test]
    fn another_password_under_the_same_key_is_named_and_not_shown() {
        let with = |password: &str| format!("{A}[service.auth]\npassword=\"{password}\"\n");
        let change = change(&with("hunter2"), &with("hunter3"));
        assert_eq!(change.pending.len(), 2, "{:?}", change.pending);
        assert!(!format!("{:?}", change.pending).contains("hunter"));
    }
}
