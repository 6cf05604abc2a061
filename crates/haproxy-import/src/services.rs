//! Which services there are: one for each master, with the listeners of its clients and readers.
//!
//! Listeners are merged into one service only if their servers are the same. A name alone, above
//! all an assumed one, does not show that two listeners lead to the same dataset, and neither do
//! equal hosts: several Redis processes may run on one host.

use std::collections::BTreeSet;

use crate::health_check::{CheckLogin, Password, Role};
use crate::plan::{NameSource, Plan, PlannedService, Planner};
use crate::proxies::RedisListener;
use crate::report::LineOutcome;
use crate::tokenizer::safe_word;
use crate::{Refusal, proxies};

/// Words in listener names that usually mean readers.
const READER_WORDS: &[&str] = &["ro", "read", "reader", "readers", "reads", "secondary"];
/// Endings of such words.
const READER_ENDINGS: &[&str] = &["readonly", "slave", "slaves", "replica", "replicas"];

impl<'a> Planner<'a> {
    pub(super) fn add_services(&mut self, plan: &mut Plan) {
        let (masters, replicas) = self.by_role();
        for listener in masters {
            self.add_master(listener, plan);
        }
        for listener in replicas {
            self.add_replicas(listener, plan);
        }
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
        let (masters, replicas): (Vec<_>, Vec<_>) =
            listeners.iter().partition(|it| match it.role {
                Some(role) => role == Role::Master,
                None => !has_master || it.is_active_replica || !is_reader(it),
            });
        (masters, replicas)
    }

