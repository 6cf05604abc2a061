//! Fuzzes the import of a haproxy.cfg: it ends, and writes either TOML or refusals.

#![no_main]

use haproxy_import::{Environment, ImportOptions, import};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let environment = Environment {
        variable: &|_| None,
        folder: &|_| None,
        endpoint: &|text| Some(text.to_owned()),
    };
    for allow_plaintext in [false, true] {
        let options = ImportOptions { allow_plaintext, ..ImportOptions::default() };
        let imported = import(&[("h.cfg".to_owned(), text.to_owned())], &options, &environment);
        assert_eq!(imported.toml.is_empty(), !imported.refusals.is_empty());
        assert!(imported.toml.parse::<toml::Table>().is_ok(), "{}", imported.toml);
    }
});
