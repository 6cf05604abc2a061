//! What Pointsman does in place of each haproxy keyword, for lines that nothing was made of.

use crate::LineOutcome::{self, Unmatched, Unneeded};
use crate::sections::{Directive, SectionKind};

/// The outcome of a section as a whole.
pub(super) fn section(kind: SectionKind, keyword: &str) -> (LineOutcome, &'static str) {
    match (kind, keyword) {
        (SectionKind::Global | SectionKind::Defaults, _) => {
            (Unneeded, "see the lines of the section")
        }
        (SectionKind::Other, "resolvers") => {
            (Unneeded, "names are resolved again and again by the system's resolver")
        }
        (
            SectionKind::Other,
            "peers" | "cache" | "fcgi-app" | "http-errors" | "mailers" | "ring" | "program"
            | "traces",
        ) => (Unneeded, "Redis clients do not depend on it"),
        (SectionKind::Other, _) => {
            (Unmatched, "no counterpart in Pointsman; restrict access to the ports in the network")
        }
        _ => (Unmatched, NOT_REDIS),
    }
}

pub(super) const NOT_REDIS: &str = "carries no Redis traffic: keep it in haproxy if it is in use";
const SENTINELS: &str = "the sentinels decide which server is the master, and ROLE verifies it";

/// Directives that Pointsman has no use for, as notes and lists of first words. Of several that
/// match, the longest counts; `*` stands for the rest of a word.
const UNNEEDED: &[(&str, &str)] = &[
    (
        "Pointsman has no health checks: it follows the sentinels' majority, by events",
        "tcp-check, option tcp-check, option redis-check, option httpchk, \
         option external-check, external-check, http-check, timeout check, spread-checks, \
         max-spread-checks",
    ),
    (
        "failovers, starts and stops are logged to the standard output, see [log]",
        "option log-health-checks, option tcplog, option dontlognull, option dontlog-normal, \
         option logasap, option log-separate-errors, option httplog, log, log-format, \
         error-log-format, log-tag, log-send-hostname",
    ),
    (
        SENTINELS,
        "default-server, server, server-template, use-server, balance, hash-type, fullconn, \
         dynamic-cookie-key, load-server-state-from-file, server-state-file, \
         server-state-base, option allbackups, use_backend, default_backend",
    ),
    ("clients' ports always speak Redis, and the admin server HTTP", "mode"),
    (
        "Pointsman has no queue and no retries: clients wait for a master up to \
         service.hold_timeout",
        "retries, retry-on, option redispatch, option persist, timeout queue",
    ),
    (
        "idle clients stay connected; tcp_keepalive finds dead ones. \
         service.client_idle_timeout restores the old rule",
        "timeout client, timeout server, timeout tunnel, clitimeout, srvtimeout",
    ),
    ("see service.half_close_timeout", "timeout client-fin, timeout server-fin"),
    (
        "applies to HTTP only",
        "timeout http-request, timeout http-keep-alive, timeout tarpit, \
         option http-server-close, option httpclose, option forwardfor, \
         option http-keep-alive, option http-use-htx, unique-id-format, monitor-net, monitor, \
         http-request, http-response, http-after-response, http-error, http-reuse, errorfile, \
         errorloc, compression, cookie, redirect, rspadd, wurfl-*, 51degrees-*, deviceatlas-*",
    ),
    (
        "no Redis listener takes this value; see service.connect_timeout",
        "timeout connect, contimeout",
    ),
    ("see service.tls.handshake_timeout", "timeout client-hs"),
    (
        "always on, for clients and for Redis, see service.tcp_keepalive",
        "option tcpka, option clitcpka, option srvtcpka, clitcpka-cnt, clitcpka-idle, \
         clitcpka-intvl, srvtcpka-cnt, srvtcpka-idle, srvtcpka-intvl",
    ),
    ("see /metrics", "option socket-stats, option contstats"),
    (
        "follows from max_connections and the CPU quota",
        "option tcp-smart-accept, option tcp-smart-connect, option splice-auto, \
         option splice-request, option splice-response, bind-process, backlog, maxconn, \
         nbproc, nbthread, cpu-map, cpu-policy, thread-groups, ulimit-n, fd-hard-limit, \
         maxpipes, nosplice, noepoll, no-memory-trimming, profiling.tasks, tune.*",
    ),
    ("a client that closes while it waits is dropped", "option abortonclose"),
    (
        "connections to a superseded master are reset, all others are closed in order",
        "option nolinger",
    ),
    ("turns off a feature that Pointsman does not have", "no"),
    ("the admin server answers /alive, /ready, /startup and /healthz", "monitor-uri"),
    ("Pointsman has no runtime socket; see `pointsman status` and /status", "stats socket"),
    ("see /, /status and /metrics of the admin server", "stats"),
    ("services have names, and all are enabled", "id, guid, description, enabled, disabled"),
    (
        "set by the service manager or the pod",
        "daemon, master-worker, user, group, uid, gid, chroot, pidfile, node, localpeer, \
         setcap, insecure-fork-wanted, insecure-setuid-wanted, mworker-max-reloads, expose-fd, \
         set-dumpable, default-path",
    ),
    ("expanded where the file refers to it", "setenv, presetenv, resetenv, unsetenv"),
    ("see [shutdown]", "hard-stop-after, grace"),
    ("see shutdown.drain_spread", "close-spread-time"),
    (
        "applied to every line with `ssl` of a Redis listener",
        "ssl-default-*, ssl-server-verify*, ca-base*, crt-base*",
    ),
    ("key exchange uses elliptic curves only", "ssl-dh-*"),
    ("see service.tls.key_files", "ssl-load-extra-*"),
];

