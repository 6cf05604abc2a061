//! Derives findings from the observations: what is wrong, and what to do about it. Pure.
//!
//! Each rule checks one thing and describes it for the operator: what was observed, where, and the
//! next step. A cause is reported once: not again for each of its [consequences](CONSEQUENCES), and
//! not again for each server of which the same is true.

mod cures;
mod durability;
mod electorate;
mod hello_users;
mod nodes;
mod placement;
mod priorities;
mod settings;
mod transport;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use sentinel::connections::is_usable;
use sentinel::{Denied, NodeAddr, Verify};

use crate::observed::{
    ExamineError, MasterAnswer, Observed, ObservedMaster, ObservedSentinel, SentinelAnswer,
    describe_error,
};

pub(crate) use cures::quote;
pub(crate) use transport::{CERTIFICATE_SOON, days, subject};

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something does not work now, or will not when it is needed.
    Fault,
    /// It works, and is likely to cause trouble.
    Warning,
    /// Information; nothing is wrong.
    Note,
}

impl Severity {
    /// A stable word.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Fault => "fault",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// A stable code of the kind of finding, such as `unknown-name`.
    pub code: &'static str,
    /// The subjects, separated by commas: addresses, or the name of the master.
    pub about: String,
    /// The problem.
    pub what: String,
    /// The remedy.
    pub remedy: String,
    /// The commands of the remedy for a shell, in order; empty if there are none. Findings with one
    /// cause have the same commands, which are run once.
    pub commands: Vec<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.about, self.what, self.remedy)
    }
}

/// Settings of the configuration that findings depend on.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// Announced addresses with an entry in the address map.
    pub mapped: BTreeSet<NodeAddr>,
    /// How long a client may wait for a master.
    pub hold_timeout: Option<Duration>,
    /// The required proof of a node: commands that were not sent are not missed.
    pub verify: Verify,
    /// A password is configured for the sentinels.
    pub sentinels_need_login: bool,
    /// The same for Redis.
    pub nodes_need_login: bool,
    /// How many replicas must confirm each write; 0 for none.
    pub durability_replicas: usize,
    /// The zone of each host, as far as the operator named it.
    pub zones: BTreeMap<String, String>,
    /// Facts of the host on which the doctor runs.
    pub host: HostFacts,
    /// The time of the examination since 1970, for certificates; `None` if the clock is unset.
    pub now: Option<Duration>,
}

/// Facts of the host on which the doctor runs, for services that listen on a virtual address.
#[derive(Debug, Clone, Default)]
pub struct HostFacts {
    /// Configured listen addresses that this host does not have at present.
    pub foreign_listen: Vec<SocketAddr>,
    /// `net.ipv4.ip_nonlocal_bind` and `net.ipv6.ip_nonlocal_bind`; `None` if unreadable.
    pub nonlocal_bind: [Option<bool>; 2],
}

/// The findings so far.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn add(
        &mut self,
        kind: (Severity, &'static str),
        about: impl fmt::Display,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let (severity, code) = kind;
        self.0.push(Finding {
            severity,
            code,
            about: about.to_string(),
            what: what.into(),
            remedy: remedy.into(),
            commands: Vec::new(),
        });
    }

    /// All findings, the most severe first, without consequences and repetitions.
    fn finish(mut self) -> Vec<Finding> {
        for (cause, consequences) in CONSEQUENCES {
            if self.0.iter().any(|it| it.severity == Severity::Fault && it.code == cause) {
                self.0.retain(|it| !consequences.contains(&it.code));
            }
        }
        self.0.sort();
        self.0.dedup();
        let mut merged: Vec<Finding> = Vec::new();
        for finding in self.0 {
            let is_same = |it: &&mut Finding| {
                (it.severity, it.code, &it.what, &it.remedy, &it.commands)
                    == (
                        finding.severity,
                        finding.code,
                        &finding.what,
                        &finding.remedy,
                        &finding.commands,
                    )
            };
            match merged.iter_mut().find(is_same) {
                Some(same) => same.about = format!("{}, {}", same.about, finding.about),
                None => merged.push(finding),
            }
        }
        merged
    }

    /// Adds the commands of its remedy to the finding added last.
    pub(super) fn with_commands(&mut self, commands: &[String]) {
        if let Some(last) = self.0.last_mut() {
            last.commands = commands.to_vec();
        }
    }
}

