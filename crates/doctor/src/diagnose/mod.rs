//! Derives findings from the observations: what is wrong, and what to do about it. Pure.
//!
//! Each rule checks one thing and describes it for the operator: what was observed, where, and the
//! next step. A cause is reported once: not again for each of its [consequences](causes), and
//! not again for each server of which the same is true.

mod cures;
mod electorate;
mod nodes;
mod placement;
mod promotion;
mod settings;
mod transport;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::slice::from_ref;
use std::time::Duration;

use sentinel::connections::is_usable;
use sentinel::{Denied, NodeAddr, Verify};
use serde::Serialize;

use self::Severity::{Fault, Note, Warning};
use crate::observed::{
    ExamineError, MasterAnswer, Observed, ObservedMaster, ObservedPeer, ObservedSentinel,
    SentinelAnswer,
};

pub(crate) use cures::quote;
pub(crate) use transport::{FEW_NAMES, days, subject, validity};

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something does not work now, or will not when it is needed.
    Fault,
    /// It works, and is likely to cause trouble.
    Warning,
    /// Information; nothing is wrong.
    Note,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// A stable code of the kind of finding, such as `unknown-name`.
    pub code: &'static str,
    /// The subjects, separated by commas: addresses, or the name of the master.
    pub about: String,
    /// The problem.
    #[serde(rename = "message")]
    pub what: String,
    /// The remedy.
    pub remedy: String,
    /// The commands of the remedy for a shell, in order; empty if there are none. Findings with one
    /// cause have the same commands, which are run once.
    pub commands: Vec<String>,
}

impl Finding {
    /// Everything but the subjects.
    fn contents(&self) -> (Severity, &str, &str, &str, &[String]) {
        (self.severity, self.code, &self.what, &self.remedy, &self.commands)
    }
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
    /// A password is configured for the Redis nodes.
    pub nodes_need_login: bool,
    /// How many replicas must confirm each write; 0 for none.
    pub durability_replicas: usize,
    /// The zone of each host, as far as the operator named it.
    pub zones: BTreeMap<String, String>,
    /// Configured listen addresses that this host does not have now, and `ip_nonlocal_bind`.
    pub foreign_listen: Vec<(SocketAddr, Option<bool>)>,
    /// The time of the examination since 1970, for certificates; `None` if the clock is unset.
    pub now: Option<Duration>,
}

/// The observations, and the settings that findings depend on.
struct Case<'a> {
    observed: &'a Observed,
    context: &'a Context,
}

impl Deref for Case<'_> {
    type Target = Observed;

    fn deref(&self) -> &Observed {
        self.observed
    }
}

/// The findings so far.
#[derive(Debug, Default)]
pub(crate) struct Findings(pub(crate) Vec<Finding>);

impl Findings {
    pub(crate) fn add(
        &mut self,
        severity: Severity,
        code: &'static str,
        about: impl fmt::Display,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add_with(severity, code, about, what, remedy, &[]);
    }

    /// Adds a finding with the commands of its remedy.
    pub(crate) fn add_with(
        &mut self,
        severity: Severity,
        code: &'static str,
        about: impl fmt::Display,
        what: impl Into<String>,
        remedy: impl Into<String>,
        commands: &[String],
    ) {
        let (about, what, remedy) = (about.to_string(), what.into(), remedy.into());
        self.0.push(Finding { severity, code, about, what, remedy, commands: commands.to_vec() });
    }

    /// All findings, the most severe first, without consequences and repetitions.
    fn finish(mut self) -> Vec<Finding> {
        let faults = self.0.iter().filter(|it| it.severity == Fault);
        let faults: BTreeSet<&str> = faults.map(|it| it.code).collect();
        self.0.retain(|it| !causes(it.code).iter().any(|cause| faults.contains(cause)));
        self.0.sort();
        self.0.dedup();
        let mut merged: Vec<Finding> = Vec::new();
        for finding in self.0 {
            match merged.iter_mut().find(|it| it.contents() == finding.contents()) {
                Some(same) => same.about = format!("{}, {}", same.about, finding.about),
                None => merged.push(finding),
            }
        }
        merged
    }
}

