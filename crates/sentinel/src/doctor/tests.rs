//! Diagnosis of made-up observations: every kind of trouble has its finding, and a healthy cluster
//! has none.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Context, ExamineError, Finding, MasterAnswer, Observed, ObservedMaster, ObservedNode,
    ObservedPeer, ObservedReplica, ObservedSentinel, SentinelAnswer, Severity, diagnose,
};
use crate::{Denied, Lineage, MyId, NodeAddr, NodeReport, Role, Verify};

fn id(number: u8) -> MyId {
    MyId::parse(&format!("{number:040x}")).expect("forty digits")
}

fn node(number: u8) -> NodeAddr {
    NodeAddr { host: format!("10.0.1.{number}").into(), port: 6379 }
}

fn place(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 26379))
}

fn role_of(number: u8) -> Role {
    if number == 1 { Role::Master } else { Role::Replica { master: node(1), connected: true } }
}

fn report(number: u8) -> NodeReport {
    NodeReport {
        dialled: place(number),
        role: role_of(number),
        pong: true,
        offset: None,
        lineage: Some(Lineage::default()),
    }
}

/// Three sentinels, a master, two replicas, and nothing wrong.
fn healthy() -> Observed {
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
            failing_over: false,
            quorum: Some(2),
            down_after: Some(Duration::from_secs(5)),
            failover_timeout: Some(Duration::from_secs(60)),
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
            watched: vec!["mymaster".to_owned()],
            master,
        };
        ObservedSentinel { addr: place(number).into(), configured: true, answer: Ok(answer) }
    };
    let nodes = (1..=3).map(|number| ObservedNode {
        addr: node(number),
        dialled: Some(SocketAddr::from(([10, 0, 1, number], 6379))),
        answer: Ok(report(number)),
    });
    Observed {
        name: Arc::from("mymaster"),
        sentinels: (1..=3).map(sentinel).collect(),
        nodes: nodes.collect(),
    }
}

fn context() -> Context {
    Context { hold_timeout: Some(Duration::from_secs(10)), ..Context::default() }
}

fn answer(observed: &mut Observed, sentinel: usize) -> &mut SentinelAnswer {
    observed.sentinels[sentinel].answer.as_mut().expect("it answers")
}

fn view(observed: &mut Observed, sentinel: usize) -> &mut ObservedMaster {
    match &mut answer(observed, sentinel).master {
        MasterAnswer::Known(view) => view,
        other => panic!("{other:?}"),
    }
}

/// The only finding that a change causes.
#[track_caller]
fn only(code: &str, severity: Severity, change: impl FnOnce(&mut Observed)) -> Finding {
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
fn among(code: &str, change: impl FnOnce(&mut Observed)) -> Finding {
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
            (MasterAnswer::UnknownName, vec!["cache".to_owned(), "queue".to_owned()]);
    });
    assert!(found.what.contains("mymaster") && found.remedy.contains("cache, queue"), "{found}");
}

/// RESET changes neither address nor epoch: a sentinel that names the wrong master has to drop it
/// and monitor the right one, in this order.
#[track_caller]
fn assert_removes_before_monitoring(found: &Finding) {
    let at = |command: &str| found.remedy.find(&format!("SENTINEL {command} mymaster"));
    assert!(at("REMOVE").is_some() && at("REMOVE") < at("MONITOR"), "{found}");
    assert!(at("MONITOR") < at("SET"), "{found}");
}

#[test]
fn distinguishes_disagreement_from_stale_epoch() {
    let found = among("disagreement", |it| view(it, 2).addr = node(2));
    assert_removes_before_monitoring(&found);
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
    let found = only("same-id", Severity::Warning, |it| answer(it, 2).id = id(2));
    assert!(found.what.contains("10.0.0.2:26379 and 10.0.0.3:26379"), "{found}");
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
        it.sentinels.push(ObservedSentinel { addr: ghost.clone(), configured: false, answer });
    });
    assert_eq!((found.severity, found.about.as_str()), (Severity::Warning, "10.0.0.9:26379"));
    assert!(
        found.what.contains("listed as a sentinel by 10.0.0.1:26379")
            && found.remedy.contains("RESET"),
        "{found}"
    );
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
fn reports_nodes_in_wrong_role_or_state() {
    let role = |it: &mut Observed, number: usize, role: Role| {
        it.nodes[number].answer.as_mut().expect("a report").role = role;
    };
    let follows = |number: u8, connected| Role::Replica { master: node(number), connected };
    let found = only("not-master", Severity::Fault, |it| role(it, 0, follows(2, true)));
    assert_removes_before_monitoring(&found);
    only("second-master", Severity::Fault, |it| role(it, 1, Role::Master));
    only("wrong-master", Severity::Warning, |it| role(it, 1, follows(7, true)));
    only("broken-link", Severity::Warning, |it| role(it, 1, follows(1, false)));
    only("no-pong", Severity::Fault, |it| {
        it.nodes[0].answer.as_mut().expect("a report").pong = false;
    });
    only("acl", Severity::Warning, |it| {
        it.nodes[0].answer.as_mut().expect("a report").lineage = None;
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
    only("priorities-differ", Severity::Note, |it| {
        (0..3).for_each(|number| view(it, number).replicas[1].priority = Some(99));
        (0..3).for_each(|number| view(it, number).replicas[0].priority = Some(100));
    });
    // Commands that may not be sent are not missed.
    let mut observed = healthy();
    observed.nodes[0].answer =
        Ok(NodeReport { role: Role::Unknown, pong: false, lineage: None, ..report(1) });
    assert_eq!(diagnose(&observed, &Context { verify: Verify::Tcp, ..context() }), []);
}

#[test]
fn reports_settings_that_differ_or_do_not_fit() {
    let all = |it: &mut Observed, change: fn(&mut ObservedMaster)| {
        (0..3).for_each(|number| change(view(it, number)));
    };
    only("settings-differ", Severity::Warning, |it| view(it, 1).quorum = Some(3));
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
