//! What Sentinel calls the master of a listener: an option, a query of its checks, the rest of the
//! file, or, as an assumption, Sentinel's usual name.

use std::collections::BTreeSet;

use crate::Refusal;
use crate::plan::{NamedListener, Planner};
use crate::proxies::RedisListener;
use crate::report::LineOutcome;
use crate::tokenizer::safe_word;

impl<'a> Planner<'a> {
    /// The name that an option gives.
    pub(super) fn option_name(&self, listener: Option<&str>) -> Option<String> {
        let names = self.options.names.iter();
        names.filter(|(of, _)| of.as_deref() == listener).map(|(_, name)| name.clone()).next()
    }

    /// The name of a listener's master, and where it comes from.
    pub(super) fn name_of(&mut self, listener: &'a RedisListener) -> NamedListener<'a> {
        let master = String::new();
        let named =
            NamedListener { listener, master, named_at: None, assumption: None, is_given: false };
        if let Some(master) = self.option_name(Some(&listener.name)) {
            return NamedListener { master, is_given: true, ..named };
        }
        if let Some(query) = listener.queries.first() {
            let note = format!("service.name = {:?}", query.master);
            self.notes.add(&query.position, LineOutcome::Mapped, &note);
            let (master, named_at) = (query.master.clone(), Some(query.position.clone()));
            return NamedListener { master, named_at, ..named };
        }
        if let Some(master) = self.option_name(None) {
            return NamedListener { master, ..named };
        }
        // If all queries of the file have one name, it is the name of this master, too.
        let queries = self.config.checks.iter().filter_map(|check| check.sentinel.as_ref());
        let names: BTreeSet<&str> = queries.map(|query| query.master.as_str()).collect();
        let (master, assumption) = match names.first() {
            Some(name) if names.len() == 1 => (*name, "is taken from the rest of the file"),
            _ => ("mymaster", "is assumed: compare it with `sentinel monitor`"),
        };
        NamedListener { master: master.to_owned(), assumption: Some(assumption), ..named }
    }

    /// Refuses `--name LISTENER=NAME` without such a listener: a typing error would change nothing.
    pub(super) fn check_names(&mut self) {
        for (at, (listener, name)) in self.options.names.iter().enumerate() {
            let earlier = self.options.names.iter().take(at);
            let differs = |it: &&(Option<String>, String)| it.0 == *listener && it.1 != *name;
            if let Some((_, other)) = earlier.into_iter().find(differs) {
                let (one, other) = (safe_word(other), safe_word(name));
                let message = format!("--name gives two names, {one} and {other}");
                let remedy = "name the listener of each: --name LISTENER=NAME";
                self.refusals.push(Refusal::general(message, remedy));
            }
        }
        let known: Vec<String> =
            self.proxies.listeners.iter().map(|it| safe_word(&it.name)).collect();
        let names = self.options.names.iter().map(|it| ("--name", it));
        let all = names.chain(self.options.sentinels.iter().map(|it| ("--sentinel", it)));
        for (flag, (listener, value)) in all {
            let Some(listener) = listener else { continue };
            // Without any listener there is another refusal.
            let has_name = |it: &RedisListener| it.name == *listener;
            if !known.is_empty() && !self.proxies.listeners.iter().any(has_name) {
                let (listener, value) = (safe_word(listener), safe_word(value));
                let message = format!("{flag} {listener}={value}: no Redis listener has this name");
                let remedy = format!("use one of: {}", known.join(", "));
                self.refusals.push(Refusal::general(message, remedy));
            }
        }
    }

    /// The name of the service of each listener for a master: the master's name, or, where
    /// listeners with other servers have a master of this name, the listener's own.
    pub(super) fn service_names(named: &[NamedListener<'_>]) -> Vec<String> {
        let is_shared = |it: &NamedListener<'_>| {
            named.iter().any(|other| {
                other.master == it.master && other.listener.servers != it.listener.servers
            })
        };
        let mut taken: BTreeSet<String> =
            named.iter().filter(|it| !is_shared(it)).map(|it| it.master.clone()).collect();
        let name_of = |it: &NamedListener<'_>| {
            if !is_shared(it) {
                return it.master.clone();
            }
            let is_free = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
            let own = it.listener.name.replace(|c| !is_free(c), "-");
            let numbered = (2..).map(|number: usize| format!("{own}-{number}"));
            let mut all = std::iter::once(own.clone()).chain(numbered);
            all.find(|name| taken.insert(name.clone())).unwrap_or(own)
        };
        named.iter().map(name_of).collect()
    }

    /// Refuses a name that Sentinel would refuse, such as one with an unset variable.
    pub(super) fn refuse_name(&mut self, named: &NamedListener<'_>) -> bool {
        let NamedListener { listener, master, named_at, .. } = named;
        let is_free = |b: u8| b.is_ascii_alphanumeric() || b".-_".contains(&b);
        if !master.is_empty() && master.bytes().all(is_free) {
            return false;
        }
        let message = format!("{:?} cannot be the name of a master", safe_word(master));
        let first = if master.contains("${") { "set the variable, or " } else { "" };
        let remedy = format!("{first}give the name: --name {}=NAME", safe_word(&listener.name));
        self.refuse(named_at.as_ref().unwrap_or(&listener.position), message, remedy);
        true
    }
}
