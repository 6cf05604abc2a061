//! Diagnosis of made-up observations with one cause and several consequences: the cause is named,
//! and nothing else.

use std::net::SocketAddr;

use sentinel::{AttachedReplica, Denied, MyId, NodeAddr, PingReply, Role};

use super::tests::{among, answer, context, healthy, id, node, only, place, view, watched};
use super::{AclUser, Context, ExamineError, Observed, ObservedPeer, Severity, diagnose};

/// Three sentinels were started with one file. None of them hears another one, and a quorum that
/// fits what they know would have each of them promote a replica.
#[test]
fn copied_identity_comes_before_its_consequences() {
    let copies = |it: &mut Observed| {
        for number in 0..3 {
            answer(it, number).id = id(1);
            let view = view(it, number);
            view.peers.clear();
            view.ckquorum = Some(Err("NOQUORUM 1 usable Sentinels".to_owned()));
        }
    };
    let found = only("same-id", Severity::Fault, copies);
    assert!(found.what.contains("10.0.0.1:26379, 10.0.0.2:26379, 10.0.0.3:26379"), "{found}");
    // One of them names another master as well: it is told the quorum of three sentinels.
    let found = among("disagreement", |it| {
        copies(it);
        view(it, 2).addr = node(2);
        view(it, 2).quorum = Some(1);
    });
    assert!(found.commands[1].ends_with("SENTINEL MONITOR mymaster 10.0.1.1 6379 2"), "{found:?}");
}

/// A client that may only publish announced four sentinels, which name its own server at a high
/// epoch. No command leads there, and no sound server is blamed.
#[test]
fn trusts_no_announced_sentinel_against_configured_ones() {
    let mut observed = healthy();
    for number in 0..4 {
        let mut hostile = observed.sentinels[0].clone();
        (hostile.configured, hostile.addr) = (false, place(90 + number).into());
        observed.sentinels.push(hostile);
        let own = answer(&mut observed, 3 + usize::from(number));
        (own.id, own.reached) = (id(90 + number), place(90 + number));
        let view = view(&mut observed, 3 + usize::from(number));
        (view.addr, view.epoch) = (node(66), 9);
    }
    let findings = diagnose(&observed, &context());
    let named: Vec<_> = findings.iter().filter(|it| it.code == "disagreement").collect();
    assert!(named.len() == 1 && named[0].about.contains("10.0.0.90"), "{findings:#?}");
    let commands = findings.iter().flat_map(|it| &it.commands).filter(|it| it.contains("MONITOR"));
    assert_eq!(commands.count(), 0, "{findings:#?}");
    assert!(findings.iter().all(|it| it.code != "stale-epoch"), "{findings:#?}");
}

/// No finding says to lower the quorum to half of the sentinels or less.
#[test]
fn never_advises_a_quorum_of_half_or_less() {
    for (sentinels, quorum) in [(1, 2), (2, 2), (2, 9), (3, 4), (3, 0), (3, 1)] {
        let mut observed = healthy();
        let ids: Vec<MyId> = (1..=sentinels as u8).map(id).collect();
        observed.sentinels.truncate(sentinels);
        for number in 0..sentinels {
            let view = view(&mut observed, number);
            view.quorum = Some(quorum);
            view.peers.retain(|it| it.id.as_ref().is_some_and(|id| ids.contains(id)));
        }
        for found in diagnose(&observed, &context()) {
            let advice = found.remedy.split("quorum ").filter_map(|it| it.chars().next());
            for digit in advice.filter_map(|it| it.to_digit(10)) {
                assert!(digit as usize * 2 > sentinels, "{sentinels} {quorum}: {found}");
            }
        }
    }
    let found = only("few-sentinels", Severity::Fault, |it| {
        it.sentinels.truncate(1);
        view(it, 0).peers.clear();
        view(it, 0).ckquorum = Some(Err("NOQUORUM".to_owned()));
    });
    assert!(found.what.contains("the quorum is 2"), "{found}");
}

#[test]
fn reports_wrong_announced_addresses_of_sentinels() {
    let announce = |it: &mut Observed, who: u8, at: SocketAddr, up: bool| {
        for lister in (0..3).filter(|lister| lister + 1 != usize::from(who)) {
            let peers = &mut view(it, lister).peers;
            peers.retain(|peer| peer.id != Some(id(who)));
            peers.push(ObservedPeer { id: Some(id(who)), addr: Some(at.into()), up });
        }
    };
    // All of them announce the address of the first one, which answers for them.
    let found = only("announced", Severity::Fault, |it| {
        announce(it, 2, place(1), true);
        announce(it, 3, place(1), true);
    });
    assert_eq!(found.about, "10.0.0.1:26379");
    assert!(found.what.contains("announced by 10.0.0.2:26379, 10.0.0.3:26379, where 10.0.0.1"));
    assert!(found.remedy.contains("announce-ip"), "{found}");
    // All announce that of a load balancer.
    let found = only("announced", Severity::Fault, |it| {
        (1..=3).for_each(|who| announce(it, who, place(200), true));
    });
    assert!(found.about == "10.0.0.200:26379" && !found.what.contains("where"), "{found}");
    // One announces an address at which nothing answers.
    let found = only("announced", Severity::Fault, |it| announce(it, 3, place(99), false));
    assert!(found.what.contains("by 10.0.0.3:26379; their peers do not reach them"), "{found}");
    // An address that only the others can use is none of our business.
    let mut observed = healthy();
    announce(&mut observed, 3, place(99), true);
    assert_eq!(diagnose(&observed, &context()), []);
}

