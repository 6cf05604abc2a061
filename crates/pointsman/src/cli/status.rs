//! `pointsman status`: shows the status of a running pointsman.
//!
//! It prints the status document without an interpretation of its own, so that an old `status` and
//! a new process work together: known fields have fixed places, and new ones appear under their own
//! names.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Map, Value as Json};

use super::args::StatusArgs;
use super::http;
use super::read_token::token;
use super::screen::{self, printable};
use crate::config::{self, Flags, Secret, Value};

/// The default address of the admin server.
const DEFAULT_ADDRESS: &str = "127.0.0.1:8888";
/// Interval of the requests with `--watch`.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum depth of nested values; deeper ones are printed as JSON.
const MAX_DEPTH: usize = 3;

/// Why no status is available.
#[derive(Debug, thiserror::Error)]
pub(super) enum StatusError {
    #[error("{0:?} is not an address; write host:port, for example 127.0.0.1:8888")]
    Address(String, #[source] io::Error),
    #[error("cannot resolve {0:?}; check the name, or use an IP address")]
    Unresolved(String, #[source] io::Error),
    #[error("no status from {0}: is pointsman running there? Set its admin address with --admin")]
    Unreachable(SocketAddr, #[source] io::Error),
    #[error(
        "no status from {0}: a token for reading is required, or the one given is wrong; set \
         POINTSMAN_READ_TOKEN or use --token-file"
    )]
    Token(SocketAddr),
    #[error("no status from {0}: too many wrong tokens from this host; try again later")]
    Throttled(SocketAddr),
    #[error("cannot read the token from {0}")]
    TokenFile(String, #[source] io::Error),
    #[error("no status from {0}: HTTP status {1}; is this the admin address of a pointsman?")]
    Code(SocketAddr, u16),
    #[error("{0} is not ready: {1}")]
    NotReady(SocketAddr, String),
    #[error("the status from {0} is not JSON; is this the admin address of a pointsman?")]
    Json(SocketAddr, #[source] serde_json::Error),
    #[error("the output could not be written")]
    Output(#[source] io::Error),
}

/// Requests the status and renders it.
///
/// # Errors
///
/// Why it is not available, with a remedy.
pub(super) fn status(
    args: &StatusArgs,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<String, StatusError> {
    if args.schema {
        return Ok(crate::admin::status::schema());
    }
    if args.ready {
        let addrs = match &args.admin {
            Some(text) => resolve_all(text)?,
            None => vec![address(None, args.config.as_ref(), env)?],
        };
        return addrs.into_iter().map(ready).collect();
    }
    let env: Vec<_> = env.into_iter().collect();
    let addr = address(args.admin.as_deref(), args.config.as_ref(), env.iter().cloned())?;
    let (document, body) = request(addr, token(args, &env)?.as_ref())?;
    Ok(if args.json { body } else { present(addr, &document, None) })
}

/// Requests the status document; returns it parsed and as text.
fn request(addr: SocketAddr, token: Option<&Secret>) -> Result<(Json, String), StatusError> {
    let (code, body) = http::get(addr, "/status", token.map(Secret::reveal))
        .map_err(|error| StatusError::Unreachable(addr, error))?;
    match code {
        200 => {}
        401 => return Err(StatusError::Token(addr)),
        429 => return Err(StatusError::Throttled(addr)),
        _ => return Err(StatusError::Code(addr, code)),
    }
    let document = serde_json::from_slice(&body).map_err(|error| StatusError::Json(addr, error))?;
    Ok((document, String::from_utf8_lossy(&body).trim_end().to_owned() + "\n"))
}

/// Requests what a readiness probe requests, for example for `helm test`.
fn ready(addr: SocketAddr) -> Result<String, StatusError> {
    let (code, body) =
        http::get(addr, "/ready", None).map_err(|error| StatusError::Unreachable(addr, error))?;
    let text = printable(String::from_utf8_lossy(&body).trim());
    if code == 200 {
        Ok(format!("{addr} is ready\n"))
    } else {
        Err(StatusError::NotReady(addr, text))
    }
}

fn present(addr: SocketAddr, document: &Json, before: Option<(&Json, f64)>) -> String {
    screen::render(document, before)
        .unwrap_or_else(|| format!("pointsman at {addr}\n{}", render(document)))
}

/// Repeats the request until Ctrl-C or until the reader closes the pipe. A process that does not
/// answer is reported and asked again: it may be restarting.
///
/// On a terminal the screen is overwritten instead of cleared, to avoid flicker; otherwise each
/// screen follows the last one.
///
/// # Errors
///
/// Of the address, or of the output.
pub(super) fn watch(
    args: &StatusArgs,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<ExitCode, StatusError> {
    let env: Vec<_> = env.into_iter().collect();
    let addr = address(args.admin.as_deref(), args.config.as_ref(), env.iter().cloned())?;
    let token = token(args, &env)?;
    let mut out = io::stdout().lock();
    let on_screen = !args.json && out.is_terminal();
    let mut before: Option<(Json, Instant)> = None;
    if on_screen && !write_all(&mut out, "\u{1b}[2J")? {
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        let text = match request(addr, token.as_ref()) {
            Ok((document, _)) => {
                let since =
                    before.as_ref().map(|(before, at)| (before, at.elapsed().as_secs_f64()));
                let text = if args.json {
                    format!("{document}\n")
                } else {
                    present(addr, &document, since)
                };
                before = Some((document, Instant::now()));
                text
            }
            Err(error) if args.json => {
                format!("{}\n", serde_json::json!({ "error": error.to_string() }))
            }
            Err(error) => format!("{error}\n"),
        };
        let frame =
            if on_screen { overwrite(&text) } else { text + if args.json { "" } else { "\n" } };
        if !write_all(&mut out, &frame)? {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::park_timeout(INTERVAL);
    }
}

/// Overwrites the screen: from the top, each line to its end, and everything below is cleared. Long
/// lines are truncated by the terminal instead of wrapped, so that every screen begins at the same
/// place.
pub(super) fn overwrite(text: &str) -> String {
    let lines: String = text.lines().map(|line| format!("{line}\u{1b}[K\r\n")).collect();
    format!("\u{1b}[?7l\u{1b}[H{lines}\u{1b}[J\u{1b}[?7h")
}

/// Returns whether there was a reader.
pub(super) fn write_all(out: &mut impl io::Write, text: &str) -> Result<bool, StatusError> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(StatusError::Output(error)),
        Ok(()) => Ok(true),
    }
}

/// Returns the given address, else the one of the local configuration, else the default. Faults of
/// the configuration do not matter: only the address is needed.
pub(super) fn address(
    admin: Option<&str>,
    config: Option<&PathBuf>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<SocketAddr, StatusError> {
    if let Some(text) = admin {
        return resolve(text);
    }
    let loaded = config::load(&Flags { config: config.cloned(), ..Flags::default() }, env);
    match loaded.settings().process.value("admin.listen") {
        Some(Value::Listen(addrs)) => addrs
            .first()
            .and_then(proxy::ListenAddr::tcp)
            .map_or_else(|| resolve(DEFAULT_ADDRESS), |addr| Ok(dialable(addr))),
        _ => resolve(DEFAULT_ADDRESS),
    }
}

fn resolve(text: &str) -> Result<SocketAddr, StatusError> {
    let found = resolve_all(text)?.into_iter().next();
    found.ok_or_else(|| {
        StatusError::Unresolved(text.to_owned(), io::Error::from(io::ErrorKind::NotFound))
    })
}

/// Every address of a name; a headless Service has one per pod. At least one.
fn resolve_all(text: &str) -> Result<Vec<SocketAddr>, StatusError> {
    let wrong = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidInput => StatusError::Address(text.to_owned(), error),
        _ => StatusError::Unresolved(text.to_owned(), error),
    };
    let found: Vec<SocketAddr> = text.to_socket_addrs().map_err(wrong)?.map(dialable).collect();
    if found.is_empty() { Err(wrong(io::Error::from(io::ErrorKind::NotFound))) } else { Ok(found) }
}

/// Replaces the wildcard address, which only a listener can use, by the loopback address.
fn dialable(mut addr: SocketAddr) -> SocketAddr {
    if addr.ip().is_unspecified() {
        addr.set_ip(if addr.is_ipv4() {
            Ipv4Addr::LOCALHOST.into()
        } else {
            Ipv6Addr::LOCALHOST.into()
        });
    }
    addr
}

/// Formats the document as text: first the fields of the process, then each service under its name.
fn render(document: &Json) -> String {
    let mut out = String::new();
    let Json::Object(top) = document else { return inline(document, 0) + "\n" };
    let (services, process): (Vec<_>, Vec<_>) = top.iter().partition(|(key, _)| *key == "services");
    let process: Vec<(&str, &Json)> =
        process.into_iter().map(|(key, value)| (key.as_str(), value)).collect();
    fields(&mut out, "", &process);
    for service in services.iter().filter_map(|(_, list)| list.as_array()).flatten() {
        let Json::Object(service) = service else { continue };
        let _ = write!(
            out,
            "\n{}\n",
            service.get("name").map_or_else(|| "?".to_owned(), |name| inline(name, 0))
        );
        fields(&mut out, "  ", &in_order(service));
    }
    out
}

/// The most important keys first, then the rest in the order of the document.
fn in_order(service: &Map<String, Json>) -> Vec<(&str, &Json)> {
    const FIRST: [&str; 3] = ["target", "gate", "generation"];
    let first = FIRST.into_iter().filter_map(|key| service.get(key).map(|value| (key, value)));
    let known = |key: &str| key == "name" || key == "sentinels" || FIRST.contains(&key);
    let rest =
        service.iter().filter(|(key, _)| !known(key)).map(|(key, value)| (key.as_str(), value));
    let last = service.get("sentinels").map(|value| ("sentinels", value));
    first.chain(rest).chain(last).collect()
}

fn fields(out: &mut String, indent: &str, fields: &[(&str, &Json)]) {
    let width = fields.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0);
    for (key, value) in fields {
        let _ = write!(out, "{indent}{:width$}  ", printable(key));
        match value {
            Json::Array(items) if items.iter().any(Json::is_object) => {
                let _ = writeln!(out, "{}", items.len());
                for item in items {
                    let _ = writeln!(out, "{indent}  - {}", inline(item, 0));
                }
            }
            value => {
                let _ = writeln!(out, "{}", inline(value, 0));
            }
        }
    }
}

/// Formats a value on one line.
fn inline(value: &Json, depth: usize) -> String {
    match value {
        Json::Null => "-".to_owned(),
        Json::String(text) => printable(text),
        Json::Array(items) if items.is_empty() => "-".to_owned(),
        Json::Array(items) if depth < MAX_DEPTH => {
            items.iter().map(|item| inline(item, depth + 1)).collect::<Vec<_>>().join(", ")
        }
        Json::Object(map) if depth < MAX_DEPTH => {
            let pairs = map
                .iter()
                .map(|(key, value)| format!("{} {}", printable(key), inline(value, depth + 1)));
            let line = pairs.collect::<Vec<_>>().join("  ");
            if depth == 0 { line } else { format!("({line})") }
        }
        other => printable(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_unknown_fields_under_their_names() {
        let document = serde_json::json!({
            "phase": "serving", "uptime": "3m12s",
            "services": [{
                "name": "mymaster", "generation": 3, "gate": "open", "news": true,
                "target": {"addr": "10.0.0.2:6379", "name": "redis-1:6379", "epoch": 5},
                "sentinels": [
                    {"addr": "10.0.0.1:26379", "state": "up"},
                    {"addr": "10.0.0.3:26379", "state": "down"},
                ],
            }],
        });
        let lines = "phase   serving\nuptime  3m12s\n\nmymaster\n\
                     \x20 target      addr 10.0.0.2:6379  epoch 5  name redis-1:6379\n\
                     \x20 gate        open\n\
                     \x20 generation  3\n\
                     \x20 news        true\n\
                     \x20 sentinels   2\n\
                     \x20   - addr 10.0.0.1:26379  state up\n\
                     \x20   - addr 10.0.0.3:26379  state down\n";
        assert_eq!(render(&document), lines);
    }

    #[test]
    fn replaces_control_characters() {
        let service = serde_json::json!({"name": "\u{7}a", "x": [["\u{1b}"]]});
        let document = serde_json::json!({"ph\u{1b}ase": "\u{1b}[2Jx\n", "services": [service, 3]});
        let present = render(&document);
        assert!(present.chars().all(|c| c == '\n' || !c.is_control()), "{present:?}");
    }

    #[test]
    fn reports_the_code_of_the_readiness_probe() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            for code in ["200 OK", "503 Service Unavailable"] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 512];
                let length = io::Read::read(&mut stream, &mut request).unwrap();
                assert!(request[..length].starts_with(b"GET /ready "), "{request:?}");
                let answer = format!(
                    "HTTP/1.1 {code}\r\nContent-Length: 9\r\nConnection: close\r\n\r\nno master"
                );
                io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
            }
        });
        let ask = || {
            let args = StatusArgs {
                token_file: None,
                admin: Some(addr.to_string()),
                config: None,
                json: false,
                watch: false,
                ready: true,
                schema: false,
            };
            status(&args, [])
        };
        assert_eq!(ask().unwrap(), format!("{addr} is ready\n"));
        assert_eq!(ask().unwrap_err().to_string(), format!("{addr} is not ready: no master"));
        server.join().unwrap();
        assert!(matches!(ask(), Err(StatusError::Unreachable(..))));
    }

    #[test]
    fn resolves_given_configured_or_default_address() {
        let request = |admin: Option<&str>, env: &[(&str, &str)]| {
            let args = StatusArgs {
                token_file: None,
                admin: admin.map(str::to_owned),
                config: None,
                json: false,
                ready: false,
                schema: false,
                watch: false,
            };
            let env = env.iter().map(|(name, value)| (name.into(), value.into()));
            address(args.admin.as_deref(), args.config.as_ref(), env).unwrap().to_string()
        };
        assert_eq!(request(None, &[]), DEFAULT_ADDRESS);
        assert_eq!(request(None, &[("POINTSMAN_ADMIN", "[::]:9,1.2.3.4:8")]), "[::1]:9");
        assert_eq!(request(Some("1.2.3.4:5"), &[("POINTSMAN_ADMIN", "0.0.0.0:9")]), "1.2.3.4:5");
        let wrong = StatusArgs {
            token_file: None,
            admin: Some("nonsense".to_owned()),
            config: None,
            json: false,
            ready: false,
            schema: false,
            watch: false,
        };
        assert!(matches!(address(wrong.admin.as_deref(), None, []), Err(StatusError::Address(..))));
        let unresolved = address(Some("nohost.invalid:8888"), None, []);
        assert!(matches!(unresolved, Err(StatusError::Unresolved(..))), "{unresolved:?}");
    }
}
