//! The rules by which replicas are let in and put out, one story each.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{Eligibility, Facts, Leader, ReplicaState, Ruling};
use crate::{Lineage, NodeAddr, NodeReport, Probe, ProbeFailure, ReplicaRules, Role};

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) fn node(number: u8) -> NodeAddr {
    NodeAddr { host: format!("10.0.0.{number}").into(), port: 6379 }
}

pub(super) fn dialled(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 6379))
}

pub(super) fn report(number: u8, role: Role, offset: u64, replid: &str) -> NodeReport {
    let lineage =
        Lineage { run_id: number.to_string().into(), replid: replid.into(), ..Lineage::default() };
    NodeReport {
        dialled: dialled(number),
        role,
        pong: true,
        offset: Some(offset),
        lineage: Some(lineage),
    }
}

pub(super) fn follower(of: u8, connected: bool) -> Role {
    Role::Replica { master: node(of), connected }
}

/// A master with replicas, as the roster gets to know of them.
pub(super) struct Scene {
    pub(super) roster: Eligibility,
    pub(super) now: Instant,
    pub(super) leader: u8,
    pub(super) replid: &'static str,
    pub(super) replid2: &'static str,
    pub(super) candidate: Option<u8>,
    pub(super) calm: bool,
    pub(super) listed: BTreeMap<u8, bool>,
    pub(super) silent_sentinels: bool,
    /// What each node answers; none for no answer at all.
    pub(super) answers: BTreeMap<u8, Result<NodeReport, ProbeFailure>>,
    heard: BTreeMap<NodeAddr, Probe>,
}

impl Scene {
    /// Master 1, replicas 2 and 3, all well.
    pub(super) fn new() -> Self {
        Self::with(ReplicaRules { max_lag_bytes: 1000, ..ReplicaRules::default() })
    }

    fn with(rules: ReplicaRules) -> Self {
        let mut answers = BTreeMap::from([(1, Ok(report(1, Role::Master, 100, "first")))]);
        for number in [2, 3] {
            answers.insert(number, Ok(report(number, follower(1, true), 100, "first")));
        }
        Self {
            roster: Eligibility::new(rules),
            now: Instant::now(),
            leader: 1,
            replid: "first",
            replid2: "",
            candidate: None,
            calm: true,
            listed: BTreeMap::from([(2, true), (3, true)]),
            silent_sentinels: false,
            answers,
            heard: BTreeMap::new(),
        }
    }

    /// Everybody has answered, and things have been calm for long.
    pub(super) fn settled() -> Self {
        let mut scene = Self::new();
        scene.run(10_000);
        assert_eq!(scene.members(), [2, 3]);
        scene
    }

    /// Judges now, without another question.
    pub(super) fn judge(&mut self) -> Ruling {
        let (leader, candidate) = (node(self.leader), self.candidate.map(node));
        let listed =
            self.listed.iter().map(|(number, healthy)| (node(*number), *healthy)).collect();
        let facts = Facts {
            leader: Some(Leader {
                addr: &leader,
                dialled: dialled(self.leader),
                replid: self.replid,
                replid2: self.replid2,
            }),
            candidate: candidate.as_ref(),
            calm: self.calm,
            cut_off: false,
            listed: Some(listed).filter(|_| !self.silent_sentinels),
        };
        self.roster.judge(self.now, &facts, self.heard.iter())
    }

    /// Asks everybody, and judges.
    pub(super) fn ask(&mut self) -> Ruling {
        for (number, outcome) in &self.answers {
            let probe = Probe { asked_at: self.now, outcome: outcome.clone() };
            self.heard.insert(node(*number), probe);
        }
        self.judge()
    }

    /// Lets time go by, with a question to everybody every half second.
    pub(super) fn run(&mut self, for_ms: u64) -> Ruling {
        let mut last = self.ask();
        for _ in 0..for_ms / 500 {
            self.now += ms(500);
            last = self.ask();
        }
        last
    }

