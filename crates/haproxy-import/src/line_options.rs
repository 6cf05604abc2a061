//! Options of `bind`, `server` and `default-server` lines that Pointsman lacks.
//!
//! Options that change nothing, and those that are read elsewhere, are known by name. Every other
//! one is reported: it may restrict who reaches an address, or say how a server is reached.

use std::collections::BTreeMap;

use crate::Position;
use crate::plan::Planner;
use crate::sections::Directive;
use crate::tokenizer::safe_word;
use crate::values::{self, BindAddress};

/// Known options of `bind` without and with a value. `*` stands for the rest of a word.
const BIND: (&str, &str) = (
    "defer-accept tfo v4v6",
    "backlog cc expose-fd guid-prefix id idle-ping level mss name nice process proto \
     severity-output shards tcp-ut thread",
);
/// Known options of `server` and `default-server` without and with a value.
const SERVER: (&str, &str) = (
    "agent-check backup check disabled enabled non-stick stick tfo",
    "addr agent-* check-proto cookie downinter error-limit fall fastinter guid hash-key id \
     init-addr init-state inter log-proto max-reuse maxqueue minconn observe on-* pool-* port \
     proto redir resolve-* resolvers rise shard slowstart tcp-ut track weight ws",
);
/// Options about TLS, which `tls_words` reads, and those that turn something off.
const TLS: (&str, &str) = (
    "allow-0rtt check-ssl force-* generate-certificates no-* prefer-client-ciphers ssl ssl-reuse \
     strict-sni tls-tickets",
    "alpn ca-* check-alpn check-sni ciphers ciphersuites client-sigalgs crl-file crt crt-* curves \
     default-crt ecdhe npn ocsp-update sigalgs sni ssl-max-ver ssl-min-ver tls-ticket-keys verify \
     verifyhost",
);
/// Options with a value that Pointsman lacks.
const LOST: &str = "accept-netscaler-cip gid group interface maxconn mode namespace \
                    proxy-v2-options set-proxy-v2-tlv* socks4 source uid user usesrc";

const PER_SERVER: &str = "Pointsman does not limit connections per server; \
                          service.max_connections limits clients";

/// What a line is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Clients,
    Admin,
    Servers,
}

impl<'a> Planner<'a> {
    /// Reports the options that Pointsman lacks, once everything else is known of the lines.
    pub(super) fn note_options(&mut self) {
        let (config, proxies) = (self.config, self.proxies);
        let mut lines: BTreeMap<&Position, (&'a Directive, Side)> = BTreeMap::new();
        let listeners = proxies.listeners.iter().map(|it| (it.section, Side::Clients));
        let admin = proxies.admin.iter().map(|(section, _)| (*section, Side::Admin));
        for (section, side) in listeners.chain(admin) {
            let binds = config.lines(section, "bind");
            lines.extend(binds.map(|it| (&it.position, (it, side))));
        }
        for section in proxies.serving() {
            let defaults = config.default_servers(section);
            let servers = config.servers(section).map(|it| it.directive);
            lines.extend(servers.chain(defaults).map(|it| (&it.position, (it, Side::Servers))));
        }
        for (line, side) in lines.into_values() {
            let mut others = Vec::new();
            for word in unknown(line, side) {
                self.refuse_network(line, &word, side);
                match note(&word, side) {
                    Some(note) => self.notes.lose(&line.position, note),
                    None if word == "accept-proxy" => {}
                    None => others.push(format!("`{}`", safe_word(&word))),
                }
            }
            if !others.is_empty() {
                let note = format!("options that Pointsman lacks: {}", others.join(", "));
                self.notes.lose(&line.position, &note);
            }
        }
    }

    /// Refuses to listen on every network for a line that names one.
    fn refuse_network(&mut self, line: &Directive, word: &str, side: Side) {
        let is_any =
            |it: &BindAddress| matches!(it, BindAddress::Tcp(addr) if addr.ip().is_unspecified());
        let addrs = values::bind_addresses(&line.word(1), false).unwrap_or_default();
        let is_network = ["interface", "namespace"].contains(&word) && side != Side::Servers;
        if is_network && addrs.iter().any(is_any) {
            let message =
                format!("it accepts connections through `{word}` only, which Pointsman lacks");
            self.refuse(line, message, "write an address of it in place of the wildcard");
        }
    }
}

/// What is said of single options.
fn note(word: &str, side: Side) -> Option<&'static str> {
    Some(match (word, side) {
        ("v6only", _) => "[::] accepts IPv4 as well, unless an IPv4 address has the same port",
        ("mode", _) => "the mode of the socket file is service.unix_socket_mode, 0660 by default",
        ("accept-proxy", Side::Admin) => {
            "the admin server does not read the PROXY protocol: its clients will fail"
        }
        ("maxconn", Side::Servers) => PER_SERVER,
        (word, Side::Servers) if word.contains("proxy") => {
            "Pointsman does not send the PROXY protocol to Redis"
        }
        _ => return None,
    })
}

/// The options of a line that are not known.
fn unknown(line: &Directive, side: Side) -> Vec<String> {
    let (first, known) = match line.word(0).as_str() {
        _ if side != Side::Servers => (2, BIND),
        "default-server" => (1, SERVER),
        "server" => (3, SERVER),
        _ => (4, SERVER),
    };
    let mut words = line.words.iter().skip(first).map(ToString::to_string);
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        let is_it = |known: &str| match known.strip_suffix('*') {
            Some(start) => word.starts_with(start),
            None => word == known,
        };
        let is_in = |list: &str| list.split(' ').any(is_it);
        if is_in(known.0) || is_in(TLS.0) {
            continue;
        }
        let is_known = is_in(known.1) || is_in(TLS.1);
        if is_known || is_in(LOST) {
            words.next();
        }
        if !is_known {
            found.push(word);
        }
    }
    found
}
