//! Fuzzes clients that share connections: three bytes of the input choose each step of the rig that
//! the property test uses, and no client may receive a byte of another one's reply.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|steps: &[u8]| {
    proxy::run_isolation(steps);
});
