//! The interface between the server and the process that it reports on.
//!
//! The composition root implements [`Reporter`]; the server calls it on the admin thread, one call
//! at a time. Nothing is cached: a reporter with an expensive answer caches it itself.

use std::borrow::Cow;

/// The answer to a health check: yes, or no with reasons.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the answer is yes: status 200, otherwise 503.
    pub ok: bool,
    /// One line each for the response body. A yes may have reasons too, for example a remark that
    /// it will not last; the body then consists of these lines instead of `ok`.
    pub reasons: Vec<String>,
}

impl Verdict {
    /// Yes.
    #[must_use]
    pub fn yes() -> Self {
        Self { ok: true, reasons: Vec::new() }
    }

    /// Yes if `reasons` is empty.
    #[must_use]
    pub fn unless(reasons: Vec<String>) -> Self {
        Self { ok: reasons.is_empty(), reasons }
    }

    /// The response body: `ok`, or one reason per line. Line breaks within a reason become spaces.
    #[must_use]
    pub fn text(&self) -> String {
        if self.reasons.is_empty() {
            return if self.ok { "ok\n".to_owned() } else { "no\n".to_owned() };
        }
        self.reasons.iter().map(|reason| reason.replace(['\r', '\n'], " ") + "\n").collect()
    }
}

/// The text format of the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Prometheus text format, version 0.0.4.
    Prometheus,
    /// OpenMetrics, version 1.0.0; the text has to end with `# EOF`.
    OpenMetrics,
}

impl Format {
    /// The value of the `Content-Type` header.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Provides the answers of the process.
///
/// Every method is called on the admin thread and must return soon: it must not block, take a lock
/// that a worker may hold for long, or wait for anything. A panic in a method closes the connection
/// that it was called for.
pub trait Reporter: Send + Sync + 'static {
    /// Whether the process itself works, so that a restart would not help. Not whether its
    /// dependencies work.
    fn alive(&self) -> Verdict;

    /// Whether new clients should be sent here.
    fn ready(&self) -> Verdict;

    /// The metrics in the requested format.
    fn metrics(&self, format: Format) -> String;

    /// The status as JSON.
    fn status(&self) -> String;

    /// The page as HTML. The browser runs scripts and applies styles only from elements whose
    /// `nonce` attribute is [`NONCE`](crate::NONCE), which is replaced in every response; the page
    /// may fetch from its own origin only.
    fn page(&self) -> Cow<'static, str>;
}
