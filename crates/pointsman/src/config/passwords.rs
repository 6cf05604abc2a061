//! From the three ways of giving a password to the password.
//!
//! Files and variables are reached through what the caller hands in, so that every fault can be
//! tested without either.

use std::collections::BTreeMap;
use std::path::Path;

use super::finding::Finding;
use super::schema::{CREDENTIALS, PASSWORD_KEYS};
use super::secret::Secret;
use super::value::Value;
use super::values::Values;

/// The largest password file that is read, in bytes.
pub(super) const LARGEST_FILE: u64 = 64 * 1024;

/// Reads a small file; the text never reaches a message.
pub(super) type ReadFile<'a> = &'a dyn Fn(&Path) -> std::io::Result<Secret>;

/// Finds the passwords of one service and notes what is wrong with the ways they were given.
pub(super) fn resolve(
    service: &mut Values,
    read_file: ReadFile<'_>,
    env: &BTreeMap<&str, &str>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for section in CREDENTIALS {
        let ways = PASSWORD_KEYS.map(|key| format!("{section}.{key}"));
        let given: Vec<&String> =
            ways.iter().filter(|way| service.settings.contains_key(*way)).collect();
        let sound = !ways.iter().any(|way| service.broken.contains(way));
        if let [first, second, ..] = given.as_slice() {
            let what = format!("{first} is given too");
            let remedy = "keep exactly one of password, password_file and password_env";
            findings.push(Finding::new(service.origin(second), (*second).clone(), what, remedy));
        } else if let [way] = given.as_slice() {
            match password(service.value(way), way, read_file, env) {
                Ok(Some(secret)) => {
                    service.passwords.insert(section.to_owned(), secret);
                }
                Ok(None) => {}
                Err((what, remedy)) => {
                    findings.push(Finding::new(service.origin(way), (*way).clone(), what, remedy))
                }
            }
        } else if sound && service.settings.contains_key(&format!("{section}.username")) {
            let key = format!("{section}.username");
            let remedy = "add password, password_file or password_env";
            findings.push(Finding::new(
                service.origin(&key),
                key,
                "a user without a password",
                remedy,
            ));
        }
    }
    findings
}

/// Finds the token of the admin server's orders, where they are on.
pub(super) fn control_token(
    process: &mut Values,
    read_file: ReadFile<'_>,
    env: &BTreeMap<&str, &str>,
) -> Vec<Finding> {
    const SHORTEST: usize = 16;
    let ways = ["admin.control_token_file", "admin.control_token_env"];
    let on = matches!(process.value("admin.control"), Some(Value::Bool(true)));
    let sound = !ways.iter().any(|way| process.broken.contains(*way));
    let given: Vec<&str> =
        ways.into_iter().filter(|way| process.settings.contains_key(*way)).collect();
    let fault = |key: &str, what: String, remedy: &str| {
        vec![Finding::new(process.origin(key), key, what, remedy)]
    };
    match given.as_slice() {
        [] if on && sound && process.value("admin.control_socket").is_none() => {
            let what = "orders are on and neither a token nor a socket is named".to_owned();
            fault(
                "admin.control",
                what,
                "add control_socket, control_token_file or control_token_env",
            )
        }
        [] => Vec::new(),
        [first, second, ..] => fault(
            second,
            format!("{first} is given too"),
            "keep one of control_token_file and control_token_env",
        ),
        [way] => match password(process.value(way), way, read_file, env) {
            Ok(Some(token)) if token.reveal().len() < SHORTEST => fault(
                way,
                "the token is too short".to_owned(),
                "take 16 characters or more, at random",
            ),
            Ok(token) => {
                process
                    .passwords
                    .extend(token.map(|token| ("admin.control_token".to_owned(), token)));
                Vec::new()
            }
            Err((what, remedy)) => fault(way, what, remedy),
        },
    }
}

type Fault = (String, &'static str);

fn password(
    value: Option<&Value>,
    way: &str,
    read_file: ReadFile<'_>,
    env: &BTreeMap<&str, &str>,
) -> Result<Option<Secret>, Fault> {
    match value {
        Some(Value::Secret(secret)) => Ok(Some(secret.clone())),
        Some(Value::Text(name)) if way.ends_with("_env") => match env.get(name.as_str()) {
            Some(text) if !text.is_empty() => Ok(Some(Secret::new((*text).to_owned()))),
            _ => Err((
                format!("the environment has no {name}, or it is empty"),
                "set it, or correct the name",
            )),
        },
        Some(Value::Text(path)) => from_file(path, read_file).map(Some),
        _ => Ok(None),
    }
}

fn from_file(path: &str, read_file: ReadFile<'_>) -> Result<Secret, Fault> {
    let read = read_file(Path::new(path)).map_err(|error| {
        (format!("{path:?} cannot be read: {error}"), "check the path and its permissions")
    })?;
    let text = read.reveal();
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() {
        return Err((format!("{path:?} is empty"), "put the password into it"));
    }
    if text.contains(['\n', '\r']) {
        return Err((
            format!("{path:?} holds more than one line"),
            "leave only the password in it",
        ));
    }
    Ok(Secret::new(text.to_owned()))
}
