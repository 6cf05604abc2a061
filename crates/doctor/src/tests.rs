//! Diagnosis of made-up observations: every kind of trouble has its finding, and a healthy cluster
//! has none.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sentinel::{Denied, Lineage, MyId, NodeAddr, NodeReport, PingReply, Role, Verify};

use super::{
    Context, ExamineError, Finding, MasterAnswer, NodeDetails, Observed, ObservedMaster,
    ObservedNode, ObservedPeer, ObservedReplica, ObservedSentinel, SentinelAnswer, Severity,
    Watched, WriteGuard, diagnose,
};

pub(super) fn id(number: u8) -> MyId {
    MyId::parse(&format!("{number:040x}")).expect("forty digits")
}

pub(super) fn node(number: u8) -> NodeAddr {
    NodeAddr { host: format!("10.0.1.{number}").into(), port: 6379 }
}

pub(super) fn place(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 26379))
}

pub(super) fn watched(name: &str, number: u8) -> Watched {
    Watched { name: name.into(), addr: Some(node(number)) }
}

fn role_of(number: u8) -> Role {
    if number == 1 { Role::Master } else { Role::Replica { master: node(1), connected: true } }
}

pub(super) fn report(number: u8) -> NodeReport {
    NodeReport {
        dialled: place(number),
        role: role_of(number),
        ping: PingReply::Pong,
        offset: None,
        replicas: None,
        lineage: Some(Lineage { run_id: "master".into(), ..Lineage::default() }),
    }
}

/// Three sentinels, a master, two replicas, and nothing wrong.
pub(super) fn healthy() -> Observed {
    let sentinel = |number: u8| {
        let peers = (1..=3).filter(|other| *other != number);
        let peer =
            |other| ObservedPeer { id: Some(id(other)), addr: Some(place(other).into()), up: true };
        let replica = |number| ObservedReplica {
            addr: node(number),
            down: false,
            linked: true,
            priority: Some(100),
        };
        let view = ObservedMaster {
            addr: node(1),
            epoch: 5,
            down: false,
            run_id: "master".into(),
            failing_over: false,
            quorum: Some(2),
            down_after: Some(Duration::from_secs(5)),
            failover_timeout: Some(Duration::from_secs(60)),
            parallel_syncs: Some(1),
            scripts: false,
            peers: peers.map(peer).collect(),
            replicas: vec![replica(2), replica(3)],
            ckquorum: Some(Ok(())),
        };
        let master = MasterAnswer::Known(Box::new(view));
        let answer = SentinelAnswer {
            id: id(number),
            reached: place(number),
            resp3: true,
            refused: Vec::new(),
            tilt: false,
            watched: vec![watched("mymaster", 1)],
            run_id: Some(format!("process-{number}").into()),
            config_file: Some("/etc/redis/sentinel.conf".into()),
            master,
        };
        ObservedSentinel {
            addr: place(number).into(),
            configured: true,
            answer: Ok(answer),
            certificate: None,
        }
    };
    let nodes = (1..=3).map(|number| ObservedNode {
        addr: node(number),
        dialled: Some(SocketAddr::from(([10, 0, 1, number], 6379))),
        answer: Ok(report(number)),
        certificate: None,
        details: NodeDetails {
            write_guard: Some(WriteGuard { to_write: Some(1), good: Some(2) }),
            ..NodeDetails::default()
        },
    });
    Observed {
        name: Arc::from("mymaster"),
        sentinels: (1..=3).map(sentinel).collect(),
        own_certificates: Vec::new(),
        nodes: nodes.collect(),
    }
}

pub(super) fn context() -> Context {
    Context { hold_timeout: Some(Duration::from_secs(10)), ..Context::default() }
}

pub(super) fn answer(observed: &mut Observed, sentinel: usize) -> &mut SentinelAnswer {
    observed.sentinels[sentinel].answer.as_mut().expect("it answers")
}

