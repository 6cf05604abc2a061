//! The commands that repair the sentinels, derived from the observations. Pure.
//!
//! Each plan is complete: an operator pastes its lines into a shell, in order. No line waits for
//! ever, and nothing is reset after a wait that was in vain. They contain the addresses and
//! settings that were read, and never a secret: passwords come from the environment of that shell.
//!
//! - [`realign`] is for sentinels that name a wrong master, lag an epoch, or do not know the name:
//!   `SENTINEL REMOVE`, `SENTINEL MONITOR`, `SENTINEL SET`. `SENTINEL RESET` changes neither the
//!   address nor the epoch and cures none of them. Every wrong sentinel is removed before the first
//!   one monitors the right master again: its epoch is 0 at first, and it adopts what the first
//!   hello of a peer says, which must not be a peer that is wrong.
//! - [`forget`] is for listed sentinels and replicas that are gone, and for former IDs of running
//!   sentinels: `SENTINEL RESET`, on one sentinel after the other. It is the only command that
//!   removes such an entry and keeps address, epoch, passwords and settings. A sentinel knows no
//!   peer for up to two seconds after it and no replica for about three, in which it cannot take
//!   part in a failover; the plan waits for both. If the master dies in that time, or is down
//!   already, the sentinel never learns its replicas. There is no plan unless every sentinel finds
//!   the master up.
//! - [`promote_by_hand`] is for sentinels that know no replica of a master that is dead. Nobody but
//!   the operator knows the replicas then.
//! - [`authenticate`] is for sentinels without the password of the master.
//! - [`new_identity`] is for a sentinel that runs with a copy of another one's file.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use sentinel::{NodeAddr, Role};
use tls::OutsideText;

use super::settings::ms;
use super::{Case, Context};
use crate::observed::{MasterAnswer, Observed, ObservedMaster, SentinelAnswer};

/// The preparation that a plan needs, for the text of a finding.
pub(super) fn preparation(context: &Context) -> String {
    let sentinels = "the password of the sentinels from REDISCLI_AUTH (their user, unless it is \
                     default, from SENTINEL_USER)";
    let nodes = "the password that the sentinels use for Redis from REDIS_PASSWORD (their user, if \
                 they use one, from REDIS_USER)";
    let sentinels = context.sentinels_need_login.then_some(sentinels);
    let all: Vec<&str> =
        sentinels.into_iter().chain(context.nodes_need_login.then_some(nodes)).collect();
    if all.is_empty() {
        return String::new();
    }
    format!("; the commands take {}", all.join(", and "))
}

/// The preparation that these commands need, if there are any.
pub(super) fn note(case: &Case<'_>, commands: &[String]) -> String {
    if commands.is_empty() { String::new() } else { preparation(case.context) }
}

/// The right master, if the observations determine it. It reports the role of a master and is
/// named at the highest epoch, and the other nodes that are named there are replicas, or more than
/// half of the answering sentinels name it; if other nodes report that role too, only the latter
/// counts. If all that are named there are replicas, it is the only master there is.
///
/// `None` otherwise, and during a failover. A node that is named and does not answer may be the
/// master: an old one that answers in its place is never chosen.
pub(super) fn right_master(observed: &Observed) -> Option<&NodeAddr> {
    let newest = observed.named();
    if newest.is_empty() || observed.is_failing_over() {
        return None;
    }
    let (mut masters, mut replicas) = (Vec::new(), BTreeSet::new());
    for node in &observed.nodes {
        match node.answer.as_ref().map(|report| (&report.role, report.ping.is_ready())) {
            Ok((Role::Master, true)) => masters.push(&node.addr),
            Ok((Role::Replica { .. }, _)) => drop(replicas.insert(&node.addr)),
            _ => {}
        }
    }
    let answering = observed.trusted().count();
    let has_most = |addr: &NodeAddr| {
        observed.trusted().filter(|(.., view)| view.addr == *addr).count() * 2 > answering
    };
    let named: Vec<&NodeAddr> =
        masters.iter().copied().filter(|addr| newest.contains(addr)).collect();
    let others_are_replicas =
        |right: &NodeAddr| newest.iter().all(|addr| *addr == right || replicas.contains(addr));
    match (&named[..], &masters[..]) {
        ([only], [_]) => (others_are_replicas(only) || has_most(only)).then_some(*only),
        ([], [only]) => others_are_replicas(only).then_some(*only),
        (several, _) => several.iter().copied().find(|addr| has_most(addr)),
    }
}