/// All findings, the most severe first.
#[must_use]
pub fn diagnose(observed: &Observed, context: &Context) -> Vec<Finding> {
    let (mut found, case) = (Findings::default(), &Case { observed, context });
    let rules: [fn(&mut Findings, &Case<'_>); 16] = [
        sentinels,
        electorate::identities,
        electorate::former_ids,
        electorate::announcements,
        electorate::locked_out,
        electorate::unlisted,
        electorate::second_names,
        electorate::agreement,
        electorate::quorum,
        placement::diagnose,
        settings::diagnose,
        nodes::diagnose,
        promotion::candidates,
        promotion::priorities,
        promotion::durability,
        transport::diagnose,
    ];
    rules.iter().for_each(|rule| rule(&mut found, case));
    found.finish()
}

/// Codes of faults of which a finding with this code is a consequence. Following its remedy first
/// would do harm: a quorum that fits sentinels which cannot know each other makes each of them
/// promote a replica.
fn causes(code: &str) -> &'static [&'static str] {
    match code {
        "even-sentinels" | "peers-down" | "quorum-setting" => &["same-id"],
        "few-sentinels" | "majority" | "unlisted" => &["same-id", "sentinel-auth"],
        "quorum" => &["same-id", "sentinel-auth", "few-sentinels"],
        "master-down" | "no-replicas" | "replica-unlisted" => &["sentinel-auth"],
        "one-host" | "one-zone" => &["announced"],
        _ => &[],
    }
}

/// Items separated by commas.
fn join(items: impl IntoIterator<Item = impl fmt::Display>) -> String {
    items.into_iter().map(|it| it.to_string()).collect::<Vec<_>>().join(", ")
}

/// What each sentinel says, or why it says nothing.
fn sentinels(found: &mut Findings, case: &Case<'_>) {
    for sentinel in &case.sentinels {
        match &sentinel.answer {
            Err(error) => no_answer(found, case, sentinel, error),
            Ok(answer) => one_sentinel(found, case, &sentinel.addr, answer),
        }
    }
}

fn no_answer(found: &mut Findings, case: &Case<'_>, at: &ObservedSentinel, error: &ExamineError) {
    let (at, configured) = (&at.addr, at.configured);
    let (code, remedy) = match error {
        ExamineError::Denied(denied) => return refusals(found, at, from_ref(denied), "sentinel"),
        ExamineError::Tls(fault) => {
            let remedy = format!("[service.sentinel_tls] {}", fault.remedy);
            return found.add(Fault, transport::code(fault), at, &fault.what, remedy);
        }
        _ if !configured && *error != ExamineError::OutOfPorts => {
            return ghost(found, case, at, error);
        }
        ExamineError::UnexpectedServer | ExamineError::OtherSentinel => (
            "no-sentinel",
            "Sentinel usually listens on port 26379 and Redis on 6379; Sentinel 6.2 or newer is \
             required",
        ),
        _ => cause(error).unwrap_or((
            "unreachable",
            "check that it runs, and that firewalls and network policies allow connections from \
             this host to its port",
        )),
    };
    found.add(Fault, code, at, error.to_string(), remedy);
}

/// Code and remedy of causes that are the same for sentinels and Redis nodes.
fn cause(error: &ExamineError) -> Option<(&'static str, &'static str)> {
    Some(match error {
        ExamineError::Unresolved(_) => (
            "dns",
            "the name must resolve on this host: check its spelling, the search domain and the \
             name server; if sentinels announce it, see announce-hostnames, or set address_map",
        ),
        ExamineError::Unresponsive => {
            ("unresponsive", "the process may be busy, stopped, or starved of CPU: check its host")
        }
        ExamineError::LeadsBack => (
            "loop",
            "the address belongs to this proxy: configure that of the server; if sentinels \
             announce it, remove it there, or correct address_map",
        ),
        ExamineError::OutsideNodes => (
            "outside-nodes",
            "add it to service.nodes if it is yours; otherwise find out which client may publish \
             to __sentinel__:hello, and make the sentinels forget it (SENTINEL RESET)",
        ),
        ExamineError::OutOfPorts => (
            "local-ports",
            "the ports of net.ipv4.ip_local_port_range are in use towards that address: widen the \
             range, or find the program that opens so many connections (ss -tan)",
        ),
        _ => return None,
    })
}

/// A listed sentinel that is not configured and does not answer.
fn ghost(found: &mut Findings, case: &Case<'_>, at: &NodeAddr, error: &ExamineError) {
    let is_it = |it: &&ObservedPeer| it.addr.as_ref() == Some(at);
    let listed = case.views().filter(|(.., view)| view.peers.iter().any(|it| is_it(&it)));
    let who = join(listed.map(|(it, ..)| &it.addr));
    let what = format!("it is listed as a sentinel by {who}, and {error}");
    if let (ExamineError::OutsideNodes, Some((code, remedy))) = (error, cause(error)) {
        return found.add(Warning, code, at, what, remedy);
    }
    if case.peers().filter(is_it).any(|it| it.up) {
        let remedy = "other sentinels reach it: make its port reachable from this host";
        return found.add(Warning, "ghost", at, what, remedy);
    }
    forgotten(found, case, at, what, "it counts towards the majority");
}

