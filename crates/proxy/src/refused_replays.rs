//! Logs why a new master refuses the sessions of the old one, in its own words.

use std::time::Instant;

use target::Target;
use tls::OutsideText;

use crate::log_rate::LogRate;

/// Logs why sessions are not carried, at most one line per interval: a new master that refuses one
/// refuses most of them.
#[derive(Debug, Default)]
pub(crate) struct RefusedReplays(LogRate<1>);

impl RefusedReplays {
    pub(crate) fn record(&self, service: &str, target: &Target, refusal: &[u8]) {
        let Some(unlogged) = self.0.due(0, Instant::now()) else { return };
        let error = match refusal {
            [] => "it sent unexpected replies".into(),
            words => OutsideText::of_bytes(words, OutsideText::MAX_CHARS),
        };
        tracing::warn!(
            service, upstream = %target.addr(), %error, unlogged,
            "new master refuses a session that the old one had accepted"
        );
    }
}
