//! Plans the new configuration: calls the parts in order and checks what concerns all of them.

use std::collections::BTreeSet;

use crate::config_file::ConfigFile;
use crate::health_check::{CheckLogin, Password};
use crate::plan::{Plan, PlannedListen, Planner};
use crate::proxies::{self, Proxies};
use crate::report::Notes;
use crate::tokenizer::safe_word;
use crate::values::{self, BindAddress};
use crate::variables::Variables;
use crate::{Environment, ImportOptions, Refusal, settings};

/// The input of planning.
pub(super) struct Context<'a> {
    pub(super) config: &'a ConfigFile,
    pub(super) options: &'a ImportOptions,
    pub(super) env: &'a Environment<'a>,
    pub(super) variables: &'a Variables<'a>,
}

/// Makes the plan.
pub(super) fn plan(context: &Context<'_>, notes: &mut Notes, refusals: &mut Vec<Refusal>) -> Plan {
    let Context { config, options, env, variables } = *context;
    let proxies = proxies::sort(config, variables);
    let mut planner =
        Planner { config, options, env, proxies: &proxies, notes, refusals, sentinel_groups: None };
    let mut plan = Plan { secrets: secrets(&proxies), ..Plan::default() };
    planner.refuse_ports();
    planner.add_services(&mut plan);
    planner.add_admin(&mut plan);
    planner.note_other_sections();
    planner.add_client_rules(&mut plan);
    planner.check_names();
    planner.add_tls(&mut plan);
    planner.check_addresses(&plan);
    planner.note_options();
    if plan.services.is_empty() && planner.refusals.is_empty() {
        planner.refuse_without_services();
    }
    settings::apply(config, &proxies.listeners, &mut plan, planner.notes);
    plan
}

/// Passwords of all checks, used or not.
fn secrets(proxies: &Proxies) -> Vec<String> {
    let queries = proxies.checks.iter().filter_map(|check| check.sentinel.as_ref()?.login.as_ref());
    let logins = proxies.checks.iter().filter_map(|check| check.login.as_ref()).chain(queries);
    let literal = |login: &CheckLogin| match &login.password {
        Password::Literal(text) => Some(text.clone()),
        _ => None,
    };
    logins.filter_map(literal).collect()
}

impl Planner<'_> {
    /// Refuses two listeners on one address: haproxy would spread clients over both.
    fn check_addresses(&mut self, plan: &Plan) {
        let services =
            plan.services.iter().flat_map(|it| it.listen.iter().chain(&it.replica_listen));
        let mut taken: Vec<&PlannedListen> = Vec::new();
        for listen in services.chain(&plan.admin) {
            match taken.iter().find(|(addr, _)| overlap(addr, &listen.0)) {
                Some((other, at)) => {
                    let message = format!("{} is already taken by {other} ({at})", listen.0);
                    let remedy = "give each its own address or port".to_owned();
                    self.refusals.push(Refusal::new(listen.1.clone(), message, remedy));
                }
                None => taken.push(listen),
            }
        }
    }

    /// Refuses servers at port 0, or at a port that depends on that of their client: nothing says
    /// where Redis listens. Charts write port 0 where Redis accepts TLS only.
    fn refuse_ports(&mut self) {
        let sections: BTreeSet<usize> = self.proxies.serving().collect();
        for section in sections {
            let listeners =
                self.proxies.listeners.iter().filter(|it| it.backends.contains(&section));
            let ports: BTreeSet<u16> =
                listeners.flat_map(|it| proxies::listen_ports(self.config, it.section)).collect();
            for server in proxies::servers(self.config, section) {
                let port = server.address.rsplit_once(':').map_or("", |(_, port)| port);
                let is_relative = port.starts_with(['+', '-']);
                let is_absent = matches!(values::server(&server.address), Some((_, None)));
                let is_missing = is_absent && ports.len() > 1;
                if port.parse::<u16>() != Ok(0) && !is_relative && !is_missing {
                    continue;
                }
                let shown = safe_word(&server.address);
                let message = if is_missing {
                    let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
                    let ports = ports.join(", ");
                    format!("{shown} has no port, and its clients use several: {ports}")
                } else if is_relative {
                    format!("{shown} has a port relative to that of its client")
                } else {
                    format!("{shown} has port 0, at which nothing can be reached")
                };
                let remedy = "write the port of Redis; if Redis accepts TLS only, the port of TLS \
                              and `ssl verify required ca-file FILE`";
                let position = server.directive.position.clone();
                self.refusals.push(Refusal::new(position, message, remedy));
            }
        }
    }

    fn refuse_without_services(&mut self) {
        let position = self.config.sections.first().map(|section| section.head.position.clone());
        let is_redis = |at: usize| self.proxies.checks.get(at).is_some_and(|check| check.is_redis);
        let message = if !self.proxies.listeners.is_empty() {
            "no listener leads to the master"
        } else if !self.proxies.sentinel_frontends.is_empty() {
            "no listener leads to Redis, only to sentinels"
        } else if !self.proxies.clusters.is_empty() {
            "no listener leads to a master of Sentinel, only to Redis Cluster"
        } else if self.proxies.foreign.iter().any(|at| is_redis(*at)) {
            "no frontend leads to the Redis servers of this file"
        } else {
            "no listener leads to Redis: no check sends its commands, and no server has port 6379"
        };
        self.refusals.push(Refusal {
            position,
            message: message.to_owned(),
            remedy: "pass the haproxy.cfg that Redis clients connect through".to_owned(),
        });
    }
}

fn overlap(one: &BindAddress, other: &BindAddress) -> bool {
    let (BindAddress::Tcp(one), BindAddress::Tcp(other)) = (one, other) else {
        return one == other;
    };
    let meets = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && one.is_ipv4() == other.is_ipv4() && meets
}
