//! Decides what a request gets: a path and a method come in, a reply goes out.
//!
//! A table and nothing more; the built-in paths and those added from outside are looked up alike,
//! so a live event stream or a control path later is one entry. Deliberately absent: patterns,
//! prefixes and parameters in paths, and request bodies, which are read away and forgotten before a
//! handler is asked.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use hyper::http::request::Parts;
use tokio::sync::mpsc;

use crate::negotiate::metrics_format;
use crate::report::{Reporter, Verdict};

/// What [`Reporter::page`] writes as the `nonce` attribute of every `<script>` and `<style>`. Each
/// answer gets a fresh value in its place, and the same value in its `Content-Security-Policy`.
pub const NONCE: &str = "PROBE-NONCE";

/// A method a handler can take. HEAD is answered wherever GET is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// Read something. Covers HEAD.
    Get,
    /// Change something.
    Post,
}

/// A request, without its body.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// GET for a HEAD request too.
    pub method: Method,
    parts: &'a Parts,
    owners: bool,
    streams: &'a Streams,
}

impl Request<'_> {
    /// Whether it came through the Unix socket, from one of its users
    /// ([`Server::owners`](crate::Server::owners)).
    #[must_use]
    pub fn is_owners(&self) -> bool {
        self.owners
    }

    /// A place among the answers without an end, of which there are few; `None` while there is
    /// none.
    ///
    /// It is reserved before anything is executed whose answer is a stream. So an order that cannot
    /// be answered has not been carried out either.
    #[must_use]
    pub fn reserve_stream(&self) -> Option<StreamPermit> {
        self.streams.reserve()
    }

    /// The path, percent signs and all.
    #[must_use]
    pub fn path(&self) -> &str {
        self.parts.uri.path()
    }

    /// What follows the question mark, if there is one.
    #[must_use]
    pub fn query(&self) -> Option<&str> {
        self.parts.uri.query()
    }

    /// A header, if it is there once or more; the first one, if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.parts.headers.get(name)?.to_str().ok()
    }
}

/// What a reply carries.
#[derive(Debug)]
pub enum Body {
    /// All of it.
    Whole(Bytes),
    /// What comes through a channel, until its other end is dropped. Such a reply has no time limit
    /// of its own; there are at most [`Settings::max_streams`](crate::Settings::max_streams) of
    /// them, and one whose client does not read is closed.
    Stream(mpsc::Receiver<Bytes>, StreamPermit),
}

/// The answer to a request.
#[derive(Debug)]
pub struct Reply {
    /// The status code, 200 to 599.
    pub status: u16,
    /// The `Content-Type` header.
    pub content_type: Cow<'static, str>,
    /// The `Content-Security-Policy` header; without one a policy that allows nothing is sent.
    pub policy: Option<String>,
    /// The `Allow` header, for status 405.
    pub allow: Option<&'static str>,
    /// The content.
    pub body: Body,
}

impl Reply {
    /// A reply of any kind with all of its content.
    pub fn whole(
        status: u16,
        content_type: impl Into<Cow<'static, str>>,
        content: impl Into<Bytes>,
    ) -> Self {
        Self {
            status,
            content_type: content_type.into(),
            policy: None,
            allow: None,
            body: Body::Whole(content.into()),
        }
    }

    /// Plain text.
    pub fn text(status: u16, content: impl Into<Bytes>) -> Self {
        Self::whole(status, "text/plain; charset=utf-8", content)
    }

    /// JSON.
    pub fn json(status: u16, content: impl Into<Bytes>) -> Self {
        Self::whole(status, "application/json", content)
    }

    /// An endless reply, such as `text/event-stream`, in the place that was reserved for it.
    pub fn stream(
        content_type: impl Into<Cow<'static, str>>,
        content: mpsc::Receiver<Bytes>,
        permit: StreamPermit,
    ) -> Self {
        let body = Body::Stream(content, permit);
        Self { status: 200, content_type: content_type.into(), policy: None, allow: None, body }
    }

    /// What is answered when no stream could be reserved. Nothing was executed.
    #[must_use]
    pub fn no_stream() -> Self {
        Self::text(503, "too many live streams are open; close one or try again later\n")
    }

