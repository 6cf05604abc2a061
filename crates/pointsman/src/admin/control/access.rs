//! Who may give control commands, and who may read: whether commands are enabled, and the tokens. A
//! reload changes all of it.
//!
//! A wrong token is counted against the source that presented it ([`token_attempts`]), and answered
//! with status 429 once these are too many. The right one is accepted even then, because others may
//! be behind the same address. A request without a token is refused and not counted.
//!
//! [`token_attempts`]: super::token_attempts

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use admin_http::{Reply, Request};
use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use tracing::warn;

use super::token_attempts::TokenAttempts;
use crate::config::{Config, Secret};

/// Base64 as clients send it (RFC 4648, section 4), with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The paths that check the permission of commands themselves.
const CONTROL_PATHS: &str = "/control/";

/// Who may give commands and read. A reload changes it. Cheap to clone; all clones share one state.
#[derive(Debug, Clone)]
pub(crate) struct ControlAccess {
    rules: Arc<ArcSwap<AccessRules>>,
    attempts: Arc<Mutex<TokenAttempts>>,
    /// The counts of refused tokens.
    pub(crate) refused: Arc<TokenRefusals>,
}

#[derive(Debug)]
struct AccessRules {
    enabled: bool,
    /// Without a token only the control socket accepts commands.
    token: Option<Secret>,
    /// Without a token everyone may read.
    read_token: Option<Secret>,
}

/// Refused tokens since the start.
#[derive(Debug, Default)]
pub(crate) struct TokenRefusals {
    /// Wrong tokens.
    pub wrong: AtomicU64,
    /// Further wrong tokens of sources that had presented too many.
    pub throttled: AtomicU64,
}

impl AccessRules {
    fn of(config: &Config) -> Self {
        let admin = &config.admin;
        let (token, read_token) = (admin.control_token.clone(), admin.read_token.clone());
        Self { enabled: admin.control, token, read_token }
    }
}

impl ControlAccess {
    /// The access as configured.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            rules: Arc::new(ArcSwap::from_pointee(AccessRules::of(config))),
            attempts: Arc::default(),
            refused: Arc::default(),
        }
    }

    /// Applies a changed configuration. A replaced token is invalid from now on.
    pub(crate) fn set(&self, config: &Config) {
        self.rules.store(Arc::new(AccessRules::of(config)));
    }

    /// Refuses a command without permission.
    pub(crate) fn authorize_command(&self, request: &Request<'_>) -> Result<(), Reply> {
        let access = self.rules.load();
        if !access.enabled {
            // Begins as the answer to an unknown path, by which the command line recognises it.
            return Err(Reply::text(404, "no such path: admin.control is off\n"));
        }
        if request.origin.is_owner {
            return Ok(());
        }
        let Some(token) = &access.token else {
            return Err(Reply::text(
                403,
                "control commands are accepted through the control socket only\n",
            ));
        };
        // No Basic authentication: a browser sends it along with requests of other sites.
        let given = request.header("authorization").and_then(bearer);
        let required = || {
            let text = "a control command requires the right token: POINTSMAN_CONTROL_TOKEN, \
                        --token-file, or Authorization: Bearer TOKEN\n";
            Reply::text(401, text)
        };
        self.check(request, given.map(str::as_bytes), &[token], required)
    }

    /// Refuses a token that is none of `tokens`.
    fn check(
        &self,
        request: &Request<'_>,
        given: Option<&[u8]>,
        tokens: &[&Secret],
        required: impl Fn() -> Reply,
    ) -> Result<(), Reply> {
        let given = given.ok_or_else(&required)?;
        // Every token is compared, so that the time does not tell which one is near.
        let matching = tokens
            .iter()
            .filter(|token| constant_time_eq(given, token.reveal().as_bytes()))
            .count();
        if matching > 0 {
            return Ok(());
        }
        let (peer, now) = (request.origin.peer, Instant::now());
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wait) = attempts.wait(peer, now) {
            self.refused.throttled.fetch_add(1, Ordering::Relaxed);
            let seconds = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).saturating_add(1);
            let why = "this token is wrong, like too many others from this address\n";
            return Err(Reply::text(429, why).retry_after(seconds));
        }
        self.refused.wrong.fetch_add(1, Ordering::Relaxed);
        if attempts.record_wrong(peer, given, now) {
            let source = peer.map(tracing::field::display);
            warn!(source, "too many wrong tokens for the admin server from this source");
        }
        Err(required())
    }

    /// Refuses a reader without the token, if there is one.
    pub(crate) fn authorize_reader(&self, request: &Request<'_>) -> Result<(), Reply> {
        let access = self.rules.load();
        let Some(read_token) = &access.read_token else { return Ok(()) };
        if request.path().starts_with(CONTROL_PATHS) {
            return Ok(());
        }
        let header = request.header("authorization");
        let given = header.and_then(|header| {
            bearer(header).map(|token| token.as_bytes().to_vec()).or_else(|| basic(header))
        });
        let tokens: Vec<&Secret> =
            [Some(read_token), access.token.as_ref()].into_iter().flatten().collect();
        self.check(request, given.as_deref(), &tokens, || {
            let text = "reading requires the right token: POINTSMAN_READ_TOKEN, or Authorization: \
                        Bearer TOKEN\n";
            Reply::text(401, text).ask_for_password()
        })
    }
}

