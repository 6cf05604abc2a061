//! From what was observed to what is wrong, and what to do about it. Pure.
//!
//! Each rule looks at one thing and says it in words for the person who runs the cluster: what was
//! seen, where, and the next step. A cause is told once and not again by everything that follows
//! from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use super::observed::{Account, NoAnswer, Observed, ObservedSentinel, Says, Word};
use super::{nodes, settings};
use crate::net::resolve::is_usable;
use crate::{Denied, MyId, NodeAddr, Verify};

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something does not work now, or will not when it is needed.
    Fault,
    /// It works, and is likely to hurt.
    Warning,
    /// Good to know; nothing is wrong.
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

/// One thing that is wrong, or odd.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// A stable word for what kind of trouble it is, such as `unknown-name`.
    pub code: &'static str,
    /// Whom it is about: an address, or the name of the master.
    pub about: String,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.about, self.what, self.remedy)
    }
}

/// What the configuration says that matters for a judgement.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// Announced addresses that are dialled elsewhere.
    pub mapped: BTreeSet<NodeAddr>,
    /// How long a client may wait for a master.
    pub hold_timeout: Option<Duration>,
    /// What a node has to prove: what was not asked is not missed.
    pub verify: Verify,
}

/// The findings so far.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn add(
        &mut self,
        (severity, code): (Severity, &'static str),
        about: impl fmt::Display,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.0.push(Finding {
            severity,
            code,
            about: about.to_string(),
            what: what.into(),
            remedy: remedy.into(),
        });
    }
}

/// What is wrong, the worst first.
#[must_use]
pub fn diagnose(observed: &Observed, context: &Context) -> Vec<Finding> {
    let mut findings = Findings::default();
    for sentinel in &observed.sentinels {
        match &sentinel.answer {
            Err(why) => no_answer(&mut findings, observed, sentinel, why),
            Ok(account) => one_account(&mut findings, observed, sentinel, account, context),
        }
    }
    identities(&mut findings, observed);
    agreement(&mut findings, observed);
    quorum(&mut findings, observed);
    settings::diagnose(&mut findings, observed, context);
    nodes::diagnose(&mut findings, observed, context);
    findings.0.sort();
    findings.0.dedup();
    findings.0
}

fn no_answer(
    findings: &mut Findings,
    observed: &Observed,
    sentinel: &ObservedSentinel,
    why: &NoAnswer,
) {
    let (at, name) = (&sentinel.addr, &observed.name);
    if !sentinel.configured && !matches!(why, NoAnswer::Denied(_)) {
        let listed = observed
            .words()
            .filter(|(_, _, word)| word.peers.iter().any(|it| it.addr.as_ref() == Some(at)));
        let who: Vec<String> = listed.map(|(it, ..)| it.addr.to_string()).collect();
        let what =
            format!("it is listed as a sentinel by {}, and {}", who.join(", "), in_words(why));
        let remedy = format!(
            "if it is gone for good, run SENTINEL RESET {name} on one sentinel after the other, half a minute apart: until then \
             it counts when a majority is needed. If it runs, open its port to this place"
        );
        findings.add((Severity::Warning, "ghost"), at, what, remedy);
        return;
    }
    let (code, remedy) = match why {
        NoAnswer::Unresolved(_) => {
            ("dns", "check the spelling, the search domain and the name server as this place sees them".to_owned())
        }
        NoAnswer::Unreachable(_) => (
            "unreachable",
            "check that it runs, and that firewalls and network policies let this place reach its port".to_owned(),
        ),
        NoAnswer::Silent => ("silent", "the process may be stopped, or starved of CPU; look at the machine".to_owned()),
        NoAnswer::Denied(denied) => return refusals(findings, at, std::slice::from_ref(denied), "sentinel"),
        NoAnswer::Stranger | NoAnswer::Other => (
            "no-sentinel",
            "Sentinel usually listens on port 26379 and redis on 6379; Sentinel 6.2 or newer is needed".to_owned(),
        ),
        NoAnswer::LeadsBack => ("loop", "name a sentinel, not this proxy".to_owned()),
    };
    findings.add((Severity::Fault, code), at, in_words(why), remedy);
}

pub(super) fn in_words(why: &NoAnswer) -> String {
    match why {
        NoAnswer::Unresolved(why) => why.clone(),
        NoAnswer::Unreachable(why) => why.clone(),
        NoAnswer::Silent => "it takes the connection and does not answer".to_owned(),
        NoAnswer::Denied(denied) => denied.to_string(),
        NoAnswer::Stranger => "it answers, but not as a sentinel or redis does".to_owned(),
        NoAnswer::Other => "another sentinel answers there".to_owned(),
        NoAnswer::LeadsBack => "it is one of our own listeners".to_owned(),
    }
}