pub(super) fn view(observed: &mut Observed, sentinel: usize) -> &mut ObservedMaster {
    match &mut answer(observed, sentinel).master {
        MasterAnswer::Known(view) => view,
        other => panic!("{other:?}"),
    }
}

/// The only finding that a change causes.
#[track_caller]
pub(super) fn only(code: &str, severity: Severity, change: impl FnOnce(&mut Observed)) -> Finding {
    let mut observed = healthy();
    change(&mut observed);
    let findings = diagnose(&observed, &context());
    let codes: Vec<&str> = findings.iter().map(|it| it.code).collect();
    assert_eq!(codes, [code], "{findings:#?}");
    assert_eq!(findings[0].severity, severity);
    assert!(!findings[0].remedy.is_empty() && !findings[0].what.is_empty());
    findings[0].clone()
}

/// A finding with this code, among others.
#[track_caller]
pub(super) fn among(code: &str, change: impl FnOnce(&mut Observed)) -> Finding {
    let mut observed = healthy();
    change(&mut observed);
    let findings = diagnose(&observed, &context());
    let found = findings.iter().find(|it| it.code == code);
    found.unwrap_or_else(|| panic!("no {code} in {findings:#?}")).clone()
}

#[test]
fn healthy_cluster_has_no_finding() {
    assert_eq!(diagnose(&healthy(), &context()), []);
}

#[test]
fn reports_unreachable_sentinel_with_cause() {
    let wrong = Denied::WrongPassword { setting: "service.sentinel_auth" };
    for (code, error) in [
        ("dns", ExamineError::Unresolved("the name does not resolve".to_owned())),
        ("unreachable", ExamineError::Unreachable("cannot connect: refused".to_owned())),
        ("unresponsive", ExamineError::Unresponsive),
        ("password", ExamineError::Denied(wrong)),
        ("no-sentinel", ExamineError::UnexpectedServer),
        ("loop", ExamineError::LeadsBack),
        ("outside-nodes", ExamineError::OutsideNodes),
    ] {
        let found = only(code, Severity::Fault, |it| it.sentinels[1].answer = Err(error));
        assert_eq!(found.about, "10.0.0.2:26379");
    }
}

#[test]
fn narrow_acl_is_one_finding_with_all_rules() {
    let refuse = |command, rule| Denied::NotPermitted { command, rule };
    let refused = vec![
        refuse("SENTINEL REPLICAS", "+sentinel|replicas"),
        refuse("SENTINEL CKQUORUM", "+sentinel|ckquorum"),
        refuse("SENTINEL REPLICAS", "+sentinel|replicas"),
    ];
    let found = only("acl", Severity::Fault, |it| answer(it, 0).refused = refused);
    assert!(found.what.contains("SENTINEL REPLICAS, SENTINEL CKQUORUM"), "{found}");
    assert!(found.remedy.contains("+sentinel|replicas +sentinel|ckquorum"), "{found}");
    let name_only = vec![refuse("CLIENT SETNAME", "+client|setname")];
    only("acl", Severity::Note, |it| answer(it, 0).refused = name_only);
}

#[test]
fn unknown_name_lists_known_names() {
    let found = only("unknown-name", Severity::Fault, |it| {
        let answer = answer(it, 2);
        (answer.master, answer.watched) =
            (MasterAnswer::UnknownName, vec![watched("cache", 7), watched("queue", 8)]);
    });
    assert!(found.what.contains("mymaster") && found.remedy.contains("cache, queue"), "{found}");
    // A sentinel that lost its file gets the settings of the others, and has nothing to remove.
    let found = only("unknown-name", Severity::Fault, |it| {
        let answer = answer(it, 2);
        (answer.master, answer.watched) = (MasterAnswer::UnknownName, Vec::new());
    });
    assert!(found.commands[0].ends_with("SENTINEL MONITOR mymaster 10.0.1.1 6379 2"), "{found:?}");
    assert!(found.commands[1].contains("SENTINEL SET mymaster down-after-milliseconds 5000"));
    assert_eq!(found.commands.len(), 3);
}

