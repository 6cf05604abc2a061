//! What the server asks, and what it is answered.
//!
//! The composition root implements [`Reporter`]; the server calls it on the probe's own thread, one
//! call at a time. Deliberately absent: caching. A reporter that finds an answer costly keeps it
//! itself.

use std::borrow::Cow;

/// Yes, or no with reasons.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the answer is yes: 200, otherwise 503.
    pub ok: bool,
    /// One line each, for the body of the answer. A yes may have reasons too, such as a remark that
    /// it will not last; the body is then those lines instead of `ok`.
    pub reasons: Vec<String>,
}

impl Verdict {
    /// Yes.
    #[must_use]
    pub fn yes() -> Self {
        Self { ok: true, reasons: Vec::new() }
    }

    /// No, for this reason.
    pub fn no(reason: impl Into<String>) -> Self {
        Self { ok: false, reasons: vec![reason.into()] }
    }

    /// Yes if there is no reason against it.
    #[must_use]
    pub fn unless(reasons: Vec<String>) -> Self {
        Self { ok: reasons.is_empty(), reasons }
    }

    /// The body of the answer: `ok`, or one reason a line. Line breaks within a reason become
    /// spaces.
    #[must_use]
    pub fn text(&self) -> String {
        if self.reasons.is_empty() {
            return if self.ok { "ok\n".to_owned() } else { "no\n".to_owned() };
        }
        let mut text = String::new();
        for reason in &self.reasons {
            text.push_str(&reason.replace(['\r', '\n'], " "));
            text.push('\n');
        }
        text
    }
}

/// The text form of the metrics that the scraper prefers.
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

/// Answers for the process.
///
/// Every method is called on the probe's own thread and must return soon: it must not block, take a
/// lock that a worker may hold for long, or wait for anything. A method that panics costs the
/// connection it was called for.
pub trait Reporter: Send + Sync + 'static {
    /// Whether the process works as such, so that restarting it would not help. Not whether what it
    /// depends on works.
    fn alive(&self) -> Verdict;

    /// Whether new clients should be sent here.
    fn ready(&self) -> Verdict;

    /// Whether the start is over, so that liveness may be judged.
    fn started(&self) -> Verdict;

    /// The metrics, in the form asked for.
    fn metrics(&self, format: Format) -> String;

    /// The status as JSON.
    fn status(&self) -> String;

    /// The page as HTML. Scripts and styles are run only from elements whose `nonce` attribute is
    /// [`NONCE`](crate::NONCE), which is replaced in every answer; the page may fetch from its own
    /// origin, and nothing else.
    fn page(&self) -> Cow<'static, str>;
}
