//! Pure files decide: they have no runtime, socket, clock, file, thread or log of their own. Time
//! and events go in, actions and the next deadline come out.
//!
//! [`PURE`] is the only list of them.

use crate::{fail_on, is_test, sources};

/// Paths of pure files and folders, with what they decide.
const PURE: &[(&str, &str)] = &[
    ("crates/drain/src/plan.rs", "the phases of a shutdown and their deadlines"),
    ("crates/haproxy-import/src/", "what a haproxy.cfg means as a configuration"),
    ("crates/proxy/src/listener/accept_errors.rs", "what to do when `accept` fails"),
    ("crates/target/src/networks.rs", "which network an address belongs to"),
    ("crates/proxy/src/proxy_protocol/parse.rs", "what a PROXY protocol header says"),
    ("crates/pointsman/src/admin/control/token_attempts.rs", "which sources may present tokens"),
    ("crates/pointsman/src/admin/status/verdict.rs", "how a service and the process are"),
    (
        "crates/doctor/src/diagnose/",
        "what is wrong with a deployment, and the commands that repair it",
    ),
    ("crates/doctor/src/document.rs", "a report as JSON"),
    ("crates/doctor/src/examine/acl.rs", "which users may announce sentinels"),
    ("crates/doctor/src/examine/read.rs", "how replies of a sentinel are read for the doctor"),
    ("crates/doctor/src/listeners.rs", "what is wrong with listeners' certificates"),
    ("crates/doctor/src/observed.rs", "the values that an examination collects"),
    ("crates/doctor/src/report.rs", "a report as text"),
    ("crates/proxy/src/runtime/run_queue.rs", "the order in which tasks of a worker run"),
    ("crates/proxy/src/end_reason.rs", "why a session ended"),
    ("crates/resp/src/", "frame boundaries, classes of commands, what a session is owed"),
    ("crates/sentinel/src/discovery/alarms.rs", "which alarms about sentinels are on"),
    ("crates/sentinel/src/discovery/absence_limit.rs", "which absence of the process matters"),
    ("crates/sentinel/src/discovery/clock_jumps.rs", "whether the process was suspended"),
    ("crates/sentinel/src/discovery/majority_clock.rs", "when a majority had announced a switch"),
    ("crates/sentinel/src/link/notice.rs", "what an event of a sentinel says"),
    ("crates/sentinel/src/link/poll.rs", "what a poll asks and what the replies mean"),
    ("crates/sentinel/src/link/reply.rs", "replies of both protocol versions"),
    ("crates/sentinel/src/link/rotation.rs", "which credentials a server gets"),
    ("crates/sentinel/src/machine/", "when the target changes"),
    ("crates/sentinel/src/replicas/eligibility/", "which replicas serve readers"),
    ("crates/sentinel/src/switchover/state_machine.rs", "the steps of a switchover"),
    ("crates/sentinel/src/switchover/handover.rs", "whether the master carries out a handover"),
    ("crates/sentinel/src/switchover/leader.rs", "the progress of the ordered failover"),
    ("crates/sentinel/src/switchover/pausing.rs", "when the pause of clients is renewed"),
    ("crates/sentinel/src/switchover/error.rs", "why a switchover is refused or ends"),
    ("crates/sentinel/src/switchover/catch_up.rs", "whether replicas have caught up"),
    ("crates/sentinel/src/switchover/preference/plan.rs", "which priorities to change"),
    ("crates/sentinel/src/switchover/participants.rs", "whether a switchover may begin"),
    ("crates/sentinel/src/types.rs", "the vocabulary of discovery"),
    ("crates/proxy/src/durability/confirmations.rs", "which replies wait for replicas"),
    ("crates/proxy/src/shared/commands.rs", "which commands are shared"),
    ("crates/proxy/src/shared/group_key.rs", "which client shares which connection"),
    ("crates/proxy/src/shared/reply_window.rs", "how many requests of a client are in flight"),
    ("crates/proxy/src/shared/server_limits.rs", "whether a server limits its clients"),
    ("crates/proxy/src/shared/server_table.rs", "what a server says of its commands"),
    ("crates/proxy/src/shared/turn_queue.rs", "in which order requests leave"),
    ("crates/proxy/src/shared/upstream_ledger.rs", "which reply is whose"),
    ("crates/target/src/balance.rs", "which sessions move to another replica"),
    ("crates/target/src/replica_status.rs", "why a replica closed a connection"),
];

/// Words that a pure file does not contain.
const IMPURE: &[&str] = &[
    "tokio::",
    "tracing::",
    "Instant::now",
    "SystemTime",
    "std::fs",
    "std::thread",
    "std::env",
    "TcpStream",
    "UdpSocket",
    "fastrand",
];

#[test]
fn keeps_pure_files_free_of_io() {
    let mut breaches = Vec::new();
    let sources = sources();
    for (path, _) in PURE {
        assert!(sources.keys().any(|name| name.starts_with(path)), "no file matches {path}");
    }
    for (name, text) in &sources {
        if is_test(name) || !PURE.iter().any(|(path, _)| name.starts_with(path)) {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
        let code = code.lines().enumerate();
        for (number, line) in code.filter(|(_, line)| !line.trim_start().starts_with("//")) {
            for word in IMPURE.iter().filter(|word| line.contains(**word)) {
                breaches.push(format!("{name}:{}: {word}", number + 1));
            }
        }
    }
    fail_on("I/O in pure files", &breaches);
}
