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

/// Directives by their first words; of several that match, the longest counts. Grouped by subject.
const KNOWN: &[(&[&str], LineOutcome, &str)] = &[
    (&["tcp-check"], Unneeded, CHECKS),
    (&["option", "tcp-check"], Unneeded, CHECKS),
    (&["option", "redis-check"], Unneeded, CHECKS),
    (&["option", "httpchk"], Unneeded, CHECKS),
    (&["option", "external-check"], Unneeded, CHECKS),
    (&["option", "log-health-checks"], Unneeded, LOGS),
    (&["external-check"], Unneeded, CHECKS),
    (&["http-check"], Unneeded, CHECKS),
    (&["timeout", "check"], Unneeded, CHECKS),
    (&["spread-checks"], Unneeded, CHECKS),
    (&["max-spread-checks"], Unneeded, CHECKS),
    (&["default-server"], Unneeded, SENTINELS),
    (&["server"], Unneeded, SENTINELS),
    (&["server-template"], Unneeded, SENTINELS),
    (&["use-server"], Unneeded, SENTINELS),
    (&["balance"], Unneeded, SENTINELS),
    (&["hash-type"], Unneeded, SENTINELS),
    (&["fullconn"], Unneeded, SENTINELS),
    (&["dynamic-cookie-key"], Unneeded, SENTINELS),
    (&["load-server-state-from-file"], Unneeded, SENTINELS),
    (&["server-state-file"], Unneeded, SENTINELS),
    (&["server-state-base"], Unneeded, SENTINELS),
    (&["mode"], Unneeded, "clients' ports always speak Redis, and the admin server HTTP"),
    (&["retries"], Unneeded, WAIT),
    (&["retry-on"], Unneeded, WAIT),
    (&["option", "redispatch"], Unneeded, WAIT),
    (&["option", "persist"], Unneeded, WAIT),
    (&["timeout", "queue"], Unneeded, WAIT),
    (&["timeout", "client"], Unneeded, IDLE),
    (&["timeout", "server"], Unneeded, IDLE),
    (&["timeout", "tunnel"], Unneeded, IDLE),
    (&["timeout", "client-fin"], Unneeded, "see service.half_close_timeout"),
    (&["timeout", "server-fin"], Unneeded, "see service.half_close_timeout"),
    (&["timeout", "http-request"], Unneeded, HTTP),
    (&["timeout", "http-keep-alive"], Unneeded, HTTP),
    (&["timeout", "tarpit"], Unneeded, HTTP),
    (
        &["timeout", "connect"],
        Unneeded,
        "no Redis listener takes this value; see service.connect_timeout",
    ),
    (&["contimeout"], Unneeded, "no Redis listener takes this value; see service.connect_timeout"),
    (&["clitimeout"], Unneeded, IDLE),
    (&["srvtimeout"], Unneeded, IDLE),
    (&["timeout", "client-hs"], Unneeded, "see service.tls.handshake_timeout"),
    (&["timeout"], Unmatched, "this timeout has no effect here: Pointsman has no such phase"),
    (&["option", "tcpka"], Unneeded, KEEPALIVE),
    (&["option", "clitcpka"], Unneeded, KEEPALIVE),
    (&["option", "srvtcpka"], Unneeded, KEEPALIVE),
    (&["clitcpka-cnt"], Unneeded, KEEPALIVE),
    (&["clitcpka-idle"], Unneeded, KEEPALIVE),
    (&["clitcpka-intvl"], Unneeded, KEEPALIVE),
    (&["srvtcpka-cnt"], Unneeded, KEEPALIVE),
    (&["srvtcpka-idle"], Unneeded, KEEPALIVE),
    (&["srvtcpka-intvl"], Unneeded, KEEPALIVE),
    (&["option", "tcplog"], Unneeded, LOGS),
    (&["option", "dontlognull"], Unneeded, LOGS),
    (&["option", "dontlog-normal"], Unneeded, LOGS),
    (&["option", "logasap"], Unneeded, LOGS),
    (&["option", "log-separate-errors"], Unneeded, LOGS),
    (&["option", "httplog"], Unneeded, LOGS),
    (&["option", "socket-stats"], Unneeded, "see /metrics"),
    (&["option", "contstats"], Unneeded, "see /metrics"),
    (&["option", "tcp-smart-accept"], Unneeded, TUNING),
    (&["option", "tcp-smart-connect"], Unneeded, TUNING),
    (&["option", "splice-auto"], Unneeded, TUNING),
    (&["option", "splice-request"], Unneeded, TUNING),
    (&["option", "splice-response"], Unneeded, TUNING),
    (&["option", "allbackups"], Unneeded, SENTINELS),
    (&["option", "abortonclose"], Unneeded, "a client that closes while it waits is dropped"),
    (
        &["option", "nolinger"],
        Unneeded,
        "connections to a superseded master are reset, all others are closed in order",
    ),
    (&["option", "http-server-close"], Unneeded, HTTP),
    (&["option", "httpclose"], Unneeded, HTTP),
    (&["option", "forwardfor"], Unneeded, HTTP),
    (&["option", "http-keep-alive"], Unneeded, HTTP),
    (&["option", "http-use-htx"], Unneeded, HTTP),
    (&["option"], Unmatched, "this option has no counterpart in Pointsman"),
    (&["no"], Unneeded, "turns off a feature that Pointsman does not have"),
    (&["log"], Unneeded, LOGS),
    (&["log-format"], Unneeded, LOGS),
    (&["error-log-format"], Unneeded, LOGS),
    (&["log-tag"], Unneeded, LOGS),
    (&["log-send-hostname"], Unneeded, LOGS),
    (&["unique-id-format"], Unneeded, HTTP),
    (&["monitor-uri"], Unneeded, "the admin server answers /alive, /ready, /startup and /healthz"),
    (&["monitor-net"], Unneeded, HTTP),
    (&["monitor"], Unneeded, HTTP),
    (
        &["stats", "auth"],
        Unmatched,
        "the admin server has no users: a token takes their place, see admin.read_token_file",
    ),
    (
        &["stats", "socket"],
        Unneeded,
        "Pointsman has no runtime socket; see `pointsman status` and /status",
    ),
    (&["stats"], Unneeded, "see /, /status and /metrics of the admin server"),
    (&["http-request"], Unneeded, HTTP),
    (&["http-response"], Unneeded, HTTP),
    (&["http-after-response"], Unneeded, HTTP),
    (&["http-error"], Unneeded, HTTP),
    (&["http-reuse"], Unneeded, HTTP),
    (&["errorfile"], Unneeded, HTTP),
    (&["errorloc"], Unneeded, HTTP),
    (&["compression"], Unneeded, HTTP),
    (&["cookie"], Unneeded, HTTP),
    (&["redirect"], Unneeded, HTTP),
    (&["rspadd"], Unneeded, HTTP),
    (&["tcp-request"], Unmatched, GUARD),
    (&["tcp-response"], Unmatched, GUARD),
    (&["acl"], Unmatched, GUARD),
    (&["filter"], Unmatched, GUARD),
    (&["stick-table"], Unmatched, TABLES),
    (&["stick"], Unmatched, TABLES),
    (&["rate-limit"], Unmatched, TABLES),
    (&["use_backend"], Unneeded, SENTINELS),
    (&["default_backend"], Unneeded, SENTINELS),
    (&["bind"], Unmatched, NOT_REDIS),
    (&["bind-process"], Unneeded, TUNING),
    (&["backlog"], Unneeded, TUNING),
    (&["maxconn"], Unneeded, TUNING),
    (&["source"], Unmatched, "outgoing connections use the address that the routing table selects"),
    (&["transparent"], Unmatched, "outgoing connections use the proxy's own address"),
    (&["dispatch"], Unmatched, SENTINELS),
    (&["disabled"], Unneeded, "a disabled section is left out"),
    (&["enabled"], Unneeded, "every service is enabled"),
    (&["description"], Unneeded, "a description"),
    (&["id"], Unneeded, "services are identified by name"),
    (&["guid"], Unneeded, "services are identified by name"),
    (&["email-alert"], Unmatched, "Pointsman sends no mail: use the Prometheus alerts"),
    (&["daemon"], Unneeded, PROCESS),
    (&["master-worker"], Unneeded, PROCESS),
    (&["user"], Unneeded, PROCESS),
    (&["group"], Unneeded, PROCESS),
    (&["uid"], Unneeded, PROCESS),
    (&["gid"], Unneeded, PROCESS),
    (&["chroot"], Unneeded, PROCESS),
    (&["pidfile"], Unneeded, PROCESS),
    (&["node"], Unneeded, PROCESS),
    (&["localpeer"], Unneeded, PROCESS),
    (&["setcap"], Unneeded, PROCESS),
    (&["insecure-fork-wanted"], Unneeded, PROCESS),
    (&["insecure-setuid-wanted"], Unneeded, PROCESS),
    (&["mworker-max-reloads"], Unneeded, PROCESS),
    (&["expose-fd"], Unneeded, PROCESS),
    (&["set-dumpable"], Unneeded, PROCESS),
    (&["unix-bind"], Unneeded, PROCESS),
    (&["default-path"], Unneeded, PROCESS),
    (&["setenv"], Unneeded, "expanded where the file refers to it"),
    (&["presetenv"], Unneeded, "expanded where the file refers to it"),
    (&["resetenv"], Unneeded, "expanded where the file refers to it"),
    (&["unsetenv"], Unneeded, "expanded where the file refers to it"),
    (&["nbproc"], Unneeded, TUNING),
    (&["nbthread"], Unneeded, TUNING),
    (&["cpu-map"], Unneeded, TUNING),
    (&["cpu-policy"], Unneeded, TUNING),
    (&["thread-groups"], Unneeded, TUNING),
    (&["ulimit-n"], Unneeded, TUNING),
    (&["fd-hard-limit"], Unneeded, TUNING),
    (&["maxpipes"], Unneeded, TUNING),
    (&["maxconnrate"], Unmatched, TABLES),
    (&["maxsessrate"], Unmatched, TABLES),
    (&["nosplice"], Unneeded, TUNING),
    (&["noepoll"], Unneeded, TUNING),
    (&["no-memory-trimming"], Unneeded, TUNING),
    (&["profiling.tasks"], Unneeded, TUNING),
    (&["hard-stop-after"], Unneeded, "see [shutdown]"),
    (&["grace"], Unneeded, "see [shutdown]"),
    (&["close-spread-time"], Unneeded, "see shutdown.drain_spread"),
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

/// The outcome of a directive that nothing was made of.
pub(super) fn directive(directive: &Directive) -> (LineOutcome, &'static str) {
    let known = KNOWN
        .iter()
        .filter(|(words, ..)| directive.begins(words))
        .max_by_key(|(words, ..)| words.len());
    if let Some((_, verdict, note)) = known {
        return (*verdict, note);
    }
    let first = directive.word(0);
    let family = FAMILIES.iter().find(|(start, ..)| first.starts_with(start));
    family.map_or((Unmatched, "unknown keyword"), |(_, verdict, note)| (*verdict, note))
}

/// Whether the keyword, a directive or a head of a section, is one of haproxy's.
pub(super) fn is_known(keyword: &str) -> bool {
    ["global", "defaults", "listen", "frontend", "backend"].contains(&keyword)
        || KNOWN.iter().any(|(words, ..)| words.first().is_some_and(|word| *word == keyword))
}
