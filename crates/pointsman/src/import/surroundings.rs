//! What stands around the services: the addresses of a section, probes and statistics, and whatever is about something else.

use proxy::ListenAddr;

use super::Fault;
use super::account::{Verdict, safe_word};
use super::plan::{Found, Plan, Planner};
use super::proxies;
use super::sections::{Book, Directive};
use super::units::{self, NoListen};

impl<'a> Planner<'a> {
    /// The addresses of a section's binds, with a note on each.
    pub(super) fn listen_of(&mut self, section: usize) -> Vec<Found<ListenAddr>> {
        let book: &'a Book = self.book;
        let own = book.sections.get(section).map(|section| section.directives.as_slice()).unwrap_or_default();
        let mut all: Vec<Found<ListenAddr>> = Vec::new();
        for bind in own.iter().filter(|it| it.begins(&["bind"])) {
            let has = |word: &str| bind.words.iter().any(|own| own.is(word));
            match units::listens(&bind.word(1), has("v6only")) {
                Ok(addrs) => {
                    for addr in addrs {
                        // `*:6379` beside `[::]:6379` is the same address twice here.
                        if !all.iter().any(|(known, _)| *known == addr) {
                            all.push((addr, bind.place.clone()));
                        }
                    }
                    self.note_bind(bind);
                }
                Err(NoListen::Family) => {
                    self.account.note(
                        bind,
                        Verdict::Unmatched,
                        "clients arrive over TCP and at UNIX sockets with a path, not at abstract or inherited ones",
                    );
                }
                Err(NoListen::Unreadable) => {
                    let what = format!("{:?} is not an address to listen on", safe_word(&bind.word(1)));
                    let remedy = if bind.word(1).contains("${") {
                        "set the variable and run again"
                    } else {
                        "give an IP address and a port"
                    };
                    self.faults.push(Fault::new(bind.place.clone(), what, remedy));
                }
            }
        }
        let head = book.sections.get(section).map(|section| &section.head);
        if let Some(head) = head.filter(|head| all.is_empty() && head.begins(&["listen"]))
            && let Ok(addrs) = units::listens(&head.word(2), false)
        {
            // The spelling of old: the address behind the name.
            all.extend(addrs.into_iter().map(|addr| (addr, head.place.clone())));
        }
        all
    }

    pub(super) fn note_bind(&mut self, bind: &Directive) {
        self.account.note(bind, Verdict::Mapped, "service.listen");
        let has = |word: &str| bind.words.iter().any(|own| own.is(word));
        for (word, loss) in [
            ("ssl", "it is listened on, but WITHOUT TLS: clients that speak TLS will fail here"),
            ("accept-proxy", "it is listened on, but the PROXY protocol is not understood"),
            ("v6only", "[::] takes IPv4 clients as well, unless an IPv4 address is given with the same port"),
            ("mode", "it is listened on with the mode of unix_socket_mode, 0660 by default"),
        ] {
            if has(word) {
                self.account.overrule(bind, Verdict::Unmatched, loss);
            }
        }
    }

    pub(super) fn add_admin(&mut self, plan: &mut Plan) {
        for section in &self.proxies.admin {
            for (addr, place) in self.listen_of(*section) {
                let bind = self.directive_at(&place);
                let Some(addr) = addr.tcp() else {
                    if let Some(bind) = bind {
                        let what = "the admin server listens on TCP; orders can come by admin.control_socket";
                        self.account.overrule(bind, Verdict::Unmatched, what);
                    }
                    continue;
                };
                if let Some(bind) = bind.filter(|bind| !bind.words.iter().any(|word| word.is("ssl"))) {
                    self.account.overrule(bind, Verdict::Mapped, "admin.listen");
                }
                if !plan.admin.iter().any(|(known, _)| *known == addr) {
                    plan.admin.push((addr, place));
                }
            }
            let Some(section) = self.book.sections.get(*section) else { continue };
            self.account.note(&section.head, Verdict::Mapped, "[admin]: probes, metrics, status");
            for it in section.directives.iter().filter(|it| it.begins(&["monitor-uri"])) {
                let path = it.word(1);
                let note = "for liveness ask /alive, for readiness /ready";
                if ["/healthz", "/livez", "/readyz", "/alive", "/ready", "/startup"].contains(&path.as_str()) {
                    self.account.note(it, Verdict::Mapped, &format!("answered as before; {note}"));
                } else {
                    self.account.note(it, Verdict::Unmatched, &format!("this path is not answered: {note}"));
                }
            }
            for it in section.directives.iter().filter(|it| it.words.iter().any(|word| word.is("prometheus-exporter")))
            {
                self.account.note(it, Verdict::Mapped, "/metrics of the admin server; the names are other ones");
            }
        }
    }

    /// Sections that only fed the decisions of haproxy, and those that are about something else.
    pub(super) fn note_the_rest(&mut self) {
        let book: &'a Book = self.book;
        let listeners = &self.proxies.listeners;
        let fed = listeners.iter().flat_map(|it| it.backends.iter().chain(&it.voters));
        for section in fed.filter_map(|at| book.sections.get(*at)) {
            let own = listeners
                .iter()
                .any(|it| book.sections.get(it.section).is_some_and(|it| it.head.place == section.head.place));
            if !own {
                self.account.note(
                    &section.head,
                    Verdict::Unneeded,
                    "what it decided is now decided by the sentinels alone",
                );
            }
        }
        let conditions = listeners.iter().filter_map(|it| book.sections.get(it.section)).flat_map(|it| &it.directives);
        for directive in conditions.filter(|it| it.begins(&["acl"]) && proxies::names_backends(it)) {
            self.account.note(directive, Verdict::Unneeded, "what it asked is now asked of the sentinels alone");
        }
        for section in self.proxies.foreign.iter().filter_map(|at| book.sections.get(*at)) {
            for directive in std::iter::once(&section.head).chain(&section.directives) {
                self.account.note(directive, Verdict::Unmatched, "not Redis: leave it in haproxy if it is in use");
            }
        }
    }

    pub(super) fn nothing_found(&self) -> Fault {
        let place = self.book.sections.first().map(|section| section.head.place.clone());
        let what = if self.proxies.listeners.is_empty() {
            "no listener leads to Redis: no check speaks its protocol, and no server has port 6379"
        } else {
            "no listener leads to the master"
        };
        Fault {
            place,
            what: what.to_owned(),
            remedy: "is this the haproxy.cfg that stands in front of Redis?".to_owned(),
        }
    }
}