/// Directives without a counterpart.
const UNMATCHED: &[(&str, &str)] = &[
    ("this timeout has no effect here: Pointsman has no such phase", "timeout"),
    ("this option has no counterpart in Pointsman", "option"),
    (
        "the admin server has no users: a token takes their place, see admin.read_token_file",
        "stats auth",
    ),
    (
        "Pointsman restricts clients by service.allow and commands by service.refuse; for all \
         else use a NetworkPolicy, a firewall or ACLs of Redis",
        "tcp-request, tcp-response, acl, filter",
    ),
    (
        "Pointsman has no rates or stick tables; see service.max_connections_per_source",
        "stick-table, stick, rate-limit, maxconnrate, maxsessrate",
    ),
    (NOT_REDIS, "bind"),
    (
        "a socket file has the path of its bind line, and service.unix_socket_mode: add the prefix",
        "unix-bind",
    ),
    ("outgoing connections use the address that the routing table selects", "source"),
    ("outgoing connections use the proxy's own address", "transparent"),
    (SENTINELS, "dispatch"),
    ("Pointsman sends no mail: use the Prometheus alerts", "email-alert"),
    ("no counterpart in Pointsman: see [service.tls] for what it has", "ssl-*"),
    ("Pointsman runs no scripts", "lua-*"),
    ("the condition is not evaluated: the lines of every branch are read", ".*"),
];

/// Every known directive with its outcome.
fn known() -> impl Iterator<Item = (&'static str, LineOutcome, &'static str)> {
    let of = |table: &'static [(&str, &str)], outcome| {
        let each = move |(note, list): &(&'static str, &'static str)| {
            let note = *note;
            list.split(", ").map(move |words| (words, outcome, note))
        };
        table.iter().flat_map(each)
    };
    of(UNNEEDED, Unneeded).chain(of(UNMATCHED, Unmatched))
}

/// The outcome of a directive that nothing was made of.
pub(super) fn directive(directive: &Directive) -> (LineOutcome, &'static str) {
    let first = directive.word(0);
    let begins = |text: &str| match text.strip_suffix('*') {
        Some(start) => first.starts_with(start),
        None => directive.begins(text),
    };
    let found = known().filter(|(words, ..)| begins(words)).max_by_key(|(words, ..)| words.len());
    found.map_or((Unmatched, "unknown keyword"), |(_, outcome, note)| (outcome, note))
}

/// Whether the keyword, a directive or a head of a section, is one of haproxy's.
pub(super) fn is_known(keyword: &str) -> bool {
    ["global", "defaults", "listen", "frontend", "backend"].contains(&keyword)
        || known().any(|(words, ..)| words.split(' ').next() == Some(keyword))
}
