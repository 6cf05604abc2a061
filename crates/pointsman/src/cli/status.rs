//! `pointsman status`: one screen on how a running pointsman is doing.
//!
//! It shows what the status document says and adds no meaning of its own, so that an old `status`
//! and a new process understand each other: known things are set in known places, and what is new
//! appears under its own name.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Map, Value as Json};

use super::args::StatusArgs;
use super::failure::{Failure, is_broken_pipe};
use super::{http, screen};
use crate::config::{self, Flags, Value};

/// Where the admin server of a pointsman is, if nothing says otherwise.
const DEFAULT: &str = "127.0.0.1:8888";
/// How often it is asked for while somebody watches.
const EVERY: Duration = Duration::from_secs(1);
/// How deep a document is shown; what is deeper is shown as JSON.
const DEEPEST: usize = 3;

/// Why there is no status.
#[derive(Debug, thiserror::Error)]
pub(super) enum StatusError {
    #[error("{0:?} is not an address; write host:port, for example 127.0.0.1:8888")]
    Address(String, #[source] io::Error),
    #[error("no status from {0}: is pointsman running there? Name its admin address with --admin")]
    Ask(SocketAddr, #[source] io::Error),
    #[error(
        "no status from {0}: it answers with code {1}; is that the admin address of a pointsman?"
    )]
    Code(SocketAddr, u16),
    #[error("{0} is not ready: {1}")]
    NotReady(SocketAddr, String),
    #[error("the status from {0} is not JSON; is that the admin address of a pointsman?")]
    Json(SocketAddr, #[source] serde_json::Error),
}

/// Asks, and renders the answer.
///
/// # Errors
///
/// Why there is none, with what to do.
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
    let addr = address(args.admin.as_deref(), args.config.as_ref(), env)?;
    let (document, body) = ask(addr)?;
    Ok(if args.json { body } else { shown(addr, &document, None) })
}

/// The document of the pointsman there, and its text.
fn ask(addr: SocketAddr) -> Result<(Json, String), StatusError> {
    let (code, body) = http::get(addr, "/status").map_err(|error| StatusError::Ask(addr, error))?;
    if code != 200 {
        return Err(StatusError::Code(addr, code));
    }
    let document = serde_json::from_slice(&body).map_err(|error| StatusError::Json(addr, error))?;
    Ok((document, String::from_utf8_lossy(&body).trim_end().to_owned() + "\n"))
}

/// Asks what a readiness probe asks, for `helm test` among others.
fn ready(addr: SocketAddr) -> Result<String, StatusError> {
    let (code, body) = http::get(addr, "/ready").map_err(|error| StatusError::Ask(addr, error))?;
    let text = printable(String::from_utf8_lossy(&body).trim());
    if code == 200 {
        Ok(format!("{addr} is ready\n"))
    } else {
        Err(StatusError::NotReady(addr, text))
    }
}

fn shown(addr: SocketAddr, document: &Json, before: Option<(&Json, f64)>) -> String {
    screen::render(document, before)
        .unwrap_or_else(|| format!("pointsman at {addr}\n{}", render(document)))
}

/// Asks again and again until told to stop, by Ctrl-C or by a reader that goes away. A process that
/// does not answer is said to be so, and asked again: it may be about to come back.
///
/// On a terminal the screen is written over and not cleared first, so nothing flickers; elsewhere
/// one follows the other.
///
/// # Errors
///
/// Of the address, or of the output.
pub(super) fn watch(
    args: &StatusArgs,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<ExitCode, Failure> {
    let addr = address(args.admin.as_deref(), args.config.as_ref(), env)?;
    let mut out = io::stdout().lock();
    let on_screen = !args.json && out.is_terminal();
    let mut before: Option<(Json, Instant)> = None;
    if on_screen && !put(&mut out, "\u{1b}[2J")? {
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        let text = match ask(addr) {
            Ok((document, _)) => {
                let since =
                    before.as_ref().map(|(before, at)| (before, at.elapsed().as_secs_f64()));
                let text =
                    if args.json { format!("{document}\n") } else { shown(addr, &document, since) };
                before = Some((document, Instant::now()));
                text
            }
            Err(error) if args.json => {
                format!("{}\n", serde_json::json!({ "error": error.to_string() }))
            }
            Err(error) => format!("{error}\n"),
        };
        let frame = if on_screen { over(&text) } else { text + if args.json { "" } else { "\n" } };
        if !put(&mut out, &frame)? {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::park_timeout(EVERY);
    }
}

/// Writes over what is there: from the top, each line to its end, and nothing left below. A line
/// that does not fit is cut by the terminal, not wrapped, so that every screen begins where the
/// last one did.
fn over(text: &str) -> String {
    let lines: String = text.lines().map(|line| format!("{line}\u{1b}[K\r\n")).collect();
    format!("\u{1b}[?7l\u{1b}[H{lines}\u{1b}[J\u{1b}[?7h")
}

/// Whether there was a reader.
fn put(out: &mut impl io::Write, text: &str) -> Result<bool, Failure> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if is_broken_pipe(&error) => Ok(false),
        Err(error) => Err(Failure::Output(error)),
        Ok(()) => Ok(true),
    }
}

