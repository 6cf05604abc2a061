//! `pointsman status`: shows the status of a running pointsman.
//!
//! It prints the status document without an interpretation of its own: the process decides on the
//! verdicts. So an old `status` and a new process work together: known fields have fixed places,
//! and a document of another schema is printed as JSON.

use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use tls::OutsideText;

use super::Variables;
use super::admin_server::{self, AdminServer, AdminServerError};
use super::admin_tls::TlsProblem;
use super::args::StatusArgs;
use super::http::{self, ControlEndpoint, Limits};
use super::screen::{self, printable};
use super::token::token;
use crate::config::Secret;

/// Interval of the requests with `--watch`.
const INTERVAL: Duration = Duration::from_secs(1);

/// Why no status is available.
#[derive(Debug, thiserror::Error)]
pub(super) enum StatusError {
    #[error(transparent)]
    Server(#[from] AdminServerError),
    #[error("no status from {0}: {1}")]
    Tls(AdminServer, String),
    #[error("no status from {0}: it requires TLS; use --admin https://{0}")]
    NeedsTls(AdminServer),
    #[error(
        "no status from {0}: a client certificate is required; use --admin-certificate and \
         --admin-key"
    )]
    NeedsCertificate(AdminServer),
    #[error("no status from {0}: is pointsman running there? Set its admin address with --admin")]
    Unreachable(AdminServer, #[source] io::Error),
    #[error(
        "no status from {0}: a token for reading is required, or the one given is wrong; set \
         POINTSMAN_READ_TOKEN or use --token-file"
    )]
    Token(AdminServer),
    #[error("no status from {0}: the token is wrong, like too many others from this host")]
    Throttled(AdminServer),
    #[error("no status from {0}: HTTP status {1}; is this the admin address of a pointsman?")]
    Code(AdminServer, u16),
    #[error("{0} is a file, and no service; for a configuration file, use --config {0}")]
    File(OutsideText),
    #[error("{0} has no service {1}")]
    NoService(AdminServer, OutsideText),
    #[error("{0} is not ready: {1}")]
    NotReady(AdminServer, String),
    #[error("the status from {0} is not JSON; is this the admin address of a pointsman?")]
    Json(AdminServer, #[source] serde_json::Error),
    #[error("the output could not be written")]
    Output(#[source] io::Error),
}

/// Requests the status and renders it.
///
/// # Errors
///
/// Why it is not available, with a remedy.
pub(super) fn status(args: &StatusArgs, env: &Variables) -> Result<String, StatusError> {
    if args.schema {
        return Ok(crate::admin::status::schema());
    }
    if let Some(file) = args.service.as_deref().filter(|it| super::is_file(it)) {
        return Err(StatusError::File(OutsideText::from(file)));
    }
    if args.ready {
        let servers = match &args.server.admin {
            Some(text) => admin_server::find_all(text, &args.server)?,
            None => vec![admin_server::find(&args.server, args.config.as_ref(), env)?],
        };
        return servers.iter().map(ready).collect();
    }
    let server = admin_server::find(&args.server, args.config.as_ref(), env)?;
    let (document, body) = request(&server, token(args, env)?.as_ref())?;
    let only = args.service.as_deref();
    let is_named = |name: &str| {
        let services = document.get("services").and_then(Json::as_array);
        services.is_none_or(|all| all.iter().any(|it| it["name"].as_str() == Some(name)))
    };
    if let Some(unknown) = only.filter(|name| !is_named(name)) {
        return Err(StatusError::NoService(server, OutsideText::from(unknown)));
    }
    Ok(if args.json { body } else { present(&server, &document, None, only) })
}

/// Requests the status document; returns it parsed and as text.
fn request(server: &AdminServer, token: Option<&Secret>) -> Result<(Json, String), StatusError> {
    let (code, body) = get(server, "/status", token)?;
    let begins = |text: &str| body.starts_with(text.as_bytes());
    let from = || server.clone();
    match code {
        200 => {}
        400 if begins("this port accepts HTTPS only") => return Err(StatusError::NeedsTls(from())),
        401 => return Err(StatusError::Token(from())),
        403 if begins("a client certificate is required") => {
            return Err(StatusError::NeedsCertificate(from()));
        }
        429 => return Err(StatusError::Throttled(from())),
        _ => return Err(StatusError::Code(from(), code)),
    }
    let document =
        serde_json::from_slice(&body).map_err(|error| StatusError::Json(from(), error))?;
    Ok((document, OutsideText::lines(&body).trim_end().to_owned() + "\n"))
}

fn get(
    server: &AdminServer,
    path: &str,
    token: Option<&Secret>,
) -> Result<(u16, Vec<u8>), StatusError> {
    let endpoint = ControlEndpoint::Network(server.clone());
    let got = http::get(&endpoint, path, token.map(Secret::reveal), Limits::STATUS);
    got.map_err(|error| match TlsProblem::in_error(&error) {
        Some(problem) => StatusError::Tls(server.clone(), problem.to_string()),
        None => StatusError::Unreachable(server.clone(), error),
    })
}

/// Requests what a readiness probe requests, for example for `helm test`.
fn ready(server: &AdminServer) -> Result<String, StatusError> {
    let (code, body) = get(server, "/ready", None)?;
    let text = printable(String::from_utf8_lossy(&body).trim());
    if code == 200 {
        Ok(format!("{server} is ready\n"))
    } else {
        Err(StatusError::NotReady(server.clone(), text))
    }
}

fn present(
    server: &AdminServer,
    document: &Json,
    before: Option<(&Json, f64)>,
    only: Option<&str>,
) -> String {
    screen::render(document, before, only).unwrap_or_else(|| {
        let json = format!("{document:#}\n");
        format!("pointsman at {server}\n{}", OutsideText::lines(json.as_bytes()))
    })
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
pub(super) fn watch(args: &StatusArgs, env: &Variables) -> Result<ExitCode, StatusError> {
    let server = admin_server::find(&args.server, args.config.as_ref(), env)?;
    let token = token(args, env)?;
    let on_screen = !args.json && io::stdout().is_terminal();
    let end = if on_screen || args.json { "" } else { "\n" };
    let mut before: Option<(Json, Instant)> = None;
    show(on_screen, Some(INTERVAL), || match request(&server, token.as_ref()) {
        Ok((document, _)) => {
            let since = before.as_ref().map(|(before, at)| (before, at.elapsed().as_secs_f64()));
            let text = if args.json {
                format!("{document}\n")
            } else {
                present(&server, &document, since, args.service.as_deref()) + end
            };
            before = Some((document, Instant::now()));
            Ok(text)
        }
        Err(error) if args.json => {
            Ok(format!("{}\n", serde_json::json!({ "error": error.to_string() })))
        }
        Err(error) => Ok(format!("{error}\n{end}")),
    })
}

/// Writes what `next` returns, and again after each `interval`, until the reader is gone. With
/// `on_screen`, each text replaces the last one.
///
/// # Errors
///
/// Of `next`, or of the output.
pub(super) fn show<E: From<StatusError>>(
    on_screen: bool,
    interval: Option<Duration>,
    mut next: impl FnMut() -> Result<String, E>,
) -> Result<ExitCode, E> {
    let mut out = io::stdout().lock();
    let mut has_reader =
        !on_screen || write_all(&mut out, "\u{1b}[2J").map_err(StatusError::Output)?;
    while has_reader {
        let text = next()?;
        let frame = if on_screen { overwrite(&text, rows(&out)) } else { text };
        has_reader = write_all(&mut out, &frame).map_err(StatusError::Output)?;
        let Some(interval) = interval.filter(|_| has_reader) else { break };
        std::thread::park_timeout(interval);
    }
    Ok(ExitCode::SUCCESS)
}

/// Overwrites the screen: from the top, each line to its end, and everything below is cleared. Long
/// lines are truncated by the terminal instead of wrapped, so that every screen begins at the same
/// place. Of more lines than the screen has `rows`, the first are shown: the others would move them
/// out of sight.
fn overwrite(text: &str, rows: usize) -> String {
    let (count, fit) = (text.lines().count(), rows.saturating_sub(1));
    let (shown, rest) = if count <= fit {
        (count, None)
    } else {
        let shown = fit.saturating_sub(1);
        (shown, Some(format!("… {} more lines", count - shown)))
    };
    let lines = text.lines().take(shown).chain(rest.as_deref());
    let lines: String = lines.map(|line| format!("{line}\u{1b}[K\r\n")).collect();
    format!("\u{1b}[?7l\u{1b}[H{lines}\u{1b}[J\u{1b}[?7h")
}

/// The rows of a terminal; unlimited if it does not say.
fn rows(out: impl AsFd) -> usize {
    let size = rustix::termios::tcgetwinsize(out).map_or(0, |size| size.ws_row);
    if size == 0 { usize::MAX } else { size.into() }
}

/// Writes to the reader of our output. Returns whether there was one; that it has gone is not an
/// error.
pub(super) fn write_all(mut out: impl io::Write, text: &str) -> io::Result<bool> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::admin_server::AdminArgs;

    #[test]
    fn keeps_the_top_on_a_short_terminal() {
        let text = "a\nb\nc\nd\n";
        let shown = |rows| {
            let frame = overwrite(text, rows);
            let lines = frame.split("\u{1b}[H").nth(1).unwrap().split("\u{1b}[J").next().unwrap();
            lines.replace("\u{1b}[K\r\n", "|")
        };
        // A row is left for the cursor.
        assert_eq!([shown(usize::MAX), shown(5)], ["a|b|c|d|", "a|b|c|d|"]);
        assert_eq!([shown(4), shown(3)], ["a|b|… 2 more lines|", "a|… 3 more lines|"]);
        assert_eq!(shown(1), "… 4 more lines|");
    }

    #[test]
    fn replaces_control_characters() {
        let service = serde_json::json!({"name": "\u{7}a", "x": [["\u{1b}"]]});
        let document = serde_json::json!({"ph\u{7f}ase": "\u{9b}2Jx\n", "services": [service, 3]});
        let server = AdminServer { addr: ([127, 0, 0, 1], 1).into(), tls: None };
        let present = present(&server, &document, None, None);
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
                service: None,
                token_file: None,
                server: AdminArgs { admin: Some(addr.to_string()), ..AdminArgs::default() },
                config: None,
                json: false,
                watch: false,
                ready: true,
                schema: false,
            };
            status(&args, &[])
        };
        assert_eq!(ask().unwrap(), format!("{addr} is ready\n"));
        assert_eq!(ask().unwrap_err().to_string(), format!("{addr} is not ready: no master"));
        server.join().unwrap();
        assert!(matches!(ask(), Err(StatusError::Unreachable(..))));
    }
}
