//! What `upstream = "shared"` requires, and the warning that it is experimental. The warning names
//! the rules that a client or a machine may notice; docs/shared-upstreams.md has all of them.

use super::consistency::Note;
use super::finding::Finding;
use super::settings::SettingMap;
use super::value::Value;

const KEY: &str = "service.upstream";

fn is(service: &SettingMap, key: &str, expected: &str) -> bool {
    matches!(service.value(key), Some(Value::Text(it)) if it == expected)
}

/// Reports sharing without what it requires.
pub(super) fn check(service: &SettingMap, note: &mut Note<'_>) {
    if is(service, KEY, "shared") && is(service, "service.sessions", "close") {
        note(
            KEY,
            "clients that share connections are moved between connections",
            "set sessions = \"carry\", or upstream = \"dedicated\"",
        );
    }
}

/// Warns once per service that shares.
pub(super) fn warn(service: &SettingMap, findings: &mut Vec<Finding>) {
    if is(service, KEY, "shared") {
        findings.push(Finding::new(
            service.origin(KEY),
            KEY,
            "shared connections are experimental: a session that sends WAIT after writes ends, \
             sessions = \"carry\" is required, and replies that clients have not read take up to \
             64 MiB of memory per worker",
            "see docs/shared-upstreams.md; upstream = \"dedicated\" is the default",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::load_text;

    #[test]
    fn warns_once_per_service_that_shares() {
        let service = |name: &str, keys: &str| {
            format!("[[service]]\nname = \"{name}\"\nlisten = []\nsentinels = [\"s\"]\n{keys}\n")
        };
        let shared = "upstream = \"shared\"";
        let text = [service("a", shared), service("b", ""), service("c", shared)].concat();
        let loaded = load_text("f", &text);
        let warnings: Vec<String> = loaded.warnings().iter().map(ToString::to_string).collect();
        assert_eq!(warnings.len(), 2, "{warnings:#?}");
        assert!(warnings[0].starts_with("f:5:1: service.upstream: shared connections are"));
        assert!(warnings[1].starts_with("f:15:1: service.upstream: "), "{warnings:#?}");
        for rule in ["experimental", "WAIT after writes", "sessions = \"carry\"", "64 MiB"] {
            assert!(warnings[0].contains(rule), "{rule}: {}", warnings[0]);
        }
    }

    #[test]
    fn refuses_sharing_without_carrying() {
        let text =
            "[[service]]\nsentinels = [\"s\"]\nupstream = \"shared\"\nsessions = \"close\"\n";
        let faults = load_text("f", text).config().unwrap_err().to_string();
        assert!(faults.contains("set sessions = \"carry\""), "{faults}");
    }
}
