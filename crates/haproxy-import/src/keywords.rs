//! What Pointsman does in place of each haproxy keyword, for lines that nothing was made of.

use crate::LineOutcome::{self, Unmatched, Unneeded};
use crate::config_file::{Directive, SectionKind};

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
const CHECKS: &str =
    "Pointsman has no health checks: it follows the sentinels' majority, by events";
const LOGS: &str = "failovers, starts and stops are logged to the standard output, see [log]";
const HTTP: &str = "applies to HTTP only";
const PROCESS: &str = "set by the service manager or the pod";
const TUNING: &str = "follows from max_connections and the CPU quota";
const KEEPALIVE: &str = "always on, for clients and for Redis, see service.tcp_keepalive";
const GUARD: &str =
    "Pointsman restricts clients by service.allow alone: use a NetworkPolicy or a firewall";
const TABLES: &str =
    "Pointsman has no rates or stick tables; see service.max_connections_per_source";
const IDLE: &str = "idle clients stay connected; tcp_keepalive finds dead ones. \
                    service.client_idle_timeout restores the old rule";
const TLS_DEFAULT: &str = "applied to every line with `ssl` of a Redis listener";
const WAIT: &str =
    "Pointsman has no queue and no retries: clients wait for a master up to service.hold_timeout";

/// Directives by their first words, grouped by the note; of several that match, the longest counts.
const KNOWN: &[(LineOutcome, &str, &str)] = &[
    (
        Unneeded,
        CHECKS,
        "tcp-check, option tcp-check, option redis-check, option httpchk, \
         option external-check, external-check, http-check, timeout check, spread-checks, \
         max-spread-checks",
    ),
    (
        Unneeded,
        LOGS,
        "option log-health-checks, option tcplog, option dontlognull, option dontlog-normal, \
         option logasap, option log-separate-errors, option httplog, log, log-format, \
         error-log-format, log-tag, log-send-hostname",
    ),
    (
        Unneeded,
        SENTINELS,
        "default-server, server, server-template, use-server, balance, hash-type, fullconn, \
         dynamic-cookie-key, load-server-state-from-file, server-state-file, \
         server-state-base, option allbackups, use_backend, default_backend",
    ),
    (Unneeded, "clients' ports always speak Redis, and the admin server HTTP", "mode"),
    (Unneeded, WAIT, "retries, retry-on, option redispatch, option persist, timeout queue"),
    (Unneeded, IDLE, "timeout client, timeout server, timeout tunnel, clitimeout, srvtimeout"),
    (Unneeded, "see service.half_close_timeout", "timeout client-fin, timeout server-fin"),
    (
        Unneeded,
        HTTP,
        "timeout http-request, timeout http-keep-alive, timeout tarpit, \
         option http-server-close, option httpclose, option forwardfor, \
         option http-keep-alive, option http-use-htx, unique-id-format, monitor-net, \
         monitor, http-request, http-response, http-after-response, http-error, http-reuse, \
         errorfile, errorloc, compression, cookie, redirect, rspadd",
    ),
    (
        Unneeded,
        "no Redis listener takes this value; see service.connect_timeout",
        "timeout connect, contimeout",
    ),
    (Unneeded, "see service.tls.handshake_timeout", "timeout client-hs"),
    (Unmatched, "this timeout has no effect here: Pointsman has no such phase", "timeout"),
    (
        Unneeded,
        KEEPALIVE,
        "option tcpka, option clitcpka, option srvtcpka, clitcpka-cnt, clitcpka-idle, \
         clitcpka-intvl, srvtcpka-cnt, srvtcpka-idle, srvtcpka-intvl",
    ),
    (Unneeded, "see /metrics", "option socket-stats, option contstats"),
    (
        Unneeded,
        TUNING,
        "option tcp-smart-accept, option tcp-smart-connect, option splice-auto, \
         option splice-request, option splice-response, bind-process, backlog, maxconn, \
         nbproc, nbthread, cpu-map, cpu-policy, thread-groups, ulimit-n, fd-hard-limit, \
         maxpipes, nosplice, noepoll, no-memory-trimming, profiling.tasks",
    ),
    (Unneeded, "a client that closes while it waits is dropped", "option abortonclose"),
    (
        Unneeded,
        "connections to a superseded master are reset, all others are closed in order",
        "option nolinger",
    ),
    (Unmatched, "this option has no counterpart in Pointsman", "option"),
    (Unneeded, "turns off a feature that Pointsman does not have", "no"),
    (Unneeded, "the admin server answers /alive, /ready, /startup and /healthz", "monitor-uri"),
    (
        Unmatched,
        "the admin server has no users: a token takes their place, see admin.read_token_file",
        "stats auth",
    ),
    (
        Unneeded,
        "Pointsman has no runtime socket; see `pointsman status` and /status",
        "stats socket",
    ),
    (Unneeded, "see /, /status and /metrics of the admin server", "stats"),
    (Unmatched, GUARD, "tcp-request, tcp-response, acl, filter"),
    (Unmatched, TABLES, "stick-table, stick, rate-limit, maxconnrate, maxsessrate"),
    (Unmatched, NOT_REDIS, "bind"),
    (Unmatched, "outgoing connections use the address that the routing table selects", "source"),
    (Unmatched, "outgoing connections use the proxy's own address", "transparent"),
    (Unmatched, SENTINELS, "dispatch"),
    (Unneeded, "a disabled section is left out", "disabled"),
    (Unneeded, "every service is enabled", "enabled"),
    (Unneeded, "a description", "description"),
    (Unneeded, "services are identified by name", "id, guid"),
    (Unmatched, "Pointsman sends no mail: use the Prometheus alerts", "email-alert"),
    (
        Unneeded,
        PROCESS,
        "daemon, master-worker, user, group, uid, gid, chroot, pidfile, node, localpeer, \
         setcap, insecure-fork-wanted, insecure-setuid-wanted, mworker-max-reloads, \
         expose-fd, set-dumpable, unix-bind, default-path",
    ),
    (Unneeded, "expanded where the file refers to it", "setenv, presetenv, resetenv, unsetenv"),
    (Unneeded, "see [shutdown]", "hard-stop-after, grace"),
    (Unneeded, "see shutdown.drain_spread", "close-spread-time"),
];