#[test]
fn reports_sentinels_that_the_master_does_not_answer() {
    let strangers = |it: &mut Observed| {
        for number in 0..3 {
            let view = view(it, number);
            (view.down, view.epoch) = (true, 0);
            view.run_id = "".into();
            view.peers.clear();
            view.replicas.clear();
            view.ckquorum = Some(Err("NOQUORUM 1 usable Sentinels".to_owned()));
        }
        it.nodes.truncate(1);
    };
    let mut observed = healthy();
    strangers(&mut observed);
    let with_password = Context { nodes_need_login: true, ..context() };
    let found = diagnose(&observed, &with_password);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].severity, found[0].code), (Severity::Fault, "sentinel-auth"));
    assert_eq!(found[0].commands.len(), 1 + 2 * 3, "{found:#?}");
    assert!(found[0].commands[2].contains("-x SENTINEL SET mymaster auth-pass"), "{found:#?}");
    // Without a password here either, there is nothing to print.
    observed.nodes[0].answer =
        Err(ExamineError::Denied(Denied::PasswordMissing { setting: "service.auth" }));
    let found = diagnose(&observed, &context());
    let codes: Vec<_> = found.iter().map(|it| it.code).collect();
    assert_eq!(codes, ["password", "sentinel-auth"], "{found:#?}");
    assert!(found[1].commands.is_empty());

    // They reach the master and may not say hello.
    let found = only("unlisted", Severity::Fault, |it| {
        (0..3).for_each(|number| view(it, number).peers.clear());
    });
    assert!(found.about == "mymaster" && found.what.contains("3 sentinels answer here"), "{found}");
    assert!(found.remedy.contains("&__sentinel__:hello"), "{found}");
    let found = only("unlisted", Severity::Fault, |it| {
        (0..2).for_each(|number| view(it, number).peers.retain(|it| it.id != Some(id(3))));
    });
    assert_eq!(found.about, "10.0.0.3:26379");
}

#[test]
fn reports_a_master_with_a_second_name_once() {
    let found = only("second-name", Severity::Warning, |it| {
        for number in 0..3 {
            answer(it, number).watched.extend([watched("again", 1), watched("other", 9)]);
        }
    });
    assert!(found.what.contains("as again, too"), "{found}");
}

/// The same about several servers is one finding.
#[test]
fn merges_findings_that_say_the_same() {
    let found = only("unresponsive", Severity::Fault, |it| {
        it.sentinels[1].answer = Err(ExamineError::Unresponsive);
    });
    let mut observed = healthy();
    observed.sentinels[1].answer = Err(ExamineError::Unresponsive);
    observed.sentinels[2].answer = Err(ExamineError::Unresponsive);
    let both = diagnose(&observed, &context());
    let both: Vec<_> = both.iter().filter(|it| it.code == "unresponsive").collect();
    assert_eq!(both.len(), 1);
    assert_eq!(both[0].about, "10.0.0.2:26379, 10.0.0.3:26379");
    assert_eq!(both[0].remedy, found.remedy);
}

