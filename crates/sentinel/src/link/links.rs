//! The set of links to sentinels, each opened once and shared by all services that need it.
//!
//! A sentinel is shared by every service that configures or learns it with the same credentials.
//! The set of required links is computed anew whenever something changes, and `reconcile` applies
//! the difference; nothing else opens or closes a link.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tls::{FaultKind, Version};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use crate::clock;
use crate::link::connection::Protocol;
use crate::link::login::{Access, Login};
use crate::link::messages::{LinkError, LinkId};
use crate::link::rotation::CredentialStatus;
use crate::link::{self, Environment, LinkConfig};
use crate::rate_limiter::RateLimiter;
use crate::{MyId, NodeAddr};

/// Limit of sentinel links per process.
const MAX_LINKS: usize = 512;

/// The problem of a link without events.
const UNSUBSCRIBED: &str = "its ACL does not allow SUBSCRIBE: switches are found by polling only";

/// The number that stands for no credentials in plain text, whatever the services have.
pub(crate) const ANONYMOUS: usize = usize::MAX;

/// Identifies a link: the address to dial, and the number of the credentials, which stands for the
/// settings of TLS as well.
pub(crate) type LinkKey = (NodeAddr, usize);

/// A requested link.
#[derive(Debug, Clone, Default)]
pub(crate) struct LinkRequest {
    /// The services that need it, by number.
    pub(crate) services: BTreeSet<usize>,
    /// Set if the link is needed only as one of these sentinels.
    pub(crate) expect: Option<BTreeSet<MyId>>,
}

/// A link's handle and its state.
pub(crate) struct Link {
    pub(crate) id: LinkId,
    /// The address to dial.
    pub(crate) addr: NodeAddr,
    pub(crate) services: BTreeSet<usize>,
    /// The sentinel that answers and its resolved address; `None` while the link is down.
    pub(crate) up: Option<(MyId, SocketAddr)>,
    /// It gets no password, although the service may have one.
    pub(crate) anonymous: bool,
    /// The sentinel that answered last.
    pub(crate) last_id: Option<MyId>,
    pub(crate) events: bool,
    /// The version of TLS; `None` for plain text.
    pub(crate) tls: Option<Version>,
    /// How many connections the sentinel last reported.
    pub(crate) connections: u32,
    /// Why the link is down, for operators.
    pub(crate) problem: Option<String>,
    /// The kind of the problem, if it is one of TLS.
    pub(crate) tls_fault: Option<FaultKind>,
    /// Problems of its answers about a service, by the service's number.
    pub(crate) poll_errors: BTreeMap<usize, String>,
    /// Limits the log lines about this link.
    pub(crate) log_limiter: RateLimiter,
    masters: watch::Sender<Vec<Arc<str>>>,
    logins: watch::Sender<Login>,
    expect: watch::Sender<Option<BTreeSet<MyId>>>,
    polls: Arc<watch::Sender<BTreeSet<Arc<str>>>>,
    _task: AbortOnDropHandle<()>,
}

impl Link {
    /// The MYID of the sentinel that answers.
    pub(crate) fn id(&self) -> Option<&MyId> {
        self.up.as_ref().map(|(id, _)| id)
    }

    /// Whether the link was learned from other sentinels and counts only under its announced MYID.
    pub(crate) fn is_learned(&self) -> bool {
        self.expect.borrow().is_some()
    }

