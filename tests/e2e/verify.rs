//! A few of the conversations of `cargo xtask verify`: every reply is that of a direct server.

use std::path::Path;

use crate::PROGRAM;

#[track_caller]
fn converse(is_shared: bool) {
    let found = bench::verify::first_difference(Path::new(PROGRAM), is_shared, false, 1..13);
    assert_eq!(found, Ok(None));
}

#[test]
fn answers_conversations_on_dedicated_connections() {
    converse(false);
}

#[test]
fn answers_conversations_on_shared_connections() {
    converse(true);
}
