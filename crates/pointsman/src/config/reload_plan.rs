//! Plans a reload: compares the running configuration with a newly loaded one and determines which
//! values change now and which need a restart.
//!
//! Each option says whether a reload changes it. The result is the running configuration with the
//! new values of those options. It is checked as a whole, because this combination of values is in
//! no file. Services are matched by name: one that is new gets all its values now, and one that is
//! missing is removed. A service that was removed and still closes its sessions keeps the values
//! that need a restart if it is added again.

use std::collections::BTreeSet;

use super::Config;
use super::consistency;
use super::finding::Faults;
use super::option_spec::Reload;
use super::schema;
use super::settings::{SettingMap, Settings};

/// The effect of a reload.
#[derive(Debug, Clone)]
pub(crate) struct ReloadPlan {
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
        plan_values(&mut settings.process, &new.process, None, &mut applied, &mut pending);
        let known = std::mem::take(&mut settings.services);
        for other in &new.services {
            let name = other.name();
            let is_same = |it: &&SettingMap| it.name() == name;
            let serves = known.iter().find(is_same);
            if serves.is_none() {
                applied.push(format!("service {name} (added)"));
            }
            let service = serves.or_else(|| leaving.iter().find(is_same)).cloned();
            settings.services.push(match service {
                Some(mut service) => {
                    plan_values(&mut service, other, Some(name), &mut applied, &mut pending);
                    service
                }
                None => other.clone(),
            });
        }
        let names: Vec<&str> = new.services.iter().map(SettingMap::name).collect();
        let removed = known.iter().map(SettingMap::name).filter(|name| !names.contains(name));
        applied.extend(removed.map(|name| format!("service {name} (removed)")));
        match Faults::of(consistency::faults(&settings)) {
            Some(faults) => Err(faults),
            None => Ok(Self { config: settings.to_config(&[]), settings, applied, pending }),
        }
    }
}

fn plan_values(
    old: &mut SettingMap,
    new: &SettingMap,
    service: Option<&str>,
    applied: &mut Vec<String>,
    pending: &mut Vec<String>,
) {
    let named =
        |path: &str| service.map_or_else(|| path.to_owned(), |name| format!("{path} ({name})"));
    let options =
        schema::options().filter(|(section, _)| section.is_of_service() == service.is_some());
    // New sentinels must not be asked for the former master.
    let is_of_other_master = old.value(MASTER) != new.value(MASTER);
    for (section, option) in options {
        let path = section.path_of(option.key);
        if old.value(&path) == new.value(&path) {
            continue;
        }
        let waits_for_master = is_of_other_master && path == SENTINELS;
        if option.reload == Reload::Restart || waits_for_master {
            pending.push(named(&path));
            continue;
        }
        match new.settings.get(&path) {
            Some(setting) => old.settings.insert(path.clone(), setting.clone()),
            None => old.settings.remove(&path),
        };
        applied.push(named(&path));
    }
    // The keys may be unchanged while the file has another secret.
    for section in old.passwords.keys().chain(new.passwords.keys()).collect::<BTreeSet<_>>() {
        if old.passwords.get(section) != new.passwords.get(section) {
            applied.push(named(&format!("{section}: the secret itself")));
        }
    }
    old.passwords.clone_from(&new.passwords);
    for section in old.pem_files.keys().chain(new.pem_files.keys()).collect::<BTreeSet<_>>() {
        if old.pem_files.get(section) != new.pem_files.get(section) {
            applied.push(named(&format!("{section}: the files themselves")));
        }
    }
    old.pem_files.clone_from(&new.pem_files);
}