/// All that an ACL is too narrow for, as one rule to add.
pub(super) fn refusals(findings: &mut Findings, about: &NodeAddr, refused: &[Denied], kind: &str) {
    let (mut commands, mut rules) = (Vec::new(), Vec::new());
    for denied in refused {
        match denied {
            Denied::PasswordMissing { setting } => findings.add(
                (Severity::Fault, "password"),
                about,
                "it asks for a password and none is configured",
                format!("set {setting}"),
            ),
            Denied::WrongPassword { setting } => findings.add(
                (Severity::Fault, "password"),
                about,
                "it refuses the user or the password",
                format!("check {setting}; a {kind}'s own users are listed by ACL LIST on it"),
            ),
            Denied::NotPermitted { command, rule } if !rules.contains(rule) => {
                commands.push(*command);
                rules.push(*rule);
            }
            Denied::NotPermitted { .. } => {}
            Denied::TooManyClients => findings.add(
                (Severity::Fault, "turned-away"),
                about,
                "it is at its limit of clients",
                "raise maxclients, or find the clients that hold so many connections: CLIENT LIST",
            ),
            Denied::ProtectedMode => findings.add(
                (Severity::Fault, "turned-away"),
                about,
                "it is in protected mode and lets nobody in from elsewhere",
                "set a password there, or protected-mode no",
            ),
            Denied::TurnedAway => findings.add(
                (Severity::Fault, "turned-away"),
                about,
                "it answers a new connection with an error and closes it",
                "look into its log",
            ),
        }
    }
    if rules.is_empty() {
        return;
    }
    let what = format!("its ACL does not let our user run {}", commands.join(", "));
    let remedy = format!(
        "on that {kind}: ACL SETUSER <our user> {}, and the same in its users' file",
        rules.join(" ")
    );
    // A name is a courtesy to whoever reads CLIENT LIST.
    let severity = if rules == ["+client|setname"] { Severity::Note } else { Severity::Fault };
    findings.add((severity, "acl"), about, what, remedy);
}

fn one_account(
    findings: &mut Findings,
    observed: &Observed,
    sentinel: &ObservedSentinel,
    account: &Account,
    context: &Context,
) {
    let (at, name) = (&sentinel.addr, &observed.name);
    refusals(findings, at, &account.refused, "sentinel");
    if !account.resp3 {
        let what = "it speaks RESP2 only: it is older than Redis 6, or its ACL lacks +hello";
        findings.add(
            (Severity::Note, "resp2"),
            at,
            what,
            "it costs one connection more; allow +hello if it can",
        );
    }
    if account.tilt {
        let what = "it is in TILT: its clock or its scheduling jumped, and it does not act";
        findings.add(
            (Severity::Warning, "tilt"),
            at,
            what,
            "it ends by itself after 30 s; if it comes back, look at CPU and clock of its machine",
        );
    }
    match &account.says {
        Says::Unknown => {
            let others = account.watched.join(", ");
            let remedy = if others.is_empty() {
                format!(
                    "add \"sentinel monitor {name} …\" to its configuration, or name another sentinel"
                )
            } else {
                format!(
                    "it watches: {others}; correct the service's name, or that sentinel's configuration"
                )
            };
            findings.add(
                (Severity::Fault, "unknown-name"),
                at,
                format!("it watches no master named {name}"),
                remedy,
            );
        }
        Says::Malformed(what) => {
            findings.add(
                (Severity::Warning, "no-answer"),
                at,
                *what,
                "ask again; if it stays, look at its log",
            );
        }
        Says::Refused => {}
        Says::Knows(word) => announced(findings, sentinel, account, word, context),
    }
}

/// Addresses that can only mean the speaker itself.
fn announced(
    findings: &mut Findings,
    sentinel: &ObservedSentinel,
    account: &Account,
    word: &Word,
    context: &Context,
) {
    let said_by = account.reached.ip();
    let useless = |addr: &&NodeAddr| {
        !context.mapped.contains(*addr)
            && addr.ip().is_some_and(|ip: IpAddr| !is_usable(ip, said_by))
    };
    let nodes = std::iter::once(&word.addr).chain(word.replicas.iter().map(|it| &it.addr));
    for addr in nodes.filter(useless) {
        let what = format!("it announces {addr}, which only its own machine can reach");
        let remedy = "let the node announce a reachable address (replica-announce-ip, and sentinel monitor with that address), or give address_map";
        findings.add((Severity::Fault, "announced"), &sentinel.addr, what, remedy);
    }
    for addr in word.peers.iter().filter_map(|it| it.addr.as_ref()).filter(useless) {
        let what = format!(
            "it says that another sentinel is at {addr}, which only its own machine can reach"
        );
        findings.add(
            (Severity::Fault, "announced"),
            &sentinel.addr,
            what,
            "set sentinel announce-ip there, or give address_map",
        );
    }
}

/// Two sentinels with one MYID were made from one configuration file.
fn identities(findings: &mut Findings, observed: &Observed) {
    let mut by_id: BTreeMap<&MyId, BTreeSet<String>> = BTreeMap::new();
    for (_, account) in observed.accounts() {
        by_id.entry(&account.id).or_default().insert(account.reached.to_string());
    }
    for (id, places) in by_id.iter().filter(|(_, places)| places.len() > 1) {
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        let what =
            format!("the sentinels at {} have the same MYID {}", places.join(" and "), id.short());
        let remedy = "if they are two: stop one, remove the line \"sentinel myid\" from its file and start it. If it is one machine with \
                      two addresses, name one of them";
        findings.add((Severity::Warning, "same-id"), &observed.name, what, remedy);
    }
}

