//! A few of the conversations of `cargo xtask verify`: every reply is that of a direct server.

use std::path::Path;

use crate::PROGRAM;

#[track_caller]
fn converse(is_shared: bool) {
    if let Err(found) = bench::verify::smoke(Path::new(PROGRAM), is_shared, 1..13) {
        panic!("{found}");
    }
}

#[test]
fn answers_conversations_on_dedicated_connections() {
    converse(false);
}

#[test]
fn answers_conversations_on_shared_connections() {
    converse(true);
}