/// All findings, the most severe first.
#[must_use]
pub fn diagnose(observed: &Observed, context: &Context) -> Vec<Finding> {
    let mut findings = Findings::default();
    for sentinel in &observed.sentinels {
        match &sentinel.answer {
            Err(error) => no_answer(&mut findings, observed, sentinel, error, context),
            Ok(answer) => one_sentinel(&mut findings, observed, sentinel, answer, context),
        }
    }
    electorate::identities(&mut findings, observed, context);
    electorate::former_ids(&mut findings, observed, context);
    electorate::announcements(&mut findings, observed);
    electorate::locked_out(&mut findings, observed, context);
    electorate::unlisted(&mut findings, observed);
    electorate::second_names(&mut findings, observed);
    electorate::agreement(&mut findings, observed, context);
    electorate::quorum(&mut findings, observed);
    placement::diagnose(&mut findings, observed, context);
    settings::diagnose(&mut findings, observed, context);
    nodes::diagnose(&mut findings, observed, context);
    priorities::diagnose(&mut findings, observed);
    durability::diagnose(&mut findings, observed, context);
    hello_users::diagnose(&mut findings, observed);
    transport::diagnose(&mut findings, observed, context);
    findings.finish()
}

/// Codes of faults, each with the codes of what follows from it. Following the remedies of those
/// first would do harm: a quorum that fits sentinels which cannot know each other makes each of
/// them promote a replica.
const CONSEQUENCES: [(&str, &[&str]); 4] = [
    (
        "same-id",
        &[
            "even-sentinels",
            "few-sentinels",
            "majority",
            "peers-down",
            "quorum",
            "quorum-setting",
            "unlisted",
        ],
    ),
    (
        "sentinel-auth",
        &[
            "few-sentinels",
            "majority",
            "master-down",
            "no-replicas",
            "quorum",
            "replica-unlisted",
            "unlisted",
        ],
    ),
    ("few-sentinels", &["quorum"]),
    ("announced", &["one-host", "one-zone"]),
];

fn no_answer(
    findings: &mut Findings,
    observed: &Observed,
    sentinel: &ObservedSentinel,
    error: &ExamineError,
    context: &Context,
) {
    let at = &sentinel.addr;
    let says_why =
        matches!(error, ExamineError::Denied(_) | ExamineError::Tls(_) | ExamineError::OutOfPorts);
    if !sentinel.configured && !says_why {
        return ghost(findings, observed, at, error, context);
    }
    let (code, remedy) = match error {
        ExamineError::Unresolved(_) => (
            "dns",
            "check the spelling, the search domain and the name server that this host \
                     uses"
                .to_owned(),
        ),
        ExamineError::Unreachable(_) => (
            "unreachable",
            "check that it runs, and that firewalls and network policies allow connections from \
             this host to its port"
                .to_owned(),
        ),
        ExamineError::OutOfPorts => ("local-ports", LOCAL_PORTS.to_owned()),
        ExamineError::Unresponsive => (
            "unresponsive",
            "the process may be stopped, or starved \
                  of CPU: check its host"
                .to_owned(),
        ),
        ExamineError::Denied(denied) => {
            return refusals(findings, at, std::slice::from_ref(denied), "sentinel");
        }
        ExamineError::Tls(fault) => {
            return transport::fault(findings, at, fault, "service.sentinel_tls", Severity::Fault);
        }
        ExamineError::UnexpectedServer | ExamineError::OtherSentinel => (
            "no-sentinel",
            "Sentinel usually listens on port 26379 and Redis on 6379; Sentinel 6.2 or newer is \
             required"
                .to_owned(),
        ),
        ExamineError::OutsideNodes => (OUTSIDE_NODES, OUTSIDE_NODES_REMEDY.to_owned()),
        ExamineError::LeadsBack => (
            "loop",
            "configure the address of a sentinel, not of this \
                  proxy"
                .to_owned(),
        ),
    };
    findings.add((Severity::Fault, code), at, describe_error(error), remedy);
}

