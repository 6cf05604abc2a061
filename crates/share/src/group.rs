//! Groups: the clients that may share connections, because the server would treat each of them in
//! the same way.
//!
//! A session joins a group only after the server itself has accepted this very session's
//! credentials. The key of the group includes a digest of the secret, so that clients with an old
//! and a new password of the same user are separate: a connection lost in a group is replaced with
//! the secret that the clients of that group have shown.
//!
//! Deliberately absent: the computation of digests. The caller uses a keyed hash whose key it draws
//! when it starts, so that a digest in a core dump does not help to guess the secret elsewhere.

use std::fmt;

use resp::SharedState;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Length of a digest, in bytes.
const DIGEST_LEN: usize = 32;

/// The keyed digest of a secret. Compared in constant time, and overwritten with zeros when it is
/// dropped.
#[derive(Clone)]
pub struct SecretDigest(Zeroizing<[u8; DIGEST_LEN]>);

impl SecretDigest {
    /// A digest of 256 bits.
    #[must_use]
    pub fn new(digest: [u8; DIGEST_LEN]) -> Self {
        Self(Zeroizing::new(digest))
    }
}

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

/// As whom the server knows a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    user: Box<[u8]>,
    secret: SecretDigest,
}

/// What the clients of a group have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupKey {
    /// `None`: the clients have sent no credentials.
    identity: Option<Identity>,
    db: u32,
    resp3: bool,
    read_only: bool,
    no_touch: bool,
}

impl GroupKey {
    /// The group of a session in that state, which the server has confirmed. `digest` computes the
    /// keyed digest of a secret.
    pub fn new(state: &SharedState<'_>, digest: impl FnOnce(&[u8]) -> [u8; DIGEST_LEN]) -> Self {
        let identity = state.credentials.map(|(user, secret)| Identity {
            user: user.into(),
            secret: SecretDigest::new(digest(secret)),
        });
        Self {
            identity,
            db: state.db,
            resp3: state.resp3,
            read_only: state.read_only,
            no_touch: state.no_touch,
        }
    }

    /// Whether its clients have sent credentials.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.identity.is_some()
    }

    /// Whether its clients use RESP3.
    #[must_use]
    pub fn resp3(&self) -> bool {
        self.resp3
    }
}

/// A group. The number is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(u64);

#[derive(Debug)]
struct Entry<T> {
    id: GroupId,
    key: GroupKey,
    members: u32,
    value: T,
}

/// The groups of a worker, each with a value of the caller: its connections.
#[derive(Debug)]
pub struct Groups<T> {
    entries: Vec<Entry<T>>,
    next: u64,
    most: usize,
}

impl<T> Groups<T> {
    /// At most `most` groups.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { entries: Vec::new(), next: 0, most }
    }

    /// A session joins the group of `key`, which is created if there is none. `None` if there are
    /// too many groups: the session keeps a connection of its own. All keys are compared, so that
    /// the time does not depend on which one is equal.
    pub fn join(&mut self, key: GroupKey, value: impl FnOnce() -> T) -> Option<GroupId> {
        let mut found = None;
        for entry in &mut self.entries {
            if entry.key == key {
                found = Some(entry);
            }
        }
        if let Some(entry) = found {
            entry.members += 1;
            return Some(entry.id);
        }
        if self.entries.len() >= self.most {
            return None;
        }
        let id = GroupId(self.next);
        self.next += 1;
        self.entries.push(Entry { id, key, members: 1, value: value() });
        Some(id)
    }

    /// The key and the value of a group.
    pub fn get(&mut self, id: GroupId) -> Option<(&GroupKey, &mut T)> {
        let entry = self.entries.iter_mut().find(|entry| entry.id == id)?;
        Some((&entry.key, &mut entry.value))
    }

    /// A session leaves its group. Returns the value if it was the last one: the connections are
    /// closed, and the digest is overwritten.
    pub fn leave(&mut self, id: GroupId) -> Option<T> {
        let at = self.entries.iter().position(|entry| entry.id == id)?;
        let entry = self.entries.get_mut(at)?;
        entry.members = entry.members.saturating_sub(1);
        (entry.members == 0).then(|| self.entries.swap_remove(at).value)
    }

    /// The number of groups.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no group.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
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
        let mut groups = Groups::new(100);
        let ids: std::collections::BTreeSet<GroupId> = others
            .iter()
            .map(|state| groups.join(GroupKey::new(state, digest), || ()).unwrap())
            .collect();
        assert_eq!(ids.len(), others.len());
        for (state, id) in others.iter().zip(&ids) {
            assert_eq!(groups.join(GroupKey::new(state, digest), || ()), Some(*id));
        }
    }

    #[test]
    fn removes_empty_groups_and_never_reuses_them() {
        let key = || GroupKey::new(&state(Some((b"u", b"p"))), digest);
        let mut groups = Groups::new(1);
        let first = groups.join(key(), || 7).unwrap();
        assert_eq!(groups.join(key(), || 8), Some(first));
        assert_eq!(groups.join(GroupKey::new(&state(None), digest), || 9), None, "too many");
        assert_eq!((groups.leave(first), groups.leave(first)), (None, Some(7)));
        assert!(groups.is_empty() && groups.get(first).is_none() && groups.leave(first).is_none());
        let second = groups.join(key(), || 10).unwrap();
        assert!(second != first && groups.get(second).is_some());
    }

    #[test]
    fn shows_no_secret() {
        let key = GroupKey::new(&state(Some((b"u", b"hunter2"))), digest);
        let shown = format!("{key:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("104"), "{shown}");
    }
}
