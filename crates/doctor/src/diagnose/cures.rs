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

use tls::OutsideText;

use sentinel::{NodeAddr, Role};

use super::Context;
use crate::observed::{MasterAnswer, Observed, ObservedMaster, SentinelAnswer};

/// The preparation that a plan needs, for the text of a finding.
pub(super) fn preparation(context: &Context) -> &'static str {
    match (context.sentinels_need_login, context.nodes_need_login) {
        (false, false) => "",
        (true, false) => {
            "; the commands take the password of the sentinels from REDISCLI_AUTH and their user, \
             unless it is default, from SENTINEL_USER"
        }
        (false, true) => {
            "; the commands take the password that the sentinels use for Redis from \
             REDIS_PASSWORD, and their user, if they use one, from REDIS_USER"
        }
        (true, true) => {
            "; the commands take the password of the sentinels from REDISCLI_AUTH (their user, \
             unless it is default, from SENTINEL_USER), and the password that the sentinels use \
             for Redis from REDIS_PASSWORD (their user, if they use one, from REDIS_USER)"
        }
    }
}

/// The right master, if the observations determine it. It reports the role of a master and is
/// named at the highest epoch, and the other nodes that are named there are replicas, or more than
/// half of the answering sentinels name it; if other nodes report that role too, only the latter
/// counts. If all that are named there are replicas, it is the only master there is.
///
/// `None` otherwise, and during a failover. A node that is named and does not answer may be the
/// master: an old one that answers in its place is never chosen.
pub(super) fn right_master(observed: &Observed) -> Option<&NodeAddr> {
    if observed.views().any(|(_, _, view)| view.failing_over) {
        return None;
    }
    let highest = observed.views().map(|(_, _, view)| view.epoch).max()?;
    let newest: BTreeSet<&NodeAddr> = observed
        .views()
        .filter(|(_, _, view)| view.epoch == highest)
        .map(|(_, _, view)| &view.addr)
        .collect();
    let (mut masters, mut replicas) = (Vec::new(), BTreeSet::new());
    for node in &observed.nodes {
        match node.answer.as_ref().map(|report| (&report.role, report.ping.is_ready())) {
            Ok((Role::Master, true)) => masters.push(&node.addr),
            Ok((Role::Replica { .. }, _)) => drop(replicas.insert(&node.addr)),
            _ => {}
        }
    }
    let answering = observed.views().count();
    let has_most = |addr: &NodeAddr| {
        observed.views().filter(|(_, _, view)| view.addr == *addr).count() * 2 > answering
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

/// Sentinels whose view of the master has to be replaced, and those that do not know the name.
fn misled<'a>(observed: &'a Observed, right: &NodeAddr) -> Vec<&'a SentinelAnswer> {
    let newest = newest_epoch(observed, right);
    let mut seen = BTreeSet::new();
    observed
        .answered()
        .map(|(_, answer)| answer)
        .filter(|answer| match &answer.master {
            MasterAnswer::Known(view) => {
                view.addr != *right || newest.is_some_and(|newest| view.epoch < newest)
            }
            MasterAnswer::UnknownName => true,
            MasterAnswer::Denied | MasterAnswer::Malformed(_) => false,
        })
        .filter(|answer| seen.insert(answer.reached))
        .collect()
}

/// The highest epoch at which a sentinel names the right master.
fn newest_epoch(observed: &Observed, right: &NodeAddr) -> Option<u64> {
    observed.views().filter(|(_, _, view)| view.addr == *right).map(|(_, _, view)| view.epoch).max()
}

/// Makes every misled sentinel monitor the right master. Empty if that cannot be determined, or if
/// no sentinel is misled, or no settings are known.
pub(super) fn realign(observed: &Observed, context: &Context) -> Vec<String> {
    let Some(right) = right_master(observed) else { return Vec::new() };
    let newest = newest_epoch(observed, right).unwrap_or(0);
    let shell = Shell::new(observed, context);
    let mut lines = shell.checks();
    lines.extend(monitor(
        observed,
        &shell,
        &misled(observed, right),
        &format!("{} {}", quote(&right.host), right.port),
        newest,
    ));
    if lines.len() > shell.checks().len() { lines } else { Vec::new() }
}

