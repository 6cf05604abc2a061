//! The new configuration as a plan: services with their addresses, sentinels and passwords, and what holds for the process.
//!
//! A listener becomes a service if its servers speak Redis. Two listeners before one master become one service with two addresses;
//! those for replicas are told apart and named. What the file does not say (who the sentinels are, what they call the master) is
//! assumed from what people usually have, and marked as assumed.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use proxy::ListenAddr;

use super::account::{Account, Verdict, safe_word};
use super::checks::{Login, Password, Role, value_of};
use super::proxies::{self, Listener, Proxies};
use super::sections::{Book, Directive};
use super::settings;
use super::units;
use super::{Fault, Given, Place};
use crate::config::{Endpoint, SENTINEL_PORT};

/// A key with its value in TOML.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) key: &'static str,
    pub(super) value: String,
    pub(super) place: Place,
}

/// Something found, and where.
pub(super) type Found<T> = (T, Place);

/// One `[[service]]`.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) name: String,
    /// Where the name comes from; none if it is assumed or given by hand.
    pub(super) named_at: Option<Place>,
    pub(super) listen: Vec<Found<ListenAddr>>,
    pub(super) replica_listen: Vec<Found<ListenAddr>>,
    pub(super) sentinels: Vec<Endpoint>,
    /// Where the first of the sentinels was found; none if they are assumed or given.
    pub(super) sentinels_at: Option<Place>,
    pub(super) settings: Vec<Setting>,
    /// Sentences for the head of the service.
    pub(super) remarks: Vec<String>,
    pub(super) login: Option<Login>,
    pub(super) sentinel_login: Option<Login>,
    servers: BTreeSet<String>,
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) services: Vec<Service>,
    pub(super) admin: Vec<Found<SocketAddr>>,
    pub(super) shutdown: Vec<Setting>,
    pub(super) process: Vec<Setting>,
}

impl Plan {
    /// Passwords that stand in the files, so that they can be kept out of whatever is shown.
    pub(super) fn secrets(&self) -> Vec<String> {
        let logins = self.services.iter().flat_map(|service| service.login.iter().chain(&service.sentinel_login));
        let literal = |login: &Login| match &login.password {
            Password::Literal(text) => Some(text.clone()),
            _ => None,
        };
        logins.filter_map(literal).collect()
    }
}

/// Makes the plan; what it reads and where it writes.
pub(super) struct Planner<'a> {
    pub(super) book: &'a Book,
    pub(super) proxies: &'a Proxies,
    pub(super) given: &'a Given,
    pub(super) account: &'a mut Account,
    pub(super) faults: &'a mut Vec<Fault>,
}

/// Makes the plan.
pub(super) fn plan(book: &Book, given: &Given, account: &mut Account, faults: &mut Vec<Fault>) -> Plan {
    let proxies = proxies::sort(book);
    let mut planner = Planner { book, proxies: &proxies, given, account, faults };
    let mut plan = Plan::default();
    let (masters, replicas) = planner.by_role();
    for listener in masters {
        planner.add_master(listener, &mut plan);
    }
    for listener in replicas {
        planner.add_replicas(listener, &mut plan);
    }
    planner.add_admin(&mut plan);
    planner.note_the_rest();
    if plan.services.is_empty() && planner.faults.is_empty() {
        planner.faults.push(planner.nothing_found());
    }
    let sections: Vec<(usize, &Listener)> = proxies.listeners.iter().map(|it| (it.section, it)).collect();
    settings::apply(book, &sections, &mut plan, account);
    plan
}

impl<'a> Planner<'a> {
    /// Listeners for the master and listeners for replicas. One without a role counts as one for the master, unless its name says
    /// otherwise and another is for the master.
    fn by_role(&mut self) -> (Vec<&'a Listener>, Vec<&'a Listener>) {
        let listeners: &'a [Listener] = &self.proxies.listeners;
        let has_master = listeners.iter().any(|it| it.role == Some(Role::Master));
        let names_replicas = |it: &Listener| {
            let name = it.name.to_ascii_lowercase();
            ["slave", "replica", "read", "_ro", "-ro"].iter().any(|word| name.contains(word))
        };
        let (masters, replicas): (Vec<_>, Vec<_>) = listeners.iter().partition(|it| match it.role {
            Some(role) => role == Role::Master,
            None => !(has_master && names_replicas(it)),
        });
        for listener in masters.iter().filter(|it| it.role.is_none()) {
            if let Some(section) = self.book.sections.get(listener.section) {
                let note =
                    "no check asks for the role, so haproxy sent clients to any of the servers; now to the master";
                self.account.note(&section.head, Verdict::Assumed, note);
            }
        }
        (masters, replicas)
    }