#[test]
fn prints_no_commands_when_right_master_is_unknown() {
    let two_masters = |it: &mut Observed| {
        it.nodes[1].answer.as_mut().expect("a report").role = Role::Master;
        it.sentinels.truncate(2);
        view(it, 1).addr = node(2);
    };
    let found = among("disagreement", two_masters);
    assert!(found.commands.is_empty(), "{:?}", found.commands);
    assert!(found.remedy.contains("determine the right master"), "{found}");
    let failing = |it: &mut Observed| {
        view(it, 2).addr = node(2);
        view(it, 0).failing_over = true;
    };
    assert!(among("disagreement", failing).commands.is_empty(), "not during a failover");
}

/// Passwords come from the shell's environment, and a name that a shell would interpret is quoted.
#[test]
fn commands_contain_no_secret_and_quote_names() {
    let mut observed = healthy();
    observed.name = Arc::from("my $(x)");
    view(&mut observed, 2).addr = node(2);
    let context = Context { sentinels_need_login: true, nodes_need_login: true, ..context() };
    let findings = diagnose(&observed, &context);
    let found = findings.iter().find(|it| it.code == "disagreement").expect("a finding");
    let cli = "redis-cli -h 10.0.0.3 -p 26379 --user \"${SENTINEL_USER:-default}\"";
    assert!(found.commands[0].starts_with(": \"${REDISCLI_AUTH:?"), "{:?}", found.commands);
    assert!(found.commands[1].starts_with(": \"${REDIS_PASSWORD:?"), "{:?}", found.commands);
    assert_eq!(found.commands[2], format!("{cli} SENTINEL REMOVE 'my $(x)'"));
    let monitor = format!("{cli} SENTINEL MONITOR 'my $(x)' 10.0.1.1 6379 2");
    assert_eq!(found.commands[3], monitor);
    let password =
        format!("printf %s \"$REDIS_PASSWORD\" | {cli} -x SENTINEL SET 'my $(x)' auth-pass");
    assert!(found.commands[4].contains("auth-user \"$REDIS_USER\""), "{:?}", found.commands);
    assert_eq!(found.commands[5], password, "before the other settings");
    assert!(found.remedy.contains("REDISCLI_AUTH") && found.remedy.contains("REDIS_PASSWORD"));
}

/// RESET changes neither address nor epoch: sentinels that name the wrong master drop it, and only
/// then one after the other monitors the right one. Otherwise it may adopt the wrong one again from
/// the hello of a peer that is still wrong at the same epoch.
#[track_caller]
fn assert_realigns(found: &Finding, wrong: &[u8], right: &str) {
    let at = |number: &u8| format!("redis-cli -h 10.0.0.{number} -p 26379");
    let mut expected: Vec<String> =
        wrong.iter().map(|it| format!("{} SENTINEL REMOVE mymaster", at(it))).collect();
    for it in wrong {
        let cli = at(it);
        expected.push(format!("{cli} SENTINEL MONITOR mymaster {right} 2"));
        expected.push(format!(
            "{cli} SENTINEL SET mymaster down-after-milliseconds 5000 failover-timeout 60000 \
             parallel-syncs 1"
        ));
    }
    for it in wrong {
        let cli = at(it);
        expected.push(format!(
            "{{ n=60; until {cli} SENTINEL CKQUORUM mymaster | grep -q ^OK && [ \"$({cli} SENTINEL \
             MASTER mymaster | grep -A 1 -x config-epoch | tail -n 1)\" -ge 5 ]; do n=$((n-1)); [ \
             $n -gt 0 ] || break; sleep 1; done; [ $n -gt 0 ] || {{ echo '10.0.0.{it}:26379 does \
             not know all again: run the doctor' >&2; false; }}; }}"
        ));
    }
    assert_eq!(found.commands, expected, "{found}");
}

