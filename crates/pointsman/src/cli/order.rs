//! `pointsman switchover`, `pause` and `resume`: orders to a running pointsman.
//!
//! The steps of a switchover are shown as they happen, since a person who moves a master wants to
//! see where it stands, and the last line says what it came to. A script reads the exit code, or
//! the lines of JSON.

use std::ffi::OsString;
use std::io::{self, Write as _};

use serde_json::Value as Json;

use super::args::OrderArgs;
use super::http::{self, Place};
use super::status::{StatusError, address};
use crate::config::{self, Flags, PendingReads, Secret, Value};

/// Holds the token, if no file is named.
const TOKEN_VARIABLE: &str = "POINTSMAN_CONTROL_TOKEN";
/// The largest file of a token that is read.
const LARGEST_TOKEN: u64 = 64 * 1024;

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub(super) enum OrderError {
    #[error(transparent)]
    Address(#[from] StatusError),
    #[error(
        "no token: set POINTSMAN_CONTROL_TOKEN, or name its file with --token-file; or a socket with --socket"
    )]
    NoToken,
    #[error("the token cannot be read from {0}")]
    Token(String, #[source] io::Error),
    #[error(
        "no answer from {0}: is pointsman running there? Name its admin address with --admin, or its socket with --socket"
    )]
    Ask(Place, #[source] io::Error),
    #[error(
        "{0} does not take orders; set `control = true` and a socket or a token in [admin] of its configuration"
    )]
    Off(Place),
    #[error("{0} refuses: {1}")]
    Refused(Place, String),
    #[error("{0}")]
    Failed(String),
    #[error("{0} ended its answer without saying what it came to")]
    Unfinished(Place),
}

/// Gives the order `what` with these further parameters, and shows what comes back as it comes.
///
/// # Errors
///
/// Why it was not carried out, with what to do.
pub(super) fn order(
    what: &str,
    (args, parameters): (&OrderArgs, &[(&str, &str)]),
    env: &[(OsString, OsString)],
) -> Result<String, OrderError> {
    let place = place(args, env)?;
    let token = match place {
        Place::Network(_) => Some(token(args, env)?),
        Place::Socket(_) => None,
    };
    let service = args.service.as_deref().map(|name| ("service", name));
    let query: Vec<String> = service
        .iter()
        .chain(parameters)
        .map(|(key, value)| format!("{key}={}", plain(value)))
        .collect();
    let path = format!("/control/{what}?{}", query.join("&"));
    let mut last = None;
    let mut rest = String::new();
    let code = http::post(&place, &path, token.as_ref().map(Secret::reveal), &mut |line| {
        // Empty ones only ask whether somebody is still there.
        let Ok(document) = serde_json::from_str::<Json>(line) else {
            rest.push_str(line);
            return;
        };
        if args.json {
            show(line);
        } else if let (Some(after), Some(step), Some(text)) = (
            document.get("after_ms").and_then(Json::as_f64),
            text(&document, "step"),
            text(&document, "text"),
        ) {
            show(&format!("{:>7.3} s  {step:<9} {text}", after / 1000.0));
        }
        last = Some(document);
    });
    let code = code.map_err(|error| OrderError::Ask(place.clone(), error))?;
    match (code, last) {
        (404 | 405, _) if rest.starts_with("nothing at") => Err(OrderError::Off(place)),
        (200, Some(last)) if last.get("ok") == Some(&Json::Bool(true)) => {
            Ok(if args.json { String::new() } else { format!("{what}: done\n") })
        }
        (200, Some(last)) => match text(&last, "error") {
            Some(error) => Err(OrderError::Failed(error.to_owned())),
            None => Err(OrderError::Unfinished(place)),
        },
        (200, None) => Err(OrderError::Unfinished(place)),
        _ => Err(OrderError::Refused(place, rest)),
    }
}

fn text<'a>(document: &'a Json, key: &str) -> Option<&'a str> {
    document.get(key).and_then(Json::as_str)
}

/// A line for whoever watches. If nobody does any more, the order goes on all the same.
fn show(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Names of services and durations consist of such characters; whatever else was typed cannot be
/// meant.
fn plain(value: &str) -> String {
    value.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')).collect()
}

/// Where the order goes: to whom the command line names, else to the socket that the configuration
/// of this place has, else to its address. Faults of a configuration do not matter here.
fn place(args: &OrderArgs, env: &[(OsString, OsString)]) -> Result<Place, OrderError> {
    if let Some(path) = &args.socket {
        return Ok(Place::Socket(path.clone()));
    }
    if args.admin.is_none() && args.token_file.is_none() {
        let loaded = config::load(
            &Flags { config: args.config.clone(), ..Flags::default() },
            env.iter().cloned(),
        );
        if let Some(Value::Text(path)) = loaded.settings().process.value("admin.control_socket") {
            return Ok(Place::Socket(path.into()));
        }
    }
    Ok(Place::Network(address(args.admin.as_deref(), args.config.as_ref(), env.iter().cloned())?))
}

fn token(args: &OrderArgs, env: &[(OsString, OsString)]) -> Result<Secret, OrderError> {
    if let Some(path) = &args.token_file {
        let wrong = |error| OrderError::Token(path.display().to_string(), error);
        let text =
            config::read_file(path, LARGEST_TOKEN, &PendingReads::default()).map_err(wrong)?;
        return Ok(Secret::new(text.trim_end_matches(['\n', '\r']).to_owned()));
    }
    let given = env.iter().find(|(name, value)| name == TOKEN_VARIABLE && !value.is_empty());
    if let Some(text) = given.and_then(|(_, value)| value.to_str()) {
        return Ok(Secret::new(text.to_owned()));
    }
    // The configuration of this place may know it.
    let loaded = config::load(
        &Flags { config: args.config.clone(), ..Flags::default() },
        env.iter().cloned(),
    );
    let configured = loaded.config().ok().and_then(|config| config.admin.control_token.0);
    configured.ok_or(OrderError::NoToken)
}
