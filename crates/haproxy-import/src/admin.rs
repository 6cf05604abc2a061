//! Everything around the services: `bind` lines, the admin server, and sections that are not ours.

use std::collections::BTreeSet;

use crate::keywords;
use crate::plan::{Plan, PlannedListen, Planner};
use crate::proxies;
use crate::report::LineOutcome;
use crate::sections::Directive;
use crate::values::{self, BindAddress, BindError};

/// Paths of haproxy's probes that the admin server answers.
const PROBES: &[&str] = &["/healthz", "/livez", "/readyz", "/alive", "/ready", "/startup"];
const SENTINELS: &str =
    "leads to sentinels: keep it in haproxy, or set sentinel_listen = [\"ADDRESS\"] in the service";
/// What is said of a section that leads to nodes without a master, and of its lines.
const CLUSTER: &str = "leads to Redis Cluster, or to KeyDB nodes that all accept writes: keep it in \
                       haproxy; Pointsman serves masters that Sentinel monitors";
const NO_UNIX: &str =
    "the admin server listens on TCP; admin.control_socket accepts orders on a Unix socket";
const NO_TLS: &str = "TLS of the admin server is not converted, and this address is left out: set \
                      admin.listen and [admin.tls]";
const NO_RULES: &str = "who may reach the admin server is not converted, and this address is left \
                        out: set admin.listen, and admin.read_token_file or a firewall";
/// The words of rules that turn clients away.
const TURNS_AWAY: [&str; 5] = ["deny", "auth", "reject", "silent-drop", "tarpit"];

impl<'a> Planner<'a> {
    /// The addresses of a section, with a note on each line that `key` takes.
    pub(super) fn listen_of(&mut self, section: usize, key: &str) -> Vec<PlannedListen> {
        let mut all: Vec<PlannedListen> = Vec::new();
        for bind in self.config.lines(section, "bind") {
            match values::bind_addresses(&bind.word(1), bind.has("v6only")) {
                Ok(addrs) => {
                    let has_tls = bind.has("ssl") && !self.options.allow_plaintext;
                    // `*:6379` and `[::]:6379` contain the same address; it is listened on once.
                    for addr in addrs {
                        if !all.iter().any(|known| known.addr == addr) {
                            let position = bind.position.clone();
                            all.push(PlannedListen { addr, position, has_tls });
                        }
                    }
                    let key = match key {
                        "service.listen" if has_tls => "service.tls_listen",
                        "service.replica_listen" if has_tls => "service.replica_tls_listen",
                        key => key,
                    };
                    self.notes.add(bind, LineOutcome::Mapped, key);
                }
                Err(BindError::Family) => {
                    let note = "Pointsman listens on TCP and on Unix sockets with a path, not on \
                                abstract or inherited ones";
                    self.notes.add(bind, LineOutcome::Unmatched, note);
                }
                Err(BindError::Unreadable) => {
                    let remedy = "write an IP address and a port";
                    self.refuse_word(bind, &bind.word(1), "an address to listen on", remedy);
                }
            }
        }
        all
    }

    pub(super) fn add_admin(&mut self, plan: &mut Plan<'_>) {
        let admin = &self.proxies.admin;
        for (section, backends) in admin {
            let all = || self.config.defaults_first(*section);
            let rules: Vec<_> = all().filter(|it| turns_away(it)).collect();
            for listen in self.listen_of(*section, "admin.listen") {
                let lost = match listen.addr {
                    BindAddress::Unix(_) => Some(NO_UNIX),
                    BindAddress::Tcp(_) if listen.has_tls => Some(NO_TLS),
                    BindAddress::Tcp(_) => rules.first().map(|_| NO_RULES),
                };
                if let Some(note) = lost {
                    self.notes.replace(&listen.position, LineOutcome::Unmatched, note);
                } else if !plan.admin.iter().any(|known| known.addr == listen.addr) {
                    plan.admin.push(listen);
                }
            }
            for rule in rules {
                self.notes.add(rule, LineOutcome::Unmatched, NO_RULES);
            }
            for at in std::iter::once(section).chain(backends.iter().filter(|at| *at != section)) {
                self.note_head(*at, LineOutcome::Mapped, "[admin]: probes, metrics, status");
                for directive in self.config.directives(*at) {
                    self.note_admin(directive);
                }
            }
        }
    }

    fn note_admin(&mut self, directive: &Directive) {
        if directive.begins("monitor-uri") {
            let (outcome, what) = match PROBES.contains(&directive.word(1).as_str()) {
                true => (LineOutcome::Mapped, "answered as before"),
                false => (LineOutcome::Unmatched, "this path is not answered"),
            };
            let note = format!("{what}: /alive is for liveness and /ready for readiness");
            self.notes.add(directive, outcome, &note);
        } else if directive.has("prometheus-exporter") {
            let note = "/metrics of the admin server; metrics.haproxy_names adds the old names";
            self.notes.add(directive, LineOutcome::Mapped, note);
        } else if directive.begins("default_backend") || directive.begins("use_backend") {
            let note = "the admin server answers all of its paths itself";
            self.notes.add(directive, LineOutcome::Unneeded, note);
        }
    }

    /// Notes on sections that no service or admin server is made of.
    pub(super) fn note_other_sections(&mut self) {
        let proxies = self.proxies;
        let listeners: Vec<usize> = proxies.listeners.iter().map(|it| it.section).collect();
        for at in proxies.serving().filter(|at| !listeners.contains(at)) {
            let note = "part of haproxy's choice of a server, which the sentinels make now";
            self.note_head(at, LineOutcome::Unneeded, note);
        }
        let conditions = listeners.iter().flat_map(|at| self.config.lines(*at, "acl"));
        for acl in conditions.filter(|it| proxies::names_backends(it)) {
            let note = "the sentinels decide in place of this condition";
            self.notes.add(acl, LineOutcome::Unneeded, note);
        }
        let with_backends = |all: &[(usize, Vec<usize>)]| -> Vec<usize> {
            let sections = all.iter().flat_map(|(at, backends)| backends.iter().chain([at]));
            sections.copied().collect::<BTreeSet<usize>>().into_iter().collect()
        };
        let empty = "the section has no address and no servers";
        for (sections, outcome, note) in [
            (with_backends(&proxies.sentinel_frontends), LineOutcome::Unmatched, SENTINELS),
            (with_backends(&proxies.clusters), LineOutcome::Unmatched, CLUSTER),
            (proxies.foreign.clone(), LineOutcome::Unmatched, keywords::NOT_REDIS),
            (proxies.empty.clone(), LineOutcome::Unneeded, empty),
            (proxies.disabled.clone(), LineOutcome::Unneeded, "the section is disabled"),
        ] {
            sections.into_iter().for_each(|at| self.note_section(at, outcome, note));
        }
    }

    fn note_head(&mut self, section: usize, outcome: LineOutcome, note: &str) {
        if let Some(head) = self.config.head(section) {
            self.notes.add(head, outcome, note);
        }
    }

    fn note_section(&mut self, section: usize, outcome: LineOutcome, note: &str) {
        self.note_head(section, outcome, note);
        for directive in self.config.directives(section) {
            self.notes.add(directive, outcome, note);
        }
    }
}

/// Whether a rule of HTTP or of connections turns clients away.
fn turns_away(rule: &Directive) -> bool {
    (rule.begins("http-request") || rule.begins("tcp-request"))
        && (1..=2).any(|at| TURNS_AWAY.contains(&rule.word(at).as_str()))
}
