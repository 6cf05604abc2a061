//! Fuzzes what a TLS stream counts as written and read, over a socket with small buffers.

#![no_main]

mod tls_settings;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use tls::RigSettings;

static SETTINGS: OnceLock<RigSettings> = OnceLock::new();

fuzz_target!(|data: &[u8]| {
    let settings = SETTINGS.get_or_init(tls_settings::settings);
    let (version, steps) = data.split_first().map_or((0, data), |(first, rest)| (first % 2, rest));
    let client = settings.clients[usize::from(version)].clone();
    proxy::run_tls_stream(steps, settings.server.clone(), client, settings.name.clone());
});
