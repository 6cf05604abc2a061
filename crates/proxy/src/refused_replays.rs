//! What servers refuse to sessions, in the log.

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

/// Logs that a server limits what it keeps for a client, so that no connection to it is shared, at
/// most one line per interval.
#[derive(Debug, Default)]
pub(crate) struct LimitedClients(LogRate<1>);

impl LimitedClients {
    pub(crate) fn record(&self, service: &str, target: &Target) {
        let Some(unlogged) = self.0.due(0, Instant::now()) else { return };
        tracing::warn!(
            service, upstream = %target.addr(), unlogged,
            "connections are not shared: the server limits what it keeps for a client \
             (client-output-buffer-limit normal or maxmemory-clients) and would close them for one \
             client's large reply"
        );
    }
}