/// The finding on an announced address that `service.nodes` does not permit.
pub(super) const OUTSIDE_NODES: &str = "outside-nodes";
pub(super) const OUTSIDE_NODES_REMEDY: &str = "add it to service.nodes if it is yours; otherwise find out which client may publish to \
     __sentinel__:hello, and make the sentinels forget it (SENTINEL RESET)";

/// The remedy for a host without a local port.
pub(super) const LOCAL_PORTS: &str = "the ports of net.ipv4.ip_local_port_range are in use towards that address: widen the range, \
     or find the program that opens so many connections (ss -tan)";

/// A listed sentinel that is not configured and does not answer.
fn ghost(
    findings: &mut Findings,
    observed: &Observed,
    at: &NodeAddr,
    error: &ExamineError,
    context: &Context,
) {
    let listed = observed
        .views()
        .filter(|(_, _, view)| view.peers.iter().any(|it| it.addr.as_ref() == Some(at)));
    let who: Vec<String> = listed.map(|(it, ..)| it.addr.to_string()).collect();
    let what =
        format!("it is listed as a sentinel by {}, and {}", who.join(", "), describe_error(error));
    if *error == ExamineError::OutsideNodes {
        findings.add((Severity::Warning, OUTSIDE_NODES), at, what, OUTSIDE_NODES_REMEDY);
        return;
    }
    let is_up =
        |view: &ObservedMaster| view.peers.iter().any(|it| it.up && it.addr.as_ref() == Some(at));
    if observed.views().any(|(_, _, view)| is_up(view)) {
        let remedy = "other sentinels reach it: make its port reachable from this host";
        return findings.add((Severity::Warning, "ghost"), at, what, remedy);
    }
    forgotten(findings, observed, context, at, what, "it counts towards the majority");
}

/// Reports a listed server that is gone, with the commands that make the sentinels forget it.
pub(super) fn forgotten(
    findings: &mut Findings,
    observed: &Observed,
    context: &Context,
    at: &NodeAddr,
    what: String,
    effect: &str,
) {
    let commands = cures::forget(observed, context);
    let remedy = if commands.is_empty() {
        format!(
            "if it is gone for good, the sentinels have to forget it with SENTINEL RESET: until \
             then {effect}. Not now: each of them must find the master up, or RESET would cost it \
             the list of replicas. Run the doctor again then"
        )
    } else {
        format!(
            "if it runs, make its port reachable from this host. If it is gone for good, make the \
             sentinels forget it, one after the other: until then {effect}{}",
            cures::preparation(context)
        )
    };
    findings.add((Severity::Warning, "ghost"), at, what, remedy);
    findings.with_commands(&commands);
}

/// Reports refused commands as one finding with all ACL rules to add.
pub(super) fn refusals(findings: &mut Findings, about: &NodeAddr, refused: &[Denied], kind: &str) {
    let (mut commands, mut rules) = (Vec::new(), Vec::new());
    for denied in refused {
        match denied {
            Denied::PasswordMissing { setting } => findings.add(
                (Severity::Fault, "password"),
                about,
                "it requires a password and none is configured",
                format!("set {setting}"),
            ),
            Denied::PasswordWithheld => findings.add(
                (Severity::Warning, "password"),
                about,
                "it requires a password, which is not sent to it: no majority of the configured \
                 sentinels names or lists it",
                "if it is one of yours, find out why the other sentinels do not list it",
            ),
            Denied::WrongPassword { setting } => findings.add(
                (Severity::Fault, "password"),
                about,
                "it rejects the user or the password",
                format!("check {setting}; ACL LIST on that {kind} shows its users"),
            ),
            Denied::NotPermitted { command, rule } if !rules.contains(rule) => {
                commands.push(*command);
                rules.push(*rule);
            }
            Denied::NotPermitted { .. } => {}
            Denied::TooManyClients => findings.add(
                (Severity::Fault, "connection-rejected"),
                about,
                "it has reached its limit of clients",
                "raise maxclients, or find the clients that hold so many connections with CLIENT \
                 LIST",
            ),
            Denied::ProtectedMode => findings.add(
                (Severity::Fault, "connection-rejected"),
                about,
                "it is in protected mode and accepts connections from its own host only",
                "set a password there, or protected-mode no",
            ),
            Denied::ConnectionRejected => findings.add(
                (Severity::Fault, "connection-rejected"),
                about,
                "it answers a new connection with an error and closes it",
                "check its log",
            ),
        }
    }
    if rules.is_empty() {
        return;
    }
    let what = format!("its ACL does not allow our user to run {}", commands.join(", "));
    let remedy = format!(
        "on that {kind}: ACL SETUSER <our user> {}, and the same in its ACL file",
        rules.join(" ")
    );
    // The name only helps readers of CLIENT LIST.
    let severity = if rules == ["+client|setname"] { Severity::Note } else { Severity::Fault };
    findings.add((severity, "acl"), about, what, remedy);
}