    pub(super) fn members(&mut self) -> Vec<u8> {
        let members = self.judge().members.expect("a set");
        members
            .iter()
            .map(|it| it.addr.host.trim_start_matches("10.0.0.").parse().expect("a number"))
            .collect()
    }

    pub(super) fn standing(&self, number: u8) -> ReplicaState {
        let found = self.roster.standings().find(|it| *it.addr == node(number));
        found.map(|it| it.standing).expect("an entry")
    }

    fn role(&mut self, number: u8, role: Role) {
        if let Some(Ok(report)) = self.answers.get_mut(&number) {
            report.role = role;
        }
    }
}

#[test]
fn the_first_set_waits_for_everybodys_answer_but_not_for_long() {
    let mut scene = Scene::new();
    assert_eq!(scene.judge().members, None);
    assert!(!scene.roster.sees());
    scene.ask();
    assert_eq!(scene.members(), [2, 3]);
    let mut scene = Scene::new();
    scene.answers.remove(&3);
    assert_eq!(scene.run(500).members, None);
    scene.run(500);
    assert_eq!((scene.members(), scene.standing(3)), (vec![2], ReplicaState::Unknown));
}

#[test]
fn who_does_not_prove_itself_gets_nobody() {
    type Change = fn(&mut Scene);
    let cases: [(Change, ReplicaState); 8] = [
        (|scene| scene.role(2, Role::Master), ReplicaState::Master),
        (|scene| scene.role(2, follower(9, true)), ReplicaState::Stranger),
        (|scene| scene.role(2, Role::Unknown), ReplicaState::Stranger),
        (|scene| scene.role(2, follower(1, false)), ReplicaState::LinkDown),
        (|scene| scene.listed = BTreeMap::from([(2, false), (3, true)]), ReplicaState::Flagged),
        (|scene| scene.listed = BTreeMap::from([(3, true)]), ReplicaState::Unlisted),
        (|scene| drop(scene.answers.insert(2, Err(ProbeFailure::Denied))), ReplicaState::Denied),
        (|scene| scene.candidate = Some(2), ReplicaState::Candidate),
    ];
    for (change, expected) in cases {
        let mut scene = Scene::settled();
        change(&mut scene);
        scene.run(500);
        assert_eq!((scene.members(), scene.standing(2)), (vec![3], expected));
    }
}

#[test]
fn a_node_that_is_loading_is_not_ready() {
    let mut scene = Scene::settled();
    scene
        .answers
        .insert(2, Ok(NodeReport { pong: false, ..report(2, follower(1, true), 100, "first") }));
    scene.ask();
    assert_eq!((scene.members(), scene.standing(2)), (vec![3], ReplicaState::Unready));
}

#[test]
fn out_at_once_and_back_only_after_a_while_without_a_fault() {
    let mut scene = Scene::settled();
    scene.role(2, follower(1, false));
    scene.ask();
    scene.role(2, follower(1, true));
    scene.run(1500);
    assert_eq!((scene.members(), scene.standing(2)), (vec![3], ReplicaState::Recovering));
    // Another fault, and the time begins anew.
    scene.role(2, follower(1, false));
    scene.ask();
    scene.role(2, follower(1, true));
    scene.run(1500);
    assert_eq!(scene.members(), [3]);
    scene.run(500);
    assert_eq!(scene.members(), [2, 3]);
}

#[test]
fn who_falls_silent_is_out_when_its_last_answer_is_old_and_who_is_gone_after_two_attempts() {
    let mut scene = Scene::settled();
    scene.answers.insert(2, Err(ProbeFailure::Silent));
    scene.run(2500);
    assert_eq!(scene.members(), [2, 3], "busy for a moment");
    scene.run(1000);
    assert_eq!((scene.members(), scene.standing(2)), (vec![3], ReplicaState::Silent));
    let mut scene = Scene::settled();
    scene.answers.insert(2, Err(ProbeFailure::Unreachable));
    scene.ask();
    assert_eq!((scene.members(), scene.standing(2)), (vec![3], ReplicaState::Unreachable));
}

