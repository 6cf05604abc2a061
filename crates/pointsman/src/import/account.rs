//! The account: for each line of the haproxy.cfg what became of it, and why.
//!
//! The mapping notes what it took; every line that is left is looked up in a table of what haproxy needs and Pointsman does not, or
//! does not have. So no line goes without a word, and a keyword that nobody here knows is said to be unknown. Lines are shown without
//! what may be secret: a check that authenticates, users of the statistics page, variables that are set, and everything unknown.

use std::collections::BTreeMap;
use std::fmt;

use self::Verdict::{Unmatched, Unneeded};
use super::sections::{Book, Directive, Kind};
use super::{Place, words};

/// What became of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It is there, but by a guess that a person should look at.
    Assumed,
    /// It stands in the new configuration.
    Mapped,
    /// Pointsman does by itself what it was for.
    Unneeded,
    /// Pointsman has nothing like it.
    Unmatched,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Mapped => "mapped",
            Self::Assumed => "ASSUMED",
            Self::Unneeded => "not needed",
            Self::Unmatched => "NO COUNTERPART",
        })
    }
}

/// One line of the file and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where the line is.
    pub place: Place,
    /// The line without its secrets.
    pub line: String,
    /// What became of it.
    pub verdict: Verdict,
    /// What it was mapped to, or why it was not.
    pub note: String,
}

/// Entries by their place; one a line.
#[derive(Debug, Default)]
pub(super) struct Account {
    entries: BTreeMap<Place, Entry>,
}

impl Account {
    /// Notes what became of a line. What has been mapped stays so, and each further note is added to it.
    pub(super) fn note(&mut self, directive: &Directive, verdict: Verdict, note: &str) {
        let entry = self.entries.entry(directive.place.clone()).or_insert_with(|| Entry {
            place: directive.place.clone(),
            line: shown(directive),
            verdict,
            note: String::new(),
        });
        if verdict < entry.verdict {
            if entry.verdict != Verdict::Mapped {
                entry.note.clear();
            }
            entry.verdict = verdict;
        }
        let told = verdict == entry.verdict || verdict == Verdict::Mapped;
        if told && !entry.note.split("; ").any(|known| known == note) {
            entry.note = if entry.note.is_empty() { note.to_owned() } else { format!("{}; {note}", entry.note) };
        }
    }

    /// As [`note`](Self::note), but this is what there is to say of the line, whatever was said before.
    pub(super) fn overrule(&mut self, directive: &Directive, verdict: Verdict, note: &str) {
        self.entries.remove(&directive.place);
        self.note(directive, verdict, note);
    }

    /// All of it, with a word on every line that has none yet, in the order of the files.
    pub(super) fn complete(mut self, book: &Book, secrets: &[String]) -> Vec<Entry> {
        for section in &book.sections {
            if !self.entries.contains_key(&section.head.place) {
                let (verdict, note) = head(section.kind, &section.head.word(0));
                self.note(&section.head, verdict, note);
            }
            for directive in &section.directives {
                if !self.entries.contains_key(&directive.place) {
                    let (verdict, note) = match section.kind {
                        Kind::Other => head(section.kind, &section.head.word(0)),
                        _ => look_up(directive),
                    };
                    self.note(directive, verdict, note);
                    if section.kind == Kind::Other
                        && let Some(entry) = self.entries.get_mut(&directive.place)
                    {
                        entry.line = format!("{} …", safe_word(&directive.word(0)));
                    }
                }
            }
        }
        let mut entries: Vec<Entry> = self.entries.into_values().collect();
        for entry in &mut entries {
            for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
                entry.line = entry.line.replace(secret.as_str(), "…");
                entry.note = entry.note.replace(secret.as_str(), "…");
            }
        }
        entries
    }
}

/// What is said of a section as a whole.
fn head(kind: Kind, keyword: &str) -> (Verdict, &'static str) {
    match (kind, keyword) {
        (Kind::Global | Kind::Defaults, _) => (Unneeded, "its lines are accounted for one by one"),
        (Kind::Other, "resolvers") => {
            (Unneeded, "names are asked of the system's resolver, again and again, without being told")
        }
        (Kind::Other, "peers" | "cache" | "fcgi-app" | "http-errors" | "mailers" | "ring" | "program" | "traces") => {
            (Unneeded, "nothing that Redis clients see depends on it")
        }
        (Kind::Other, _) => (Unmatched, "there is nothing like it; guard the ports by the network instead"),
        _ => (Unmatched, "no Redis traffic goes through it; leave it in haproxy if it is in use"),
    }
}

const SENTINELS: &str = "the sentinels decide which server is the master, and it is verified by ROLE";
const CHECKS: &str = "no health checks: the sentinels' majority decides, events arrive at once";
const LOGS: &str = "failovers, starts and stops are logged to the standard output ([log])";
const HTTP: &str = "about HTTP traffic; Redis clients never meet it";
const PROCESS: &str = "the process keeps to one user and one place; the service manager or the pod says which";
const TUNING: &str = "sized from max_connections and the CPU quota";
const KEEPALIVE: &str = "on for both sides, see service.tcp_keepalive";
const GUARD: &str = "there are no rules on sources or contents; use a NetworkPolicy or the firewall";
const TABLES: &str = "sessions are not counted by source; service.max_connections bounds them all";
const IDLE: &str = "idle clients are kept: Redis clients pool connections; dead ones are found by tcp_keepalive and \
                    tcp_user_timeout. The old rule would be service.client_idle_timeout";
