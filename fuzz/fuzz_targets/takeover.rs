//! Fuzzes messages of a takeover: it succeeds with the right ones only.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    pointsman::fuzzing::run_takeover(data);
});
