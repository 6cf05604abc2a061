//! What `upstream = "shared"` requires.

use super::consistency::Note;
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

#[cfg(test)]
mod tests {
    use super::super::load_text;

    #[test]
    fn refuses_sharing_without_carrying() {
        let text =
            "[[service]]\nsentinels = [\"s\"]\nupstream = \"shared\"\nsessions = \"close\"\n";
        let faults = load_text("f", text).config().unwrap_err().to_string();
        assert!(faults.contains("set sessions = \"carry\""), "{faults}");
    }
}
