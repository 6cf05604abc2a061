//! The verdict on a service and on the process: a severity and one sentence, for the status page
//! and `pointsman status`. Pure: decided from the document alone, so that no reader of the document
//! has to decide again.

use schemars::JsonSchema;
use serde::Serialize;

use super::{NodeStatus, ServiceStatus, Status};

/// The number of names in a sentence; more are a number.
const NAMES: usize = 3;
/// A certificate that expires within this many seconds is mentioned.
const EXPIRES_SOON: i64 = 7 * 86_400;
/// Why traffic is held in the state `unconfirmed`.
const UNCONFIRMED: &str =
    "the master may have been replaced, waiting for confirmation by the sentinels";
/// The problem of a master whose probe, on a connection from before, works.
const CONNECTS_FAIL: &str = "new connections of clients to it fail; \
                             check its maxclients, its tcp-backlog and the network";

/// How bad it is. The most severe one is the smallest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// Clients are not served.
    Fault,
    /// Clients are served, or wait for a moment; something needs attention.
    Warning,
    /// Nothing to do.
    #[default]
    Ok,
}

/// A verdict.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub(crate) struct VerdictStatus {
    /// `fault` (clients are not served), `warning` or `ok`.
    #[schemars(with = "String")]
    pub severity: Severity,
    /// One sentence.
    pub text: String,
}

impl VerdictStatus {
    fn fault(text: String) -> Self {
        Self { severity: Severity::Fault, text }
    }

    fn warning(text: String) -> Self {
        Self { severity: Severity::Warning, text }
    }

    fn ok(text: String) -> Self {
        Self { severity: Severity::Ok, text }
    }
}

impl ServiceStatus {
    /// Decides the verdict. The most severe condition comes first.
    pub(super) fn judge(&self) -> VerdictStatus {
        let Some(target) = &self.target else { return self.without_master() };
        if let Some(order) = self.overridden() {
            let held = (self.gate != "open").then(|| self.held());
            return held.map_or_else(
                || VerdictStatus::warning(order.clone()),
                |held| VerdictStatus { text: format!("{} {order}", held.text), ..held },
            );
        }
        if self.gate != "open" {
            return self.held();
        }
        if self.state == "suspect" {
            return VerdictStatus::warning(self.suspected(&target.name));
        }
        let master = format!("Master: {}", target.name);
        match self.concern() {
            Some(concern) => VerdictStatus::warning(format!("{master}; {concern}.")),
            None => VerdictStatus::ok(format!("{master}.")),
        }
    }

    fn without_master(&self) -> VerdictStatus {
        let had_one = self.generation.is_some() || !self.failovers.is_empty();
        let found = if had_one { "No master" } else { "No master found yet" };
        if let Some(order) = self.overridden() {
            return VerdictStatus::fault(format!("{found}: {order}"));
        }
        let up = self.sentinels_up();
        let mut odd = self.sentinels.iter().filter(|it| it.up);
        let odd = || odd.find_map(|it| Some(format!("; {}: {}", it.addr, it.problem.as_ref()?)));
        let why = self.unverified().or_else(odd);
        let reached = match up {
            0 => "no sentinel is reachable".to_owned(),
            _ => format!("{up} of {} sentinels are reachable", self.sentinels.len()),
        };
        let (why, waiting) = (why.unwrap_or_default(), self.waiting());
        VerdictStatus::fault(format!("{found}: {reached}{why}{waiting}."))
    }

    /// What is wrong with the node that is being verified or, if there is none, with the one that
    /// the sentinels name.
    fn unverified(&self) -> Option<String> {
        let mut voters = self.sentinels.iter().filter(|it| it.up && it.votes && !it.disagrees);
        let named = self.candidate.as_ref().or_else(|| voters.find_map(|it| it.master.as_ref()))?;
        let node = self.nodes.iter().find(|it| it.addr == *named)?;
        Some(match (&node.problem, node.ping) {
            (Some(problem), _) => format!("; {named}: {problem}"),
            // Nothing is known of `other`, which also stands for a node that was not asked.
            (None, Some(ping)) if !node.pong && ping != "other" => {
                format!("; {named} answers PING with {ping}")
            }
            (None, _) => format!("; {named} {}", fault_of(node.role)?),
        })
    }