/// Makes a node that the operator names the master, and all sentinels monitor it, in this order: a
/// sentinel that monitors a replica names its master, which is dead.
pub(super) fn promote_by_hand(observed: &Observed, context: &Context) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let answers = observed.views().map(|(_, answer, _)| answer);
    let all: Vec<_> = answers.filter(|answer| seen.insert(answer.reached)).collect();
    let shell = Shell::new(observed, context);
    let mut lines = shell.checks();
    lines.push(
        ": \"${NEW_HOST:?the replica with the newest data}\" \"${NEW_PORT:?its port}\"".to_owned(),
    );
    let (login, user) = if shell.nodes_need_login {
        ("REDISCLI_AUTH=\"$REDIS_PASSWORD\" ", " --user \"${REDIS_USER:-default}\"")
    } else {
        ("", "")
    };
    lines
        .push(format!("{login}redis-cli -h \"$NEW_HOST\" -p \"$NEW_PORT\"{user} REPLICAOF NO ONE"));
    lines.extend(monitor(observed, &shell, &all, "\"$NEW_HOST\" \"$NEW_PORT\"", 0));
    lines
}

/// Makes these sentinels monitor the master at this address, and waits until they know each other
/// and have adopted this epoch. Empty if no settings are known.
fn monitor(
    observed: &Observed,
    shell: &Shell,
    sentinels: &[&SentinelAnswer],
    master: &str,
    epoch: u64,
) -> Vec<String> {
    let known = observed.sentinel_count() as u64;
    let is_sound = |quorum: &u64| *quorum > known / 2 && *quorum <= known;
    let mut lines = Vec::new();
    for answer in sentinels {
        if matches!(answer.master, MasterAnswer::Known(_)) {
            lines.push(shell.command(answer.reached, "SENTINEL REMOVE", ""));
        }
    }
    let mut waits = Vec::new();
    for answer in sentinels {
        let Some(view) = settings_for(observed, answer) else { return Vec::new() };
        let quorum = view.quorum.filter(is_sound).unwrap_or(known / 2 + 1);
        let tail = format!(" {master} {quorum}");
        lines.push(shell.command(answer.reached, "SENTINEL MONITOR", &tail));
        lines.extend(shell.credentials(answer.reached));
        let millis = |span: std::time::Duration| span.as_millis();
        let mut options = String::new();
        for (key, value) in [
            ("down-after-milliseconds", view.down_after.map(millis)),
            ("failover-timeout", view.failover_timeout.map(millis)),
            ("parallel-syncs", view.parallel_syncs.map(u128::from)),
        ] {
            if let Some(value) = value {
                options.push_str(&format!(" {key} {value}"));
            }
        }
        if !options.is_empty() {
            lines.push(shell.command(answer.reached, "SENTINEL SET", &options));
        }
        // Not before the last one: the first of them may be the only one that knows the name.
        waits.push(shell.wait(answer.reached, &[("config-epoch", epoch)]));
    }
    lines.extend(waits);
    lines
}

/// Makes every sentinel resolve names.
pub(super) fn resolve_names(observed: &Observed, context: &Context) -> Vec<String> {
    let (shell, mut seen) = (Shell::new(observed, context), BTreeSet::new());
    let check = shell.sentinels_need_login.then(|| CHECK_SENTINELS.to_owned());
    let answers = observed.views().map(|(_, answer, _)| answer.reached);
    let set = |at| format!("{} SENTINEL CONFIG SET resolve-hostnames yes", shell.cli(at));
    check.into_iter().chain(answers.filter(|at| seen.insert(*at)).map(set)).collect()
}

/// Gives these sentinels the password of the master. Empty if none is configured here either.
pub(super) fn authenticate(
    observed: &Observed,
    context: &Context,
    sentinels: &[&SentinelAnswer],
) -> Vec<String> {
    let shell = Shell::new(observed, context);
    let lines: Vec<_> = sentinels.iter().flat_map(|it| shell.credentials(it.reached)).collect();
    if lines.is_empty() { lines } else { shell.checks().into_iter().chain(lines).collect() }
}