#[test]
fn distinguishes_disagreement_from_stale_epoch() {
    let found = among("disagreement", |it| view(it, 2).addr = node(2));
    assert_realigns(&found, &[3], "10.0.1.1 6379");
    let both = among("disagreement", |it| (1..3).for_each(|at| view(it, at).addr = node(2)));
    assert_realigns(&both, &[2, 3], "10.0.1.1 6379");
    assert!(
        found
            .what
            .contains("10.0.1.1:6379 by 10.0.0.1:26379, 10.0.0.2:26379; 10.0.1.2:6379 by 10.0.0.3"),
        "{found}"
    );
    let found = only("stale-epoch", Severity::Fault, |it| {
        let view = view(it, 2);
        (view.epoch, view.addr) = (3, node(1));
    });
    assert_eq!(found.about, "10.0.0.3:26379");
    assert!(found.what.contains("at epoch 3") && found.what.contains("at epoch 5"), "{found}");
    assert_realigns(&found, &[3], "10.0.1.1 6379");
    let found = only("same-id", Severity::Fault, |it| answer(it, 2).id = id(2));
    let expected = [
        "redis-cli -h 10.0.0.3 -p 26379 SHUTDOWN",
        "sed -i '/^sentinel myid /d' /etc/redis/sentinel.conf",
    ];
    assert_eq!(found.commands, expected);
    assert!(found.what.contains("10.0.0.2:26379, 10.0.0.3:26379"), "{found}");
    let found = among("same-id", |it| {
        answer(it, 2).id = id(2);
        answer(it, 2).run_id = None;
    });
    assert_eq!(found.severity, Severity::Warning);
    assert!(found.commands.is_empty(), "perhaps one process at two addresses: {found}");
    let mut one_process = healthy();
    one_process.sentinels.push(one_process.sentinels[2].clone());
    one_process.sentinels[3].addr = NodeAddr::parse("fd00::3", "26379").expect("an address");
    answer(&mut one_process, 3).reached = "[fd00::3]:26379".parse().expect("an address");
    assert_eq!(diagnose(&one_process, &context()), []);
}

/// The master is cut off from the doctor, and an old one, which a stale sentinel names, answers.
#[test]
fn never_realigns_to_an_old_master_in_place_of_a_silent_one() {
    let found = among("stale-epoch", |it| {
        it.nodes[0].answer = Err(ExamineError::Unreachable("cannot connect".to_owned()));
        it.nodes[1].answer.as_mut().expect("a report").role = Role::Master;
        let view = view(it, 2);
        (view.epoch, view.addr) = (3, node(2));
    });
    assert!(found.commands.is_empty(), "{:?}", found.commands);
    // Two masters, and the higher epoch is that of one sentinel: an operator has to decide.
    let found = among("stale-epoch", |it| {
        it.nodes[1].answer.as_mut().expect("a report").role = Role::Master;
        let view = view(it, 2);
        (view.epoch, view.addr) = (6, node(2));
    });
    assert!(found.commands.is_empty(), "{:?}", found.commands);
}

#[test]
fn reports_too_few_sentinels_in_each_way() {
    let error = "NOQUORUM 1 usable Sentinels".to_owned();
    let found = only("quorum", Severity::Fault, |it| view(it, 0).ckquorum = Some(Err(error)));
    assert!(found.what.contains("NOQUORUM 1 usable"), "{found}");
    only("peers-down", Severity::Warning, |it| view(it, 0).peers[1].up = false);
    among("majority", |it| {
        for sentinel in 1..3 {
            it.sentinels[sentinel].answer = Err(ExamineError::Unresponsive);
        }
    });
    among("few-sentinels", |it| {
        it.sentinels.truncate(1);
        view(it, 0).peers.truncate(1);
    });
    among("no-sentinels", |it| {
        it.sentinels.iter_mut().for_each(|it| it.answer = Err(ExamineError::Unresponsive));
    });
    among("quorum-setting", |it| (0..3).for_each(|number| view(it, number).quorum = Some(4)));
}