    fn add_master(&mut self, listener: &Listener, plan: &mut Plan) {
        let (name, named_at) = self.name_of(listener);
        let faults = self.faults.len();
        let (sentinels, sentinels_at) = self.sentinels_of(listener);
        let told = self.faults.len() > faults;
        let listen = self.listen_of(listener.section);
        let Some(section) = self.book.sections.get(listener.section) else { return };
        let lacks = if !is_master_name(&name) {
            let what = format!("{:?} cannot be the name of a master", safe_word(&name));
            Some((named_at.clone(), what, format!("give the name: --name {}=NAME", safe_word(&listener.name))))
        } else if listen.is_empty() {
            Some((None, format!("{} listens nowhere", safe_word(&listener.name)), "give it a bind over TCP".to_owned()))
        } else if sentinels.is_empty() && !told {
            let what = format!("nothing says where the sentinels of {} are", safe_word(&listener.name));
            Some((None, what, "name them: --sentinel HOST:PORT".to_owned()))
        } else {
            None
        };
        if let Some((place, what, remedy)) = lacks {
            self.faults.push(Fault::new(place.unwrap_or_else(|| section.head.place.clone()), what, remedy));
            return;
        }
        if sentinels.is_empty() {
            return;
        }
        if let Some(service) = plan.services.iter_mut().find(|it| it.name == name) {
            if service.sentinels == sentinels && (named_at.is_some() || service.servers == listener.servers) {
                self.account.note(&section.head, Verdict::Mapped, &format!("one more address of [[service]] {name}"));
                service.listen.extend(listen);
            } else {
                let what = format!("{} would be a second service called {name:?}", safe_word(&listener.name));
                let remedy =
                    format!("say what the sentinels call its master: --name {}=NAME", safe_word(&listener.name));
                self.faults.push(Fault::new(section.head.place.clone(), what, remedy));
            }
            return;
        }
        self.account.note(&section.head, Verdict::Mapped, &format!("[[service]] {name}"));
        let remarks = self.remarks(&name, named_at.as_ref(), sentinels_at.as_ref());
        let sentinel_login = listener.asks.iter().find_map(|asks| asks.login.clone());
        let login = listener.login.clone();
        for (login, section) in [(&login, "auth"), (&sentinel_login, "sentinel_auth")] {
            if let Some(login) = login {
                self.note_login(login, section);
            }
        }
        plan.services.push(Service {
            name,
            named_at,
            listen,
            replica_listen: Vec::new(),
            sentinels,
            sentinels_at,
            settings: Vec::new(),
            remarks,
            login,
            sentinel_login,
            servers: listener.servers.clone(),
        });
    }

    /// What of it is assumed, as sentences.
    fn remarks(&self, name: &str, named_at: Option<&Place>, sentinels_at: Option<&Place>) -> Vec<String> {
        let mut remarks = Vec::new();
        if named_at.is_none() && self.given.names.is_empty() {
            let text = "compare it with \"sentinel monitor\" in sentinel.conf.";
            remarks.push(format!("The name {name:?} is assumed: {text}"));
        }
        if sentinels_at.is_none() && self.given.sentinels.is_empty() {
            let text = "The sentinels are assumed beside the redis servers; the haproxy.cfg does not name any.";
            remarks.push(text.to_owned());
        }
        remarks
    }

    fn note_login(&mut self, login: &Login, section: &str) {
        let Some(directive) = self.directive_at(&login.place) else { return };
        let note = match &login.password {
            Password::Literal(_) => format!("service.{section}.password"),
            Password::Variable(name) => format!("service.{section}.password_env = {name:?}"),
            Password::Mixed => {
                let note = format!("the password is put together from variables: write service.{section} by hand");
                return self.account.note(directive, Verdict::Unmatched, &note);
            }
        };
        self.account.note(directive, Verdict::Mapped, &note);
    }