/// Reports a listed server that is gone, with the commands that make the sentinels forget it.
fn forgotten(found: &mut Findings, case: &Case<'_>, at: &NodeAddr, what: String, effect: &str) {
    let (commands, cure) = cures::forget(case);
    let remedy = format!(
        "if it runs, make its port reachable from this host. If it is gone for good, {effect} until \
         the sentinels forget it: {cure}"
    );
    found.add_with(Warning, "ghost", at, what, remedy, &commands);
}

/// Reports refused commands as one finding with all ACL rules to add.
fn refusals(found: &mut Findings, at: &NodeAddr, refused: &[Denied], kind: &str) {
    let (mut commands, mut rules) = (Vec::new(), Vec::new());
    for denied in refused {
        // The text of a refusal is the problem, and after a colon the remedy, if it has one.
        let text = denied.to_string();
        let (what, remedy) = text.split_once(": ").unwrap_or((&text, ""));
        match denied {
            Denied::NotPermitted { command, rule } => {
                if !rules.contains(rule) {
                    commands.push(*command);
                    rules.push(*rule);
                }
            }
            Denied::PasswordMissing { .. } => found.add(Fault, "password", at, what, remedy),
            Denied::WrongPassword { setting } => {
                let remedy = format!("check {setting}; ACL LIST on that {kind} shows its users");
                found.add(Fault, "password", at, "it rejects the user or the password", remedy);
            }
            Denied::PasswordWithheld => {
                let remedy = "if it is one of yours, add it to service.sentinels if it is a \
                              sentinel, or find out why the sentinels do not list it";
                found.add(Warning, "password", at, what, remedy);
            }
            Denied::TooManyClients | Denied::ProtectedMode | Denied::ConnectionRejected => {
                found.add(Fault, "connection-rejected", at, what, remedy);
            }
        }
    }
    if rules.is_empty() {
        return;
    }
    let what = format!("its ACL does not allow our user to run {}", commands.join(", "));
    let rule = rules.join(" ");
    let remedy =
        format!("on that {kind}: ACL SETUSER <our user> {rule}, and the same in its ACL file");
    // The name only helps readers of CLIENT LIST.
    let severity = if rules == ["+client|setname"] { Note } else { Fault };
    found.add(severity, "acl", at, what, remedy);
}

fn one_sentinel(found: &mut Findings, case: &Case<'_>, at: &NodeAddr, answer: &SentinelAnswer) {
    let name = &case.name;
    refusals(found, at, &answer.refused, "sentinel");
    if !answer.resp3 {
        let what = "it supports RESP2 only: it is older than Redis 6, or its ACL lacks +hello";
        let remedy = "it costs one more connection; allow +hello if possible";
        found.add(Note, "resp2", at, what, remedy);
    }
    if answer.tilt {
        let what =
            "it is in TILT: its clock or its scheduling jumped, and it takes no part in failovers";
        let remedy =
            "TILT ends by itself after 30 s; if it returns, check CPU load and clock of its host";
        found.add(Warning, "tilt", at, what, remedy);
    }
    match &answer.master {
        MasterAnswer::UnknownName => {
            let others = join(answer.watched.iter().map(|it| &*it.name));
            let commands = cures::realign(case);
            let remedy = if !others.is_empty() {
                format!(
                    "it monitors: {others}; correct `master` (by default `name`), or make it \
                     monitor {name}"
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
            let remedy = format!("{remedy}{}", cures::note(case, &commands));
            let what = format!("it monitors no master named {name}");
            found.add_with(Fault, "unknown-name", at, what, remedy, &commands);
        }
        MasterAnswer::Malformed(what) => {
            let remedy = "run the doctor again; if it stays, check its log";
            found.add(Warning, "no-answer", at, *what, remedy);
        }
        MasterAnswer::Denied => {}
        MasterAnswer::Known(view) => announced(found, case, at, answer.reached.ip(), view),
    }
}

/// Announced addresses that are only valid on the announcing host.
fn announced(
    found: &mut Findings,
    case: &Case<'_>,
    at: &NodeAddr,
    said_by: IpAddr,
    view: &ObservedMaster,
) {
    let useless = |addr: &&NodeAddr| {
        !case.context.mapped.contains(*addr) && addr.ip().is_some_and(|ip| !is_usable(ip, said_by))
    };
    for addr in view.nodes().filter(useless) {
        let what = format!("it announces {addr}, which only its own host can reach");
        let remedy = "make the node announce a reachable address (replica-announce-ip, and \
                      sentinel monitor with that address), or set address_map";
        found.add(Fault, "announced", at, what, remedy);
    }
    for addr in view.peers.iter().filter_map(|it| it.addr.as_ref()).filter(useless) {
        let what =
            format!("it announces another sentinel at {addr}, which only its own host can reach");
        let remedy = "set sentinel announce-ip there, or set address_map";
        found.add(Fault, "announced", at, what, remedy);
    }
}