    /// The connection is established. Returns the sentinel that answered here before, if it was
    /// another one.
    pub(crate) fn on_up(
        &mut self,
        id: MyId,
        addr: SocketAddr,
        protocol: Protocol,
        events: bool,
        tls: Option<Version>,
    ) -> Option<MyId> {
        let (sentinel, my_id) = (self.addr.clone(), id.clone());
        let protocol = match protocol {
            Protocol::Resp2 => "resp2",
            Protocol::Resp3 => "resp3",
        };
        if self.up.is_none() || self.problem.is_some() {
            self.log_limiter.log(clock::now(), move |suppressed| {
                info!(
                    %sentinel, id = my_id.short(), protocol, events, suppressed,
                    tls = tls.map_or("off", Version::label),
                    "sentinel connected"
                );
                if !events {
                    warn!(%sentinel, "{UNSUBSCRIBED}");
                }
            });
        }
        let before = self.last_id.replace(id.clone()).filter(|before| *before != id);
        self.up = Some((id, addr));
        (self.events, self.tls) = (events, tls);
        (self.problem, self.tls_fault) = (None, None);
        before
    }

    /// The connection ended, or could not be made. Returns the sentinel that answered.
    pub(crate) fn on_down(&mut self, error: &LinkError) -> Option<MyId> {
        let lost = self.up.take().map(|(id, _)| id);
        self.tls = None;
        self.record(lost.is_some(), describe(error), error);
        self.poll_errors.clear();
        lost
    }

    /// New connections fail, while the present one works. What concerns credentials is reported by
    /// their rotation.
    pub(crate) fn on_unrenewed(&mut self, error: &LinkError) {
        if matches!(error, LinkError::Denied(denied) if !denied.is_server_wide()) {
            (self.problem, self.tls_fault) = (None, None);
        } else {
            let problem =
                format!("new connections fail, one from before works: {}", describe(error));
            self.record(false, problem, error);
        }
    }

    fn record(&mut self, is_news: bool, problem: String, error: &LinkError) {
        if is_news || self.problem.as_ref() != Some(&problem) {
            self.warn(&problem);
        }
        self.problem = Some(problem);
        self.tls_fault = match error {
            LinkError::Tls(fault) => Some(fault.kind),
            _ => None,
        };
    }

    /// Logs, rate-limited, that this sentinel is unavailable.
    pub(crate) fn warn(&mut self, problem: &str) {
        let (sentinel, problem) = (self.addr.clone(), problem.to_owned());
        self.log_limiter.log(clock::now(), move |suppressed| {
            warn!(%sentinel, suppressed, %problem, "sentinel unavailable");
        });
    }

    /// Records what is wrong with its answers about one service, and logs a change.
    pub(crate) fn set_poll_error(&mut self, service: usize, trouble: Option<String>) {
        if self.poll_errors.get(&service) == trouble.as_ref() {
            return;
        }
        match trouble {
            None => drop(self.poll_errors.remove(&service)),
            Some(trouble) => {
                self.warn(&trouble);
                self.poll_errors.insert(service, trouble);
            }
        }
    }

    /// The problem of this link as far as this service is concerned, for operators.
    pub(crate) fn problem_for(&self, service: usize) -> Option<String> {
        let unsubscribed = (self.up.is_some() && !self.events).then(|| UNSUBSCRIBED.to_owned());
        let withheld = |problem: String| {
            let cure = "name it in sentinels, set nodes, or use sentinel_tls";
            format!("{problem} (a listed sentinel gets no password from here: {cure})")
        };
        let problem = self.problem.clone();
        let problem = if self.anonymous { problem.map(withheld) } else { problem };
        problem.or_else(|| self.poll_errors.get(&service).cloned()).or(unsubscribed)
    }

    /// Requests a poll about this master.
    pub(crate) fn ask(&self, master: &Arc<str>) {
        self.polls.send_modify(|names| {
            names.insert(Arc::clone(master));
        });
    }
}

/// The set of links.
pub(crate) struct Links {
    by_key: BTreeMap<LinkKey, Link>,
    /// By the number in a [`LinkKey`].
    pub(crate) logins: BTreeMap<usize, Login>,
    next_login: usize,
    /// Sentinel's name of each service's master.
    pub(crate) names: BTreeMap<usize, Arc<str>>,
    made: u64,
    pub(crate) env: Environment,
}

