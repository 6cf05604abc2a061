//! Fuzzes clients that share connections: each byte of the input chooses a step of the rig that the
//! property test uses, and no client may receive a byte of another one's reply.

#![no_main]

#[path = "../../crates/share/tests/isolation/rig.rs"]
mod rig;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|steps: &[u8]| {
    rig::run(steps);
});
