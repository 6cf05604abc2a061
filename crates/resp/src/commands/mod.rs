//! The command table: what each command means for its session.

pub(crate) mod carry_effect;
pub(crate) mod class;
pub(crate) mod cursor;
pub(crate) mod may_write;
pub(crate) mod ordinary;
#[cfg(test)]
mod recorded_tests;
pub(crate) mod refused;
pub(crate) mod request_words;
pub(crate) mod server_commands;
pub(crate) mod sharing;
pub(crate) mod stateless;
pub(crate) mod table;