impl Links {
    /// No links yet.
    pub(crate) fn new(env: Environment) -> Self {
        Self {
            by_key: BTreeMap::new(),
            logins: BTreeMap::new(),
            next_login: 0,
            names: BTreeMap::new(),
            made: 0,
            env,
        }
    }

    /// The credentials with this number.
    pub(crate) fn login(&self, number: usize) -> Login {
        self.logins
            .get(&number)
            .cloned()
            .unwrap_or_else(|| Login::new(Access::default(), self.env.resolver.host()))
    }

    /// The state of the credentials for the sentinels of this service.
    pub(crate) fn credential_status(&self, service: usize) -> CredentialStatus {
        let links = |(key, link): (&LinkKey, &Link)| {
            (key.1 != ANONYMOUS && link.services.contains(&service)).then(|| key.clone())
        };
        let keys: Vec<LinkKey> = self.by_key.iter().filter_map(links).collect();
        let Some((_, number)) = keys.first() else { return CredentialStatus::default() };
        let is_ours = |addr: &NodeAddr| keys.iter().any(|(it, _)| it == addr);
        self.login(*number).status(is_ours)
    }

    /// Gives other credentials to some of the services that share those with `number`, with the
    /// present ones as the fallback. Links that only these services use are kept. Returns the
    /// number of the new credentials.
    pub(crate) fn branch(
        &mut self,
        number: usize,
        movers: &BTreeSet<usize>,
        access: Access<'_>,
    ) -> usize {
        let Some(login) = self.logins.get(&number) else { return number };
        let login = login.branch(access);
        let branch = self.add_login(login.clone());
        // A service that has just been removed is still listed.
        let exists = |service: &&usize| self.names.contains_key(service);
        let moves = |(key, link): (&LinkKey, &Link)| {
            key.1 == number && link.services.iter().filter(exists).all(|it| movers.contains(it))
        };
        let keys: Vec<LinkKey> =
            self.by_key.iter().filter(|it| moves(*it)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            if let Some(link) = self.by_key.remove(&key) {
                link.logins.send_replace(login.clone());
                self.by_key.insert((key.0, branch), link);
            }
        }
        branch
    }

    /// The number that identifies these credentials in a [`LinkKey`].
    pub(crate) fn number(&mut self, access: Access<'_>) -> usize {
        let known = self.logins.iter().find(|(_, login)| login.is(access));
        let known = known.map(|(number, _)| *number);
        known.unwrap_or_else(|| self.add_login(Login::new(access, self.env.resolver.host())))
    }

    fn add_login(&mut self, login: Login) -> usize {
        let number = self.next_login;
        self.next_login += 1;
        self.logins.insert(number, login);
        number
    }

    /// Opens requested links and closes all other links. If there are more requests than
    /// [`MAX_LINKS`], configured sentinels take precedence over learned ones.
    pub(crate) fn reconcile(&mut self, requests: &BTreeMap<LinkKey, LinkRequest>) {
        self.by_key.retain(|key, link| {
            let request = requests.get(key);
            // A connected sentinel that was not announced there must be dialled anew, or not at
            // all.
            request.is_some_and(|request| match (&request.expect, link.id()) {
                (Some(expected), Some(id)) => expected.contains(id),
                _ => true,
            })
        });
        let (configured, learned): (Vec<_>, Vec<_>) =
            requests.iter().partition(|(_, request)| request.expect.is_none());
        for (key, request) in configured.into_iter().chain(learned) {
            if let Some(link) = self.by_key.get_mut(key) {
                link.expect.send_if_modified(|expect| {
                    let changed = *expect != request.expect;
                    expect.clone_from(&request.expect);
                    changed
                });
                if link.services != request.services {
                    link.services.clone_from(&request.services);
                    link.poll_errors.retain(|service, _| request.services.contains(service));
                    let names = names_of(&self.names, request);
                    names.iter().for_each(|name| link.ask(name));
                    link.masters.send_replace(names);
                }
            } else if self.by_key.len() < MAX_LINKS {
                let link = self.open(key, request);
                self.by_key.insert(key.clone(), link);
            }
        }
    }