/// Sentinel's name of the master.
const MASTER: &str = "service.master";
/// The sentinels that are asked for it.
const SENTINELS: &str = "service.sentinels";

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
        loaded.settings
    }

    fn change(old: &str, new: &str) -> ReloadPlan {
        ReloadPlan::of(&settings(old), &[], &settings(new)).unwrap()
    }

    const A: &str = "[[service]]\nname=\"a\"\nsentinels=[\"s\"]\nlisten=[\"127.0.0.1:1\"]\n";
    const B: &str = "[[service]]\nname=\"b\"\nsentinels=[\"s\"]\nlisten=[\"127.0.0.1:2\"]\n";

    #[test]
    fn applies_live_keys_and_lists_the_rest() {
        let new = format!(
            "{A}hold_timeout=\"3s\"\nunix_socket_mode=\"0600\"\n{B}[log]\nlevel=\"warn\"\n\
             format=\"json\"\n"
        );
        let change = change(&format!("{A}{B}"), &new);
        assert_eq!(change.applied, ["log.level", "service.hold_timeout (a)"]);
        assert_eq!(change.pending, ["log.format", "service.unix_socket_mode (a)"]);
        assert_eq!(change.config.services[0].hold_timeout.as_secs(), 3);
        assert_eq!(change.config.services[1].hold_timeout.as_secs(), 10);
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
        assert_eq!(change.config.services[0].verify, sentinel::Verify::Ping);
    }

    /// Otherwise the new sentinels would be asked for the old name until the restart.
    #[test]
    fn defers_sentinels_with_the_master_name() {
        let new = A.replace("[\"s\"]", "[\"t\"]") + "master=\"m\"\nhold_timeout=\"3s\"\n";
        let plan = change(A, &new);
        assert_eq!(plan.applied, ["service.hold_timeout (a)"]);
        assert_eq!(plan.pending, ["service.master (a)", "service.sentinels (a)"]);
        assert_eq!(plan.config.services[0].master_name(), "a");
        assert_eq!(&*plan.config.services[0].sentinels[0].host, "s");
    }

    #[test]
    fn keeps_restart_values_of_service_added_again() {
        let (running, old) = (settings(A), settings(B));
        let new = settings(&format!("{A}{B}unix_socket_mode=\"0600\"\nverify=\"ping\"\n"));
        let change = ReloadPlan::of(&running, &old.services, &new).unwrap();
        assert_eq!(change.applied, ["service b (added)", "service.verify (b)"]);
        assert_eq!(change.pending, ["service.unix_socket_mode (b)"]);
        assert_eq!(change.config.services[1].unix_socket_mode, "0660");
    }

    #[test]
    fn ignores_order_of_services() {
        let change = change(&format!("{A}{B}"), &format!("{B}{A}"));
        assert!(change.applied.is_empty() && change.pending.is_empty());
    }

    #[test]
    fn refuses_contradicting_combination() {
        // The admin server keeps its address until a restart.
        let old = format!("{A}[admin]\nlisten=[\"127.0.0.1:9\"]\n");
        let new = A.replace("127.0.0.1:1", "127.0.0.1:9");
        let new = format!("{new}[admin]\nlisten=[\"127.0.0.1:1\"]\n");
        let faults = ReloadPlan::of(&settings(&old), &[], &settings(&new)).unwrap_err();
        assert!(faults.to_string().contains("127.0.0.1:9 is already used"), "{faults}");
    }

    #[test]
    fn applies_a_changed_password_without_showing_it() {
        let with = |password: &str| format!("{A}[service.auth]\npassword=\"{password}\"\n");
        let password = |change: &ReloadPlan| {
            let auth = &change.config.services[0].auth;
            auth.password.as_ref().map(|it| it.reveal().to_owned())
        };
        let changed = change(&with("hunter2"), &with("hunter3"));
        assert_eq!(password(&changed).as_deref(), Some("hunter3"));
        assert!(changed.pending.is_empty(), "{:?}", changed.pending);
        assert!(changed.applied.iter().any(|it| it == "service.auth: the secret itself (a)"));
        assert!(!format!("{changed:?}").contains("hunter"));
        let removed = change(&with("hunter2"), A);
        assert_eq!(password(&removed), None);
        assert_eq!(password(&change(A, &with("hunter2"))).as_deref(), Some("hunter2"));
    }

    #[test]
    fn keeps_secret_whose_file_cannot_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let (file, secret) = (folder.path().join("pointsman.toml"), folder.path().join("secret"));
        let write = |hold: u8| {
            let auth = format!("[service.auth]\npassword_file={secret:?}\n");
            std::fs::write(&file, format!("{A}hold_timeout=\"{hold}s\"\n{auth}")).unwrap();
        };
        let read = || load(&Flags { config: Some(file.clone()), ..Flags::default() }, []);
        let password = |settings: &Settings| {
            settings.services[0].passwords["service.auth"].reveal().to_owned()
        };
        write(3);
        std::fs::write(&secret, "hunter2\n").unwrap();
        let running = read().settings;
        for unusable in ["", "two\nlines\n", &"x".repeat(70_000)] {
            std::fs::write(&secret, unusable).unwrap();
            write(4);
            let loaded = read();
            assert!(loaded.config().is_err(), "a fault at the start");
            let change = loaded.change(&running, &[]).unwrap();
            assert_eq!(change.applied, ["service.hold_timeout (a)"], "the rest applies");
            assert_eq!(password(&change.settings), "hunter2");
            assert_eq!(loaded.unread_secrets().len(), 1);
            assert!(loaded.unread_secrets()[0].contains("password_file"));
        }
        // Nothing to keep: the reload is refused.
        assert!(read().change(&settings(A), &[]).is_err());
        std::fs::write(&secret, "hunter3").unwrap();
        let loaded = read();
        assert_eq!(password(&loaded.change(&running, &[]).unwrap().settings), "hunter3");
        assert!(loaded.unread_secrets().is_empty());
        assert_eq!(loaded.secret_files.keys().collect::<Vec<_>>(), [&secret]);
    }

    #[test]
    fn keeps_secret_by_service_in_a_changed_set() {
        let folder = tempfile::tempdir().unwrap();
        let secret = |name: &str| folder.path().join(name);
        let file = secret("pointsman.toml");
        let auth = |name| format!("[service.auth]\npassword_file={:?}\n", secret(name));
        let read = |services: &[String]| {
            std::fs::write(&file, services.concat()).unwrap();
            load(&Flags { config: Some(file.clone()), ..Flags::default() }, [])
        };
        let (a, b) = (format!("{A}{}", auth("a")), format!("{B}{}", auth("b")));
        let c = a.replace("name=\"a\"", "name=\"c\"").replace("127.0.0.1:1", "127.0.0.1:3");
        std::fs::write(secret("a"), "of a").unwrap();
        std::fs::write(secret("b"), "of b").unwrap();
        let running = read(&[a.clone(), b.clone()]).settings;
        // The first service goes, a new one comes, and the other one's file is empty.
        std::fs::write(secret("b"), "").unwrap();
        let change = read(&[c.clone(), b.clone()]).change(&running, &[]).unwrap();
        assert_eq!(change.applied, ["service c (added)", "service a (removed)"]);
        let passwords: Vec<_> = change
            .settings
            .services
            .iter()
            .map(|it| it.passwords["service.auth"].reveal())
            .collect();
        assert_eq!(passwords, ["of a", "of b"]);
        // A service that comes back while it leaves keeps its secret, too.
        let only_b = change.settings.services[1..].to_vec();
        let running = Settings { services: only_b, ..change.settings.clone() };
        let leaving = &change.settings.services[..1];
        std::fs::write(secret("a"), "").unwrap();
        let back = read(&[b.clone(), c.clone()]).change(&running, leaving).unwrap();
        assert_eq!(back.settings.services[1].passwords["service.auth"].reveal(), "of a");
        // A new service has none: the whole reload is refused.
        let faults = read(&[b, c]).change(&running, &[]).unwrap_err().to_string();
        assert!(faults.contains("service.auth.password_file"), "{faults}");
    }
}
