//! Plans a reload: compares the running configuration with a newly loaded one and determines which
//! values change now and which need a restart.
//!
//! Each option says whether a reload changes it. The result is the running configuration with the
//! new values of those options. It is checked as a whole, because this combination of values is in
//! no file. Services are matched by name: one that is new gets all its values now, and one that is
//! missing is removed. A service that was removed and still closes its sessions keeps the values
//! that need a restart if it is added again.
//!
//! Deliberately absent: applying the plan, and which listening socket serves which service
//! (`listener_plan`).

use super::Config;
use super::consistency;
use super::finding::Faults;
use super::option_spec::Reload;
use super::schema;
use super::settings::{SettingMap, Settings};
use super::value::Value;

/// The effect of a reload.
#[derive(Debug, Clone)]
pub struct ReloadPlan {
    /// The effective values after the reload.
    pub settings: Settings,
    /// The configuration after the reload.
    pub config: Config,
    /// The keys that change now, each with its service.
    pub applied: Vec<String>,
    /// The keys whose values differ and that need a restart.
    pub pending: Vec<String>,
}

impl ReloadPlan {
    /// The plan for a reload from `running` to `new`. `leaving` are services that were removed
    /// earlier and still close their sessions.
    ///
    /// # Errors
    ///
    /// Faults of the combined configuration.
    pub(super) fn of(
        running: &Settings,
        leaving: &[SettingMap],
        new: &Settings,
    ) -> Result<Self, Faults> {
        let (mut settings, mut applied, mut pending) = (running.clone(), Vec::new(), Vec::new());
        plan_values(&mut settings.process, &new.process, None, (&mut applied, &mut pending));
        let known = std::mem::take(&mut settings.services);
        for other in &new.services {
            let name = name_of(other);
            let is_same = |it: &&SettingMap| name_of(it) == name;
            let serves = known.iter().find(is_same);
            if serves.is_none() {
                applied.push(format!("service {name} (added)"));
            }
            let service = serves.or_else(|| leaving.iter().find(is_same)).cloned();
            settings.services.push(match service {
                Some(mut service) => {
                    plan_values(&mut service, other, Some(&name), (&mut applied, &mut pending));
                    service
                }
                None => other.clone(),
            });
        }
        let names: Vec<String> = new.services.iter().map(name_of).collect();
        let removed = known.iter().map(name_of).filter(|name| !names.contains(name));
        applied.extend(removed.map(|name| format!("service {name} (removed)")));
        match Faults::of(consistency::faults(&settings, false)) {
            Some(faults) => Err(faults),
            None => Ok(Self { config: settings.to_config(&[]), settings, applied, pending }),
        }
    }
}

fn plan_values(
    old: &mut SettingMap,
    new: &SettingMap,
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
    // The keys may be unchanged while the file or variable has another secret.
    for (section, secret) in &new.passwords {
        if old.passwords.get(section).is_some_and(|known| known != secret) {
            pending.push(named(&format!("{section}: the secret itself")));
        }
    }
}

/// The name of a service.
pub(crate) fn name_of(service: &SettingMap) -> String {
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

    fn change(old: &str, new: &str) -> ReloadPlan {
        ReloadPlan::of(&settings(old), &[], &settings(new)).unwrap()
    }

    const A: &str = "[[service]]\nname=\"a\"\nsentinels=[\"s\"]\nlisten=[\"127.0.0.1:1\"]\n";
    const B: &str = "[[service]]\nname=\"b\"\nsentinels=[\"s\"]\nlisten=[\"127.0.0.1:2\"]\n";

    #[test]
    fn applies_live_keys_and_lists_the_rest() {
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
    fn changes_nothing_when_values_are_equal() {
        let change = change(&format!("{A}{B}"), &format!("# a remark\n{A}{B}"));
        assert!(change.applied.is_empty() && change.pending.is_empty());
        assert_eq!(change.config.hash, settings(&format!("{A}{B}")).to_config(&[]).hash);
    }

    #[test]
    fn applies_added_removed_and_changed_services() {
        let moved = B.replace("127.0.0.1:2", "127.0.0.1:3").replace("[\"s\"]", "[\"t\"]");
        let change = change(
            &format!("{A}{B}"),
            &format!("{}verify=\"ping\"\n{moved}", A.replace("\"a\"", "\"c\"")),
        );
        assert_eq!(
            change.applied,
            [
                "service c (added)",
                "service.listen (b)",
                "service.sentinels (b)",
                "service a (removed)"
            ]
        );
        assert!(change.pending.is_empty(), "{:?}", change.pending);
        let names: Vec<&str> = change.config.services.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["c", "b"]);
        assert_eq!(change.config.services[0].verify.as_str(), "ping");
    }

    #[test]
    fn keeps_restart_values_of_service_added_again() {
        let (running, old) = (settings(A), settings(B));
        let new = settings(&format!("{A}{B}verify=\"ping\"\n"));
        let change = ReloadPlan::of(&running, &old.services, &new).unwrap();
        assert_eq!(change.applied, ["service b (added)"]);
        assert_eq!(change.pending, ["service.verify (b)"]);
        assert_eq!(change.config.services[1].verify.as_str(), "role");
    }

    #[test]
    fn ignores_order_of_services() {
        let change = change(&format!("{A}{B}"), &format!("{B}{A}"));
        assert!(change.applied.is_empty() && change.pending.is_empty());
    }

    #[test]
    fn refuses_contradicting_combination() {
        let old = format!("{A}[process]\nmax_connections=10\n");
        let new = format!("{A}max_connections=50\n[process]\nmax_connections=100\n");
        let faults = ReloadPlan::of(&settings(&old), &[], &settings(&new)).unwrap_err();
        assert!(faults.to_string().contains("process.max_connections"), "{faults}");
    }

    #[test]
    fn lists_a_changed_password_without_showing_it() {
        let with = |password: &str| format!("{A}[service.auth]\npassword=\"{password}\"\n");
        let change = change(&with("hunter2"), &with("hunter3"));
        assert_eq!(change.pending.len(), 2, "{:?}", change.pending);
        assert!(!format!("{:?}", change.pending).contains("hunter"));
    }
}
