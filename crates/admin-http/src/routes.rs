//! Routing: a path and a method in, a reply out.
//!
//! A plain table. Built-in and added paths are looked up alike, so another event stream or control
//! path is one more entry. Before a handler is called, a request must name a host that is ours
//! ([`hosts`](crate::hosts)), must not be a command at a read-only address, and must pass the
//! guard; probes are exempt. There are no patterns, prefixes and parameters in paths, and request
//! bodies are discarded before a handler is called.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::hosts::HostNames;
use crate::negotiate::metrics_format;
use crate::report::{Reporter, Verdict};

/// The placeholder that [`Reporter::page`] writes as the `nonce` attribute of every `<script>` and
/// `<style>`. Each response gets a fresh value in its place, and the same value in its
/// `Content-Security-Policy`.
pub const NONCE: &str = "PAGE-NONCE";

/// The authentication scheme that browsers know.
const BASIC: &str = "Basic realm=\"pointsman\", charset=\"UTF-8\"";

/// The method that a handler supports. HEAD is answered wherever GET is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// Read something. Includes HEAD.
    Get,
    /// Change something.
    Post,
}

/// A request without its body.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// GET for a HEAD request too.
    pub method: Method,
    /// Where it came from.
    pub origin: Origin,
    parts: &'a Parts,
    streams: &'a Arc<Semaphore>,
}

/// Where a request came from.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// It came through the Unix socket, from one of its users
    /// ([`Server::unix_socket`](crate::Server::unix_socket)).
    pub is_owner: bool,
    /// It came through an address that accepts no commands.
    pub(crate) is_read_only: bool,
    /// The address of the peer; none on a Unix socket.
    pub peer: Option<IpAddr>,
}

impl Request<'_> {
    /// Reserves one of the few endless responses; `None` if all are taken.
    ///
    /// Reserve before executing anything whose response is a stream, so that a command that cannot
    /// be answered is not executed either.
    #[must_use]
    pub fn reserve_stream(&self) -> Option<StreamPermit> {
        Arc::clone(self.streams).try_acquire_owned().ok()
    }

    /// The path, percent-encoded.
    #[must_use]
    pub fn path(&self) -> &str {
        self.parts.uri.path()
    }

    /// The query string, if any.
    #[must_use]
    pub fn query(&self) -> Option<&str> {
        self.parts.uri.query()
    }

    /// The first header of this name, if it is valid text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.parts.headers.get(name)?.to_str().ok()
    }
}

/// The body of a reply.
#[derive(Debug)]
pub enum Body {
    /// Complete content.
    Whole(Bytes),
    /// Whatever comes through a channel until its sender is dropped. Such a reply has no time limit
    /// of its own; there are at most
    /// [`ServerSettings::max_streams`](crate::ServerSettings::max_streams) of them, and one whose
    /// client does not read is closed.
    Stream(mpsc::Receiver<Bytes>, StreamPermit),
}

/// The reply to a request.
#[derive(Debug)]
pub struct Reply {
    /// The status code, 200 to 599.
    pub status: u16,
    /// The `Content-Type` header.
    pub content_type: Cow<'static, str>,
    /// More headers. A policy that allows nothing is sent unless they have another one.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// The content.
    pub body: Body,
}

