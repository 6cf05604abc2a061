//! TLS of clients, of Redis and of the sentinels, as the tables of a service.
//!
//! A service has one set of certificates for all of its addresses with TLS, and one way to verify
//! its Redis servers and its sentinels each. Lines that differ are refused, and so is every option
//! that Pointsman lacks and that decides who is admitted. Options without such consequences are
//! reported. `--allow-plaintext` gives up all of it, see `tls_lines`. Servers are in `tls_servers`,
//! and the admin server is in `tls_admin`.

use crate::Refusal;
use crate::config_file::Directive;
use crate::plan::{self, Plan, PlannedKey, PlannedListen, PlannedService, Planner};
use crate::proxies::{self, RedisListener};
use crate::render::quote;
use crate::report::LineOutcome;
use crate::tls_words::{CipherProblem, TlsDefaults, TlsWords};
use crate::tokenizer::safe_word;
use crate::values::BindAddress;

/// A key of a table, and its value in TOML.
pub(super) type Key = (&'static str, String);

const PLAIN: &str = "or give up TLS with --allow-plaintext";
/// Files that haproxy does not take for certificates if it loads a folder.
const RESERVED: [&str; 4] = [".key", ".issuer", ".ocsp", ".sctl"];

impl<'a> Planner<'a> {
    /// Adds TLS to the services.
    pub(super) fn add_tls(&mut self, plan: &mut Plan) {
        if self.options.allow_plaintext {
            return self.drop_tls(plan);
        }
        for service in &mut plan.services {
            let proxies = self.proxies;
            let is_of = |it: &&RedisListener| {
                let of = |listen: &[PlannedListen]| plan::is_of(self.config, it.section, listen);
                of(&service.listen) || of(&service.replica_listen)
            };
            let listeners: Vec<&'a RedisListener> =
                proxies.listeners.iter().filter(is_of).collect();
            self.add_tls_of_clients(&listeners, service);
            self.add_tls_of_redis(&listeners, service);
            self.add_tls_of_sentinels(&listeners, service);
        }
        self.add_tls_of_admin(plan);
    }

    fn add_tls_of_clients(
        &mut self,
        listeners: &[&'a RedisListener],
        service: &mut PlannedService,
    ) {
        let defaults = TlsDefaults::read(self.config, "bind");
        let mut planned: Option<(Vec<Key>, &'a Directive)> = None;
        for listener in listeners {
            let binds = proxies::lines(self.config, listener.section, "bind");
            for bind in binds.filter(|it| it.has("ssl")) {
                let Some(keys) = self.keys_of_bind(bind, &defaults.of_bind(bind)) else { continue };
                let is_unix = |it: &PlannedListen| {
                    it.1 == bind.position && matches!(it.0, BindAddress::Unix(_))
                };
                let mut all = service.listen.iter().chain(&service.replica_listen);
                if all.any(is_unix) {
                    let message = "Pointsman has no TLS on Unix sockets".to_owned();
                    let remedy = "remove `ssl` from this line, or give it a TCP address";
                    self.refuse_line(bind, message, remedy);
                }
                service.tls_lines.insert(bind.position.clone());
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
            self.refuse_line(line, message, "use the same options on both lines");
            return false;
        }
        true
    }

    /// The keys of `[service.tls]`; `None` after a refusal.
    fn keys_of_bind(&mut self, bind: &'a Directive, words: &TlsWords) -> Option<Vec<Key>> {
        let refusals = self.refusals.len();
        self.refuse_unsupported(bind, words);
        let (chains, keys) = self.certificates(bind, words);
        if chains.is_empty() && self.refusals.len() == refusals {
            let message = "it has `ssl` without a certificate".to_owned();
            self.refuse_line(bind, message, "add `crt FILE`");
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
    pub(super) fn keys_of_verify(&mut self, bind: &Directive, words: &TlsWords) -> Vec<Key> {
        let verify = words.verify.as_deref().unwrap_or("none");
        if !["optional", "required"].contains(&verify) {
            return Vec::new();
        }
        let mut table: Vec<Key> = vec![("client_certificates", quote(verify))];
        match words.ca_file.as_deref() {
            Some(file) if self.is_readable_file(bind, file) => {
                table.push(("client_ca_file", quote(file)));
            }
            Some(_) => {}
            None => {
                let message = format!("it has `verify {verify}` without a `ca-file`");
                self.refuse_line(bind, message, "add `ca-file FILE`");
            }
        }
        table
    }

    /// The files with certificates, and those with their keys.
    pub(super) fn certificates(
        &mut self,
        bind: &Directive,
        words: &TlsWords,
    ) -> (Vec<String>, Vec<String>) {
        let (mut chains, mut keys) = (Vec::new(), Vec::new());
        for path in &words.certificates {
            if let Some(files) = (self.env.folder)(path) {
                let is_used = |it: &&String| !RESERVED.iter().any(|end| it.ends_with(end));
                let folder = path.trim_end_matches('/');
                chains.extend(files.iter().filter(is_used).map(|it| format!("{folder}/{it}")));
            } else if path.ends_with('/') {
                let message = format!("the certificates in {:?} are unknown", safe_word(path));
                let remedy = "run the import where haproxy runs, or name each file with `crt`";
                self.refuse_line(bind, message, remedy);
            } else if self.is_readable_file(bind, path) {
                chains.push(path.clone());
            }
        }
        for chain in &chains {
            keys.push(self.key_of(chain).unwrap_or_else(|| chain.clone()));
        }
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
        self.refuse_line(line, format!("{:?} {message}", safe_word(path)), remedy);
        false
    }

    /// The keys that both sides have.
    pub(super) fn common_keys(&mut self, line: &'a Directive, words: &TlsWords) -> Vec<Key> {
        let mut table = words.versions().unwrap_or_else(|()| {
            let message = "Pointsman speaks TLS 1.2 and 1.3, which this line excludes".to_owned();
            self.refuse_line(line, message, &format!("allow one of them, {PLAIN}"));
            Vec::new()
        });
        if words.admits_old_versions() {
            let note = "TLS 1.1 and older is refused: 1.2 is the oldest version of Pointsman";
            self.notes.add(line, LineOutcome::Assumed, note);
        }
        match words.ciphers() {
            Ok(None) => {}
            Ok(Some(ciphers)) => table.push(("ciphers", toml_list(&ciphers))),
            Err(CipherProblem::Expression) => {
                let note = "the list of ciphers is not converted: all ciphers of Pointsman are \
                            authenticated ones with forward secrecy, see the key ciphers";
                self.notes.add(line, LineOutcome::Assumed, note);
            }
            Err(CipherProblem::NoneSupported) => {
                let message = "Pointsman supports none of these ciphers".to_owned();
                let remedy = format!("allow one with forward secrecy and GCM or Poly1305, {PLAIN}");
                self.refuse_line(line, message, &remedy);
            }
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
            self.refuse_line(line, message, &remedy);
        }
    }

    pub(super) fn refuse_line(&mut self, line: &Directive, message: String, remedy: &str) {
        self.refusals.push(Refusal::new(line.position.clone(), message, remedy));
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
