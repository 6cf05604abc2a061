//! Where the sentinels of a service are: in an option, in its checks, in the rest of the file, or,
//! as an assumption, on the hosts of the Redis servers.

use crate::plan::Planner;
use crate::proxies::RedisListener;
use crate::report::LineOutcome;
use crate::sections::Directive;
use crate::sentinel_group::{self, SentinelGroup};
use crate::tokenizer::safe_word;
use crate::{Position, SENTINEL_PORT, values};

const NAME_THEM: &str = "name the sentinels: --sentinel HOST:PORT";

impl<'a> Planner<'a> {
    /// The sentinels of a listener's master, and the line of the first if the file names them. None
    /// after a refusal.
    pub(super) fn sentinels_of(
        &mut self,
        listener: &RedisListener,
    ) -> Option<(Vec<String>, Option<Position>)> {
        let given = self.option_sentinels(listener);
        if !given.is_empty() {
            return Some((given, None));
        }
        let refusals = self.refusals.len();
        let asked = self.asked(listener)?;
        let found = asked.or_else(|| {
            let group = self.elsewhere(listener)?;
            let note =
                "its checks ask no sentinel: the sentinels of the rest of the file are taken";
            self.notes.add(listener, LineOutcome::Assumed, note);
            Some(group)
        });
        let Some(group) = found else {
            let assumed = self.on_server_hosts(listener);
            return (self.refusals.len() == refusals).then_some((assumed, None));
        };
        for line in &group.lines {
            self.notes.add(line, LineOutcome::Mapped, "one of service.sentinels");
        }
        Some((group.endpoints, group.lines.first().map(|line| line.position.clone())))
    }

    /// The sentinels that a listener's checks ask, if they ask any. None after a refusal, as of
    /// checks that ask sentinels without a common address: that may be two installations, which
    /// need not agree on who a master is, even if its name is the same.
    pub(super) fn asked(&mut self, listener: &RedisListener) -> Option<Option<SentinelGroup<'a>>> {
        let refusals = self.refusals.len();
        let sections = listener.voters.iter().chain(&listener.backends);
        let mut groups = sentinel_group::join(sections.map(|at| self.queried(*at)).collect());
        let [one, other, ..] = groups.as_slice() else {
            return (self.refusals.len() == refusals).then(|| groups.pop());
        };
        let name = safe_word(&listener.name);
        let first = |it: &SentinelGroup<'_>| it.endpoints.first().cloned().unwrap_or_default();
        let (one, other) = (first(one), first(other));
        let message = format!("{name} asks sentinels without a common address: {one} and {other}");
        let remedy = format!(
            "give each installation a frontend of its own in the file, or name the sentinels of \
             this one: --sentinel {name}=HOST:PORT"
        );
        self.refuse(listener, message, remedy);
        None
    }

    /// The sentinels that options give for a listener.
    pub(super) fn option_sentinels(&self, listener: &RedisListener) -> Vec<String> {
        let of = |name: Option<&str>| {
            let all = self.options.sentinels.iter();
            all.filter(|(of, _)| of.as_deref() == name).map(|(_, it)| it.clone()).collect()
        };
        let own: Vec<String> = of(Some(&listener.name));
        if own.is_empty() { of(None) } else { own }
    }

    /// The sentinels that a backend's checks query.
    fn queried(&mut self, section: usize) -> SentinelGroup<'a> {
        let mut group = SentinelGroup::default();
        let Some(query) = self.config.query(section) else { return group };
        let config = self.config;
        let defaults = || config.default_servers(section);
        for server in config.servers(section) {
            let option = |of_check: &Option<String>, key: &str| {
                let mut lines = std::iter::once(server.directive).chain(defaults());
                let of_lines = || lines.find_map(|it| it.value(key));
                of_check.clone().or_else(of_lines)
            };
            let (addr, port) = (option(&query.addr, "addr"), option(&query.port, "port"));
            let of_server = values::server(&server.address);
            let addr = addr.map_or(of_server.clone(), |addr| values::server(&addr));
            let Some((host, own)) = addr else {
                let note = "not an address that Pointsman can connect to over TCP";
                self.notes.add(server.directive, LineOutcome::Unmatched, note);
                continue;
            };
            let own = own.or(of_server.and_then(|(_, port)| port));
            let Ok(port) = port.as_deref().map(str::parse).transpose() else {
                self.refuse_word(server.directive, &port.unwrap_or_default(), "a port", NAME_THEM);
                continue;
            };
            let port: u16 = port.or(own).unwrap_or(SENTINEL_PORT);
            match (self.env.endpoint)(&values::join(&host, port)) {
                Some(endpoint) => group.add(&host, endpoint, server.directive),
                None => self.refuse_word(server.directive, &host, "a host", NAME_THEM),
            }
        }
        group
    }

    /// The only sentinels of the file, or those on hosts of the listener's servers. Sentinels of
    /// two installations are never mixed.
    fn elsewhere(&mut self, listener: &RedisListener) -> Option<SentinelGroup<'a>> {
        if self.sentinel_groups.is_none() {
            self.sentinel_groups = Some(self.all_groups());
        }
        let groups = self.sentinel_groups.as_deref().unwrap_or_default();
        let shares = |group: &&SentinelGroup<'a>| {
            groups.len() == 1 || listener.servers.iter().any(|(host, _)| group.hosts.contains(host))
        };
        let mut found = groups.iter().filter(shares);
        found.next().filter(|_| found.next().is_none()).cloned()
    }

    /// All sentinels of the file, from checks and from frontends for sentinels; groups that overlap
    /// are one.
    fn all_groups(&mut self) -> Vec<SentinelGroup<'a>> {
        let mut found: Vec<SentinelGroup<'a>> =
            (0..self.config.checks.len()).map(|section| self.queried(section)).collect();
        let frontends = self.proxies.sentinel_frontends.iter();
        for section in frontends.flat_map(|(_, backends)| backends).copied() {
            let mut group = SentinelGroup::default();
            for server in self.config.servers(section) {
                let Some((host, port)) = values::server(&server.address) else { continue };
                let endpoint = values::join(&host, port.unwrap_or(SENTINEL_PORT));
                if let Some(endpoint) = (self.env.endpoint)(&endpoint) {
                    group.add(&host, endpoint, server.directive);
                }
            }
            found.push(group);
        }
        sentinel_group::join(found)
    }

    /// Sentinel's usual place: port 26379 on the hosts of the Redis servers.
    fn on_server_hosts(&mut self, listener: &RedisListener) -> Vec<String> {
        let mut found = Vec::new();
        for section in &listener.backends {
            for server in self.config.servers(*section) {
                let endpoint =
                    |host: String| (self.env.endpoint)(&values::join(&host, SENTINEL_PORT));
                let Some(endpoint) = server.host().and_then(endpoint) else {
                    self.refuse_word(server.directive, &server.address, "a host", NAME_THEM);
                    continue;
                };
                let note = "a sentinel is assumed at port 26379 of this host";
                self.notes.add(server.directive, LineOutcome::Assumed, note);
                if !found.contains(&endpoint) {
                    found.push(endpoint);
                }
            }
        }
        found
    }

    /// Refuses a word that is not what it should be, or has an unset variable.
    pub(super) fn refuse_word(&mut self, line: &Directive, word: &str, what: &str, remedy: &str) {
        let message = format!("{:?} is not {what}", safe_word(word));
        let is_unset = word.contains("${");
        let remedy = if is_unset { "set the variable and run again" } else { remedy };
        self.refuse(line, message, remedy);
    }
}