impl Reply {
    /// A reply with complete content.
    pub fn whole(
        status: u16,
        content_type: impl Into<Cow<'static, str>>,
        content: impl Into<Bytes>,
    ) -> Self {
        Self {
            status,
            content_type: content_type.into(),
            headers: Vec::new(),
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

    /// An endless reply, such as `text/event-stream`, with the permit that was reserved for it.
    pub fn stream(
        content_type: impl Into<Cow<'static, str>>,
        content: mpsc::Receiver<Bytes>,
        permit: StreamPermit,
    ) -> Self {
        let body = Body::Stream(content, permit);
        Self { body, ..Self::whole(200, content_type, Bytes::new()) }
    }

    /// Adds the time after which a client may try again.
    #[must_use]
    pub fn retry_after(self, seconds: u32) -> Self {
        self.header(header::RETRY_AFTER, HeaderValue::from(seconds))
    }

    /// Makes browsers ask their user for a password: offers Basic authentication.
    #[must_use]
    pub fn ask_for_password(self) -> Self {
        self.header(header::WWW_AUTHENTICATE, HeaderValue::from_static(BASIC))
    }

    fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The reply if no stream could be reserved. Nothing was executed.
    #[must_use]
    pub fn no_stream() -> Self {
        Self::text(503, "too many streams are open; close one or try again later\n")
    }

    /// HTML in which [`NONCE`] is replaced by `nonce`, with the matching policy.
    #[must_use]
    pub fn page(html: &str, nonce: &str) -> Self {
        let policy = format!(
            "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
             connect-src 'self'; img-src 'self' data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        let policy = HeaderValue::from_str(&policy).ok();
        let mut reply = Self::whole(200, "text/html; charset=utf-8", html.replace(NONCE, nonce));
        reply.headers.extend(policy.map(|policy| (header::CONTENT_SECURITY_POLICY, policy)));
        reply
    }

    fn verdict(verdict: &Verdict) -> Self {
        Self::text(if verdict.ok { 200 } else { 503 }, verdict.text())
    }
}

/// Answers one path, see [`Server::route`](crate::Server::route).
pub(crate) type Handler = dyn Fn(&Request<'_>) -> Result<Reply, Reply> + Send + Sync;

/// Decides who may read, see [`Server::guard`](crate::Server::guard).
pub(crate) type Guard = dyn Fn(&Request<'_>) -> Result<(), Reply> + Send + Sync;

/// The built-in paths, with the descriptions that a 404 lists.
const BUILT_IN: [(&str, &str); 9] = [
    ("/", "status page"),
    ("/alive", "liveness"),
    ("/healthz", "liveness"),
    ("/livez", "liveness"),
    ("/metrics", "Prometheus or OpenMetrics"),
    ("/ready", "readiness"),
    ("/readyz", "readiness"),
    ("/startup", "whether the start has completed"),
    ("/status", "JSON"),
];

/// The paths of probes. They reveal nothing, and a supervisor that is refused restarts the process.
pub(crate) const PROBES: [&str; 6] =
    ["/alive", "/livez", "/healthz", "/ready", "/readyz", "/startup"];

/// The path of the metrics. A scraper names its target in any way, and no browser acts on metrics.
const METRICS: &str = "/metrics";

/// A permit for an endless response, released when it is dropped, together with the response.
pub type StreamPermit = OwnedSemaphorePermit;

/// Every path and its handler.
#[derive(Clone, Default)]
pub(crate) struct Routes {
    pub(crate) added: BTreeMap<&'static str, (Method, Arc<Handler>)>,
    pub(crate) hosts: HostNames,
    pub(crate) guard: Option<Arc<Guard>>,
}

impl Routes {
    /// The reply to a request, or its refusal. `nonce` returns a fresh value per call.
    pub(crate) fn answer(
        &self,
        parts: &Parts,
        origin: Origin,
        streams: &Arc<Semaphore>,
        reporter: &dyn Reporter,
        nonce: impl FnOnce() -> String,
    ) -> Result<Reply, Reply> {
        let path = parts.uri.path();
        let added = self.added.get(path);
        if added.is_none() && !BUILT_IN.iter().any(|(known, _)| *known == path) {
            return Err(Reply::text(404, self.directory(path)));
        }
        let method = added.map_or(Method::Get, |(method, _)| *method);
        match (method, &parts.method) {
            (Method::Get, &hyper::Method::GET | &hyper::Method::HEAD) => {}
            (Method::Post, &hyper::Method::POST) => {}
            (Method::Get, _) => return Err(not_allowed("GET, HEAD")),
            (Method::Post, _) => return Err(not_allowed("POST")),
        }
        let request = Request { method, parts, origin, streams };
        self.authorize(&request)?;
        match added {
            Some((_, handler)) => handler(&request),
            None => Ok(built_in(&request, reporter, nonce)),
        }
    }

    /// Refuses a request that is well-formed and not permitted.
    fn authorize(&self, request: &Request<'_>) -> Result<(), Reply> {
        let (path, origin) = (request.path(), request.origin);
        if PROBES.contains(&path) || origin.is_owner {
            return Ok(());
        }
        if path != METRICS && !self.hosts.permit(request.parts) {
            return Err(Reply::text(
                421,
                "the Host of this request is not a name of this server: use its IP address, or add \
                 the name to admin.hosts\n",
            ));
        }
        if origin.is_read_only && request.method == Method::Post {
            return Err(Reply::text(403, "this address accepts no commands\n"));
        }
        self.guard.as_ref().map_or(Ok(()), |guard| guard(request))
    }

    fn directory(&self, path: &str) -> String {
        // The path is untrusted: truncated, and sent as plain text that nothing interprets.
        let shown: String = path.chars().take(100).collect();
        let mut text = format!("no such path: {shown}; available paths:\n");
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
        "/startup" => Reply::verdict(&Verdict::yes()),
        "/metrics" => {
            let format = metrics_format(request.header("accept"));
            Reply::whole(200, format.content_type(), reporter.metrics(format))
        }
        "/status" => Reply::json(200, reporter.status()),
        _ => Reply::page(&reporter.page(), &nonce()),
    }
}

fn not_allowed(allow: &'static str) -> Reply {
    let reply = Reply::text(405, format!("method not allowed; use {allow}\n"));
    reply.header(header::ALLOW, HeaderValue::from_static(allow))
}
