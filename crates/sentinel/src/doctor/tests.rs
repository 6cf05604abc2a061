//! The judgement, from observations made up for each kind of trouble: every one is named, and a
//! healthy cluster has none.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Account, Context, Finding, NoAnswer, Observed, ObservedNode, ObservedPeer, ObservedReplica,
    ObservedSentinel, Says, Severity, Word, diagnose,
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
        let word = Word {
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
        let says = Says::Knows(Box::new(word));
        let account = Account {
            id: id(number),
            reached: place(number),
            resp3: true,
            refused: Vec::new(),
            tilt: false,
            watched: vec!["mymaster".to_owned()],
            says,
        };
        ObservedSentinel { addr: place(number).into(), configured: true, answer: Ok(account) }
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

fn account(observed: &mut Observed, sentinel: usize) -> &mut Account {
    observed.sentinels[sentinel].answer.as_mut().expect("it answers")
}

fn word(observed: &mut Observed, sentinel: usize) -> &mut Word {
    match &mut account(observed, sentinel).says {
        Says::Knows(word) => word,
        other => panic!("{other:?}"),
    }
}

/// The one finding, or warning, that a change makes.
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

/// Among others, this one.
#[track_caller]
fn among(code: &str, change: impl FnOnce(&mut Observed)) -> Finding {
    let mut observed = healthy();
    change(&mut observed);
    let findings = diagnose(&observed, &context());
    let found = findings.iter().find(|it| it.code == code);
    found.unwrap_or_else(|| panic!("no {code} in {findings:#?}")).clone()
}

#[test]
fn a_healthy_cluster_has_no_finding() {
    assert_eq!(diagnose(&healthy(), &context()), []);
}

#[test]
fn whoever_cannot_be_asked_is_named_with_the_cause() {
    let wrong = Denied::WrongPassword { setting: "service.sentinel_auth" };
    for (code, why) in [
        ("dns", NoAnswer::Unresolved("the name does not resolve".to_owned())),
        ("unreachable", NoAnswer::Unreachable("cannot connect: refused".to_owned())),
        ("silent", NoAnswer::Silent),
        ("password", NoAnswer::Denied(wrong)),
        ("no-sentinel", NoAnswer::Stranger),
        ("loop", NoAnswer::LeadsBack),
    ] {
        let found = only(code, Severity::Fault, |it| it.sentinels[1].answer = Err(why));
        assert_eq!(found.about, "10.0.0.2:26379");
    }
}

#[test]
fn a_narrow_acl_is_one_finding_with_every_rule_to_add() {
    let refuse = |command, rule| Denied::NotPermitted { command, rule };
    let refused = vec![
        refuse("SENTINEL REPLICAS", "+sentinel|replicas"),
        refuse("SENTINEL CKQUORUM", "+sentinel|ckquorum"),
        refuse("SENTINEL REPLICAS", "+sentinel|replicas"),
    ];
    let found = only("acl", Severity::Fault, |it| account(it, 0).refused = refused);
    assert!(found.what.contains("SENTINEL REPLICAS, SENTINEL CKQUORUM"), "{found}");
    assert!(found.remedy.contains("+sentinel|replicas +sentinel|ckquorum"), "{found}");
    let name_only = vec![refuse("CLIENT SETNAME", "+client|setname")];
    only("acl", Severity::Note, |it| account(it, 0).refused = name_only);
}

#[test]
fn an_unknown_name_tells_the_names_that_are_known() {
    let found = only("unknown-name", Severity::Fault, |it| {
        let account = account(it, 2);
        (account.says, account.watched) =
            (Says::Unknown, vec!["cache".to_owned(), "queue".to_owned()]);
    });
    assert!(found.what.contains("mymaster") && found.remedy.contains("cache, queue"), "{found}");
}

#[test]
fn sentinels_that_disagree_are_told_apart_from_one_that_is_behind() {
    let found = among("disagreement", |it| word(it, 2).addr = node(2));
    assert!(
        found
            .what
            .contains("10.0.1.1:6379 by 10.0.0.1:26379, 10.0.0.2:26379; 10.0.1.2:6379 by 10.0.0.3"),
        "{found}"
    );
    let found = only("stale-epoch", Severity::Fault, |it| {
        let word = word(it, 2);
        (word.epoch, word.addr) = (3, node(1));
    });
    assert_eq!(found.about, "10.0.0.3:26379");
    assert!(found.what.contains("at epoch 3") && found.what.contains("at epoch 5"), "{found}");
    let found = only("same-id", Severity::Warning, |it| account(it, 2).id = id(2));
    assert!(found.what.contains("10.0.0.2:26379 and 10.0.0.3:26379"), "{found}");
}

#[test]
fn too_few_sentinels_are_told_in_each_way() {
    let why = "NOQUORUM 1 usable Sentinels".to_owned();
    let found = only("quorum", Severity::Fault, |it| word(it, 0).ckquorum = Some(Err(why)));
    assert!(found.what.contains("NOQUORUM 1 usable"), "{found}");
    only("peers-down", Severity::Warning, |it| word(it, 0).peers[1].up = false);
    among("majority", |it| {
        for sentinel in 1..3 {
            it.sentinels[sentinel].answer = Err(NoAnswer::Silent);
        }
    });
    among("few-sentinels", |it| {
        it.sentinels.truncate(1);
        word(it, 0).peers.truncate(1);
    });
    among("no-sentinels", |it| {
        it.sentinels.iter_mut().for_each(|it| it.answer = Err(NoAnswer::Silent))
    });
    among("quorum-setting", |it| (0..3).for_each(|number| word(it, number).quorum = Some(4)));
}

#[test]
fn a_ghost_is_a_warning_that_says_how_to_forget_it() {
    let ghost: NodeAddr = place(9).into();
    let found = among("ghost", |it| {
        word(it, 0).peers.push(ObservedPeer {
            id: Some(id(9)),
            addr: Some(ghost.clone()),
            up: false,
        });
        let answer = Err(NoAnswer::Unreachable("cannot connect".to_owned()));
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
fn addresses_that_mean_nothing_here_are_told_unless_they_are_mapped() {
    let loopback = NodeAddr { host: "127.0.0.1".into(), port: 6379 };
    let announce =
        |it: &mut Observed| (0..3).for_each(|number| word(it, number).addr = loopback.clone());
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
        it.nodes[0].answer = Err(NoAnswer::Unreachable("cannot connect".into()));
    });
    assert!(found.about == "10.0.1.1:6379" && found.remedy.contains("NAT"), "{found}");
    only("not-dialable", Severity::Warning, |it| {
        it.nodes[2].answer = Err(NoAnswer::Unreachable("cannot connect".into()));
    });
    only("dns", Severity::Fault, |it| {
        it.nodes[0].answer = Err(NoAnswer::Unresolved("the name does not resolve".into()));
    });
}

#[test]
fn nodes_that_are_not_what_they_should_be() {
    let role = |it: &mut Observed, number: usize, role: Role| {
        it.nodes[number].answer.as_mut().expect("a report").role = role;
    };
    let follows = |number: u8, connected| Role::Replica { master: node(number), connected };
    only("not-master", Severity::Fault, |it| role(it, 0, follows(2, true)));
    only("second-master", Severity::Fault, |it| role(it, 1, Role::Master));
    only("wrong-master", Severity::Warning, |it| role(it, 1, follows(7, true)));
    only("broken-link", Severity::Warning, |it| role(it, 1, follows(1, false)));
    only("no-pong", Severity::Fault, |it| {
        it.nodes[0].answer.as_mut().expect("a report").pong = false
    });
    only("acl", Severity::Warning, |it| {
        it.nodes[0].answer.as_mut().expect("a report").lineage = None
    });
    only("replica-down", Severity::Warning, |it| word(it, 0).replicas[0].linked = false);
    only("no-replicas", Severity::Warning, |it| {
        (0..3).for_each(|number| word(it, number).replicas.clear());
        it.nodes.truncate(1);
    });
    let none = |it: &mut Observed| {
        (0..3).for_each(|number| {
            word(it, number).replicas.iter_mut().for_each(|it| it.priority = Some(0))
        });
    };
    only("no-candidate", Severity::Fault, none);
    // What may not be asked is not missed.
    let mut observed = healthy();
    observed.nodes[0].answer =
        Ok(NodeReport { role: Role::Unknown, pong: false, lineage: None, ..report(1) });
    assert_eq!(diagnose(&observed, &Context { verify: Verify::Tcp, ..context() }), []);
}

#[test]
fn settings_that_differ_or_do_not_fit() {
    let all = |it: &mut Observed, change: fn(&mut Word)| {
        (0..3).for_each(|number| change(word(it, number)))
    };
    only("settings-differ", Severity::Warning, |it| word(it, 1).quorum = Some(3));
    only("down-after", Severity::Warning, |it| {
        all(it, |word| word.down_after = Some(Duration::from_millis(500)))
    });
    let found = only("down-after", Severity::Warning, |it| {
        all(it, |word| word.down_after = Some(Duration::from_secs(30)))
    });
    assert!(found.what.contains("hold_timeout"), "{found}");
    only("failover-timeout", Severity::Warning, |it| {
        all(it, |word| word.failover_timeout = Some(Duration::from_secs(3)));
    });
    only("tilt", Severity::Warning, |it| account(it, 0).tilt = true);
    only("master-down", Severity::Fault, |it| word(it, 0).down = true);
    only("failover", Severity::Note, |it| word(it, 0).failing_over = true);
}
