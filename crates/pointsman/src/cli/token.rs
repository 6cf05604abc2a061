//! The tokens that commands send: from a file, a variable or the local configuration.

use std::path::{Path, PathBuf};

use super::Variables;
use super::admin_server::{self, AdminArgs, AdminServerError};
use super::args::StatusArgs;
use crate::config::{self, AdminConfig, Flags, PendingReads, Secret};

/// The variable with the token, unless a file is given.
const TOKEN_VARIABLE: &str = "POINTSMAN_READ_TOKEN";
/// Maximum size of a token file.
const MAX_TOKEN_BYTES: u64 = 64 * 1024;

/// Returns the token for reading.
///
/// # Errors
///
/// The file cannot be read.
pub(super) fn token(
    args: &StatusArgs,
    env: &Variables,
) -> Result<Option<Secret>, AdminServerError> {
    let (file, config) = (args.token_file.as_deref(), args.config.as_ref());
    find(file, TOKEN_VARIABLE, |admin| admin.read_token, &args.server, config, env)
}

/// Returns the token of the file, else that of the variable, else that of the local configuration
/// if it has no fault. The last one is not sent to another address.
///
/// # Errors
///
/// The file cannot be read.
pub(super) fn find(
    file: Option<&Path>,
    variable: &str,
    configured: fn(AdminConfig) -> Option<Secret>,
    server: &AdminArgs,
    config: Option<&PathBuf>,
    env: &Variables,
) -> Result<Option<Secret>, AdminServerError> {
    if let Some(path) = file {
        let text = config::read_file(path, MAX_TOKEN_BYTES, &PendingReads::default())
            .map_err(|error| AdminServerError::TokenFile(path.display().to_string(), error))?;
        return Ok(Some(Secret::new(text.trim_end_matches(['\n', '\r']).to_owned())));
    }
    let given = env.iter().find(|(name, value)| name == variable && !value.is_empty());
    let given = given.and_then(|(_, value)| value.to_str());
    if given.is_some() || admin_server::given(server, env).is_some() {
        return Ok(given.map(|text| Secret::new(text.to_owned())));
    }
    let flags = Flags { config: config.cloned(), ..Flags::default() };
    let loaded = config::load(&flags, env.iter().cloned()).config();
    Ok(loaded.ok().and_then(|config| configured(config.admin)))
}