/// The address given, else the one that the configuration of this place has, else the usual one.
/// Faults of a configuration do not matter here: an address is all that is wanted of it.
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
            .map_or_else(|| resolve(DEFAULT), |addr| Ok(dialable(addr))),
        _ => resolve(DEFAULT),
    }
}

fn resolve(text: &str) -> Result<SocketAddr, StatusError> {
    let found = resolve_all(text)?.into_iter().next();
    found.ok_or_else(|| StatusError::Address(text.to_owned(), io::ErrorKind::NotFound.into()))
}

/// Every address of a name: a headless Service has one for each pod. At least one.
fn resolve_all(text: &str) -> Result<Vec<SocketAddr>, StatusError> {
    let wrong = |error| StatusError::Address(text.to_owned(), error);
    let found: Vec<SocketAddr> = text.to_socket_addrs().map_err(wrong)?.map(dialable).collect();
    if found.is_empty() { Err(wrong(io::ErrorKind::NotFound.into())) } else { Ok(found) }
}

/// "Every address" is one to listen on; to dial, the loopback stands for it.
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

/// The document for a person: what concerns the process first, then each service under its name.
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

/// The keys that are looked for first, then the others in the order of the document.
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

/// A value on one line.
fn inline(value: &Json, depth: usize) -> String {
    match value {
        Json::Null => "-".to_owned(),
        Json::String(text) => printable(text),
        Json::Array(items) if items.is_empty() => "-".to_owned(),
        Json::Array(items) if depth < DEEPEST => {
            items.iter().map(|item| inline(item, depth + 1)).collect::<Vec<_>>().join(", ")
        }
        Json::Object(map) if depth < DEEPEST => {
            let pairs = map
                .iter()
                .map(|(key, value)| format!("{} {}", printable(key), inline(value, depth + 1)));
            let line = pairs.collect::<Vec<_>>().join("  ");
            if depth == 0 { line } else { format!("({line})") }
        }
        other => printable(&other.to_string()),
    }
}

/// Text from elsewhere must not move the cursor of a terminal, nor do worse.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_fits_a_screen_and_keeps_what_it_does_not_know() {
        let document = serde_json::json!({
            "phase": "serving", "uptime": "3m12s",
            "services": [{
                "name": "mymaster", "generation": 3, "gate": "open", "news": true,
                "target": {"addr": "10.0.0.2:6379", "name": "redis-1:6379", "epoch": 5},
                "sentinels": [{"addr": "10.0.0.1:26379", "state": "up"}, {"addr": "10.0.0.3:26379", "state": "down"}],
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
    fn nothing_in_it_reaches_the_terminal_raw() {
        let document = serde_json::json!({"ph\u{1b}ase": "\u{1b}[2Jx\n", "services": [{"name": "\u{7}a", "x": [["\u{1b}"]]}, 3]});
        let shown = render(&document);
        assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown:?}");
    }

    #[test]
    fn readiness_is_the_code_of_the_probe() {
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
        assert!(matches!(ask(), Err(StatusError::Ask(..))));
    }

    #[test]
    fn the_address_is_given_configured_or_usual() {
        let ask = |admin: Option<&str>, env: &[(&str, &str)]| {
            let args = StatusArgs {
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
        assert_eq!(ask(None, &[]), DEFAULT);
        assert_eq!(ask(None, &[("POINTSMAN_ADMIN", "[::]:9,1.2.3.4:8")]), "[::1]:9");
        assert_eq!(ask(Some("1.2.3.4:5"), &[("POINTSMAN_ADMIN", "0.0.0.0:9")]), "1.2.3.4:5");
        let wrong = StatusArgs {
            admin: Some("nonsense".to_owned()),
            config: None,
            json: false,
            ready: false,
            schema: false,
            watch: false,
        };
        assert!(matches!(address(wrong.admin.as_deref(), None, []), Err(StatusError::Address(..))));
    }
}
