//! Fuzzes records of TLS: both ends with a wire between them that changes bytes, and strangers.

#![no_main]

mod tls_settings;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use tls::RigSettings;

static SETTINGS: OnceLock<RigSettings> = OnceLock::new();

fuzz_target!(|data: &[u8]| {
    let settings = SETTINGS.get_or_init(tls_settings::settings);
    tls::run_records(data, settings);
});