/// Both replicas are dead: each has its cure, and that nothing could be promoted is a fault. One
/// that the master still has is alive, whatever the sentinels find: RESET would not help.
#[test]
fn reports_dead_replicas_as_fault_and_resets_no_live_one() {
    let dead = |it: &mut Observed, number: u8| {
        let error = "cannot connect: refused".to_owned();
        it.nodes[usize::from(number) - 1].answer = Err(ExamineError::Unreachable(error));
        for sentinel in 0..3 {
            let replicas = &mut view(it, sentinel).replicas;
            replicas.iter_mut().filter(|it| it.addr == node(number)).for_each(|it| it.down = true);
        }
    };
    let mut observed = healthy();
    dead(&mut observed, 2);
    dead(&mut observed, 3);
    let found = diagnose(&observed, &context());
    let codes: Vec<_> = found.iter().map(|it| it.code).collect();
    assert_eq!(codes, ["no-candidate", "ghost"], "{found:#?}");
    assert_eq!(found[1].about, "10.0.1.2:6379, 10.0.1.3:6379");
    let resets = found[1].commands.iter().filter(|it| it.ends_with(" SENTINEL RESET mymaster &&"));
    assert_eq!(resets.count(), 3, "{found:#?}");

    let mut observed = healthy();
    dead(&mut observed, 3);
    let report = observed.nodes[0].answer.as_mut().expect("a report");
    report.replicas = Some([node(2), node(3)].map(attached).into());
    let found = diagnose(&observed, &context());
    let codes: Vec<_> = found.iter().map(|it| it.code).collect();
    assert_eq!(codes, ["not-dialable"], "{found:#?}");
    assert!(found[0].commands.is_empty());
    // One sentinel reaches it.
    let mut observed = healthy();
    dead(&mut observed, 3);
    view(&mut observed, 1).replicas[1].down = false;
    let found = diagnose(&observed, &context());
    assert!(found.iter().all(|it| it.code == "not-dialable"), "{found:#?}");
}

fn attached(addr: NodeAddr) -> AttachedReplica {
    AttachedReplica { addr, acknowledged: 0 }
}

#[test]
fn reports_replicas_that_only_the_master_lists() {
    let named = NodeAddr { host: "redis-3.local".into(), port: 6379 };
    let lists = |it: &mut Observed, all: &[NodeAddr]| {
        it.nodes[0].answer.as_mut().expect("a report").replicas =
            Some(all.iter().cloned().map(attached).collect());
        (0..3).for_each(|number| view(it, number).replicas.truncate(1));
        it.nodes.truncate(2);
    };
    let found =
        only("replica-unlisted", Severity::Warning, |it| lists(it, &[node(2), named.clone()]));
    assert_eq!(found.about, "redis-3.local:6379");
    assert!(found.remedy.contains("SENTINEL CONFIG SET resolve-hostnames yes"), "{found:?}");
    let found = only("replica-unlisted", Severity::Warning, |it| lists(it, &[node(2), node(3)]));
    assert!(found.about == "10.0.1.3:6379" && found.commands.is_empty(), "{found}");
    let found = only("replica-unlisted", Severity::Warning, |it| lists(it, &[node(2), node(2)]));
    assert!(found.what.contains("2 replicas announce 1 addresses"), "{found}");
    // They list the address of a name.
    let mut observed = healthy();
    observed.nodes[0].answer.as_mut().expect("a report").replicas =
        Some([node(2), named].map(attached).into());
    assert_eq!(diagnose(&observed, &context()), []);
}

/// A master that permits neither `PSYNC` nor `REPLCONF` has replicas at port 0.
#[test]
fn reports_replicas_that_the_master_does_not_know() {
    let knows = |it: &mut Observed, all: &[NodeAddr]| {
        it.nodes[0].answer.as_mut().expect("a report").replicas =
            Some(all.iter().cloned().map(attached).collect());
    };
    let found = only("replica-unknown", Severity::Warning, |it| knows(it, &[node(2)]));
    assert_eq!(found.about, "10.0.1.3:6379");
    assert!(found.remedy.contains("+psync +replconf +ping"), "{found}");
    let found = only("replica-unknown", Severity::Warning, |it| knows(it, &[]));
    assert_eq!(found.about, "10.0.1.2:6379, 10.0.1.3:6379");
    // One without a link has its own finding, and a name may be that of any address.
    only("broken-link", Severity::Warning, |it| {
        knows(it, &[node(2)]);
        let report = it.nodes[2].answer.as_mut().expect("a report");
        report.role = Role::Replica { master: node(1), connected: false };
    });
    let named = NodeAddr { host: "redis-3.local".into(), port: 6379 };
    let mut observed = healthy();
    knows(&mut observed, &[node(2), named]);
    assert_eq!(diagnose(&observed, &context()), []);
}

#[test]
fn reports_passwords_that_differ_between_nodes() {
    let wrong = ExamineError::Denied(Denied::WrongPassword { setting: "service.auth" });
    let with_password = Context { nodes_need_login: true, ..context() };
    let mut observed = healthy();
    observed.nodes[2].answer = Err(wrong);
    let found = diagnose(&observed, &with_password);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].code, found[0].about.as_str()), ("password", "10.0.1.3:6379"));
    assert!(found[0].what.contains("that 10.0.1.1:6379, 10.0.1.2:6379 accepts"), "{found:#?}");
    let missing = ExamineError::Denied(Denied::PasswordMissing { setting: "service.auth" });
    let found = only("password", Severity::Fault, |it| it.nodes[2].answer = Err(missing));
    assert!(found.what.contains("and 10.0.1.1:6379, 10.0.1.2:6379 does not"), "{found}");
    // A node without a password ignores ours, and says so in its list of users only.
    let mut observed = healthy();
    for (number, node) in observed.nodes.iter_mut().enumerate() {
        let name = "default".into();
        let user = AclUser { name, enabled: true, nopass: number != 1, announces: false };
        node.details.users = Some(vec![user]);
    }
    let found = diagnose(&observed, &with_password);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].code, found[0].about.as_str()), ("password", "10.0.1.2:6379"));
}

