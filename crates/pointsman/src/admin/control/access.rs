//! Who may give control commands: whether they are enabled, and the token. A reload changes both.

use std::sync::Arc;

use admin_http::{Reply, Request};
use arc_swap::ArcSwap;

use crate::config::{Config, Secret};

/// Who may give commands. A reload changes it. Cheap to clone; all clones share one state.
#[derive(Debug, Clone)]
pub(crate) struct ControlAccess(Arc<ArcSwap<AccessRules>>);

#[derive(Debug)]
struct AccessRules {
    enabled: bool,
    /// Without a token only the control socket accepts commands.
    token: Option<Secret>,
}

impl AccessRules {
    fn of(config: &Config) -> Self {
        let (enabled, token) = (config.admin.control, config.admin.control_token.0.clone());
        Self { enabled, token }
    }
}

impl ControlAccess {
    /// The access as configured.
    pub(crate) fn of(config: &Config) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(AccessRules::of(config))))
    }

    /// Applies a changed configuration. A replaced token is invalid from now on.
    pub(crate) fn set(&self, config: &Config) {
        self.0.store(Arc::new(AccessRules::of(config)));
    }

    /// Returns the refusal of a request without permission.
    pub(crate) fn refuse(&self, request: &Request<'_>) -> Option<Reply> {
        let access = self.0.load();
        if !access.enabled {
            // Begins as the answer to an unknown path, by which the command line recognises it.
            return Some(Reply::text(404, "no such path: admin.control is off\n"));
        }
        if request.is_from_socket_owner() {
            return None;
        }
        let Some(token) = &access.token else {
            return Some(Reply::text(
                403,
                "control commands are accepted through the control socket only\n",
            ));
        };
        let given =
            request.header("authorization").and_then(|header| header.strip_prefix("Bearer "));
        let is_valid = given
            .is_some_and(|given| constant_time_eq(given.as_bytes(), token.reveal().as_bytes()));
        (!is_valid).then(|| {
            Reply::text(401, "a control command requires the token: Authorization: Bearer TOKEN\n")
        })
    }
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
    use super::*;

    #[test]
    fn accepts_complete_token_only() {
        assert!(constant_time_eq(b"secret", b"secret"));
        for other in [&b""[..], b"secre", b"secrets", b"secresecret", b"Secret", b"secretsecret"] {
            assert!(!constant_time_eq(other, b"secret"), "{other:?}");
        }
        assert!(!constant_time_eq(b"x", b""));
    }
}
