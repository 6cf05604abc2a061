//! TLS to Redis and to the sentinels, from `server` and `default-server` lines and from checks.
//!
//! haproxy verifies the name of a certificate only where a line has one, which is why a line
//! without one becomes `verify = "chain"`. All servers of one kind must have the same TLS.

use std::collections::BTreeSet;

use crate::Position;
use crate::health_check::CheckTls;
use crate::plan::{PlannedService, Planner};
use crate::proxies::RedisListener;
use crate::render::quote;
use crate::report::LineOutcome;
use crate::sections::Directive;
use crate::tls::{Key, planned_keys};
use crate::tls_words::{TlsDefaults, TlsWords};
use crate::tokenizer::safe_word;
use crate::values;

/// A server line, and what applies to it.
type ServerTls<'a> = (&'a Directive, TlsWords);

impl<'a> Planner<'a> {
    pub(super) fn add_tls_of_redis(
        &mut self,
        listeners: &[&'a RedisListener],
        service: &mut PlannedService<'_>,
    ) {
        let defaults = TlsDefaults::read(self.config, "server");
        let mut servers: Vec<ServerTls<'a>> = Vec::new();
        let sections: BTreeSet<usize> =
            listeners.iter().flat_map(|it| &it.backends).copied().collect();
        for section in sections {
            let check = self.config.check(section);
            let is_query = self.config.query(section).is_some();
            let mut is_plain = false;
            for server in self.config.servers(section) {
                let words = defaults.of_server(self.config, section, server.directive);
                is_plain |= !words.is_on;
                if words.is_on_in_checks && !words.is_on && !is_query {
                    self.refuse_passthrough(&server.directive.position);
                }
                servers.push((server.directive, words));
            }
            let lines = check.filter(|_| is_plain).map(|it| it.redis_tls.as_slice());
            for position in lines.unwrap_or_default() {
                self.refuse_passthrough(position);
            }
        }
        self.add_tls_of_servers(service, "redis_tls", &servers);
    }

    /// A check with TLS before traffic without it: the clients' own TLS reaches Redis.
    fn refuse_passthrough(&mut self, line: &Position) {
        let message = "the checks use TLS and the servers do not: haproxy passes the clients' TLS \
                       through to Redis, which Pointsman has to read";
        let remedy = "add `ssl crt FILE` to the bind lines and `ssl` to the server lines of this \
                      file, and import again";
        self.refuse(line, message, remedy);
    }

    pub(super) fn add_tls_of_sentinels(
        &mut self,
        listeners: &[&'a RedisListener],
        service: &mut PlannedService<'_>,
    ) {
        let defaults = TlsDefaults::read(self.config, "server");
        let queries = |at: &usize| self.config.query(*at).is_some();
        let own = listeners.iter().flat_map(|it| it.voters.iter().chain(&it.backends)).copied();
        let mut sections: BTreeSet<usize> = own.filter(queries).collect();
        let is_elsewhere = sections.is_empty();
        if is_elsewhere {
            let frontends = self.proxies.sentinel_frontends.iter();
            sections.extend((0..self.config.sections.len()).filter(queries));
            sections.extend(frontends.flat_map(|(_, backends)| backends));
        }
        let asked = service.sentinels.iter().filter_map(|it| values::server(it));
        let hosts: Vec<String> = asked.map(|(host, _)| host).collect();
        let mut servers: Vec<ServerTls<'a>> = Vec::new();
        for section in sections {
            let rule = self.config.query(section).map(|it| it.tls);
            for server in self.config.servers(section) {
                let is_asked = |host: String| hosts.iter().any(|it| it.eq_ignore_ascii_case(&host));
                if is_elsewhere && !server.host().is_some_and(is_asked) {
                    continue;
                }
                let mut words = defaults.of_server(self.config, section, server.directive);
                words.is_on = match rule {
                    Some(CheckTls::OfServer) => words.is_on || words.is_on_in_checks,
                    Some(rule) => rule == CheckTls::On,
                    None => words.is_on,
                };
                servers.push((server.directive, words));
            }
        }
        let has_redis_tls = service.tables.iter().any(|(table, _)| *table == "redis_tls");
        if servers.is_empty() && has_redis_tls {
            let note = "the sentinels are assumed to accept connections without TLS, although Redis \
                        has TLS: see service.sentinel_tls";
            for listener in listeners {
                self.notes.add(listener, LineOutcome::Assumed, note);
            }
        }
        self.add_tls_of_servers(service, "sentinel_tls", &servers);
    }

    /// Adds the table for one kind of servers, which must all have the same TLS or none.
    fn add_tls_of_servers(
        &mut self,
        service: &mut PlannedService<'_>,
        table: &'static str,
        servers: &[ServerTls<'a>],
    ) {
        let Some((first, _)) = servers.iter().find(|(_, words)| words.is_on) else { return };
        let reason = format!("service.{table} applies to all");
        if let Some((line, _)) = servers.iter().find(|(_, words)| !words.is_on) {
            let message = format!(
                "it is reached without TLS, unlike that of {}, and {reason}",
                first.position
            );
            return self.refuse(line, message, "use TLS on all of them, or on none");
        }
        let of_own_host = servers.iter().all(|(line, words)| {
            let host = values::server(&line.word(2)).map(|(host, _)| host);
            words.name.is_some() && words.name == host
        });
        let mut planned: Option<(Vec<Key>, &'a Directive)> = None;
        for (line, words) in servers {
            let Some(mut keys) = self.keys_of_server(line, words) else { continue };
            if of_own_host {
                keys.retain(|(key, _)| *key != "server_name");
            }
            if !self.agrees(&mut planned, &keys, line, &reason) {
                continue;
            }
            self.notes.add(line, LineOutcome::Mapped, &format!("service.{table}"));
            let note = if words.verify.as_deref() == Some("none") {
                "the certificate is not verified, as in haproxy: anyone in between can read and \
                 change everything. Set ca_file, and remove verify = \"none\""
            } else if of_own_host {
                "the certificates must have the hosts that Sentinel announces: without \
                 `sentinel announce-hostnames yes` these are addresses, see server_name"
            } else {
                continue;
            };
            self.notes.add(line, LineOutcome::Assumed, note);
        }
        if let Some((keys, first)) = planned {
            service.tables.push((table, planned_keys(keys, first)));
        }
    }

    /// The keys of `[service.redis_tls]` or `[service.sentinel_tls]`; `None` after a refusal.
    fn keys_of_server(&mut self, line: &'a Directive, words: &TlsWords) -> Option<Vec<Key>> {
        let refusals = self.refusals.len();
        self.refuse_unsupported(line, words);
        let mut table: Vec<Key> = vec![("enabled", "true".to_owned())];
        if words.verify.as_deref() == Some("none") {
            table.push(("verify", quote("none")));
        } else {
            if let Some(file) = words.ca_file.as_deref()
                && file != "@system-ca"
                && self.is_readable_file(line, file)
            {
                table.push(("ca_file", quote(file)));
            }
            if let Some(expression) = &words.computed_name {
                let message =
                    format!("haproxy computes the name to verify: {}", safe_word(expression));
                self.refuse(line, message, "name it: `verifyhost NAME` or `sni str(NAME)`");
            }
            // Without a name haproxy accepts every certificate that the authorities issued.
            let verify = if words.name.is_some() { "full" } else { "chain" };
            table.push(("verify", quote(verify)));
        }
        if let Some(name) = &words.name {
            table.push(("server_name", quote(name)));
        }
        match words.certificates.as_slice() {
            [file] if self.is_readable_file(line, file) => {
                table.push(("certificate_file", quote(file)));
                table.extend(self.key_of(file).map(|key| ("key_file", quote(&key))));
            }
            [] | [_] => {}
            _ => {
                self.refuse(line, "it has several certificates", "name one with `crt`");
            }
        }
        table.extend(self.common_keys(line, words));
        (self.refusals.len() == refusals).then_some(table)
    }
}