/// Families of keywords, by prefix.
const FAMILIES: &[(&str, LineOutcome, &str)] = &[
    ("tune.", Unneeded, TUNING),
    ("ssl-default-", Unneeded, TLS_DEFAULT),
    ("ssl-server-verify", Unneeded, TLS_DEFAULT),
    ("ssl-dh-", Unneeded, "key exchange uses elliptic curves only"),
    ("ssl-load-extra-", Unneeded, "see service.tls.key_files"),
    ("ssl-", Unmatched, "no counterpart in Pointsman: see [service.tls] for what it has"),
    ("ca-base", Unneeded, TLS_DEFAULT),
    ("crt-base", Unneeded, TLS_DEFAULT),
    ("lua-", Unmatched, "Pointsman runs no scripts"),
    ("wurfl-", Unneeded, HTTP),
    ("51degrees-", Unneeded, HTTP),
    ("deviceatlas-", Unneeded, HTTP),
    (".", Unmatched, "the condition is not evaluated: the lines of every branch are read"),
];

/// Every known directive with its outcome.
fn known() -> impl Iterator<Item = (&'static str, LineOutcome, &'static str)> {
    KNOWN.iter().flat_map(|(outcome, note, list)| list.split(", ").map(|it| (it, *outcome, *note)))
}

/// The outcome of a directive that nothing was made of.
pub(super) fn directive(directive: &Directive) -> (LineOutcome, &'static str) {
    let begins = |text: &str| text.split(' ').zip(0..).all(|(it, at)| directive.has_at(at, it));
    let found = known().filter(|(words, ..)| begins(words));
    if let Some((_, outcome, note)) = found.max_by_key(|(words, ..)| words.split(' ').count()) {
        return (outcome, note);
    }
    let first = directive.word(0);
    let family = FAMILIES.iter().find(|(start, ..)| first.starts_with(start));
    family.map_or((Unmatched, "unknown keyword"), |(_, outcome, note)| (*outcome, note))
}

/// Whether the keyword, a directive or a head of a section, is one of haproxy's.
pub(super) fn is_known(keyword: &str) -> bool {
    ["global", "defaults", "listen", "frontend", "backend"].contains(&keyword)
        || known().any(|(words, ..)| words.split(' ').next() == Some(keyword))
}