fn bearer(header: &str) -> Option<&str> {
    after_scheme(header, "bearer")
}

/// The password of Basic authentication. The user does not matter.
fn basic(header: &str) -> Option<Vec<u8>> {
    let decoded = BASE64.decode(after_scheme(header, "basic")?.trim_end_matches('=')).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    Some(decoded.get(colon + 1..)?.to_vec())
}

/// What follows the name of an authentication scheme, which is compared without case (RFC 9110,
/// 11.1).
fn after_scheme<'a>(header: &'a str, scheme: &str) -> Option<&'a str> {
    let (name, rest) = header.split_once(' ')?;
    name.eq_ignore_ascii_case(scheme).then_some(rest.trim_matches(' '))
}

/// Compares in a time that depends only on the length of `given`.
fn constant_time_eq(given: &[u8], expected: &[u8]) -> bool {
    let mut differ = u8::from(given.len() != expected.len());
    for (at, byte) in given.iter().enumerate() {
        let other = expected.get(at.checked_rem(expected.len()).unwrap_or(0)).copied().unwrap_or(0);
        differ |= byte ^ other;
    }
    differ == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn accepts_complete_token_only() {
        assert!(constant_time_eq(b"secret", b"secret"));
        for other in [&b""[..], b"secre", b"secrets", b"secresecret", b"Secret", b"secretsecret"] {
            assert!(!constant_time_eq(other, b"secret"), "{other:?}");
        }
        assert!(!constant_time_eq(b"x", b""));
    }

    #[test]
    fn reads_token_of_either_scheme() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer  abc "), Some("abc"));
        assert_eq!((bearer("Basic YTpi"), bearer("Bearer"), bearer("")), (None, None, None));
        // "any:s3cret:with colon", "a:", ":b", and without a colon.
        assert_eq!(basic("Basic YW55OnMzY3JldDp3aXRoIGNvbG9u").unwrap(), b"s3cret:with colon");
        assert_eq!(basic("basic YTo=").unwrap(), b"");
        assert_eq!(basic("Basic OmI=").unwrap(), b"b");
        for wrong in ["Basic YWJj", "Basic Y!Jj", "Basic ", "Basic", "Bearer YTpi"] {
            assert_eq!(basic(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_on_any_header(header in "\\PC{0,60}|[Bb]asic [A-Za-z0-9+/=]{0,60}") {
            let _ = (bearer(&header), basic(&header));
        }
    }
}
