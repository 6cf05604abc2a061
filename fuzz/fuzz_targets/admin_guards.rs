//! Fuzzes the guards of the admin server: hosts, tokens and bodies.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    pointsman::fuzzing::run_guards(data);
});