    /// HTML in which [`NONCE`] becomes `nonce`, with the policy that goes with it.
    #[must_use]
    pub fn page(html: &str, nonce: &str) -> Self {
        let policy = format!(
            "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
             img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        let mut reply = Self::whole(200, "text/html; charset=utf-8", html.replace(NONCE, nonce));
        reply.policy = Some(policy);
        reply
    }

    fn verdict(verdict: &Verdict) -> Self {
        Self::text(if verdict.ok { 200 } else { 503 }, verdict.text())
    }
}

/// Answers one path. Whatever it executes is answered, and what it answers with an error is not
/// executed: the request is whole by then, and the only thing that an answer may lack, a place for
/// a stream, is reserved first ([`Request::reserve_stream`]). Called on the probe's own thread, so
/// it must not block or wait, as with [`Reporter`].
pub trait Handler: Send + Sync + 'static {
    /// The methods it takes; the others are answered with 405. Only GET and HEAD if not said
    /// otherwise.
    fn methods(&self) -> &'static [Method] {
        &[Method::Get]
    }

    /// The answer.
    fn answer(&self, request: &Request<'_>) -> Reply;
}

/// The paths that are there without being added, one line each for a person who got lost.
const BUILT_IN: [(&str, &str); 9] = [
    ("/", "this process at a glance"),
    ("/alive", "liveness"),
    ("/healthz", "liveness"),
    ("/livez", "liveness"),
    ("/metrics", "Prometheus or OpenMetrics"),
    ("/ready", "readiness"),
    ("/readyz", "readiness"),
    ("/startup", "whether the start is over"),
    ("/status", "JSON"),
];

/// The answers without an end that there may be at a time. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub(crate) struct Streams {
    open: Arc<AtomicUsize>,
    max: usize,
}

impl Streams {
    pub(crate) fn new(max: usize) -> Self {
        Self { open: Arc::default(), max }
    }

    fn reserve(&self) -> Option<StreamPermit> {
        let more = |open: usize| (open < self.max).then_some(open + 1);
        let reserved = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        reserved.then(|| StreamPermit(Arc::clone(&self.open)))
    }
}

/// A place among the answers without an end. It is given back when it is dropped, which is when the
/// answer is.
#[derive(Debug)]
pub struct StreamPermit(Arc<AtomicUsize>);

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Every path and who answers it.
#[derive(Clone, Default)]
pub(crate) struct Routes {
    added: BTreeMap<Cow<'static, str>, Arc<dyn Handler>>,
}

impl Routes {
    pub(crate) fn add(&mut self, path: Cow<'static, str>, handler: Arc<dyn Handler>) {
        self.added.insert(path, handler);
    }

    /// The reply to a request, which came through the Unix socket or not. `nonce` is fresh for each
    /// call.
    pub(crate) fn answer(
        &self,
        (parts, owners): (&Parts, bool),
        streams: &Streams,
        reporter: &dyn Reporter,
        nonce: impl FnOnce() -> String,
    ) -> Reply {
        let path = parts.uri.path();
        let added = self.added.get(path);
        if added.is_none() && !BUILT_IN.iter().any(|(known, _)| *known == path) {
            return Reply::text(404, self.directory(path));
        }
        let methods = added.map_or(&[Method::Get][..], |handler| handler.methods());
        let method = match parts.method {
            hyper::Method::GET | hyper::Method::HEAD => Method::Get,
            hyper::Method::POST => Method::Post,
            _ => return not_allowed(methods),
        };
        if !methods.contains(&method) {
            return not_allowed(methods);
        }
        let request = Request { method, parts, owners, streams };
        match added {
            Some(handler) => handler.answer(&request),
            None => built_in(&request, reporter, nonce),
        }
    }

    fn directory(&self, path: &str) -> String {
        // The path comes from outside: shortened, and as plain text that nothing interprets.
        let shown: String = path.chars().take(100).collect();
        let mut text = format!("nothing at {shown}; there is\n");
        for (known, what) in BUILT_IN {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{known:<12}{what}");
        }
        for known in self.added.keys() {
            let _ = writeln!(text, "{known}");
        }
        text
    }
}

fn built_in(
    request: &Request<'_>,
    reporter: &dyn Reporter,
    nonce: impl FnOnce() -> String,
) -> Reply {
    match request.path() {
        "/alive" | "/livez" | "/healthz" => Reply::verdict(&reporter.alive()),
        "/ready" | "/readyz" => Reply::verdict(&reporter.ready()),
        "/startup" => Reply::verdict(&reporter.started()),
        "/metrics" => {
            let format = metrics_format(request.header("accept"));
            Reply::whole(200, format.content_type(), reporter.metrics(format))
        }
        "/status" => Reply::json(200, reporter.status()),
        _ => Reply::page(&reporter.page(), &nonce()),
    }
}

fn not_allowed(methods: &[Method]) -> Reply {
    let allow = match (methods.contains(&Method::Get), methods.contains(&Method::Post)) {
        (true, true) => "GET, HEAD, POST",
        (false, true) => "POST",
        _ => "GET, HEAD",
    };
    let mut reply = Reply::text(405, format!("only {allow} here\n"));
    reply.allow = Some(allow);
    reply
}
