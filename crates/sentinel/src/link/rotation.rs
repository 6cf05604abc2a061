//! Which credentials a server gets while they are being replaced. Pure.
//!
//! The configured credentials are the *newest*. Those before them are kept until every server of
//! the set has accepted the newest: a password may reach the configuration before the servers, or
//! be wrong. A new connection presents the newest, unless this server has refused them; then the
//! ones that it accepted last. Without older credentials nothing is kept, and a refusal is
//! reported as it is.
//!
//! A server that is down keeps the older credentials in memory, since it may come back with the
//! old password. There are at most [`MAX_KNOWN`].

use std::collections::{BTreeMap, BTreeSet};

use crate::NodeAddr;
use crate::link::auth::{Credentials, Denied};

/// Maximum number of credentials that are known at a time, the newest included.
const MAX_KNOWN: usize = 3;

/// Identifies credentials within one [`Rotation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CredentialsId(u64);

/// Identifies a server within one [`Rotation`]: the same address may be in use twice for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServerId(u64);

/// Credentials to present to a server; `None` for no authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Presented {
    pub(crate) id: CredentialsId,
    pub(crate) credentials: Option<Credentials>,
}

/// A server that refuses the configured credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedCredentials {
    /// Its address.
    pub addr: NodeAddr,
    /// Why.
    pub denied: Denied,
    /// Older credentials are in use there.
    pub fallback: bool,
}

/// The state of the credentials for one set of servers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CredentialStatus {
    /// The servers that refuse the configured credentials.
    pub refused: Vec<RefusedCredentials>,
    /// The number of connections that still use older credentials, refused or not.
    pub outdated: usize,
}

#[derive(Debug)]
struct ServerRecord {
    addr: NodeAddr,
    accepted: Option<CredentialsId>,
    /// The credentials not to present again for now.
    refused: BTreeSet<CredentialsId>,
    /// Why it refused the newest.
    problem: Option<Denied>,
}

/// The known credentials, newest first, and what each server thinks of them.
#[derive(Debug)]
pub(crate) struct Rotation {
    known: Vec<Presented>,
    servers: BTreeMap<ServerId, ServerRecord>,
    last_id: u64,
}

impl Rotation {
    pub(crate) fn new(credentials: Option<Credentials>) -> Self {
        let known = vec![Presented { id: CredentialsId(0), credentials }];
        Self { known, servers: BTreeMap::new(), last_id: 0 }
    }

    /// A rotation to `credentials` for some of the servers of this one.
    pub(crate) fn branch(&self, credentials: Option<&Credentials>) -> Self {
        let mut branch =
            Self { known: self.known.clone(), servers: BTreeMap::new(), last_id: self.last_id };
        branch.put_first(credentials);
        branch
    }

    /// Makes `credentials` the newest. `false` if they already are.
    pub(crate) fn replace(&mut self, credentials: Option<&Credentials>) -> bool {
        if self.newest().credentials.as_ref() == credentials {
            return false;
        }
        self.put_first(credentials);
        // Credentials with which no connection was ever made are useless: a typing error.
        let used: BTreeSet<CredentialsId> =
            self.servers.values().filter_map(|server| server.accepted).collect();
        let newest = self.newest().id;
        if !used.is_empty() {
            self.known.retain(|it| it.id == newest || used.contains(&it.id));
        }
        self.known.truncate(MAX_KNOWN);
        self.forget_unknown();
        for server in self.servers.values_mut() {
            server.problem = None;
            server.refused.clear();
        }
        true
    }

    /// Has every connection opened anew with the present credentials: something else about them was
    /// changed.
    pub(crate) fn renew(&mut self) {
        let credentials = self.newest().credentials.clone();
        self.put_first(credentials.as_ref());
        self.forget_unknown();
    }

    fn put_first(&mut self, credentials: Option<&Credentials>) {
        self.known.retain(|it| it.credentials.as_ref() != credentials);
        // A new number also for credentials that are known: an earlier refusal may be outdated.
        self.last_id += 1;
        let id = CredentialsId(self.last_id);
        self.known.insert(0, Presented { id, credentials: credentials.cloned() });
    }

    fn forget_unknown(&mut self) {
        let known: BTreeSet<CredentialsId> = self.known.iter().map(|it| it.id).collect();
        for server in self.servers.values_mut() {
            server.accepted = server.accepted.filter(|id| known.contains(id));
            server.refused.retain(|id| known.contains(id));
        }
    }

    /// Adds a server.
    pub(crate) fn add(&mut self, addr: NodeAddr) -> ServerId {
        self.last_id += 1;
        let id = ServerId(self.last_id);
        self.servers.insert(
            id,
            ServerRecord { addr, accepted: None, refused: BTreeSet::new(), problem: None },
        );
        id
    }

