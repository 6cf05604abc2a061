//! Which services there are: one for each master, with the listeners of its clients and readers.
//!
//! Listeners are merged into one service only if their servers are the same. A name alone, above
//! all an assumed one, does not show that two listeners lead to the same dataset, and neither do
//! equal hosts: several Redis processes may run on one host.

use std::collections::BTreeSet;

use crate::health_check::{CheckLogin, Password, Role};
use crate::plan::{NamedListener, Plan, PlannedService, Planner};
use crate::proxies::{self, RedisListener};
use crate::report::LineOutcome;
use crate::sections::Directive;
use crate::tls::planned_keys;
use crate::tokenizer::safe_word;

/// Words in listener names that usually mean readers.
const READER_WORDS: &[&str] = &["ro", "read", "reader", "readers", "reads", "secondary"];
const ASSUMED_SENTINELS: &str =
    "The sentinels are assumed on the hosts of the Redis servers: haproxy.cfg names none.";
/// What becomes of a rule that leads writers to replicas.
const WAITING: &str = "haproxy led writers to replicas here; Pointsman lets them wait for a master";
/// What becomes of a rule that leads readers to the master.
const EMPTY: &str = "service.replicas.empty = \"master\": all readers of the service reach the master \
                     while no replica is eligible";
/// Endings of such words.
const READER_ENDINGS: &[&str] = &["readonly", "slave", "slaves", "replica", "replicas"];

impl<'a> Planner<'a> {
    pub(super) fn add_services(&mut self, plan: &mut Plan<'a>) {
        let (masters, replicas) = self.by_role();
        let named: Vec<_> = masters.into_iter().map(|it| self.name_of(it)).collect();
        let names = Self::service_names(&named);
        for (named, name) in named.into_iter().zip(names) {
            self.add_master(named, name, plan);
        }
        for listener in replicas {
            self.add_replicas(listener, plan);
        }
    }

    fn role_of(&self, backend: &str) -> Option<Role> {
        self.config.check(self.config.backend(backend)?)?.role
    }