    pub(super) fn directive_at(&self, place: &Place) -> Option<&'a Directive> {
        self.book.at(place)
    }

    fn name_of(&mut self, listener: &Listener) -> (String, Option<Place>) {
        let given = |of: Option<&str>| {
            self.given.names.iter().find(|(listener, _)| listener.as_deref() == of).map(|(_, name)| name.clone())
        };
        if let Some(name) = given(Some(&listener.name)) {
            return (name, None);
        }
        if let Some(asks) = listener.asks.first() {
            if let Some(directive) = self.directive_at(&asks.place) {
                self.account.note(directive, Verdict::Mapped, &format!("service.name = {:?}", asks.master));
            }
            return (asks.master.clone(), Some(asks.place.clone()));
        }
        if let Some(name) = given(None) {
            return (name, None);
        }
        // Elsewhere in the file somebody asks the sentinels: with one name in all of it, that is the name.
        let all = self.proxies.checks.iter().filter_map(|check| check.sentinel.as_ref());
        let names: BTreeSet<&str> = all.map(|asks| asks.master.as_str()).collect();
        match names.first() {
            Some(name) if names.len() == 1 => ((*name).to_owned(), None),
            _ => ("mymaster".to_owned(), None),
        }
    }

    fn sentinels_of(&mut self, listener: &Listener) -> (Vec<Endpoint>, Option<Place>) {
        if !self.given.sentinels.is_empty() {
            return (self.given.sentinels.clone(), None);
        }
        let own: Vec<usize> = listener.voters.iter().chain(&listener.backends).copied().collect();
        let everywhere: Vec<usize> = (0..self.proxies.checks.len()).collect();
        for (at, backends) in [own, everywhere].into_iter().enumerate() {
            let (mut found, mut seen, mut first) = (Vec::new(), BTreeSet::new(), None);
            for backend in backends {
                let (named, unread) = self.proxies.sentinels(self.book, backend);
                for sentinel in named {
                    let Some(endpoint) = units::endpoint(&sentinel.host, sentinel.port) else {
                        self.unreadable_host(&sentinel.place, &sentinel.host);
                        continue;
                    };
                    first = first.or_else(|| Some(sentinel.place.clone()));
                    if let Some(directive) = self.directive_at(&sentinel.place) {
                        self.account.note(directive, Verdict::Mapped, "one of service.sentinels");
                    }
                    if seen.insert(endpoint.clone()) {
                        found.push(endpoint);
                    }
                }
                for directive in unread {
                    self.account.note(directive, Verdict::Unmatched, "not an address that can be dialled over TCP");
                }
            }
            if !found.is_empty() {
                if at > 0
                    && let Some(section) = self.book.sections.get(listener.section)
                {
                    let note = "no check of it asks a sentinel: those of the rest of the file are taken";
                    self.account.note(&section.head, Verdict::Assumed, note);
                }
                return (found, first);
            }
        }
        (self.beside_the_servers(listener), None)
    }

    /// Where people run their sentinels if nothing else is said: on the hosts of the redis servers.
    fn beside_the_servers(&mut self, listener: &Listener) -> Vec<Endpoint> {
        let mut found = Vec::new();
        for backend in &listener.backends {
            for server in proxies::servers(self.book, *backend) {
                let host = units::server(&server.address).map(|(host, _)| host);
                match host.as_deref().and_then(|host| units::endpoint(host, SENTINEL_PORT)) {
                    Some(endpoint) => {
                        let note = format!("a sentinel is assumed at {endpoint}; the server itself need not be named");
                        self.account.note(server.directive, Verdict::Assumed, &note);
                        if !found.contains(&endpoint) {
                            found.push(endpoint);
                        }
                    }
                    None => self.unreadable_host(&server.directive.place, &server.address),
                }
            }
        }
        found
    }

    fn unreadable_host(&mut self, place: &Place, host: &str) {
        let what = format!("{:?} is not a host", safe_word(host));
        let remedy = if host.contains("${") {
            "set the variable and run again"
        } else {
            "or name the sentinels: --sentinel HOST:PORT"
        };
        self.faults.push(Fault::new(place.clone(), what, remedy));
    }

    fn add_replicas(&mut self, listener: &Listener, plan: &mut Plan) {
        let Some(section) = self.book.sections.get(listener.section) else { return };
        let listen = self.listen_of(listener.section);
        let by_name = listener.asks.first().map(|asks| asks.master.clone());
        let by_servers = |it: &Service| it.servers.intersection(&listener.servers).next().is_some();
        let lone = plan.services.len() == 1;
        let service = plan.services.iter_mut().find(|it| by_name.as_ref() == Some(&it.name) || by_servers(it) || lone);
        let Some(service) = service else {
            let note = "its replicas belong to no master of this file";
            return self.account.overrule(&section.head, Verdict::Unmatched, note);
        };
        self.account.note(&section.head, Verdict::Mapped, &format!("readers of [[service]] {}", service.name));
        for (_, place) in &listen {
            if let Some(bind) = self.book.at(place).filter(|bind| !bind.words.iter().any(|word| word.is("ssl"))) {
                self.account.overrule(bind, Verdict::Mapped, "service.replica_listen");
            }
        }
        service.replica_listen.extend(listen);
    }
}

/// Whether Sentinel would take it as the name of a master; a variable that is not filled in is none.
fn is_master_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b))
}

/// Whether a server line asks for something that Pointsman lacks towards Redis.
pub(super) fn lacks(server: &Directive) -> Option<&'static str> {
    let has = |word: &str| server.words.iter().any(|own| own.is(word));
    if has("ssl") {
        return Some("connections to Redis are WITHOUT TLS");
    }
    if has("send-proxy") || has("send-proxy-v2") {
        return Some("the PROXY protocol is not spoken to Redis");
    }
    value_of(&server.words, "maxconn").map(|_| "there is no bound a server; service.max_connections bounds the clients")
}
