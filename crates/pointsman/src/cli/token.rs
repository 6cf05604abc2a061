//! The tokens that commands send: from a file, a variable or the local configuration.

use std::path::{Path, PathBuf};

use super::Variables;
use super::admin_server::{self, AdminServerError};
use super::args::StatusArgs;
use crate::config::{self, AdminConfig, Flags, PendingReads, Secret};

/// The variable with the token, unless a file is given.
const TOKEN_VARIABLE: &str = "POINTSMAN_READ_TOKEN";
/// Maximum size of a token file.
const MAX_TOKEN_BYTES: u64 = 64 * 1024;

/// Returns the token. That of the local configuration is not sent to another address.
///
/// # Errors
///
/// The file cannot be read.
pub(super) fn token(
    args: &StatusArgs,
    env: &Variables,
) -> Result<Option<Secret>, AdminServerError> {
    let given = given(args.token_file.as_deref(), TOKEN_VARIABLE, env)?;
    if given.is_some() || admin_server::given(&args.server, env).is_some() {
        return Ok(given);
    }
    Ok(configured(args.config.as_ref(), env).and_then(|admin| admin.read_token.0))
}

/// The token of the file, else that of the variable.
pub(super) fn given(
    file: Option<&Path>,
    variable: &str,
    env: &Variables,
) -> Result<Option<Secret>, AdminServerError> {
    if let Some(path) = file {
        let text = config::read_file(path, MAX_TOKEN_BYTES, &PendingReads::default())
            .map_err(|error| AdminServerError::TokenFile(path.display().to_string(), error))?;
        return Ok(Some(Secret::new(text.trim_end_matches(['\n', '\r']).to_owned())));
    }
    let given = env.iter().find(|(name, value)| name == variable && !value.is_empty());
    Ok(given.and_then(|(_, value)| value.to_str()).map(|text| Secret::new(text.to_owned())))
}

/// The admin section of the local configuration, if that has no fault.
pub(super) fn configured(config: Option<&PathBuf>, env: &Variables) -> Option<AdminConfig> {
    let flags = Flags { config: config.cloned(), ..Flags::default() };
    config::load(&flags, env.iter().cloned()).config().ok().map(|config| config.admin)
}