/// Who names what, at which epoch.
fn agreement(findings: &mut Findings, observed: &Observed) {
    let highest = observed.words().map(|(_, _, word)| word.epoch).max().unwrap_or_default();
    for (sentinel, _, word) in observed.words().filter(|(_, _, word)| word.epoch < highest) {
        let what = format!(
            "it names {} at epoch {}, while others are at epoch {highest}",
            word.addr, word.epoch
        );
        let remedy = "it missed a failover: check that it reaches the redis nodes and its peers; if it stays behind, restart it";
        findings.add((Severity::Fault, "stale-epoch"), &sentinel.addr, what, remedy);
    }
    let mut named: BTreeMap<&NodeAddr, Vec<String>> = BTreeMap::new();
    for (sentinel, _, word) in observed.words().filter(|(_, _, word)| word.epoch == highest) {
        named.entry(&word.addr).or_default().push(sentinel.addr.to_string());
    }
    if named.len() > 1 {
        let sides = named.iter().map(|(addr, who)| format!("{addr} by {}", who.join(", ")));
        let what = format!(
            "at epoch {highest} different masters are named: {}",
            sides.collect::<Vec<_>>().join("; ")
        );
        let remedy = format!(
            "find out by ROLE and the data which one is right, then on the sentinels that are wrong: SENTINEL REMOVE {0} and SENTINEL \
             MONITOR {0} with the right address",
            observed.name
        );
        findings.add((Severity::Fault, "disagreement"), &observed.name, what, remedy);
    }
    if observed.words().any(|(_, _, word)| word.failing_over) {
        findings.add(
            (Severity::Note, "failover"),
            &observed.name,
            "a failover is under way",
            "ask again in a few seconds",
        );
    } else if let Some((sentinel, _, word)) = observed.words().find(|(_, _, word)| word.down) {
        let what = format!("it holds the master {} to be down", word.addr);
        findings.add(
            (Severity::Fault, "master-down"),
            &sentinel.addr,
            what,
            "see whether it can reach the master; the other findings may tell why nobody is promoted",
        );
    }
}

/// Whether enough of them are there.
fn quorum(findings: &mut Findings, observed: &Observed) {
    let name = &observed.name;
    for (sentinel, _, word) in observed.words() {
        if let Some(Err(why)) = &word.ckquorum {
            let what = format!("CKQUORUM says that no failover is possible: {why}");
            let remedy = "bring the missing sentinels back, or RESET the list of those that are gone; check that sentinels reach each other";
            findings.add((Severity::Fault, "quorum"), &sentinel.addr, what, remedy);
        }
        let down = word.peers.iter().filter(|peer| !peer.up).count();
        if down > 0 {
            let what = format!("it holds {down} of its {} peers to be down", word.peers.len());
            let remedy = format!(
                "if they are gone for good: SENTINEL RESET {name}; otherwise check the network between them"
            );
            findings.add((Severity::Warning, "peers-down"), &sentinel.addr, what, remedy);
        }
    }
    let reached: BTreeSet<&MyId> = observed.accounts().map(|(_, account)| &account.id).collect();
    let listed = observed
        .words()
        .flat_map(|(_, _, word)| word.peers.iter().filter_map(|peer| peer.id.as_ref()));
    let all: BTreeSet<&MyId> = listed.chain(reached.iter().copied()).collect();
    if all.is_empty() {
        let what = "no sentinel can be asked";
        findings.add(
            (Severity::Fault, "no-sentinels"),
            name,
            what,
            "see what is said of each of them",
        );
        return;
    }
    let majority = all.len() / 2 + 1;
    if reached.len() < majority {
        let what = format!(
            "only {} of {} sentinels can be asked from here, and {majority} are a majority",
            reached.len(),
            all.len()
        );
        let remedy = "a switch cannot be confirmed from here; open the way to the others (learn_sentinels, address_map, network policies)";
        findings.add((Severity::Fault, "majority"), name, what, remedy);
    }
    if all.len() < 3 {
        let what = format!("there are {} sentinels in all", all.len());
        let remedy = "run three or more, on machines of their own: with fewer the loss of one makes failovers impossible";
        findings.add((Severity::Warning, "few-sentinels"), name, what, remedy);
    }
    for (sentinel, _, word) in observed.words() {
        if let Some(quorum) =
            word.quorum.filter(|quorum| *quorum > all.len() as u64 || *quorum == 0)
        {
            let what = format!("its quorum is {quorum}, and there are {} sentinels", all.len());
            findings.add(
                (Severity::Fault, "quorum-setting"),
                &sentinel.addr,
                what,
                format!("SENTINEL SET {name} quorum {majority}"),
            );
        }
    }
}