#[test]
fn ghost_is_warning_with_remedy() {
    let ghost: NodeAddr = place(9).into();
    let found = among("ghost", |it| {
        view(it, 0).peers.push(ObservedPeer {
            id: Some(id(9)),
            addr: Some(ghost.clone()),
            up: false,
        });
        let answer = Err(ExamineError::Unreachable("cannot connect".to_owned()));
        it.sentinels.push(ObservedSentinel {
            addr: ghost.clone(),
            configured: false,
            answer,
            certificate: None,
        });
    });
    assert_eq!((found.severity, found.about.as_str()), (Severity::Warning, "10.0.0.9:26379"));
    assert!(found.what.contains("listed as a sentinel by 10.0.0.1:26379"), "{found}");
    let cli = "redis-cli -h 10.0.0.1 -p 26379";
    let field = |key: &str| {
        format!("[ \"$({cli} SENTINEL MASTER mymaster | grep -A 1 -x {key} | tail -n 1)\" -ge 2 ]")
    };
    let until = format!(
        "{{ n=60; until {cli} SENTINEL CKQUORUM mymaster | grep -q ^OK && {} && {}; do n=",
        field("num-other-sentinels"),
        field("num-slaves")
    );
    assert_eq!(found.commands.len(), 2, "{:?}", found.commands);
    assert_eq!(found.commands[0], format!("{cli} SENTINEL RESET mymaster &&"));
    assert!(found.commands[1].starts_with(&until), "{:?}", found.commands);
}

/// Sentinel 3 was given a new ID. Sentinel 1 lists both, and sentinel 2 only the new one.
#[test]
fn reports_former_id_of_running_sentinel() {
    let listed =
        |number, up| ObservedPeer { id: Some(id(number)), addr: Some(place(3).into()), up };
    let found = only("former-id", Severity::Warning, |it| view(it, 0).peers.push(listed(9, true)));
    assert_eq!(found.about, "10.0.0.1:26379");
    assert_eq!(found.commands[0], "redis-cli -h 10.0.0.1 -p 26379 SENTINEL RESET mymaster &&");
    assert_eq!(found.commands.len(), 2, "{:?}", found.commands);
    // One that was found down is reported by its lister as well, and has the same cure.
    let found = among("former-id", |it| view(it, 0).peers.push(listed(9, false)));
    assert_eq!(found.commands.len(), 2, "{:?}", found.commands);
    // Sentinels before Redis 7 keep it with port 0, and find it down.
    let found = among("former-id", |it| {
        view(it, 0).peers.push(ObservedPeer { addr: None, ..listed(9, false) });
    });
    assert!(found.what.contains("without an address"), "{found}");
    assert_eq!(found.commands.len(), 2, "{:?}", found.commands);
    let not_now = among("former-id", |it| {
        view(it, 0).peers.push(listed(9, true));
        view(it, 1).down = true;
    });
    assert!(not_now.commands.is_empty() && not_now.remedy.contains("Not now"), "{not_now}");
    // Its hello has not arrived: the entry may still be replaced, and is no fourth sentinel.
    let mut observed = healthy();
    view(&mut observed, 0).peers[1] = listed(9, true);
    assert_eq!(diagnose(&observed, &context()), []);
    // A sentinel that is listed elsewhere and does not answer is no former ID.
    let mut observed = healthy();
    let elsewhere = ObservedPeer { addr: Some(place(4).into()), ..listed(9, true) };
    view(&mut observed, 0).peers.push(elsewhere);
    let codes: Vec<_> = diagnose(&observed, &context()).iter().map(|it| it.code).collect();
    assert_eq!(codes, ["even-sentinels"]);
}

/// RESET while the master is down costs a sentinel its list of replicas for good.
#[test]
fn prints_no_reset_while_a_sentinel_finds_the_master_down() {
    let ghost: NodeAddr = place(9).into();
    let found = among("ghost", |it| {
        let peer = ObservedPeer { id: Some(id(9)), addr: Some(ghost.clone()), up: false };
        view(it, 0).peers.push(peer);
        view(it, 1).down = true;
        let answer = Err(ExamineError::Unreachable("cannot connect".to_owned()));
        it.sentinels.push(ObservedSentinel {
            addr: ghost.clone(),
            configured: false,
            answer,
            certificate: None,
        });
    });
    assert!(found.commands.is_empty() && found.remedy.contains("Not now"), "{found}");
}