#[test]
fn who_is_behind_has_to_catch_up_to_half_of_it() {
    let rules =
        ReplicaRules { max_lag_bytes: 1000, max_lag: Duration::ZERO, ..ReplicaRules::default() };
    let mut scene = Scene::with(rules);
    scene.run(1000);
    scene.answers.insert(1, Ok(report(1, Role::Master, 1600, "first")));
    scene.answers.insert(2, Ok(report(2, follower(1, true), 599, "first")));
    scene.answers.insert(3, Ok(report(3, follower(1, true), 600, "first")));
    scene.run(500);
    assert_eq!((scene.members(), scene.standing(2)), (vec![3], ReplicaState::Behind));
    scene.answers.insert(2, Ok(report(2, follower(1, true), 1099, "first")));
    scene.run(5000);
    assert_eq!(scene.standing(2), ReplicaState::Behind);
    scene.answers.insert(2, Ok(report(2, follower(1, true), 1100, "first")));
    scene.run(3000);
    assert_eq!(scene.members(), [2, 3]);
}

#[test]
fn who_stands_still_while_the_master_goes_on_is_out_in_time() {
    let mut scene = Scene::settled();
    for half_second in 1..=24_u64 {
        scene.now += ms(500);
        // A byte a half second: far from too many bytes.
        for number in [1, 3] {
            if let Some(Ok(report)) = scene.answers.get_mut(&number) {
                report.offset = Some(100 + half_second);
            }
        }
        scene.ask();
        let behind_for = ms(500 * (half_second - 1));
        assert_eq!(scene.members().contains(&2), behind_for <= ms(10_000), "after {behind_for:?}");
        assert!(scene.members().contains(&3));
    }
    assert_eq!(scene.standing(2), ReplicaState::Behind);
}

#[test]
fn while_the_master_is_in_question_replicas_need_no_link() {
    let mut scene = Scene::settled();
    scene.calm = false;
    scene.answers.insert(1, Err(ProbeFailure::Unreachable));
    scene.listed = BTreeMap::from([(2, false), (3, false)]);
    for number in [2, 3] {
        scene.role(number, follower(1, false));
    }
    scene.run(60_000);
    assert_eq!(scene.members(), [2, 3]);
    // But they must answer, and must not be masters.
    scene.answers.insert(3, Err(ProbeFailure::Silent));
    scene.role(2, Role::Master);
    scene.run(3500);
    assert_eq!(scene.members(), [0_u8; 0]);
}

#[test]
fn a_failover_promotes_one_and_keeps_the_other_while_it_is_pointed_anew() {
    let mut scene = Scene::settled();
    (scene.calm, scene.candidate) = (false, Some(2));
    scene.ask();
    assert_eq!(scene.members(), [3], "who is about to be promoted gets nobody any more");
    // The switch: observers list everybody as disconnected, the old master among them, which still
    // says that it is a master.
    (scene.leader, scene.replid, scene.replid2) = (2, "second", "first");
    (scene.calm, scene.candidate) = (true, None);
    scene.listed = BTreeMap::from([(1, false), (3, false)]);
    scene.answers.insert(2, Ok(report(2, Role::Master, 120, "second")));
    scene.role(3, follower(1, false));
    let ruling = scene.run(1500);
    assert_eq!(scene.members(), [3], "its own answers count");
    assert!(ruling.barred.contains(&dialled(2)) && ruling.barred.contains(&dialled(1)));
    assert!(!ruling.barred.contains(&dialled(3)));
    // The dust has settled.
    scene.answers.insert(3, Ok(report(3, follower(2, true), 120, "second")));
    scene.listed = BTreeMap::from([(1, true), (3, true)]);
    scene.run(1000);
    assert_eq!(
        (scene.members(), scene.standing(1)),
        (vec![3], ReplicaState::Master),
        "a zombie never joins"
    );
    scene.answers.insert(1, Ok(report(1, follower(2, true), 120, "second")));
    let ruling = scene.run(2000);
    assert_eq!(scene.members(), [1, 3]);
    assert!(!ruling.barred.contains(&dialled(1)));
}

