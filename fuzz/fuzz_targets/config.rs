//! Fuzzes the configuration file: faults are reported, and what is printed of a valid configuration
//! is the same configuration.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    pointsman::fuzzing::run_config(data);
});