#[test]
fn reports_unreachable_announced_address_unless_mapped() {
    let loopback = NodeAddr { host: "127.0.0.1".into(), port: 6379 };
    let announce =
        |it: &mut Observed| (0..3).for_each(|number| view(it, number).addr = loopback.clone());
    let found = among("announced", announce);
    assert!(
        found.what.contains("127.0.0.1:6379") && found.remedy.contains("address_map"),
        "{found}"
    );
    let mut observed = healthy();
    announce(&mut observed);
    let mapped = Context { mapped: [loopback.clone()].into(), ..context() };
    assert!(diagnose(&observed, &mapped).iter().all(|it| it.code != "announced"));
    let found = only("not-dialable", Severity::Fault, |it| {
        it.nodes[0].answer = Err(ExamineError::Unreachable("cannot connect".into()));
    });
    assert!(found.about == "10.0.1.1:6379" && found.remedy.contains("NAT"), "{found}");
    only("not-dialable", Severity::Warning, |it| {
        it.nodes[2].answer = Err(ExamineError::Unreachable("cannot connect".into()));
    });
    only("dns", Severity::Fault, |it| {
        it.nodes[0].answer = Err(ExamineError::Unresolved("the name does not resolve".into()));
    });
}

#[test]
fn reports_writes_that_replicas_cannot_confirm() {
    // With confirmed writes, the replica that is promoted has to be one that has them.
    let durable = |replicas, change: &dyn Fn(&mut Observed)| {
        let mut observed = healthy();
        change(&mut observed);
        let context = Context { durability_replicas: replicas, ..context() };
        let found = diagnose(&observed, &context);
        let found = found.iter().filter(|it| it.code.starts_with("durability"));
        found.map(|it| (it.severity, it.code)).collect::<Vec<_>>()
    };
    let set = |values: [u64; 2]| {
        move |it: &mut Observed| {
            for sentinel in 0..3 {
                let replicas = view(it, sentinel).replicas.iter_mut().zip(values);
                replicas.for_each(|(replica, value)| replica.priority = Some(value));
            }
        }
    };
    assert_eq!(durable(0, &set([1, 0])), []);
    assert_eq!((durable(1, &|_| {}), durable(2, &|_| {})), (vec![], vec![]));
    assert_eq!(durable(3, &|_| {}), [(Severity::Fault, "durability-replicas")]);
    for values in [[1, 100], [0, 100]] {
        assert_eq!(durable(1, &set(values)), [(Severity::Warning, "durability-promotion")]);
        assert_eq!(durable(2, &set(values)), []);
    }
}