/// Those of the answers that come from different addresses.
fn distinct<'a>(answers: impl Iterator<Item = &'a SentinelAnswer>) -> Vec<&'a SentinelAnswer> {
    let mut seen = BTreeSet::new();
    answers.filter(|answer| seen.insert(answer.reached)).collect()
}

/// Makes every misled sentinel monitor the right master: those whose view of it has to be replaced,
/// and those that do not know the name. Empty if the right master cannot be determined, or if no
/// sentinel is misled, or no settings are known.
pub(super) fn realign(case: &Case<'_>) -> Vec<String> {
    let Some(right) = right_master(case) else { return Vec::new() };
    let naming = case.trusted().filter(|(.., view)| view.addr == *right);
    let newest = naming.map(|(.., view)| view.epoch).max();
    let is_misled = |answer: &&SentinelAnswer| match &answer.master {
        MasterAnswer::Known(view) => view.addr != *right || Some(view.epoch) < newest,
        MasterAnswer::UnknownName => true,
        MasterAnswer::Denied | MasterAnswer::Malformed(_) => false,
    };
    let depends = case.depends_on_learned();
    let trusted = case.answered().filter(|(it, _)| it.configured || depends);
    let misled = distinct(trusted.map(|(_, answer)| answer).filter(is_misled));
    let (shell, master) = (Shell::new(case), format!("{} {}", quote(&right.host), right.port));
    shell.checked(shell.monitor(&misled, &master, newest.unwrap_or(0)))
}

/// Makes a node that the operator names the master, and all sentinels monitor it, in this order: a
/// sentinel that monitors a replica names its master, which is dead.
pub(super) fn promote_by_hand(case: &Case<'_>) -> Vec<String> {
    let all = distinct(case.views().map(|(_, answer, _)| answer));
    let shell = Shell::new(case);
    let (login, user) = if case.context.nodes_need_login {
        ("REDISCLI_AUTH=\"$REDIS_PASSWORD\" ", " --user \"${REDIS_USER:-default}\"")
    } else {
        ("", "")
    };
    let mut lines = vec![
        ": \"${NEW_HOST:?the replica with the newest data}\" \"${NEW_PORT:?its port}\"".to_owned(),
        format!("{login}redis-cli -h \"$NEW_HOST\" -p \"$NEW_PORT\"{user} REPLICAOF NO ONE"),
    ];
    lines.extend(shell.monitor(&all, "\"$NEW_HOST\" \"$NEW_PORT\"", 0));
    shell.checked(lines)
}

/// Gives these sentinels the password of the master. Empty if none is configured here either.
pub(super) fn authenticate(case: &Case<'_>, sentinels: &[&SentinelAnswer]) -> Vec<String> {
    let shell = Shell::new(case);
    shell.checked(sentinels.iter().flat_map(|it| shell.credentials(it.reached)).collect())
}

