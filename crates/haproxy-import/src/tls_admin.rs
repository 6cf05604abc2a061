//! TLS of probes and statistics, as the table `[admin.tls]`.
//!
//! The admin server has one certificate, and all of its addresses have TLS or none has. Lines that
//! differ are refused: an address that lost its TLS would send tokens in plain text, and one that
//! gained it would refuse its clients.

use crate::config_file::Directive;
use crate::plan::{Plan, Planner};
use crate::proxies;
use crate::render::quote;
use crate::report::LineOutcome;
use crate::tls::{Key, planned_keys};
use crate::tls_words::{TlsDefaults, TlsWords};
use crate::values::BindAddress;

impl<'a> Planner<'a> {
    /// Adds TLS to the admin server.
    pub(super) fn add_tls_of_admin(&mut self, plan: &mut Plan) {
        let is_served = |bind: &Directive| {
            let of = |(addr, at): &(BindAddress, _)| {
                *at == bind.position && matches!(addr, BindAddress::Tcp(_))
            };
            plan.admin.iter().any(of)
        };
        let sections = self.proxies.admin.iter().map(|(section, _)| *section);
        let lines = sections.flat_map(|section| proxies::lines(self.config, section, "bind"));
        let binds: Vec<&'a Directive> = lines.filter(|it| is_served(it)).collect();
        let defaults = TlsDefaults::read(self.config, "bind");
        let mut planned: Option<(Vec<Key>, &'a Directive)> = None;
        for bind in binds.iter().filter(|it| it.has("ssl")) {
            if let Some(plain) = binds.iter().find(|it| !it.has("ssl")) {
                let message = format!(
                    "{} has no TLS, and all addresses of the admin server have TLS or none has",
                    plain.position
                );
                let remedy = "use `ssl` on both lines, or give up TLS with --allow-plaintext";
                self.refuse_line(bind, message, remedy);
                continue;
            }
            let Some(keys) = self.keys_of_admin(bind, &defaults.of_bind(bind)) else { continue };
            self.agrees(&mut planned, &keys, bind, "there is one [admin.tls]");
        }
        if let Some((keys, line)) = planned {
            plan.admin_tls = planned_keys(keys, line);
        }
    }

    /// The keys of `[admin.tls]`; `None` after a refusal.
    fn keys_of_admin(&mut self, bind: &'a Directive, words: &TlsWords) -> Option<Vec<Key>> {
        let refusals = self.refusals.len();
        self.refuse_unsupported(bind, words);
        let (chains, keys) = self.certificates(bind, words);
        let mut table: Vec<Key> = Vec::new();
        match (chains.as_slice(), keys.as_slice()) {
            ([chain], [key]) => {
                table.push(("certificate_file", quote(chain)));
                if key != chain {
                    table.push(("key_file", quote(key)));
                }
            }
            ([], _) if self.refusals.len() == refusals => {
                let message = "it has `ssl` without a certificate".to_owned();
                self.refuse_line(bind, message, "add `crt FILE`");
            }
            ([], _) => {}
            _ => {
                let message = "it has several certificates, and the admin server has one";
                self.refuse_line(bind, message.to_owned(), "name one with `crt`");
            }
        }
        table.extend(self.keys_of_verify(bind, words));
        let common = self.common_keys(bind, words);
        let (ciphers, versions): (Vec<Key>, Vec<Key>) =
            common.into_iter().partition(|(key, _)| *key == "ciphers");
        table.extend(versions);
        if !ciphers.is_empty() {
            let note = "the list of ciphers is not converted: all ciphers of Pointsman are \
                        authenticated ones with forward secrecy";
            self.notes.add(bind, LineOutcome::Assumed, note);
        }
        let note = "[admin.tls]: the paths of probes are answered without TLS and without a \
                    certificate of the client, too";
        self.notes.add(bind, LineOutcome::Assumed, note);
        (self.refusals.len() == refusals).then_some(table)
    }
}
