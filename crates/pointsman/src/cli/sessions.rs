//! `pointsman sessions` and `pointsman kill`: which clients are connected, and how to end one.
//!
//! The table has one line per session and as many columns as fit on the terminal; `--json` prints
//! the document. Text in it comes from clients: the process escapes it, and it is escaped here
//! again, since any program may answer on that address.

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value as Json;
use tls::OutsideText;

use super::Variables;
use super::args::{ControlArgs, EndpointArgs};
use super::control::{self, ControlError};
use super::http::{self, Limits};
use super::screen::printable;
use super::sessions_table::render;
use super::status::show;
use crate::config::Secret;

/// Interval of the requests with `--watch`.
const INTERVAL: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  The sessions that a failover would close, and why:
    pointsman sessions --state pinned,opaque

  The busiest clients of one network:
    pointsman sessions --source 10.0.3.0/24 --sort bytes --limit 20

  The clients that wait for their server:
    pointsman sessions --state in_flight,blocked,held

  The number of sessions per user:
    pointsman sessions --limit 10000 --json | jq -r '.list[].user' | sort | uniq -c

  End one:
    pointsman kill 5d0c41aa-0-17-3

States: handshaking, closing, held, connecting, moving, draining, opaque, blocked, in_flight, subscribed, pinned, idle; and the reasons for which a \
session is pinned, such as transaction or unknown_command. `pinned` includes every session with such a reason.";

/// The arguments of `sessions`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct SessionsArgs {
    #[command(flatten)]
    endpoint: EndpointArgs,

    /// Only sessions of this service
    #[arg(long, value_name = "NAME")]
    service: Option<String>,

    /// Order, the largest value first: age, idle, bytes, commands, in-flight
    #[arg(long, value_name = "BY", default_value = "age")]
    sort: String,

    /// Only clients with this address, or of this network, as in 10.0.3.0/24
    #[arg(long, value_name = "CIDR")]
    source: Option<String>,

    /// Only sessions in one of these states, separated by commas
    #[arg(long, value_name = "STATES")]
    state: Option<String>,

    /// Maximum number of sessions, up to 10000
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: u32,

    /// Repeat every two seconds, until Ctrl-C; with --json one document each
    #[arg(long, short)]
    watch: bool,
}

/// The arguments of `kill`.
#[derive(Debug, Args)]
pub(super) struct KillArgs {
    /// The ID of the session, as `pointsman sessions` prints it
    id: String,

    #[command(flatten)]
    endpoint: EndpointArgs,
}

impl SessionsArgs {
    fn path(&self) -> String {
        let given = [
            ("service", self.service.clone()),
            ("sort", Some(self.sort.clone())),
            ("source", self.source.clone()),
            ("state", self.state.clone()),
            ("limit", Some(self.limit.to_string())),
        ];
        let pairs = given.into_iter().filter_map(|(key, value)| Some((key, value?)));
        let query: Vec<String> =
            pairs.map(|(key, value)| format!("{key}={}", control::encoded(&value))).collect();
        format!("/control/sessions?{}", query.join("&"))
    }
}

/// Prints the sessions.
///
/// # Errors
///
/// Why they are not available, with a remedy.
pub(super) fn sessions(args: &SessionsArgs, env: &Variables) -> Result<ExitCode, ControlError> {
    let on_screen = args.watch && !args.endpoint.json && io::stdout().is_terminal();
    show(on_screen, args.watch.then_some(INTERVAL), || match request(args, env) {
        Err(error) if args.watch => Ok(format!("{error}\n")),
        result => result,
    })
}

fn request(args: &SessionsArgs, env: &Variables) -> Result<String, ControlError> {
    let (endpoint, token) = control::access(&args.endpoint, env)?;
    let token = token.as_ref().map(Secret::reveal);
    let (code, body) = http::get(&endpoint, &args.path(), token, Limits::LIST)
        .map_err(|error| ControlError::unreachable(&endpoint, error))?;
    let body = OutsideText::lines(&body);
    match code {
        200 if args.endpoint.json => Ok(body.trim_end().to_owned() + "\n"),
        200 => {
            let document: Json =
                serde_json::from_str(&body).map_err(|_| ControlError::Unfinished(endpoint))?;
            let width = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
            Ok(render(&document, width.filter(|_| io::stdout().is_terminal())))
        }
        404 if body.starts_with("no such path") => Err(ControlError::Disabled(endpoint)),
        _ => Err(ControlError::Refused(endpoint, printable(body.trim()))),
    }
}

/// Ends a session.
///
/// # Errors
///
/// Why it was not ended.
pub(super) fn kill(args: KillArgs, env: &Variables) -> Result<String, ControlError> {
    let KillArgs { id, endpoint } = args;
    control::send("kill", &ControlArgs { service: None, endpoint }, &[("id", &id)], env)
}