    /// Removes a server.
    pub(crate) fn remove(&mut self, server: ServerId) {
        self.servers.remove(&server);
        self.retire();
    }

    /// The configured credentials.
    pub(crate) fn newest(&self) -> &Presented {
        // Never empty: every change keeps the first.
        #[expect(clippy::indexing_slicing, reason = "there is always a newest")]
        &self.known[0]
    }

    /// The credentials for a new connection to this server.
    pub(crate) fn present(&self, server: ServerId) -> Presented {
        let Some(record) = self.servers.get(&server) else { return self.newest().clone() };
        let untried = |it: &&Presented| !record.refused.contains(&it.id);
        let accepted = |it: &&Presented| record.accepted == Some(it.id) && untried(it);
        let newest = Some(self.newest()).filter(untried);
        newest
            .or_else(|| self.known.iter().find(accepted))
            .or_else(|| self.known.iter().find(untried))
            .unwrap_or_else(|| self.newest())
            .clone()
    }

    /// The server accepted these credentials.
    pub(crate) fn accept(&mut self, server: ServerId, id: CredentialsId) {
        let newest = self.newest().id;
        if let Some(record) = self.servers.get_mut(&server)
            && self.known.iter().any(|it| it.id == id)
        {
            record.accepted = Some(id);
            record.refused.remove(&id);
            if id == newest {
                record.problem = None;
            }
        }
        self.retire();
    }

    /// The server refused these credentials. Returns whether there are others that it has not
    /// refused. If there are none, all may be tried again.
    pub(crate) fn refuse(&mut self, server: ServerId, id: CredentialsId, denied: &Denied) -> bool {
        let newest = self.newest().id;
        let Some(record) = self.servers.get_mut(&server) else { return false };
        if !self.known.iter().any(|it| it.id == id) {
            return true;
        }
        if record.accepted == Some(id) {
            // It has other credentials than before: earlier refusals say nothing any more.
            record.accepted = None;
            record.refused.clear();
        }
        record.refused.insert(id);
        if id == newest {
            record.problem = Some(denied.clone());
        }
        let more = self.known.iter().any(|it| !record.refused.contains(&it.id));
        if !more {
            record.refused.clear();
        }
        more
    }

    /// Drops older credentials once every server has accepted the newest.
    fn retire(&mut self) {
        let newest = self.newest().id;
        if !self.servers.is_empty()
            && self.servers.values().all(|server| server.accepted == Some(newest))
        {
            self.known.truncate(1);
            self.forget_unknown();
        }
    }