#[test]
fn reports_nodes_in_wrong_role_or_state() {
    let role = |it: &mut Observed, number: usize, role: Role| {
        it.nodes[number].answer.as_mut().expect("a report").role = role;
    };
    let follows = |number: u8, connected| Role::Replica { master: node(number), connected };
    let found = only("not-master", Severity::Fault, |it| role(it, 0, follows(2, true)));
    assert!(found.commands.is_empty(), "no node is a master: {:?}", found.commands);
    let moved = |it: &mut Observed| {
        role(it, 0, follows(2, true));
        role(it, 1, Role::Master);
    };
    let found = among("not-master", moved);
    assert_eq!(found.commands.iter().filter(|it| it.contains(" REMOVE ")).count(), 3);
    assert!(found.commands[3].ends_with("SENTINEL MONITOR mymaster 10.0.1.2 6379 2"));
    let found = only("other-process", Severity::Fault, |it| {
        (1..3).for_each(|number| view(it, number).run_id = "other".into());
    });
    assert!(found.what.contains("10.0.0.2:26379, 10.0.0.3:26379"), "{found}");
    only("second-master", Severity::Fault, |it| role(it, 1, Role::Master));
    only("wrong-master", Severity::Warning, |it| role(it, 1, follows(7, true)));
    only("broken-link", Severity::Warning, |it| role(it, 1, follows(1, false)));
    only("no-pong", Severity::Fault, |it| {
        it.nodes[0].answer.as_mut().expect("a report").ping = PingReply::Loading;
    });
    only("refuses", Severity::Warning, |it| {
        it.nodes[0].answer.as_mut().expect("a report").ping = PingReply::Misconf;
    });
    only("acl", Severity::Warning, |it| {
        it.nodes[0].answer.as_mut().expect("a report").lineage = None;
        it.nodes[0].details.info_error = Some("NOPERM this user has no permissions".into());
    });
    only("replica-down", Severity::Warning, |it| view(it, 0).replicas[0].linked = false);
    only("no-replicas", Severity::Warning, |it| {
        (0..3).for_each(|number| view(it, number).replicas.clear());
        it.nodes.truncate(1);
    });
    let none = |it: &mut Observed| {
        (0..3).for_each(|number| {
            view(it, number).replicas.iter_mut().for_each(|it| it.priority = Some(0));
        });
    };
    only("no-candidate", Severity::Fault, none);
    only("priority-raised", Severity::Warning, |it| {
        (0..3).for_each(|number| {
            view(it, number).replicas.iter_mut().for_each(|it| it.priority = Some(100));
            view(it, number).replicas[1].priority = Some(1_000_000_100);
        });
    });
    // Commands that may not be sent are not missed.
    let mut observed = healthy();
    observed.nodes[0].answer = Ok(NodeReport {
        role: Role::Unknown,
        ping: PingReply::Loading,
        lineage: None,
        ..report(1)
    });
    assert_eq!(diagnose(&observed, &Context { verify: Verify::Tcp, ..context() }), []);
}

#[test]
fn reports_settings_that_differ_or_do_not_fit() {
    let all = |it: &mut Observed, change: fn(&mut ObservedMaster)| {
        (0..3).for_each(|number| change(view(it, number)));
    };
    let found = only("settings-differ", Severity::Warning, |it| view(it, 1).quorum = Some(3));
    let both = "2 at 10.0.0.1:26379, 10.0.0.3:26379; 3 at 10.0.0.2:26379";
    assert!(found.what.ends_with(both), "{found}");
    only("down-after", Severity::Warning, |it| {
        all(it, |view| view.down_after = Some(Duration::from_millis(500)));
    });
    let found = only("down-after", Severity::Warning, |it| {
        all(it, |view| view.down_after = Some(Duration::from_secs(30)));
    });
    assert!(found.what.contains("hold_timeout"), "{found}");
    only("failover-timeout", Severity::Warning, |it| {
        all(it, |view| view.failover_timeout = Some(Duration::from_secs(3)));
    });
    only("tilt", Severity::Warning, |it| answer(it, 0).tilt = true);
    only("master-down", Severity::Fault, |it| view(it, 0).down = true);
    only("failover", Severity::Note, |it| view(it, 0).failing_over = true);
}

#[test]
fn reports_electorates_that_tolerate_little() {
    let four = |it: &mut Observed| {
        for number in 0..3 {
            let peer = ObservedPeer { id: Some(id(4)), addr: Some(place(4).into()), up: true };
            view(it, number).peers.push(peer);
        }
    };
    let found = only("even-sentinels", Severity::Warning, four);
    assert!(found.what.contains('4') && found.remedy.contains("3 of 4"), "{found}");
    let found = among("quorum-one", |it| (0..3).for_each(|at| view(it, at).quorum = Some(1)));
    assert!(found.remedy.contains("quorum 2"), "{found}");
}