#[test]
fn who_follows_the_next_master_before_it_is_committed_stays_in() {
    // Pointed anew and synchronised in full before the majority has named the next master: another
    // history, for now.
    let mut scene = Scene::settled();
    (scene.calm, scene.candidate) = (false, Some(2));
    scene.answers.insert(3, Ok(report(3, follower(2, true), 100, "second")));
    let ruling = scene.run(500);
    assert_eq!(scene.members(), [3]);
    assert!(!ruling.barred.contains(&dialled(3)));
    // Another process on that address is nobody who was let in.
    let lineage =
        Lineage { run_id: "another".into(), replid: "second".into(), ..Lineage::default() };
    let other =
        NodeReport { lineage: Some(lineage), ..report(3, follower(2, true), 100, "second") };
    scene.answers.insert(3, Ok(other));
    scene.run(500);
    assert_eq!((scene.members(), scene.standing(3)), (Vec::new(), ReplicaState::Stranger));
}

#[test]
fn who_stays_with_the_old_master_is_out_when_the_dust_has_settled() {
    let mut scene = Scene::settled();
    (scene.leader, scene.replid, scene.replid2) = (2, "second", "first");
    scene.listed = BTreeMap::from([(1, true), (3, true)]);
    scene.answers.insert(2, Ok(report(2, Role::Master, 100, "second")));
    let ruling = scene.run(2000);
    assert_eq!((scene.members(), scene.standing(3)), (Vec::new(), ReplicaState::Stranger));
    assert!(!ruling.barred.contains(&dialled(3)), "worse than others, and not wrong");
}

#[test]
fn a_node_of_another_cluster_is_barred() {
    let mut scene = Scene::settled();
    scene.answers.insert(2, Ok(report(2, follower(9, true), 100, "foreign")));
    let ruling = scene.ask();
    assert_eq!((scene.members(), scene.standing(2)), (vec![3], ReplicaState::Stranger));
    assert!(ruling.barred.contains(&dialled(2)));
}

#[test]
fn a_name_that_reads_otherwise_is_believed_if_the_history_is_the_masters() {
    for (replid, expected) in [("first", vec![2, 3]), ("foreign", vec![3])] {
        let mut scene = Scene::settled();
        let name = NodeAddr { host: "redis-0.redis".into(), port: 6379 };
        let told = Role::Replica { master: name, connected: true };
        scene.answers.insert(2, Ok(report(2, told, 100, replid)));
        scene.ask();
        assert_eq!(scene.members(), expected);
    }
}

#[test]
fn silence_of_the_sentinels_takes_nobody_away_and_who_is_unlisted_is_barred_in_the_end() {
    let mut scene = Scene::settled();
    scene.silent_sentinels = true;
    scene.run(60_000);
    assert_eq!(scene.members(), [2, 3]);
    scene.silent_sentinels = false;
    scene.listed.remove(&2);
    scene.answers.remove(&2);
    let ruling = scene.run(20_000);
    assert_eq!(scene.members(), [3]);
    assert!(!ruling.barred.contains(&dialled(2)));
    let barred = (0..40).any(|_| scene.run(500).barred.contains(&dialled(2)));
    assert!(barred);
}

#[test]
fn after_a_stall_nothing_is_said_before_the_replicas_were_asked_again() {
    let mut scene = Scene::settled();
    scene.now += ms(20_000);
    scene.roster.wake(scene.now);
    assert_eq!(scene.judge().members, None);
    assert!(!scene.roster.sees());
    scene.role(3, Role::Master);
    scene.now += ms(10);
    scene.ask();
    assert!(scene.roster.sees());
    assert_eq!(scene.members(), [2]);
}