/// Makes the sentinels forget listed sentinels and replicas that are gone, and former IDs. Empty
/// unless all find the master up and no failover is in progress.
pub(super) fn forget(observed: &Observed, context: &Context) -> Vec<String> {
    let unsafe_now = observed.views().any(|(_, _, view)| view.down || view.failing_over);
    if unsafe_now || right_master(observed).is_none() {
        return Vec::new();
    }
    let shell = Shell::new(observed, context);
    let others = observed.processes().len().saturating_sub(1) as u64;
    let mut seen = BTreeSet::new();
    let mut lines = Vec::new();
    for (_, answer, view) in observed.views() {
        if !lists_gone(observed, view) || !seen.insert(answer.reached) {
            continue;
        }
        let is_gone = |addr| observed.is_replica_gone(addr);
        let replicas = view.replicas.iter().filter(|it| !is_gone(&it.addr)).count();
        lines.push(shell.command(answer.reached, "SENTINEL RESET", ""));
        lines.push(shell.wait(
            answer.reached,
            &[("num-other-sentinels", others), ("num-slaves", replicas as u64)],
        ));
    }
    if let Some((_, before)) = lines.split_last_mut() {
        // No further sentinel is reset unless the one before is whole again.
        before.iter_mut().for_each(|line| line.push_str(" &&"));
    }
    if shell.sentinels_need_login && !lines.is_empty() {
        lines.insert(0, CHECK_SENTINELS.to_owned());
    }
    lines
}

/// Whether this view lists a sentinel or a replica that is gone, or a former ID.
fn lists_gone(observed: &Observed, view: &ObservedMaster) -> bool {
    let is_gone = |it| observed.is_peer_gone(it) || observed.is_former(view, it);
    view.peers.iter().any(is_gone)
        || view.replicas.iter().any(|it| observed.is_replica_gone(&it.addr))
}

/// Gives the last of the sentinels with one identity a new one. The lines after the first run on
/// that sentinel's host; its start is left to its service manager. Empty if its file is unknown.
pub(super) fn new_identity(observed: &Observed, context: &Context, at: SocketAddr) -> Vec<String> {
    let twin = observed.answered().find(|(_, answer)| answer.reached == at);
    let Some(file) = twin.and_then(|(_, answer)| answer.config_file.as_deref()) else {
        return Vec::new();
    };
    let shell = Shell::new(observed, context);
    let check = shell.sentinels_need_login.then(|| CHECK_SENTINELS.to_owned());
    let stop = format!("{} SHUTDOWN", shell.cli(at));
    let edit = format!("sed -i '/^sentinel myid /d' {}", quote(file));
    check.into_iter().chain([stop, edit]).collect()
}

/// A view with the settings for this sentinel: its own, or that of a sentinel that names the right
/// master, or of any.
fn settings_for<'a>(
    observed: &'a Observed,
    answer: &'a SentinelAnswer,
) -> Option<&'a ObservedMaster> {
    if let MasterAnswer::Known(view) = &answer.master {
        return Some(view);
    }
    let (right, views) = (right_master(observed), || observed.views().map(|(_, _, view)| view));
    views().find(|view| Some(&view.addr) == right).or_else(|| views().next())
}

const CHECK_SENTINELS: &str = ": \"${REDISCLI_AUTH:?the password of the sentinels}\"";
const CHECK_NODES: &str = ": \"${REDIS_PASSWORD:?the password that the sentinels use for Redis}\"";

/// Writes command lines for a shell.
struct Shell {
    name: String,
    sentinels_need_login: bool,
    nodes_need_login: bool,
}

impl Shell {
    fn new(observed: &Observed, context: &Context) -> Self {
        Self {
            name: quote(&observed.name),
            sentinels_need_login: context.sentinels_need_login,
            nodes_need_login: context.nodes_need_login,
        }
    }

    /// Lines that stop a script whose environment lacks a password.
    fn checks(&self) -> Vec<String> {
        let sentinels = self.sentinels_need_login.then(|| CHECK_SENTINELS.to_owned());
        let nodes = self.nodes_need_login.then(|| CHECK_NODES.to_owned());
        sentinels.into_iter().chain(nodes).collect()
    }

    fn cli(&self, at: SocketAddr) -> String {
        let user =
            if self.sentinels_need_login { " --user \"${SENTINEL_USER:-default}\"" } else { "" };
        format!("redis-cli -h {} -p {}{user}", at.ip(), at.port())
    }

    fn command(&self, at: SocketAddr, command: &str, tail: &str) -> String {
        format!("{} {command} {}{tail}", self.cli(at), self.name)
    }

    /// Sets the credentials for Redis, which `SENTINEL REMOVE` discards and no command reads. The
    /// password is passed through a pipe, since the arguments of a process are visible on its host.
    fn credentials(&self, at: SocketAddr) -> Vec<String> {
        if !self.nodes_need_login {
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