#[test]
fn reports_commands_that_were_renamed() {
    let unknown = |it: &mut Observed| {
        for node in &mut it.nodes {
            let report = node.answer.as_mut().expect("a report");
            (report.role, report.lineage) = (Role::Unknown, None);
            node.details.role_error = Some("ERR unknown command 'ROLE'".into());
        }
    };
    let found = only("no-role", Severity::Fault, unknown);
    assert!(found.what.contains("ERR unknown command 'ROLE'"), "{found}");
    assert!(found.remedy.contains("verify = \"ping\""), "{found}");
    let found = only("no-info", Severity::Warning, |it| {
        it.nodes[0].answer.as_mut().expect("a report").lineage = None;
        it.nodes[0].details.info_error = Some("ERR unknown command 'INFO'".into());
    });
    assert!(found.remedy.contains("rename-command INFO"), "{found}");
    let found = only("no-pong", Severity::Fault, |it| {
        it.nodes[0].answer.as_mut().expect("a report").ping = PingReply::Other;
        it.nodes[0].details.ping = Some("ERR unknown command 'PING'".into());
    });
    assert!(found.what.contains("unknown command 'PING'"), "{found}");
}

#[test]
fn reports_missing_local_ports_and_missing_persistence() {
    let found = only("local-ports", Severity::Fault, |it| {
        it.nodes[0].answer = Err(ExamineError::OutOfPorts);
    });
    assert!(!found.remedy.contains("not valid on this host"), "{found}");
    only("local-ports", Severity::Fault, |it| {
        it.sentinels[0].answer = Err(ExamineError::OutOfPorts);
    });
    let found = only("no-persistence", Severity::Note, |it| {
        it.nodes.iter_mut().for_each(|it| it.details.persists = Some(false));
    });
    assert_eq!(found.about, "10.0.1.1:6379");
}

/// Only an operator knows the replicas of a master that died after RESET.
#[test]
fn promotes_by_hand_where_no_sentinel_knows_a_replica() {
    let lost = |it: &mut Observed| {
        it.nodes.truncate(1);
        it.nodes[0].answer = Err(ExamineError::Unreachable("cannot connect".into()));
        for number in 0..3 {
            view(it, number).down = true;
            view(it, number).run_id = "".into();
            view(it, number).replicas.clear();
        }
    };
    let found = among("no-replicas", lost);
    assert_eq!(found.severity, Severity::Fault);
    let at =
        |word: &str| found.commands.iter().position(|it| it.contains(word)).expect("a command");
    assert!(found.commands[0].starts_with(": \"${NEW_HOST:?"), "{:?}", found.commands);
    assert!(at("REPLICAOF NO ONE") < at("SENTINEL REMOVE"), "{:?}", found.commands);
    let last_removal = found.commands.iter().rposition(|it| it.contains("SENTINEL REMOVE"));
    assert!(last_removal < Some(at("SENTINEL MONITOR")), "{:?}", found.commands);
    assert!(found.commands[at("SENTINEL MONITOR")].ends_with("\"$NEW_HOST\" \"$NEW_PORT\" 2"));
}

#[test]
fn names_users_that_may_announce_sentinels() {
    let user = |name: &str, announces| AclUser {
        name: name.into(),
        enabled: true,
        nopass: true,
        announces,
    };
    let with = |users: Vec<AclUser>, sentinels: &'static [&str]| {
        move |it: &mut Observed| {
            for node in &mut it.nodes {
                node.details.users = Some(users.clone());
                node.details.sentinel_users = sentinels.iter().map(|it| (*it).into()).collect();
            }
        }
    };
    let default = vec![user("default", true)];
    let found = only("hello-users", Severity::Note, with(default.clone(), &["default"]));
    assert_eq!(found.about, "10.0.1.1:6379, 10.0.1.2:6379, 10.0.1.3:6379");
    assert!(found.remedy.contains("a user of their own first"), "{found}");
    assert!(found.remedy.contains("ACL SETUSER default resetchannels"), "{found}");
    let several = vec![user("default", false), user("app", true), user("watch", true)];
    let found = only("hello-users", Severity::Warning, with(several, &["watch"]));
    assert!(found.what.contains("__sentinel__:hello: app:"), "{found}");
    let mut sound = healthy();
    with(vec![user("default", false), user("watch", true)], &["watch"])(&mut sound);
    assert_eq!(diagnose(&sound, &context()), []);
}
