//! The token for reading that `pointsman status` sends, if the admin server requires one.

use std::ffi::OsString;

use super::admin_server;
use super::args::StatusArgs;
use super::status::StatusError;
use crate::config::{self, Flags, PendingReads, Secret};

/// The variable with the token, unless a file is given.
const TOKEN_VARIABLE: &str = "POINTSMAN_READ_TOKEN";
/// Maximum size of a token file.
const MAX_TOKEN_BYTES: u64 = 64 * 1024;

/// Returns the token. That of the local configuration is not sent to another address, and faults of
/// the configuration do not matter here.
///
/// # Errors
///
/// The file cannot be read.
pub(super) fn token(
    args: &StatusArgs,
    env: &[(OsString, OsString)],
) -> Result<Option<Secret>, StatusError> {
    if let Some(path) = &args.token_file {
        let unreadable = |error| StatusError::TokenFile(path.display().to_string(), error);
        let text = config::read_file(path, MAX_TOKEN_BYTES, &PendingReads::default())
            .map_err(unreadable)?;
        return Ok(Some(Secret::new(text.trim_end_matches(['\n', '\r']).to_owned())));
    }
    let given = env.iter().find(|(name, value)| name == TOKEN_VARIABLE && !value.is_empty());
    if let Some(text) = given.and_then(|(_, value)| value.to_str()) {
        return Ok(Some(Secret::new(text.to_owned())));
    }
    if admin_server::given(&args.server, env).is_some() {
        return Ok(None);
    }
    let flags = Flags { config: args.config.clone(), ..Flags::default() };
    let admin = config::load(&flags, env.iter().cloned()).config().ok().map(|config| config.admin);
    Ok(admin.and_then(|admin| admin.read_token.0))
}