#[test]
fn reports_write_guard_that_is_off_or_stops_writes() {
    let guard = |change: fn(&mut WriteGuard)| {
        move |it: &mut Observed| {
            for node in &mut it.nodes {
                change(node.details.write_guard.as_mut().expect("known"));
            }
        }
    };
    let found = only("min-replicas", Severity::Note, guard(|it| it.good = None));
    assert!(found.about == "10.0.1.1:6379" && found.remedy.contains("max-lag 10"), "{found}");
    let found = only("min-replicas", Severity::Fault, guard(|it| it.to_write = Some(3)));
    assert!(found.what.contains("refuses all writes"), "{found}");
    let found = only("min-replicas", Severity::Fault, guard(|it| it.good = Some(0)));
    assert!(found.what.contains("0 of its replicas"), "{found}");
    let found = only("min-replicas", Severity::Warning, guard(|it| it.to_write = Some(2)));
    assert!(found.what.contains("the loss of one stops all writes"), "{found}");
    // Without CONFIG GET the number is unknown, and nothing is said about it.
    let mut observed = healthy();
    guard(|it| it.to_write = None)(&mut observed);
    assert_eq!(diagnose(&observed, &context()), []);
}

#[test]
fn reports_names_mixed_with_addresses() {
    let found = among("mixed-names", |it| {
        view(it, 0).replicas[0].addr = NodeAddr { host: "redis-2.local".into(), port: 6379 };
    });
    assert!(found.what.contains("redis-2.local") && found.remedy.contains("resolve-hostnames"));
}

#[test]
fn reports_hosts_and_zones_whose_loss_leaves_no_majority() {
    let on_one_host = |it: &mut Observed, host: [u8; 4]| {
        for number in 0..2 {
            answer(it, number).reached = SocketAddr::from((host, 26379 + number as u16));
        }
        let moved =
            |number: u8| NodeAddr::from(SocketAddr::from((host, 26378 + u16::from(number))));
        for at in 0..3 {
            for peer in &mut view(it, at).peers {
                let number = (1..=2).find(|number| peer.id == Some(id(*number)));
                if let Some(number) = number {
                    peer.addr = Some(moved(number));
                }
            }
        }
    };
    let found = only("one-host", Severity::Warning, |it| on_one_host(it, [10, 0, 1, 1]));
    assert!(found.what.contains("2 of 3 sentinels run on 10.0.1.1, the host of the master"));
    let mut lab = healthy();
    on_one_host(&mut lab, [127, 0, 0, 1]);
    let codes: Vec<_> = diagnose(&lab, &context()).iter().map(|it| it.code).collect();
    assert!(!codes.contains(&"one-host"), "a test on one machine: {codes:?}");

    let zones = |list: [(&str, &str); 3]| Context {
        zones: list.map(|(host, zone)| (host.to_owned(), zone.to_owned())).into(),
        ..context()
    };
    let spread = zones([("10.0.0.1", "a"), ("10.0.0.2", "b"), ("10.0.0.3", "c")]);
    assert_eq!(diagnose(&healthy(), &spread), []);
    let mut crowded = zones([("10.0.0.1", "a"), ("10.0.0.2", "a"), ("10.0.0.3", "c")]);
    crowded.zones.insert("10.0.1.1".to_owned(), "a".to_owned());
    let found = diagnose(&healthy(), &crowded);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].code, "one-zone");
    assert!(found[0].what.contains("2 of 3 sentinels run in zone a, the zone of the master"));
    crowded.zones.remove("10.0.0.3");
    let found = diagnose(&healthy(), &crowded);
    assert!(found[0].code == "zones" && found[0].what.contains("10.0.0.3"), "{found:#?}");
}

#[test]
fn reports_virtual_address_that_cannot_be_bound() {
    let of = |v4: Option<bool>| {
        let foreign_listen = vec![(place(99), v4)];
        diagnose(&healthy(), &Context { foreign_listen, ..context() })
    };
    assert_eq!(
        (of(Some(false))[0].severity, of(Some(false))[0].code),
        (Severity::Fault, "nonlocal-bind")
    );
    assert!(of(Some(false))[0].remedy.contains("net.ipv4.ip_nonlocal_bind=1"));
    assert_eq!(of(Some(true))[0].severity, Severity::Note);
    assert_eq!(of(None), []);
}
