//! Groups: the clients that may share connections, because the server would treat each of them in
//! the same way.
//!
//! A session joins a group only after the server itself has accepted this very session's
//! credentials. The key of the group includes a digest of the secret, so that clients with an old
//! and a new password of the same user are separate: a connection lost in a group is replaced with
//! the secret that the clients of that group have shown.
//!
//! The caller computes the digests, with a keyed hash whose key it draws when it starts, so that a
//! digest in a core dump does not help to guess the secret elsewhere.

use std::fmt;

use resp::SharedState;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Length of a digest, in bytes.
const DIGEST_LEN: usize = 32;

/// The keyed digest of a secret. Compared in constant time, and overwritten with zeros when it is
/// dropped.
#[derive(Clone)]
pub(crate) struct SecretDigest(Zeroizing<[u8; DIGEST_LEN]>);

impl PartialEq for SecretDigest {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_slice().ct_eq(other.0.as_slice()).into()
    }
}

impl Eq for SecretDigest {}

impl fmt::Debug for SecretDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretDigest")
    }
}

/// What the clients of a group have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupKey {
    /// As whom the server knows the clients. `None`: they have sent no credentials.
    pub(super) identity: Option<(Box<[u8]>, SecretDigest)>,
    db: u32,
    pub(super) resp3: bool,
    read_only: bool,
    no_touch: bool,
}

impl GroupKey {
    /// The group of a session in that state, which the server has confirmed. `digest` computes the
    /// keyed digest of a secret.
    pub(crate) fn new(
        state: &SharedState<'_>,
        digest: impl FnOnce(&[u8]) -> [u8; DIGEST_LEN],
    ) -> Self {
        let SharedState { credentials, db, resp3, read_only, no_touch } = *state;
        let digest = |secret| SecretDigest(Zeroizing::new(digest(secret)));
        let identity = credentials.map(|(user, secret)| (user.into(), digest(secret)));
        Self { identity, db, resp3, read_only, no_touch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state<'a>(credentials: Option<(&'a [u8], &'a [u8])>) -> SharedState<'a> {
        SharedState { credentials, db: 0, resp3: false, read_only: false, no_touch: false }
    }

    /// Not a digest, but as injective as one for short secrets.
    fn digest(secret: &[u8]) -> [u8; DIGEST_LEN] {
        let mut digest = [secret.len() as u8; DIGEST_LEN];
        digest[..secret.len()].copy_from_slice(secret);
        digest
    }

    #[test]
    fn separates_clients_that_differ_in_anything() {
        let base = state(Some((b"u", b"p")));
        let others = [
            base,
            state(None),
            state(Some((b"v", b"p"))),
            state(Some((b"u", b"q"))),
            state(Some((b"u", b""))),
            SharedState { db: 1, ..base },
            SharedState { resp3: true, ..base },
            SharedState { read_only: true, ..base },
            SharedState { no_touch: true, ..base },
        ];
        let keys: Vec<GroupKey> = others.iter().map(|state| GroupKey::new(state, digest)).collect();
        for (at, state) in others.iter().enumerate() {
            let key = GroupKey::new(state, digest);
            let equal: Vec<usize> = (0..keys.len()).filter(|it| keys[*it] == key).collect();
            assert_eq!(equal, [at]);
        }
    }

    #[test]
    fn shows_no_secret() {
        let key = GroupKey::new(&state(Some((b"u", b"hunter2"))), digest);
        let shown = format!("{key:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("104"), "{shown}");
    }
}