    /// Why the gate is closed.
    fn held(&self) -> VerdictStatus {
        let time = self.held_s.map(|it| format!(" for {}", span(it))).unwrap_or_default();
        let candidate = self.candidate.as_deref().unwrap_or("a replica");
        let fault = self.unverified().unwrap_or_default();
        let is_minority = self.minority && self.follow.is_none();
        let is_switch = matches!(self.state, "armed" | "committing" | "unconfirmed");
        let is_fault = self.state == "no_master" || (is_minority && !is_switch);
        let why = match self.state {
            "armed" => format!("armed, a failover to {candidate} seems to have begun"),
            "committing" => format!(
                "committing, the sentinels decided for {candidate}, which is verified now{fault}"
            ),
            "unconfirmed" => UNCONFIRMED.to_owned(),
            "no_master" => format!("no node can be verified as the master{fault}"),
            _ if is_minority => "only a minority of the sentinels is reachable".to_owned(),
            _ => match (&self.pause, &self.target) {
                (Some(pause), _) => {
                    format!("paused by an operator ({}, {} left)", pause.by, span(pause.left_s))
                }
                (None, Some(master)) => {
                    let how = self.role_of(&master.name).and_then(fault_of);
                    format!("the master {} {}", master.name, how.unwrap_or("may have failed"))
                }
                (None, None) => "there is no master".to_owned(),
            },
        };
        let text = format!("Traffic held{time}: {why}{}.", self.waiting());
        if is_fault { VerdictStatus::fault(text) } else { VerdictStatus::warning(text) }
    }