/// Makes the sentinels forget listed sentinels and replicas that are gone, and former IDs: the
/// commands, and the remedy in words. No commands unless all find the master up and no failover is
/// in progress.
pub(super) fn forget(case: &Case<'_>) -> (Vec<String>, String) {
    if case.views().any(|(.., view)| view.down) || right_master(case).is_none() {
        let not_now = "SENTINEL RESET. Not now: every sentinel must find the master up, or RESET \
                       would cost it the list of replicas. Run the doctor again then";
        return (Vec::new(), not_now.to_owned());
    }
    let now = format!("SENTINEL RESET on one after the other{}", preparation(case.context));
    let shell = Shell::new(case);
    let others = case.processes().len().saturating_sub(1) as u64;
    let (mut seen, mut lines) = (BTreeSet::new(), Vec::new());
    for (_, answer, view) in case.views() {
        if !lists_gone(case, view) || !seen.insert(answer.reached) {
            continue;
        }
        let replicas = view.replicas.iter().filter(|it| !case.is_replica_gone(&it.addr)).count();
        let whole = [("num-other-sentinels", others), ("num-slaves", replicas as u64)];
        lines.push(shell.command(answer.reached, "SENTINEL RESET", ""));
        lines.push(shell.wait(answer.reached, &whole));
    }
    let Some((_, before)) = lines.split_last_mut() else { return (lines, now) };
    // No further sentinel is reset unless the one before is whole again.
    before.iter_mut().for_each(|line| line.push_str(" &&"));
    (shell.check_sentinels().chain(lines).collect(), now)
}

/// Whether this view lists a sentinel or a replica that is gone, or a former ID.
fn lists_gone(case: &Case<'_>, view: &ObservedMaster) -> bool {
    view.peers.iter().any(|it| case.is_peer_gone(it) || case.is_former(view, it))
        || view.replicas.iter().any(|it| case.is_replica_gone(&it.addr))
}

/// Gives the last of the sentinels with one identity a new one. The lines after the first run on
/// that sentinel's host; its start is left to its service manager. Empty if its file is unknown.
pub(super) fn new_identity(case: &Case<'_>, at: SocketAddr) -> Vec<String> {
    let twin = case.answered().find(|(_, answer)| answer.reached == at);
    let Some(file) = twin.and_then(|(_, answer)| answer.config_file.as_deref()) else {
        return Vec::new();
    };
    let shell = Shell::new(case);
    let stop = format!("{} SHUTDOWN", shell.cli(at));
    let edit = format!("sed -i '/^sentinel myid /d' {}", quote(file));
    shell.check_sentinels().chain([stop, edit]).collect()
}

/// A view with the settings for this sentinel: its own, or that of a sentinel that names the right
/// master, or of any.
fn settings_for<'a>(case: &'a Case<'_>, answer: &'a SentinelAnswer) -> Option<&'a ObservedMaster> {
    if let MasterAnswer::Known(view) = &answer.master {
        return Some(view);
    }
    let (right, views) = (right_master(case), || case.views().map(|(.., view)| view));
    views().find(|view| Some(&view.addr) == right).or_else(|| views().next())
}

/// Writes command lines for a shell.
struct Shell<'a> {
    /// The name of the master.
    name: String,
    case: &'a Case<'a>,
}

impl<'a> Shell<'a> {
    fn new(case: &'a Case<'a>) -> Self {
        Self { name: quote(&case.name), case }
    }

    /// A line that stops a script whose environment lacks the password of the sentinels.
    fn check_sentinels(&self) -> impl Iterator<Item = String> + use<> {
        let check = ": \"${REDISCLI_AUTH:?the password of the sentinels}\"";
        self.case.context.sentinels_need_login.then(|| check.to_owned()).into_iter()
    }

    /// Lines that need both passwords, after those that check for them.
    fn checked(&self, lines: Vec<String>) -> Vec<String> {
        if lines.is_empty() {
            return lines;
        }
        let check = ": \"${REDIS_PASSWORD:?the password that the sentinels use for Redis}\"";
        let nodes = self.case.context.nodes_need_login.then(|| check.to_owned());
        self.check_sentinels().chain(nodes).chain(lines).collect()
    }

    fn cli(&self, at: SocketAddr) -> String {
        let needs_login = self.case.context.sentinels_need_login;
        let user = if needs_login { " --user \"${SENTINEL_USER:-default}\"" } else { "" };
        format!("redis-cli -h {} -p {}{user}", at.ip(), at.port())
    }

