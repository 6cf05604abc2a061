//! `pointsman switchover`, `pause`, `resume`, `follow` and `unfollow`: control commands for a
//! running pointsman.
//!
//! The steps of a switchover are printed as they happen, and the last line is the result. A script
//! reads the exit code, or the JSON lines.

use std::io::{self, Write as _};

use serde_json::Value as Json;

use super::Variables;
use super::admin_server::{self, AdminServerError};
use super::admin_tls::TlsProblem;
use super::args::{ControlArgs, EndpointArgs};
use super::http::{self, ControlEndpoint};
use super::status::StatusError;
use super::token;
use crate::config::{AdminConfig, Secret, Value};

/// The variable with the token, unless a file is given.
const TOKEN_VARIABLE: &str = "POINTSMAN_CONTROL_TOKEN";

/// Why a control command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ControlError {
    #[error(transparent)]
    Address(#[from] AdminServerError),
    #[error(transparent)]
    Output(#[from] StatusError),
    #[error(
        "no control token: set POINTSMAN_CONTROL_TOKEN, use --token-file, or use a socket with \
         --socket; the process accepts commands if [admin] has `control = true`"
    )]
    NoToken,
    #[error(
        "no answer from {0}: is pointsman running there? Set its admin address with --admin, \
         or its socket with --socket"
    )]
    Unreachable(ControlEndpoint, #[source] io::Error),
    #[error("no answer from {0}: {1}")]
    Tls(ControlEndpoint, String),
    #[error(
        "{0} does not accept control commands; set `control = true` and a socket or a token in \
         [admin]"
    )]
    Disabled(ControlEndpoint),
    #[error("{0} refused: {1}")]
    Refused(ControlEndpoint, String),
    #[error("{0}")]
    Failed(String),
    #[error("{0} ended its response without a result; `pointsman status` shows the state")]
    Unfinished(ControlEndpoint),
    #[error(
        "interrupted: {0} undoes a switchover whose failover has not begun; `pointsman status` \
         shows the state"
    )]
    Interrupted(ControlEndpoint),
}

impl ControlError {
    /// Why an endpoint does not answer.
    pub(super) fn unreachable(endpoint: &ControlEndpoint, error: io::Error) -> Self {
        match TlsProblem::in_error(&error) {
            Some(problem) => Self::Tls(endpoint.clone(), problem.to_string()),
            None if error.kind() == io::ErrorKind::Interrupted => {
                Self::Interrupted(endpoint.clone())
            }
            None => Self::Unreachable(endpoint.clone(), error),
        }
    }
}

/// Sends the command `action` with these parameters, and prints the response as it arrives.
///
/// # Errors
///
/// Why it failed, with a remedy.
pub(super) fn send(
    action: &str,
    args: &ControlArgs,
    parameters: &[(&str, &str)],
    env: &Variables,
) -> Result<String, ControlError> {
    let (endpoint, token) = access(&args.endpoint, env)?;
    let service = args.service.as_deref().map(|name| ("service", name));
    let query: Vec<String> = service
        .iter()
        .chain(parameters)
        .map(|(key, value)| format!("{key}={}", encoded(value)))
        .collect();
    let path = format!("/control/{action}?{}", query.join("&"));
    let mut last = None;
    let mut rest = String::new();
    let code = http::post(&endpoint, &path, token.as_ref().map(Secret::reveal), &mut |line| {
        // Empty lines are keep-alives.
        let Ok(document) = serde_json::from_str::<Json>(line) else {
            rest.push_str(line);
            return;
        };
        if args.endpoint.json {
            print(line);
        } else if let (Some(after), Some(step), Some(text)) = (
            document.get("after_ms").and_then(Json::as_f64),
            text(&document, "step"),
            text(&document, "text"),
        ) {
            print(&format!("{:>7.3} s  {step:<9} {text}", after / 1000.0));
        }
        last = Some(document);
    });
    let broken = |error| ControlError::unreachable(&endpoint, error);
    // What breaks off after some lines has reached its process, and has no result.
    let code = match code {
        Err(error) if last.is_none() || error.kind() == io::ErrorKind::Interrupted => {
            return Err(broken(error));
        }
        code => code.unwrap_or(200),
    };
    match (code, last) {
        (404 | 405, _) if rest.starts_with("no such path") => Err(ControlError::Disabled(endpoint)),
        (200, Some(last)) if last.get("ok") == Some(&Json::Bool(true)) => {
            Ok(if args.endpoint.json { String::new() } else { format!("{action}: done\n") })
        }
        (200, last) => match last.as_ref().and_then(|last| text(last, "error")) {
            Some(error) => Err(ControlError::Failed(error.to_owned())),
            None => Err(ControlError::Unfinished(endpoint)),
        },
        _ => Err(ControlError::Refused(endpoint, rest)),
    }
}

/// A value in a query. No valid value has any other character; they become one that is refused by
/// name.
pub(super) fn encoded(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_:/,[]".contains(c);
    value.chars().map(|c| if is_plain(c) { c } else { '?' }).collect()
}

fn text<'a>(document: &'a Json, key: &str) -> Option<&'a str> {
    document.get(key).and_then(Json::as_str)
}

/// Prints a line. If standard output is closed, the command continues.
fn print(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Returns the endpoint, and the token that it wants.
pub(super) fn access(
    args: &EndpointArgs,
    env: &Variables,
) -> Result<(ControlEndpoint, Option<Secret>), ControlError> {
    let endpoint = endpoint(args, env)?;
    let token = match endpoint {
        ControlEndpoint::Network(_) => {
            let (file, config) = (args.token_file.as_deref(), args.config.as_ref());
            let of = |admin: AdminConfig| admin.control_token;
            let found = token::find(file, TOKEN_VARIABLE, of, &args.server, config, env)?;
            Some(found.ok_or(ControlError::NoToken)?)
        }
        ControlEndpoint::Socket(_) => None,
    };
    Ok((endpoint, token))
}

/// Returns the endpoint of the command: the one given on the command line, else the control socket
/// of the local configuration, else its admin address.
fn endpoint(args: &EndpointArgs, env: &Variables) -> Result<ControlEndpoint, ControlError> {
    if let Some(path) = &args.socket {
        return Ok(ControlEndpoint::Socket(path.clone()));
    }
    if args.server.admin.is_none() && args.token_file.is_none() {
        let loaded = admin_server::load(args.config.as_ref(), env)?;
        if let Some(Value::Text(path)) = loaded.settings.process.value("admin.control_socket") {
            return Ok(ControlEndpoint::Socket(path.into()));
        }
    }
    let server = admin_server::find(&args.server, args.config.as_ref(), env)?;
    Ok(ControlEndpoint::Network(server))
}