    fn add_master(&mut self, listener: &RedisListener, plan: &mut Plan) {
        let (name, source) = self.name_of(listener);
        if self.refuse_routing(listener, &source)
            | self.refuse_name(listener, &name, &source)
            | self.refuse_active_replica(listener, &source)
        {
            return;
        }
        let listen = self.listen_of(listener.section, "service.listen");
        let Some((sentinels, sentinels_at)) = self.sentinels_of(listener) else { return };
        if listen.is_empty() {
            let message = format!(
                "{} has no address that Pointsman can listen on to listen on",
                safe_word(&listener.name)
            );
            // An address that cannot be read was refused already.
            if self.refusals.is_empty() {
                self.refuse(
                    listener.section,
                    message,
                    "add a `bind` with an IP address and a port".to_owned(),
                );
            }
            return;
        }
        self.note_assumptions(listener, &name, &source);
        if let Some(at) = plan.services.iter().position(|it| it.name == name) {
            let Some(service) = plan.services.get_mut(at) else { return };
            if !self.may_merge(listener, &source, service, (&sentinels, sentinels_at.is_some())) {
                return;
            }
            let note = format!("one more address of [[service]] {name}");
            self.note_head(listener.section, LineOutcome::Mapped, &note);
            if service.servers != listener.servers {
                let note = "its servers are not those of the service; merged because of --name";
                self.note_head(listener.section, LineOutcome::Assumed, note);
            }
            self.adopt_login(listener, service);
            service.listen.extend(listen);
            service.servers.extend(listener.servers.iter().cloned());
            return;
        }
        self.note_head(listener.section, LineOutcome::Mapped, &format!("[[service]] {name}"));
        let comments = self.comments(&name, &source, sentinels_at.is_none());
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
            name_source: source,
            listener: listener.name.clone(),
            listen,
            replica_listen: Vec::new(),
            sentinels,
            sentinels_at,
            keys: Vec::new(),
            tls_lines: BTreeSet::new(),
            tables: Vec::new(),
            comments,
            login,
            sentinel_login,
            servers: listener.servers.clone(),
        });
    }

    fn note_assumptions(&mut self, listener: &RedisListener, name: &str, source: &NameSource) {
        if listener.role.is_none() {
            let note =
                "no check asks for the role: haproxy used any server, Pointsman uses the master";
            self.note_head(listener.section, LineOutcome::Assumed, note);
        }
        let note = match source {
            NameSource::Assumed => {
                format!("the name {name} is assumed: compare it with `sentinel monitor`")
            }
            NameSource::Elsewhere => format!("the name {name} is taken from the rest of the file"),
            NameSource::Option | NameSource::General | NameSource::Query(_) => return,
        };
        self.note_head(listener.section, LineOutcome::Assumed, &note);
    }

    /// Refuses nodes that all accept writes, unless an option names their master.
    fn refuse_active_replica(&mut self, listener: &RedisListener, source: &NameSource) -> bool {
        if !listener.is_active_replica || listener.role.is_some() {
            return false;
        }
        if *source == NameSource::Option {
            let note = "role:active-replica: haproxy used any node, Pointsman uses the one that \
                        the sentinels name, and ROLE has to say that it is the master";
            self.note_head(listener.section, LineOutcome::Assumed, note);
            return false;
        }
        let name = safe_word(&listener.name);
        let message = format!(
            "the checks of {name} accept role:active-replica: all of its nodes accept writes, \
             and Pointsman needs the one master of a sentinel"
        );
        let remedy = format!(
            "keep this section in haproxy, or, if sentinels monitor these nodes, name their \
             master: --name {name}=NAME"
        );
        self.refuse(listener.section, message, remedy);
        true
    }

    /// Refuses a listener that spreads its clients over servers that need not share a dataset.
    fn refuse_routing(&mut self, listener: &RedisListener, source: &NameSource) -> bool {
        let name = safe_word(&listener.name);
        if let Some(rule) = listener
            .routed_by
            .and_then(|at| proxies::directives(self.config, listener.section).get(at))
        {
            if listener.differs {
                let message =
                    format!("{name} selects between different servers by client or traffic");
                let remedy =
                    "give each group of servers a frontend of its own in the file".to_owned();
                self.refusals.push(Refusal::new(rule.position.clone(), message, remedy));
                return true;
            }
            let note =
                "Pointsman does not select by client or traffic: all clients reach the master";
            self.notes.add(rule, LineOutcome::Unmatched, note);
        }
        let masters: BTreeSet<&str> =
            listener.queries.iter().map(|it| it.master.as_str()).collect();
        if *source == NameSource::Option
            || masters.len() == 1
            || (masters.is_empty() && !listener.differs)
        {
            return false;
        }
        let message = if masters.is_empty() {
            format!("the backends of {name} have different servers, and no check queries Sentinel")
        } else {
            let all: Vec<String> = masters.iter().map(|it| safe_word(it)).collect();
            format!("the checks of {name} ask for several masters: {}", all.join(", "))
        };
        let remedy =
            format!("if they are one master with its replicas, name it: --name {name}=NAME");
        self.refuse(listener.section, message, remedy);
        true
    }

    /// Whether a listener with the name of a known service leads to the same master.
    fn may_merge(
        &mut self,
        listener: &RedisListener,
        source: &NameSource,
        service: &mut PlannedService,
        (sentinels, are_found): (&[String], bool),
    ) -> bool {
        let named = *source == NameSource::Option && service.name_source == NameSource::Option;
        let (one, other) = (safe_word(&service.listener), safe_word(&listener.name));
        if service.servers != listener.servers && !named {
            let message = format!(
                "{one} and {other} have different servers, and both would be service {:?}",
                service.name
            );
            let first = match service.name_source {
                NameSource::Query(_) | NameSource::Option => String::new(),
                _ => format!("--name {one}=NAME "),
            };
            let remedy = format!("name the master of each: {first}--name {other}=NAME");
            self.refuse(listener.section, message, remedy);
            return false;
        }
        if service.sentinels != sentinels && are_found && self.options.sentinels.is_empty() {
            if service.sentinels_at.is_some() {
                let message =
                    format!("{one} and {other} ask different sentinels for {:?}", service.name);
                self.refuse(
                    listener.section,
                    message,
                    "name the sentinels: --sentinel HOST:PORT".to_owned(),
                );
                return false;
            }
            // The first listener only assumed its sentinels.
            service.sentinels = sentinels.to_vec();
        }
        true
    }

    /// What is assumed, as comments above the service.
    fn comments(&self, name: &str, source: &NameSource, assumed_sentinels: bool) -> Vec<String> {
        let mut comments = Vec::new();
        let text = match source {
            NameSource::Assumed => {
                "is assumed: compare it with \"sentinel monitor\" in sentinel.conf"
            }
            NameSource::Elsewhere => {
                "is taken from the rest of haproxy.cfg: compare it with \"sentinel monitor\""
            }
            NameSource::Option | NameSource::General | NameSource::Query(_) => "",
        };
        if !text.is_empty() {
            comments.push(format!("The name {name:?} {text}."));
        }
        if assumed_sentinels && self.options.sentinels.is_empty() {
            let text = "The sentinels are assumed on the hosts of the Redis servers: haproxy.cfg names none.";
            comments.push(text.to_owned());
        }
        comments
    }

    fn note_login(&mut self, login: &CheckLogin, table: &str) {
        let Some(directive) = self.config.at(&login.position) else { return };
        let note = match &login.password {
            Password::Literal(_) => format!("service.{table}.password"),
            Password::Variable(name) => format!("service.{table}.password_env = {name:?}"),
            Password::Computed => {
                let note = format!("haproxy computes the password: add service.{table} by hand");
                return self.notes.add(directive, LineOutcome::Unmatched, &note);
            }
        };
        self.notes.add(directive, LineOutcome::Mapped, &note);
    }

    /// Reports parts of the checks that may contain a password and cannot be read.
    fn note_computed(&mut self, listener: &RedisListener) {
        for at in listener.backends.iter().chain(&listener.voters) {
            let positions = self.proxies.checks.get(*at).map(|check| check.computed.as_slice());
            for directive in
                positions.unwrap_or_default().iter().filter_map(|it| self.config.at(it))
            {
                let note =
                    "haproxy computes what is sent: if it authenticates, add service.auth by hand";
                self.notes.add(directive, LineOutcome::Unmatched, note);
            }
        }
    }

    fn add_replicas(&mut self, listener: &RedisListener, plan: &mut Plan) {
        let name = safe_word(&listener.name);
        let option = self.option_name(Some(&listener.name));
        let queried: BTreeSet<&str> =
            listener.queries.iter().map(|it| it.master.as_str()).collect();
        let shares =
            |it: &PlannedService| it.servers.intersection(&listener.servers).next().is_some();
        let mut found = plan.services.iter_mut().filter(|it| match &option {
            Some(option) => it.name == *option,
            None => shares(it) && queried.iter().all(|queried| it.name == *queried),
        });
        let (Some(service), None) = (found.next(), found.next()) else {
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
                self.refuse(listener.section, message, remedy);
            }
            return;
        };
        let listen = self.listen_of(listener.section, "service.replica_listen");
        let note = format!("readers of [[service]] {}", service.name);
        self.note_head(listener.section, LineOutcome::Mapped, &note);
        if listener.role.is_none() {
            let note = "no check asks for the role: it is for readers only by its name";
            self.note_head(listener.section, LineOutcome::Assumed, note);
        } else if service.servers != listener.servers {
            let note = "its servers are not the master's; Pointsman uses all replicas";
            self.note_head(listener.section, LineOutcome::Assumed, note);
        }
        self.adopt_login(listener, service);
        service.replica_listen.extend(listen);
    }

    /// Takes the login of a further listener if the service has none; reports one that differs.
    fn adopt_login(&mut self, listener: &RedisListener, service: &mut PlannedService) {
        let Some(login) = &listener.login else { return };
        match &service.login {
            None => {
                self.note_login(login, "auth");
                service.login = Some(login.clone());
            }
            Some(known) if (&known.user, &known.password) != (&login.user, &login.password) => {
                let note = format!(
                    "another login than that of {}, which the service uses",
                    safe_word(&service.listener)
                );
                if let Some(directive) = self.config.at(&login.position) {
                    self.notes.add(directive, LineOutcome::Assumed, &note);
                }
            }
            Some(_) => {}
        }
    }
}