    fn role_of(&self, node: &str) -> Option<&'static str> {
        self.nodes.iter().find(|it| it.addr == node).map(|it| it.role)
    }

    fn suspected(&self, master: &str) -> String {
        let how = match self.role_of(master) {
            Some("unresponsive") => "does not answer, and its clients wait",
            role => role.and_then(fault_of).unwrap_or("may have failed"),
        };
        let why = self.master_problem().map(|it| format!(": {it}")).unwrap_or_default();
        let waiting = self.waiting();
        format!(
            "The master {master} {how}{why}; sessions stay on it until the sentinels \
             decide{waiting}."
        )
    }

    /// What is known to be wrong with the master in force. Sessions cannot connect to one that is
    /// unreachable either, so that explains nothing.
    fn master_problem(&self) -> Option<&str> {
        let master = self.target.as_ref()?;
        let node = self.nodes.iter().find(|it| it.addr == master.name)?;
        let refuses = master.connects_fail && node.role == "master";
        node.problem.as_deref().or_else(|| refuses.then_some(CONNECTS_FAIL))
    }

    fn overridden(&self) -> Option<String> {
        let order = self.follow.as_ref()?;
        let names = match order.contradicted_by.as_slice() {
            [] => String::new(),
            names => format!("; sentinels name {}", names.join(", ")),
        };
        Some(format!(
            "OVERRIDE for {} more: {} is followed by an operator's order, without the \
             sentinels{names}.",
            span(order.left_s),
            order.master
        ))
    }

    /// What needs attention although traffic flows.
    fn concern(&self) -> Option<String> {
        if !self.changed_priorities.is_empty() {
            let changes = self.changed_priorities.iter();
            let changes = changes.map(|it| format!("{} from {} to {}", it.node, it.from, it.to));
            return Some(format!(
                "replica-priority is changed for a switchover and not restored yet: {}",
                changes.collect::<Vec<_>>().join(", ")
            ));
        }
        if let (Some(problem), Some(master)) = (self.master_problem(), &self.target) {
            return Some(format!("{}: {problem}", master.name));
        }
        if self.minority {
            return Some("only a minority of the sentinels is reachable".to_owned());
        }
        if self.disagreement {
            return Some("the sentinels disagree".to_owned());
        }
        if let Some(alarm) = self.alarms.iter().find(|it| it.on) {
            let (about, age) = (alarm.sentinels.join(", "), span(alarm.age_s));
            return Some(format!("{} ({about}), for {age}", alarm.message));
        }
        let few = self.few_sentinels().or_else(|| self.few_nodes());
        let nodes = self.nodes.iter().map(|it| (&it.addr, it.tls_fault, &it.problem));
        let sentinels = self.sentinels.iter().map(|it| (&it.addr, it.tls_fault, &it.problem));
        let over_tls = |(addr, fault, problem): (_, Option<_>, &Option<String>)| {
            Some(format!("{addr}: {}", fault.and(problem.as_ref())?))
        };
        few.or_else(|| nodes.chain(sentinels).find_map(over_tls))
    }

    fn few_sentinels(&self) -> Option<String> {
        let (up, all, voters) = (self.sentinels_up(), self.sentinels.len(), self.electorate.voters);
        match up {
            0 => Some("no sentinel is reachable, a failover would not be noticed".to_owned()),
            _ if up < self.electorate.majority => Some(format!(
                "only {up} of {voters} sentinels are reachable, too few to follow a failover"
            )),
            _ if up < all => Some(format!("{up} of {all} sentinels are reachable")),
            _ => None,
        }
    }

    fn few_nodes(&self) -> Option<String> {
        let master = self.target.as_ref().map(|it| it.name.as_str());
        let replicas = || self.nodes.iter().filter(|it| Some(it.addr.as_str()) != master);
        let mute = replicas().filter(|it| is_mute(it));
        let mute: Vec<&str> = mute.map(|it| it.addr.as_str()).collect();
        if !mute.is_empty() && mute.len() == replicas().count() {
            return Some("no replica answers, a failover is impossible".to_owned());
        }
        if self.readers.as_ref().is_some_and(|it| it.eligible == Some(0)) {
            return Some("no replica serves readers".to_owned());
        }
        let verb = if mute.len() == 1 { "does" } else { "do" };
        (!mute.is_empty()).then(|| {
            let all = self.nodes.len();
            format!("{} of {all} nodes {verb} not answer: {}", mute.len(), some(&mute))
        })
    }

    fn sentinels_up(&self) -> usize {
        self.sentinels.iter().filter(|it| it.up).count()
    }

    fn waiting(&self) -> String {
        match self.traffic.sessions_waiting {
            0 => String::new(),
            1 => "; 1 client is waiting".to_owned(),
            number => format!("; {number} clients are waiting"),
        }
    }
}

/// Why a node with this role cannot be the master, as far as is known.
fn fault_of(role: &str) -> Option<&'static str> {
    Some(match role {
        "unreachable" => "is unreachable",
        "unresponsive" => "does not answer",
        "busy" => "runs a script",
        "connection_rejected" => "refuses new connections",
        "denied" | "unusable_address" => "refuses the probes",
        "outside_nodes" => "is outside service.nodes",
        "replica" => "reports that it is a replica",
        _ => return None,
    })
}

/// Whether the last probe of a node failed. One that refuses PING with an error has answered.
fn is_mute(node: &NodeStatus) -> bool {
    node.age_s.is_some() && node.ping.is_none()
}

impl Status {
    /// Decides on the whole process: the most severe verdict, then all others but those of healthy
    /// services. A process that serves all its services says one thing.
    pub(crate) fn judge(&mut self) {
        let mut all = Vec::new();
        all.extend(self.shutdown());
        all.push(self.services_together());
        all.extend(self.readiness());
        all.extend(self.configuration());
        all.extend(self.services.iter().flat_map(refused_credentials));
        // Stable: of equal severity, the order above.
        all.sort_by_key(|it| it.severity);
        self.verdict = all.remove(0);
        self.notices = all;
    }

