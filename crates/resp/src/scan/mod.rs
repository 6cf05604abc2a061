//! Incremental scanners for RESP2 and RESP3. They find frame boundaries in pieces of any size and
//! keep none of the bytes.

pub(crate) mod bulk;
pub(crate) mod frame_runs;
pub(crate) mod frames;
pub(crate) mod inline;
pub(crate) mod interrupt;
pub(crate) mod limits;
pub(crate) mod message_kind;
pub(crate) mod number;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod screen;
pub(crate) mod short_word;
pub(crate) mod stack;
pub(crate) mod whole_requests;

#[cfg(test)]
mod reply_tests;
#[cfg(test)]
mod request_tests;
