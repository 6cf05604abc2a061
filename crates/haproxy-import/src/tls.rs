//! TLS of clients, of Redis and of the sentinels, as the tables of a service.
//!
//! A service has one set of certificates for all of its addresses with TLS, and one way to verify
//! its Redis servers and its sentinels each. Lines that differ are refused, and so is every option
//! that Pointsman lacks and that decides who is admitted. Options without such consequences are
//! reported. `--allow-plaintext` gives up all of it, line by line. Servers are in `tls_servers`.
//!
//! TLS of the admin server is not converted: an address with `ssl` is left out, see `admin`.

use std::collections::BTreeSet;

use crate::Position;
use crate::plan::{Plan, PlannedKey, PlannedListen, PlannedService, Planner};
use crate::proxies::RedisListener;
use crate::render::quote;
use crate::report::LineOutcome;
use crate::sections::Directive;
use crate::tls_words::{TlsDefaults, TlsWords};
use crate::tokenizer::safe_word;
use crate::values::BindAddress;

/// A key of a table, and its value in TOML.
pub(super) type Key = (&'static str, String);

const PLAIN: &str = "or give up TLS with --allow-plaintext";
const CLIENTS: &str = "clients have to connect without TLS";
const SERVERS: &str =
    "Redis and Sentinel are reached without TLS, so they need a plaintext port (not `port 0`)";
/// Files that haproxy does not take for certificates if it loads a folder.
const RESERVED: [&str; 4] = [".key", ".issuer", ".ocsp", ".sctl"];

impl<'a> Planner<'a> {
    /// Adds TLS to the services.
    pub(super) fn add_tls(&mut self, plan: &mut Plan<'a>) {
        if self.options.allow_plaintext {
            return self.drop_tls(plan);
        }
        for service in &mut plan.services {
            let mut listeners: Vec<&'a RedisListener> =
                service.masters.iter().chain(&service.readers).copied().collect();
            listeners.sort_by_key(|it| it.section);
            self.add_tls_of_clients(&listeners, service);
            self.add_tls_of_redis(&listeners, service);
            self.add_tls_of_sentinels(&listeners, service);
        }
    }

    fn add_tls_of_clients(
        &mut self,
        listeners: &[&'a RedisListener],
        service: &mut PlannedService<'_>,
    ) {
        let defaults = TlsDefaults::read(self.config, "bind");
        let mut planned: Option<(Vec<Key>, &'a Directive)> = None;
        for listener in listeners {
            let binds = self.config.lines(listener.section, "bind");
            for bind in binds.filter(|it| it.has("ssl")) {
                let Some(keys) = self.keys_of_bind(bind, &defaults) else { continue };
                let is_unix = |it: &PlannedListen| {
                    it.position == bind.position && matches!(it.addr, BindAddress::Unix(_))
                };
                let mut all = service.listen.iter().chain(&service.replica_listen);
                if all.any(is_unix) {
                    let remedy = "remove `ssl` from this line, or give it a TCP address";
                    self.refuse(bind, "Pointsman has no TLS on Unix sockets", remedy);
                }
                self.agrees(&mut planned, &keys, bind, "a service has one [service.tls]");
            }
        }
        if let Some((keys, line)) = planned {
            service.tables.push(("tls", planned_keys(keys, line)));
        }
    }

    /// Whether a line has the keys of the first one; refuses it if it has others.
    pub(super) fn agrees(
        &mut self,
        planned: &mut Option<(Vec<Key>, &'a Directive)>,
        keys: &[Key],
        line: &'a Directive,
        reason: &str,
    ) -> bool {
        let (known, first) = planned.get_or_insert_with(|| (keys.to_vec(), line));
        if *known != keys {
            let message = format!("its TLS differs from that of {}, and {reason}", first.position);
            self.refuse(line, message, "use the same options on both lines");
            return false;
        }
        true
    }

    /// The keys of `[service.tls]`; `None` after a refusal.
    fn keys_of_bind(&mut self, bind: &'a Directive, defaults: &TlsDefaults) -> Option<Vec<Key>> {
        let words = &defaults.of(bind.rest(2));
        let refusals = self.refusals.len();
        self.refuse_unsupported(bind, words);
        let (chains, keys) = self.certificates(bind, words);
        if chains.is_empty() && self.refusals.len() == refusals {
            self.refuse(bind, "it has `ssl` without a certificate", "add `crt FILE`");
        }
        let mut table: Vec<Key> = vec![("certificate_files", toml_list(&chains))];
        if keys != chains {
            table.push(("key_files", toml_list(&keys)));
        }
        table.extend(self.keys_of_verify(bind, words));
        table.extend(self.common_keys(bind, words));
        (self.refusals.len() == refusals).then_some(table)
    }

    /// The keys about certificates of clients.
    fn keys_of_verify(&mut self, bind: &Directive, words: &TlsWords) -> Vec<Key> {
        let verify = words.verify.as_deref().unwrap_or("none");
        if !["optional", "required"].contains(&verify) {
            return Vec::new();
        }
        let mut table: Vec<Key> = vec![("client_certificates", quote(verify))];
        let Some(file) = words.ca_file.as_deref() else {
            let message = format!("it has `verify {verify}` without a `ca-file`");
            self.refuse(bind, message, "add `ca-file FILE`");
            return table;
        };
        if self.is_readable_file(bind, file) {
            table.push(("client_ca_file", quote(file)));
        }
        table
    }

    /// The files with certificates, and those with their keys.
    fn certificates(&mut self, bind: &Directive, words: &TlsWords) -> (Vec<String>, Vec<String>) {
        let mut chains = Vec::new();
        for path in &words.certificates {
            if let Some(files) = (self.env.folder)(path) {
                let is_used = |it: &&String| !RESERVED.iter().any(|end| it.ends_with(end));
                let folder = path.trim_end_matches('/');
                chains.extend(files.iter().filter(is_used).map(|it| format!("{folder}/{it}")));
            } else if path.ends_with('/') {
                let message = format!("the certificates in {:?} are unknown", safe_word(path));
                let remedy = "run the import where haproxy runs, or name each file with `crt`";
                self.refuse(bind, message, remedy);
            } else if self.is_readable_file(bind, path) {
                chains.push(path.clone());
            }
        }
        let key_of = |chain: &String| self.key_of(chain).unwrap_or_else(|| chain.clone());
        let keys = chains.iter().map(key_of).collect();
        (chains, keys)
    }

    /// The file that haproxy reads a certificate's key from, if it is not the same one.
    pub(super) fn key_of(&self, chain: &str) -> Option<String> {
        let (folder, file) = chain.rsplit_once('/').unwrap_or((".", chain));
        let key = format!("{file}.key");
        let files = (self.env.folder)(folder)?;
        files.contains(&key).then(|| format!("{chain}.key"))
    }

    /// Refuses a text that is not the path of a file.
    pub(super) fn is_readable_file(&mut self, line: &Directive, path: &str) -> bool {
        let (message, remedy) = if path.contains("${") {
            ("is not a path", "set the variable and run again")
        } else if path.starts_with('@') {
            (
                "is not a file, and Pointsman reads certificates from files",
                "name a file in PEM format",
            )
        } else if path.is_empty() {
            ("is not a path", "name a file in PEM format")
        } else if path.ends_with('/') || (self.env.folder)(path).is_some() {
            ("is a folder", "join its files into one, and name that")
        } else {
            return true;
        };
        self.refuse(line, format!("{:?} {message}", safe_word(path)), remedy);
        false
    }

    /// The keys that both sides have.
    pub(super) fn common_keys(&mut self, line: &'a Directive, words: &TlsWords) -> Vec<Key> {
        let table = words.versions().unwrap_or_else(|()| {
            let message = "Pointsman speaks TLS 1.2 and 1.3, which this line excludes";
            self.refuse(line, message, format!("allow one of them, {PLAIN}"));
            Vec::new()
        });
        if words.admits_old_versions() {
            let note = "TLS 1.1 and older is refused: 1.2 is the oldest version of Pointsman";
            self.notes.add(line, LineOutcome::Assumed, note);
        }
        if words.has_ciphers {
            let note = "the list of ciphers is not converted: all ciphers of Pointsman are \
                        authenticated ones with forward secrecy, see the key ciphers";
            self.notes.add(line, LineOutcome::Assumed, note);
        }
        for word in &words.dropped {
            let note = format!("`{word}` has no counterpart in Pointsman");
            self.notes.add(line, LineOutcome::Assumed, &note);
        }
        table
    }

    pub(super) fn refuse_unsupported(&mut self, line: &Directive, words: &TlsWords) {
        for word in &words.unsupported {
            let message = format!("`{word}` has no counterpart in Pointsman");
            let remedy = match word.as_str() {
                "crt-list" => format!("name each certificate with `crt`, {PLAIN}"),
                "ca-verify-file" => format!("name all authorities in `ca-file`, {PLAIN}"),
                _ => format!("keep haproxy here, remove the option, {PLAIN}"),
            };
            self.refuse(line, message, remedy);
        }
    }

    /// Converts every line with TLS of the services and the admin server to plain text, and lists
    /// it.
    fn drop_tls(&mut self, plan: &mut Plan<'_>) {
        let mut found: BTreeSet<(Position, &'static str)> = BTreeSet::new();
        let listeners = self.proxies.listeners.iter().map(|it| it.section);
        for section in listeners.chain(self.proxies.admin.iter().map(|(section, _)| *section)) {
            let binds = self.config.lines(section, "bind");
            found.extend(binds.filter(|it| it.has("ssl")).map(|it| (it.position.clone(), CLIENTS)));
        }
        let speaks_tls = |it: &&Directive| {
            let mut lines = ["server", "server-template", "default-server", "tcp-check"].iter();
            lines.any(|keyword| it.has_at(0, keyword)) && (it.has("ssl") || it.has("check-ssl"))
        };
        for section in self.proxies.serving() {
            let lines = self.config.defaults_first(section).filter(speaks_tls);
            found.extend(lines.map(|it| (it.position.clone(), SERVERS)));
        }
        for (position, loss) in found {
            let note = format!("TLS is dropped because of --allow-plaintext: {loss}");
            self.notes.replace(&position, LineOutcome::Unmatched, &note);
            plan.plaintext.push((position, loss));
        }
    }
}

pub(super) fn planned_keys(keys: Vec<Key>, line: &Directive) -> Vec<PlannedKey> {
    let planned = |(key, value)| PlannedKey { key, value, position: line.position.clone() };
    keys.into_iter().map(planned).collect()
}

pub(super) fn toml_list(items: &[impl AsRef<str>]) -> String {
    let quoted: Vec<String> = items.iter().map(|it| quote(it.as_ref())).collect();
    format!("[{}]", quoted.join(", "))
}
