//! Fuzzes the configuration file: faults are reported, and what is printed of a valid configuration
//! is the same configuration.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pointsman::config::load_text;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let loaded = load_text("fuzz.toml", text);
    if let Ok(config) = loaded.config() {
        let printed = load_text("printed.toml", &loaded.print());
        let hash = printed.config().map(|it| it.hash).unwrap_or_default();
        assert_eq!(hash, config.hash, "{}", loaded.print());
    }
});