    fn open(&mut self, key: &LinkKey, request: &LinkRequest) -> Link {
        self.made += 1;
        let id = LinkId(self.made);
        let polls = Arc::<watch::Sender<_>>::default();
        let (masters, watch) = watch::channel(names_of(&self.names, request));
        let (expect, expected) = watch::channel(request.expect.clone());
        let (logins, login) = watch::channel(self.login(key.1));
        let config = LinkConfig {
            id,
            sentinel: key.0.clone(),
            expected_ids: expected,
            masters: watch,
            polls: Arc::clone(&polls),
            env: self.env.clone(),
        };
        Link {
            id,
            addr: key.0.clone(),
            services: request.services.clone(),
            up: None,
            anonymous: key.1 == ANONYMOUS,
            last_id: None,
            events: false,
            tls: None,
            connections: 0,
            problem: None,
            tls_fault: None,
            poll_errors: BTreeMap::new(),
            log_limiter: RateLimiter::new(5, Duration::from_secs(10)),
            masters,
            logins,
            expect,
            polls,
            _task: AbortOnDropHandle::new(tokio::spawn(link::run(config, login))),
        }
    }

    pub(crate) fn get_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        self.by_key.values_mut().find(|link| link.id == id)
    }

    /// The links that serve this service.
    pub(crate) fn for_service(&self, service: usize) -> impl Iterator<Item = &Link> {
        self.by_key.values().filter(move |link| link.services.contains(&service))
    }

    /// Writes delayed log lines of every link.
    pub(crate) fn flush_logs(&mut self, now: Instant) {
        self.by_key.values_mut().for_each(|link| link.log_limiter.flush(now));
    }

    /// The largest number of connections that a reachable sentinel of this service reported.
    pub(crate) fn connections(&self, service: usize) -> u32 {
        let up = self.for_service(service).filter(|link| link.up.is_some());
        up.map(|link| link.connections).max().unwrap_or(0)
    }

    /// Requests a poll of every sentinel of this service about its master.
    pub(crate) fn ask(&self, service: usize) {
        let Some(name) = self.names.get(&service) else { return };
        self.for_service(service).for_each(|link| link.ask(name));
    }

    /// Whether a link to this sentinel is up, at any address.
    pub(crate) fn is_reached(&self, service: usize, id: &MyId) -> bool {
        self.voting_link(service, id).is_some()
    }

    /// The link whose answers count as the vote of `id`, if several links lead to a sentinel with
    /// this MYID: a configured one takes precedence over a learned one, then the oldest.
    pub(crate) fn voting_link(&self, service: usize, id: &MyId) -> Option<&Link> {
        self.for_service(service)
            .filter(|link| link.id() == Some(id))
            .min_by_key(|link| (link.is_learned(), link.id))
    }

    /// Whether the answers of this link count as the vote of `id`.
    pub(crate) fn is_voting_link(&self, service: usize, link: LinkId, id: &MyId) -> bool {
        self.voting_link(service, id).is_some_and(|voting_link| voting_link.id == link)
    }

    /// The MYID of the sentinel that answers at this address.
    pub(crate) fn sentinel_at(&self, key: &LinkKey) -> Option<&MyId> {
        self.by_key.get(key).and_then(Link::id)
    }
}

/// The masters to poll, each once.
fn names_of(names: &BTreeMap<usize, Arc<str>>, request: &LinkRequest) -> Vec<Arc<str>> {
    let asked: BTreeSet<&Arc<str>> =
        request.services.iter().filter_map(|service| names.get(service)).collect();
    asked.into_iter().map(Arc::clone).collect()
}

/// The error with its causes, on one line.
#[must_use]
pub fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