fn one_sentinel(
    findings: &mut Findings,
    observed: &Observed,
    sentinel: &ObservedSentinel,
    answer: &SentinelAnswer,
    context: &Context,
) {
    let (at, name) = (&sentinel.addr, &observed.name);
    refusals(findings, at, &answer.refused, "sentinel");
    if !answer.resp3 {
        let what = "it supports RESP2 only: it is older than Redis 6, or its ACL lacks +hello";
        findings.add(
            (Severity::Note, "resp2"),
            at,
            what,
            "it costs one more connection; allow +hello if possible",
        );
    }
    if answer.tilt {
        let what =
            "it is in TILT: its clock or its scheduling jumped, and it takes no part in failovers";
        findings.add(
            (Severity::Warning, "tilt"),
            at,
            what,
            "TILT ends by itself after 30 s; if it returns, check CPU load and clock of its host",
        );
    }
    match &answer.master {
        MasterAnswer::UnknownName => {
            let others: Vec<&str> = answer.watched.iter().map(|it| &*it.name).collect();
            let others = others.join(", ");
            let commands = cures::realign(observed, context);
            let remedy = if !others.is_empty() {
                format!(
                    "it monitors: {others}; correct `master` (by default `name`), or make it monitor {name}"
                )
            } else if commands.is_empty() {
                format!(
                    "add \"sentinel monitor {name} …\" to its configuration, or configure \
                     another sentinel"
                )
            } else {
                "it lost its file, or SENTINEL REMOVE was run there: make it monitor the master \
                 again"
                    .to_owned()
            };
            let note = if commands.is_empty() { "" } else { cures::preparation(context) };
            findings.add(
                (Severity::Fault, "unknown-name"),
                at,
                format!("it monitors no master named {name}"),
                format!("{remedy}{note}"),
            );
            findings.with_commands(&commands);
        }
        MasterAnswer::Malformed(what) => {
            findings.add(
                (Severity::Warning, "no-answer"),
                at,
                *what,
                "run the doctor again; if it stays, check its log",
            );
        }
        MasterAnswer::Denied => {}
        MasterAnswer::Known(view) => announced(findings, sentinel, answer, view, context),
    }
}

/// Announced addresses that are only valid on the announcing host.
fn announced(
    findings: &mut Findings,
    sentinel: &ObservedSentinel,
    answer: &SentinelAnswer,
    view: &ObservedMaster,
    context: &Context,
) {
    let said_by = answer.reached.ip();
    let useless = |addr: &&NodeAddr| {
        !context.mapped.contains(*addr)
            && addr.ip().is_some_and(|ip: IpAddr| !is_usable(ip, said_by))
    };
    let nodes = std::iter::once(&view.addr).chain(view.replicas.iter().map(|it| &it.addr));
    for addr in nodes.filter(useless) {
        let what = format!("it announces {addr}, which only its own host can reach");
        let remedy = "make the node announce a reachable address (replica-announce-ip, and \
                      sentinel monitor with that address), or set address_map";
        findings.add((Severity::Fault, "announced"), &sentinel.addr, what, remedy);
    }
    for addr in view.peers.iter().filter_map(|it| it.addr.as_ref()).filter(useless) {
        let what =
            format!("it announces another sentinel at {addr}, which only its own host can reach");
        findings.add(
            (Severity::Fault, "announced"),
            &sentinel.addr,
            what,
            "set sentinel announce-ip there, or set address_map",
        );
    }
}