    /// The state for operators, of the servers for which `of` holds.
    pub(crate) fn status(&self, of: impl Fn(&NodeAddr) -> bool) -> CredentialStatus {
        let newest = self.newest().id;
        let servers = || self.servers.values().filter(|server| of(&server.addr));
        let is_outdated =
            |server: &ServerRecord| server.accepted.is_some_and(|accepted| accepted != newest);
        let refused = servers().filter_map(|server| {
            let denied = server.problem.clone()?;
            let fallback = is_outdated(server);
            Some(RefusedCredentials { addr: server.addr.clone(), denied, fallback })
        });
        CredentialStatus {
            refused: refused.collect(),
            outdated: servers().filter(|server| is_outdated(server)).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(password: &str) -> Option<Credentials> {
        Some(Credentials::new(None, password))
    }

    fn addr(port: u16) -> NodeAddr {
        NodeAddr { host: "10.0.0.1".into(), port }
    }

    const WRONG: Denied = Denied::WrongPassword { setting: "service.auth" };

    /// Opens a new connection to a server with this password.
    fn connect(rotation: &mut Rotation, server: ServerId, password: &str) -> Option<CredentialsId> {
        for _ in 0..=MAX_KNOWN {
            let presented = rotation.present(server);
            if presented.credentials == secret(password) {
                rotation.accept(server, presented.id);
                return Some(presented.id);
            }
            if !rotation.refuse(server, presented.id, &WRONG) {
                return None;
            }
        }
        panic!("endless");
    }

    fn with_servers(password: &str, servers: u16) -> (Rotation, Vec<ServerId>) {
        let mut rotation = Rotation::new(secret(password));
        let ids: Vec<ServerId> = (1..=servers).map(|port| rotation.add(addr(port))).collect();
        for id in &ids {
            connect(&mut rotation, *id, password).expect("accepted");
        }
        (rotation, ids)
    }

    #[test]
    fn keeps_old_credentials_until_every_server_accepts_new() {
        let (mut rotation, ids) = with_servers("old", 2);
        assert!(rotation.replace(secret("new").as_ref()));
        assert!(!rotation.replace(secret("new").as_ref()), "unchanged");
        assert_eq!(rotation.status(|_| true).outdated, 2);
        connect(&mut rotation, ids[0], "new").expect("accepted");
        assert_eq!(rotation.known.len(), 2, "the second server may know the old one only");
        // The file came first: the second server refuses the new password for a while.
        connect(&mut rotation, ids[1], "old").expect("the fallback");
        let status = rotation.status(|_| true);
        let refused = RefusedCredentials { addr: addr(2), denied: WRONG.clone(), fallback: true };
        assert_eq!(status, CredentialStatus { refused: vec![refused], outdated: 1 });
        assert_eq!(rotation.present(ids[1]).credentials, secret("old"), "not refused twice");
        let newest = rotation.newest().id;
        rotation.accept(ids[1], newest);
        assert_eq!(rotation.status(|_| true), CredentialStatus::default());
        assert_eq!(rotation.known.len(), 1, "the old password is wiped");
    }

    #[test]
    fn forgets_wrong_password_when_it_is_repaired() {
        let (mut rotation, ids) = with_servers("old", 1);
        rotation.replace(secret("wrong").as_ref());
        connect(&mut rotation, ids[0], "old").expect("the fallback");
        rotation.replace(secret("right").as_ref());
        let known: Vec<_> = rotation.known.iter().map(|it| it.credentials.clone()).collect();
        assert_eq!(known, [secret("right"), secret("old")]);
        assert_eq!(rotation.status(|_| true).refused, [], "the new one has not been refused");
        // Or taken back.
        rotation.replace(secret("wrong").as_ref());
        rotation.replace(secret("old").as_ref());
        connect(&mut rotation, ids[0], "old").expect("accepted");
        assert_eq!(rotation.known.len(), 1);
    }

    #[test]
    fn tries_all_again_if_none_is_accepted() {
        let (mut rotation, ids) = with_servers("old", 1);
        rotation.replace(secret("new").as_ref());
        assert_eq!(connect(&mut rotation, ids[0], "other"), None);
        assert!(!rotation.status(|_| true).refused.is_empty());
        assert!(connect(&mut rotation, ids[0], "old").is_some());
        let newest = rotation.newest().id;
        rotation.accept(ids[0], newest);
        assert!(connect(&mut rotation, ids[0], "new").is_some());
    }

    #[test]
    fn reports_refusal_without_older_credentials() {
        let mut rotation = Rotation::new(secret("wrong"));
        let id = rotation.add(addr(1));
        assert_eq!(connect(&mut rotation, id, "right"), None);
        let [refused] = &rotation.status(|_| true).refused[..] else { panic!("one refusal") };
        assert!(!refused.fallback);
        assert_eq!(rotation.status(|it| *it != addr(1)), CredentialStatus::default());
        rotation.replace(secret("right").as_ref());
        assert!(connect(&mut rotation, id, "right").is_some());
        assert_eq!(rotation.status(|_| true), CredentialStatus::default());
    }

    #[test]
    fn bounds_known_credentials_and_forgets_gone_servers() {
        let (mut rotation, ids) = with_servers("0", 8);
        for number in 1..20 {
            rotation.replace(secret(&number.to_string()).as_ref());
            connect(&mut rotation, ids[number % 8], &number.to_string());
            assert!(rotation.known.len() <= MAX_KNOWN);
        }
        for id in ids {
            connect(&mut rotation, id, "19");
        }
        rotation.replace(secret("20").as_ref());
        let last = rotation.add(addr(9));
        for id in rotation.servers.keys().copied().collect::<Vec<_>>() {
            rotation.remove(id);
        }
        rotation.remove(last);
        let next = rotation.add(addr(10));
        assert!(connect(&mut rotation, next, "19").is_some(), "still a fallback");
        // In any order of changes and answers, a server gets what it accepts.
        let mut state = 3_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(state >> 33).expect("31 bits") % below
        };
        for _ in 0..500 {
            let (mut rotation, ids) = with_servers("a", 3);
            let mut server_has = ["a"; 3];
            for _ in 0..10 {
                let at = random(3);
                match random(3) {
                    0 => drop(rotation.replace(secret(["a", "b"][random(2)]).as_ref())),
                    1 => server_has[at] = ["a", "b"][random(2)],
                    _ => drop(connect(&mut rotation, ids[at], server_has[at])),
                }
                let knows = |it: &str| rotation.known.iter().any(|k| k.credentials == secret(it));
                let expected = knows(server_has[at]);
                assert_eq!(connect(&mut rotation, ids[at], server_has[at]).is_some(), expected);
            }
        }
    }
}