    fn command(&self, at: SocketAddr, command: &str, tail: &str) -> String {
        format!("{} {command} {}{tail}", self.cli(at), self.name)
    }

    /// Sets the credentials for Redis, which `SENTINEL REMOVE` discards and no command reads. The
    /// password is passed through a pipe, since the arguments of a process are visible on its host.
    fn credentials(&self, at: SocketAddr) -> Vec<String> {
        if !self.case.context.nodes_need_login {
            return Vec::new();
        }
        let (cli, name) = (self.cli(at), &self.name);
        vec![
            format!(
                "[ -z \"$REDIS_USER\" ] || {cli} SENTINEL SET {name} auth-user \"$REDIS_USER\""
            ),
            format!("printf %s \"$REDIS_PASSWORD\" | {cli} -x SENTINEL SET {name} auth-pass"),
        ]
    }

    /// Makes these sentinels monitor the master at this address, and waits until they know each
    /// other and have adopted this epoch. Empty if no settings are known.
    fn monitor(&self, sentinels: &[&SentinelAnswer], master: &str, epoch: u64) -> Vec<String> {
        let known = self.case.sentinel_count() as u64;
        let is_sound = |quorum: &u64| *quorum > known / 2 && *quorum <= known;
        let wrong = sentinels.iter().filter(|it| matches!(it.master, MasterAnswer::Known(_)));
        let mut lines: Vec<String> =
            wrong.map(|it| self.command(it.reached, "SENTINEL REMOVE", "")).collect();
        let mut waits = Vec::new();
        for answer in sentinels {
            let Some(view) = settings_for(self.case, answer) else { return Vec::new() };
            let quorum = view.quorum.filter(is_sound).unwrap_or(known / 2 + 1);
            let tail = format!(" {master} {quorum}");
            lines.push(self.command(answer.reached, "SENTINEL MONITOR", &tail));
            lines.extend(self.credentials(answer.reached));
            let options = [
                ("down-after-milliseconds", view.down_after.map(ms)),
                ("failover-timeout", view.failover_timeout.map(ms)),
                ("parallel-syncs", view.parallel_syncs),
            ];
            let options =
                options.into_iter().filter_map(|(key, it)| Some(format!(" {key} {}", it?)));
            let options: String = options.collect();
            if !options.is_empty() {
                lines.push(self.command(answer.reached, "SENTINEL SET", &options));
            }
            // Not before the last one: the first of them may be the only one that knows the name.
            waits.push(self.wait(answer.reached, &[("config-epoch", epoch)]));
        }
        lines.extend(waits);
        lines
    }

    /// Waits until a quorum is usable and fields of `SENTINEL MASTER` have at least these values,
    /// for a minute at most, and fails otherwise.
    fn wait(&self, at: SocketAddr, fields: &[(&str, u64)]) -> String {
        let (cli, name) = (self.cli(at), &self.name);
        let mut condition = format!("{cli} SENTINEL CKQUORUM {name} | grep -q ^OK");
        for (field, value) in fields.iter().filter(|(_, value)| *value > 0) {
            condition.push_str(&format!(
                " && [ \"$({cli} SENTINEL MASTER {name} | grep -A 1 -x {field} | tail -n 1)\" -ge \
                 {value} ]"
            ));
        }
        format!(
            "{{ n=60; until {condition}; do n=$((n-1)); [ $n -gt 0 ] || break; sleep 1; done; [ $n \
             -gt 0 ] || {{ echo '{at} does not know all again: run the doctor' >&2; false; }}; }}"
        )
    }
}

/// A word for a shell. Names come from servers and may contain anything.
pub(crate) fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", OutsideText::from(word).replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn quotes_words_that_a_shell_would_interpret() {
        assert_eq!(quote("my-master_1.x"), "my-master_1.x");
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("$(reboot)'\n;x"), "'$(reboot)'\\''\\u{a};x'");
        assert_eq!(quote(""), "''");
    }
}