const WAIT: &str = "a client waits for a master up to service.hold_timeout, in place of retries and queues";

/// Directives by their first words; of several that fit, the longest counts. Sorted by nothing but sense.
const KNOWN: &[(&[&str], Verdict, &str)] = &[
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
    (&["mode"], Unneeded, "nothing to choose: clients' ports speak Redis, the admin server HTTP"),
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
    (&["timeout"], Unmatched, "there is no such timeout"),
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
    (&["option", "abortonclose"], Unneeded, "a client that leaves while it waits is forgotten"),
    (&["option", "nolinger"], Unneeded, "connections to a superseded master are reset, all others closed in order"),
    (&["option", "http-server-close"], Unneeded, HTTP),
    (&["option", "httpclose"], Unneeded, HTTP),
    (&["option", "forwardfor"], Unneeded, HTTP),
    (&["option", "http-keep-alive"], Unneeded, HTTP),
    (&["option", "http-use-htx"], Unneeded, HTTP),
    (&["option"], Unmatched, "there is no such option"),
    (&["no"], Unneeded, "what it turns off is not there"),
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
        "the admin server has no users; it shows no secrets, guard its port by the network",
    ),
    (&["stats", "socket"], Unneeded, "there is no runtime socket; see pointsman status and /status"),
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
    (&["bind"], Unmatched, "no Redis traffic comes in here"),
    (&["bind-process"], Unneeded, TUNING),
    (&["backlog"], Unneeded, TUNING),
    (&["maxconn"], Unneeded, TUNING),
    (&["source"], Unmatched, "connections go out from the address that the routes choose"),
    (&["transparent"], Unmatched, "connections go out from our own address"),
    (&["dispatch"], Unmatched, SENTINELS),
    (&["disabled"], Unneeded, "leave the section out"),
    (&["enabled"], Unneeded, "everything is"),
    (&["description"], Unneeded, "a comment"),
    (&["id"], Unneeded, "services are known by their names"),
    (&["guid"], Unneeded, "services are known by their names"),
    (&["email-alert"], Unmatched, "see the alerts for Prometheus"),
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
    (&["setenv"], Unneeded, "variables come from the environment of the process"),
    (&["presetenv"], Unneeded, "variables come from the environment of the process"),
    (&["resetenv"], Unneeded, "variables come from the environment of the process"),
    (&["unsetenv"], Unneeded, "variables come from the environment of the process"),
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

/// Keywords whose families are many: what they begin with.
const FAMILIES: &[(&str, Verdict, &str)] = &[
    ("tune.", Unneeded, TUNING),
    ("ssl-", Unmatched, "TLS is set up in the configuration of the service, not for the process"),
    ("ca-base", Unmatched, "paths are written in full"),
    ("crt-base", Unmatched, "paths are written in full"),
    ("lua-", Unmatched, "there are no scripts"),
    ("wurfl-", Unneeded, HTTP),
    ("51degrees-", Unneeded, HTTP),
    ("deviceatlas-", Unneeded, HTTP),
    (".", Unmatched, "conditions are not evaluated: the lines between are read as if they were not there"),
];

fn look_up(directive: &Directive) -> (Verdict, &'static str) {
    let known = KNOWN.iter().filter(|(words, ..)| directive.begins(words)).max_by_key(|(words, ..)| words.len());
    if let Some((_, verdict, note)) = known {
        return (*verdict, note);
    }
    let first = directive.word(0);
    let family = FAMILIES.iter().find(|(start, ..)| first.starts_with(start));
    family.map_or((Unmatched, "this keyword is not known here"), |(_, verdict, note)| (*verdict, note))
}

/// The longest line that is shown.
const LONGEST: usize = 90;

/// Commands of a check that hold nothing secret.
const HARMLESS: &[&str] = &["PING", "INFO", "ROLE", "QUIT", "SENTINEL", "SELECT", "COMMAND", "TIME"];

fn shown(directive: &Directive) -> String {
    let all = || directive.words.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let first = directive.word(0);
    let sends = directive.begins(&["tcp-check"]) && directive.word(1).starts_with("send");
    let harmless = directive.words.get(2).and_then(first_command).is_some_and(|it| HARMLESS.contains(&it.as_str()));
    let hidden = ["setenv", "presetenv", "email-alert"].contains(&first.as_str())
        || directive.begins(&["stats", "auth"])
        || (sends && !harmless);
    let known = KNOWN.iter().any(|(words, ..)| words.first().is_some_and(|word| *word == first))
        || ["global", "defaults", "listen", "frontend", "backend"].contains(&first.as_str());
    let text = match (hidden, known) {
        (true, _) => format!("{first} {} …", directive.word(1)),
        (false, true) => all(),
        (false, false) => format!("{} …", safe_word(&first)),
    };
    shortened(&text, LONGEST)
}

fn first_command(data: &words::Word) -> Option<String> {
    let Some(words::Part::Text(text)) = data.parts.first() else { return None };
    // More than one command in one string may hide a password behind a harmless first one.
    let mut lines = text.trim_end().lines();
    let line = lines.next()?;
    (lines.next().is_none() && data.parts.len() == 1).then(|| line.split(' ').next().unwrap_or_default().to_uppercase())
}

/// A word of the file as it may stand in a message: not too long, and nothing that moves a cursor.
pub(super) fn safe_word(word: &str) -> String {
    shortened(&word.chars().map(|c| if c.is_control() { '?' } else { c }).collect::<String>(), 40)
}

fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}