    /// The rules that lead clients of this role to servers of the other one.
    fn exceptions(&self, listener: &RedisListener, role: Role) -> Vec<&'a Directive> {
        let is_other = |it: &&Directive| self.role_of(&it.word(1)).is_some_and(|it| it != role);
        let rules = self.config.lines(listener.section, "use_backend");
        rules.filter(is_other).collect()
    }

    /// Refuses a listener that selects the role by client or traffic, and reports one that does so
    /// while the servers of the usual role are down.
    fn refuse_roles(&mut self, listener: &RedisListener, role: Role) -> bool {
        let all = self.proxies.listeners.iter();
        let is_only = all.filter(|it| it.role == listener.role).count() == 1;
        let own = self.config.directives(listener.section);
        for rule in self.exceptions(listener, role) {
            if !proxies::is_about_health(own, rule) {
                let name = safe_word(&listener.name);
                let message = format!("{name} selects the master or replicas by client or traffic");
                self.refuse(rule, message, "give writers and readers a frontend each");
                return true;
            }
            let is_certain = role == Role::Replica && is_only && self.is_for_no_replica(rule);
            let outcome = if is_certain { LineOutcome::Mapped } else { LineOutcome::Assumed };
            self.notes.add(rule, outcome, if role == Role::Master { WAITING } else { EMPTY });
        }
        false
    }

    /// Whether a rule applies exactly while all replicas are down.
    fn is_for_no_replica(&self, rule: &Directive) -> bool {
        let text = rule.rest(2).join(" ");
        let test = text.strip_prefix("if { nbsrv(").and_then(|it| it.split_once(") "));
        test.is_some_and(|(backend, test)| {
            let is_none = ["lt 1 }", "eq 0 }"].contains(&test);
            is_none && self.role_of(backend) == Some(Role::Replica)
        })
    }

    /// Listeners for the master and listeners for replicas. A listener whose checks do not ask for
    /// the role is for replicas only if its name says so and another listener is for the master.
    fn by_role(&mut self) -> (Vec<&'a RedisListener>, Vec<&'a RedisListener>) {
        let listeners: &'a [RedisListener] = &self.proxies.listeners;
        let has_master = listeners.iter().any(|it| it.role == Some(Role::Master));
        let is_reader = |it: &RedisListener| {
            let name = it.name.to_ascii_lowercase();
            name.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| {
                READER_WORDS.contains(&word)
                    || READER_ENDINGS.iter().any(|ending| word.ends_with(ending))
            })
        };
        listeners.iter().partition(|it| match it.role {
            Some(role) => role == Role::Master,
            None => !has_master || !is_reader(it),
        })
    }

    fn add_master(&mut self, first: NamedListener<'a>, name: String, plan: &mut Plan<'a>) {
        let NamedListener { listener, master, .. } = &first;
        let listener: &'a RedisListener = listener;
        if self.refuse_roles(listener, Role::Master)
            | self.refuse_routing(listener, first.is_given)
            | self.refuse_name(&first)
        {
            return;
        }
        let listen = self.listen_of(listener.section, "service.listen");
        let Some((sentinels, sentinels_at)) = self.sentinels_of(listener) else { return };
        if listen.is_empty() {
            // An address that cannot be read was refused already.
            if self.refusals.is_empty() {
                let name = safe_word(&listener.name);
                let message = format!("{name} has no address that Pointsman can listen on");
                self.refuse(listener, message, "add a `bind` with an IP address and a port");
            }
            return;
        }
        self.note_assumptions(&first);
        let same = |it: &&mut PlannedService<'_>| {
            it.first.master == *master && it.first.listener.servers == listener.servers
        };
        if let Some(service) = plan.services.iter_mut().find(same) {
            if !self.may_merge(listener, service, &sentinels, sentinels_at.is_some()) {
                return;
            }
            let note = format!("one more address of [[service]] {}", service.name);
            self.notes.add(listener, LineOutcome::Mapped, &note);
            self.adopt_login(listener, service);
            service.listen.extend(listen);
            service.masters.push(listener);
            return;
        }
        if self.refuse_one_master_of_two(&first, &sentinels, plan) {
            return;
        }
        self.notes.add(listener, LineOutcome::Mapped, &format!("[[service]] {name}"));
        let comments = self.comments(&first, sentinels_at.is_none());
        let sentinel_login = listener.queries.iter().find_map(|query| query.login.clone());
        let login = listener.login.clone();
        for (login, table) in [(&login, "auth"), (&sentinel_login, "sentinel_auth")] {
            if let Some(login) = login {
                self.note_login(login, table);
            }
        }
        self.note_computed(listener);
        plan.services.push(PlannedService {
            name,
            masters: vec![listener],
            readers: Vec::new(),
            listen,
            replica_listen: Vec::new(),
            sentinels,
            sentinels_at,
            keys: Vec::new(),
            tables: Vec::new(),
            comments,
            login,
            sentinel_login,
            first,
        });
    }

    /// Refuses two listeners without a server in common that would ask the same sentinels for the
    /// same master: the clients of one would get the data of the other.
    fn refuse_one_master_of_two(
        &mut self,
        named: &NamedListener<'_>,
        sentinels: &[String],
        plan: &Plan<'_>,
    ) -> bool {
        let NamedListener { listener, master, named_at, .. } = named;
        let Some(other) = plan.services.iter().find(|it| {
            it.first.master == *master
                && it.first.listener.servers.is_disjoint(&listener.servers)
                && it.sentinels.iter().any(|sentinel| sentinels.contains(sentinel))
        }) else {
            return false;
        };
        let (first, second) = (safe_word(&other.first.listener.name), safe_word(&listener.name));
        let message = format!(
            "{first} and {second} have different servers, and both would ask the same sentinels \
             for {master:?}"
        );
        let addrs = format!("--sentinel {first}=HOST:PORT --sentinel {second}=HOST:PORT");
        let mut names = Vec::new();
        for (name, named_at) in [(&first, &other.first.named_at), (&second, named_at)] {
            if named_at.is_none() {
                names.push(format!("--name {name}=NAME"));
            }
        }
        let remedy = if names.is_empty() {
            format!("name the sentinels of each: {addrs}")
        } else {
            let names = names.join(" ");
            format!("name the master of each: {names}; or the sentinels of each: {addrs}")
        };
        self.refuse(listener, message, remedy);
        true
    }

    fn note_assumptions(&mut self, named: &NamedListener<'_>) {
        let NamedListener { listener, master, assumption, .. } = named;
        if listener.role.is_none() {
            let note =
                "no check asks for the role: haproxy used any server, Pointsman uses the master";
            self.notes.add(listener, LineOutcome::Assumed, note);
        }
        if let Some(assumption) = assumption {
            let note = format!("the name {master} {assumption}");
            self.notes.add(listener, LineOutcome::Assumed, &note);
        }
    }

    /// Refuses a listener that spreads its clients over servers that need not share a dataset.
    fn refuse_routing(&mut self, listener: &RedisListener, is_named: bool) -> bool {
        let name = safe_word(&listener.name);
        if let Some(rule) = &listener.unknown_rule {
            let backend = safe_word(&rule.word(1));
            let message =
                format!("the backend {backend} of {name} is computed, or not in the file");
            self.refuse(rule, message, "give each group of servers a frontend of its own");
            return true;
        }
        if let Some(rule) = &listener.routed_by {
            if listener.differs {
                let message =
                    format!("{name} selects between different servers by client or traffic");
                let remedy = "give each group of servers a frontend of its own in the file";
                self.refuse(rule, message, remedy);
                return true;
            }
            let note =
                "Pointsman does not select by client or traffic: all clients are treated alike";
            self.notes.add(rule, LineOutcome::Unmatched, note);
        }
        let masters: BTreeSet<&str> =
            listener.queries.iter().map(|it| it.master.as_str()).collect();
        let mut given = self.options.sentinels.iter();
        let has_sentinels = given.any(|(of, _)| of.as_ref() == Some(&listener.name));
        let mut remedy =
            format!("if they are one master with its replicas, name it: --name {name}=NAME");
        let message = match masters.len() {
            _ if is_named => return false,
            0 if !listener.differs => return false,
            0 => format!(
                "the backends of {name} have different servers, and no check queries Sentinel"
            ),
            1 if !listener.has_strangers || has_sentinels => return false,
            1 => {
                remedy = format!(
                    "if they are one master with its replicas, name its sentinels: \
                     --sentinel {name}=HOST:PORT; else give each a frontend of its own"
                );
                format!("{name} can lead to servers that no sentinel's answer selects")
            }
            _ => {
                let all: Vec<String> = masters.iter().map(|it| safe_word(it)).collect();
                format!("the checks of {name} ask for several masters: {}", all.join(", "))
            }
        };
        self.refuse(listener, message, remedy);
        true
    }

    /// Whether a listener with the servers and the master of a known service asks the same
    /// sentinels.
    fn may_merge(
        &mut self,
        listener: &RedisListener,
        service: &mut PlannedService<'_>,
        sentinels: &[String],
        are_found: bool,
    ) -> bool {
        if service.sentinels != sentinels && are_found {
            if service.sentinels_at.is_some() {
                let (one, other) =
                    (safe_word(&service.first.listener.name), safe_word(&listener.name));
                let message = format!(
                    "{one} and {other} ask different sentinels for {:?}",
                    service.first.master
                );
                self.refuse(listener, message, "name the sentinels: --sentinel HOST:PORT");
                return false;
            }
            // The first listener only assumed its sentinels.
            service.sentinels = sentinels.to_vec();
        }
        true
    }

    /// What is assumed, as comments above the service.
    fn comments(&self, named: &NamedListener<'_>, assumed_sentinels: bool) -> Vec<String> {
        let name = named.assumption.map(|it| format!("The name {:?} {it}.", named.master));
        let is_assumed = assumed_sentinels && self.option_sentinels(named.listener).is_empty();
        let sentinels = is_assumed.then(|| ASSUMED_SENTINELS.to_owned());
        name.into_iter().chain(sentinels).collect()
    }

    fn note_login(&mut self, login: &CheckLogin, table: &str) {
        let note = match &login.password {
            Password::Literal(_) => format!("service.{table}.password"),
            Password::Variable(name) => format!("service.{table}.password_env = {name:?}"),
            Password::Computed => {
                let note =
                    format!("the password is computed or escaped: add service.{table} by hand");
                return self.notes.add(&login.position, LineOutcome::Unmatched, &note);
            }
        };
        self.notes.add(&login.position, LineOutcome::Mapped, &note);
    }

    /// Reports parts of the checks that may contain a password and cannot be read.
    fn note_computed(&mut self, listener: &RedisListener) {
        for at in listener.backends.iter().chain(&listener.voters) {
            for position in self.config.check(*at).into_iter().flat_map(|it| &it.computed) {
                let note =
                    "haproxy computes what is sent: if it authenticates, add service.auth by hand";
                self.notes.add(position, LineOutcome::Unmatched, note);
            }
        }
    }

    fn add_replicas(&mut self, listener: &'a RedisListener, plan: &mut Plan<'a>) {
        let name = safe_word(&listener.name);
        let option = self.option_name(Some(&listener.name));
        let queried: BTreeSet<&str> =
            listener.queries.iter().map(|it| it.master.as_str()).collect();
        let is_named = option.is_some();
        let Some(service) = service_of(listener, option.as_deref(), &queried, plan) else {
            // After an earlier refusal the service may be missing only because of that.
            if self.refusals.is_empty() {
                let message = format!(
                    "{name} is for readers, and its servers belong to no single master of this file"
                );
                let known: Vec<String> =
                    plan.services.iter().map(|it| format!("--name {name}={}", it.name)).collect();
                let remedy = if known.is_empty() {
                    "import it together with the listener of its writers, or keep it in haproxy"
                        .to_owned()
                } else {
                    format!("say whose replicas they are: {}", known.join(" or "))
                };
                self.refuse(listener, message, remedy);
            }
            return;
        };
        let is_given = !self.option_sentinels(listener).is_empty();
        if self.refuse_roles(listener, Role::Replica)
            || self.refuse_routing(listener, is_named)
            || !is_given && self.asked(listener).is_none()
        {
            return;
        }
        if let Some(rule) = self.exceptions(listener, Role::Replica).first()
            && !service.tables.iter().any(|(table, _)| *table == "replicas")
        {
            let keys = vec![("empty", "\"master\"".to_owned())];
            service.tables.push(("replicas", planned_keys(keys, rule)));
        }
        let listen = self.listen_of(listener.section, "service.replica_listen");
        let note = format!("readers of [[service]] {}", service.name);
        self.notes.add(listener, LineOutcome::Mapped, &note);
        if listener.role.is_none() {
            let note = "no check asks for the role: it is for readers only by its name";
            self.notes.add(listener, LineOutcome::Assumed, note);
        } else if service.first.listener.servers != listener.servers {
            let note = "its servers are not the master's; Pointsman uses all replicas";
            self.notes.add(listener, LineOutcome::Assumed, note);
        }
        self.adopt_login(listener, service);
        if !listen.is_empty() {
            service.readers.push(listener);
        }
        service.replica_listen.extend(listen);
    }

    /// Takes the login of a further listener if the service has none; reports one that differs.
    fn adopt_login(&mut self, listener: &RedisListener, service: &mut PlannedService<'_>) {
        let Some(login) = &listener.login else { return };
        match &service.login {
            None => {
                self.note_login(login, "auth");
                service.login = Some(login.clone());
            }
            Some(known) if (&known.user, &known.password) != (&login.user, &login.password) => {
                let note = format!(
                    "another login than that of {}, which the service uses",
                    safe_word(&service.first.listener.name)
                );
                self.notes.add(&login.position, LineOutcome::Assumed, &note);
            }
            Some(_) => {}
        }
    }
}

/// The service whose replicas a listener for readers leads to: that of an option, by its own name
/// or its master's, or the only one with a common server. None if there are several.
fn service_of<'p, 'a>(
    listener: &RedisListener,
    option: Option<&str>,
    queried: &BTreeSet<&str>,
    plan: &'p mut Plan<'a>,
) -> Option<&'p mut PlannedService<'a>> {
    let shares =
        |it: &PlannedService<'_>| !it.first.listener.servers.is_disjoint(&listener.servers);
    let is_asked = |it: &PlannedService<'_>| queried.iter().all(|name| it.first.master == *name);
    let mut found: Vec<&'p mut PlannedService<'a>> = plan.services.iter_mut().collect();
    match option {
        Some(option) => {
            let is_name = found.iter().any(|it| it.name == option);
            found.retain(|it| if is_name { it.name == option } else { it.first.master == option });
            if found.len() > 1 {
                found.retain(|it| shares(it));
            }
        }
        None => found.retain(|it| shares(it) && is_asked(it)),
    }
    let only = found.pop();
    only.filter(|_| found.is_empty())
}