    fn services_together(&self) -> VerdictStatus {
        let worst = self.services.iter().min_by_key(|it| it.verdict.severity);
        let Some(worst) = worst else {
            return VerdictStatus::warning("No service is configured.".to_owned());
        };
        let (count, severity) = (self.services.len(), worst.verdict.severity);
        let ill = self.services.iter().filter(|it| it.verdict.severity != Severity::Ok).count();
        let text = match ill {
            0 if count > 1 => format!("All {count} services have a master."),
            0 | 1 => format!("{}: {}", worst.name, worst.verdict.text),
            _ if self.services.iter().all(|it| it.verdict == worst.verdict) => {
                format!("All {ill} services: {}", worst.verdict.text)
            }
            _ => {
                let (name, text, more) = (&worst.name, &worst.verdict.text, ill - 1);
                format!("{name}: {text} {more} more of {count} services have problems.")
            }
        };
        VerdictStatus { severity, text }
    }

    fn shutdown(&self) -> Option<VerdictStatus> {
        let open = match self.drain.open {
            1 => "1 session is open".to_owned(),
            open => format!("{open} sessions are open"),
        };
        let (phase, drained, cut) = (self.phase, self.drain.drained, self.drain.cut);
        let text = format!("Shutting down ({phase}): {open}, {drained} drained, {cut} cut.");
        (phase != "serving").then(|| VerdictStatus::warning(text))
    }

    fn readiness(&self) -> Option<VerdictStatus> {
        let why = some(&self.not_ready_because);
        let is_odd = !self.ready && self.phase == "serving";
        is_odd.then(|| VerdictStatus::fault(format!("Not ready: {why}.")))
    }

    fn configuration(&self) -> Vec<VerdictStatus> {
        let (config, mut list) = (&self.config, Vec::new());
        let what = match config.last_reload {
            Some("partial") => "Secrets not reloaded, those before stay in use",
            _ => "Configuration not reloaded, the previous one stays in force",
        };
        if !config.faults.is_empty() {
            let faults = config.faults.join("; ");
            list.push(VerdictStatus::warning(format!("{what}: {faults}")));
        }
        if !config.pending_restart.is_empty() {
            let keys = config.pending_restart.join(", ");
            list.push(VerdictStatus::warning(format!("Changed keys that need a restart: {keys}.")));
        }
        for it in &config.certificates {
            let (status, how): (fn(String) -> VerdictStatus, _) = match it.expires_in_s {
                _ if it.valid_in_s > 0 => {
                    let left = span(it.valid_in_s.into());
                    (VerdictStatus::fault, format!("is not valid for another {left}"))
                }
                left if left < 0 => (VerdictStatus::fault, "has expired".to_owned()),
                left if left < EXPIRES_SOON => {
                    (VerdictStatus::warning, format!("expires in {}", span(left as f64)))
                }
                _ => continue,
            };
            let of = if it.service.is_empty() { "admin server" } else { &it.service };
            list.push(status(format!("{of}: the certificate in {} {how}.", it.file)));
        }
        list
    }
}

fn refused_credentials(service: &ServiceStatus) -> Vec<VerdictStatus> {
    let of = &service.credentials;
    let kinds = [(&of.redis.refused, "Redis nodes"), (&of.sentinels.refused, "sentinels")];
    let kinds = kinds.into_iter().filter_map(|(refused, servers)| {
        let first = refused.first()?;
        let fallback = refused.iter().all(|it| it.fallback);
        let kept = if fallback { "; those before are in use" } else { "" };
        Some(VerdictStatus::warning(format!(
            "{}: {} {servers} refuse the configured credentials{kept}: {}.",
            service.name,
            refused.len(),
            first.problem
        )))
    });
    kinds.collect()
}

/// The first few, and how many more.
pub(crate) fn some<T: AsRef<str>>(all: &[T]) -> String {
    let shown: Vec<&str> = all.iter().take(NAMES).map(AsRef::as_ref).collect();
    match all.len().saturating_sub(NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Formats a duration: to a tenth of a second below ten seconds, then in whole units.
pub(crate) fn span(seconds: f64) -> String {
    if seconds < 10.0 {
        return format!("{seconds:.1} s");
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an age in seconds, at least ten"
    )]
    let whole = seconds as u64;
    match (whole / 86_400, whole / 3600 % 24, whole / 60 % 60, whole % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (0, hours, minutes, _) => format!("{hours}h{minutes:02}m"),
        (days, hours, ..) => format!("{days}d{hours:02}h"),
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
