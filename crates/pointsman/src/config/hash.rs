//! A short fingerprint of the effective configuration, so that an operator sees which instances
//! differ.
//!
//! It covers every value and no origin: the same settings by file and by flags are the same
//! configuration. Of a password it covers only that there is one, because a fingerprint is shown on
//! status pages and must not help anybody to guess. The function is FNV-1a with 64 bits: the same
//! on every machine and in every release, which the hasher of the standard library does not
//! promise. It tells differences, it does not protect against anyone.

use super::schema;
use super::settings::Settings;
use super::values::Values;

/// 16 hexadecimal digits.
#[must_use]
pub(super) fn hash(settings: &Settings) -> String {
    let mut state = 0xcbf2_9ce4_8422_2325_u64;
    for service in &settings.services {
        absorb(&mut state, "[service]\n");
        values(&mut state, service, true);
    }
    values(&mut state, &settings.process, false);
    format!("{state:016x}")
}

fn values(state: &mut u64, values: &Values, of_service: bool) {
    for (section, option) in
        schema::options().filter(|(section, _)| section.is_of_service() == of_service)
    {
        let path = section.path_of(option.key);
        if let Some(value) = values.value(&path) {
            absorb(state, &format!("{path} = {}\n", value.to_toml()));
        }
    }
}

fn absorb(state: &mut u64, text: &str) {
    for byte in text.bytes() {
        *state = (*state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
}
