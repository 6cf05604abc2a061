//! Scenarios in which the commit follows the deciding event at once: an announced switch counts as
//! a vote as soon as the announced peer has voted itself, and an answer of the new master to a
//! query sent after the first vote for it is sufficient. Also the conditions under which neither
//! holds.

use super::rig::{Answer, Letter, Rig, id, master, node, replica, view};
use crate::Notice;
use crate::machine::{MachineEvent, MachineState};

/// S1 leads: it selected B at 0, B is a master since 90, and S1 names it since 1000. It is 1085,
/// and no other sentinel has voted. From here on no sentinel answers a query.
fn led() -> Rig {
    let mut rig = Rig::booted();
    rig.selects(1, 'B')
        .at(90)
        .promotes('B')
        .step(MachineEvent::ProbeConnectionLost { node: node('B') });
    rig.at(1000).names(1, 'B', 6).publishes(1, Notice::Promoted { candidate: node('B') });
    rig.at(1085).disconnects(1).disconnects(2).disconnects(3);
    assert_eq!(rig.outcomes(), ["0 hold"]);
    rig
}

fn announces(rig: &mut Rig, sentinel: u8, peer: u8, leaving: Letter) {
    rig.publishes(sentinel, Notice::ConfigUpdateFrom { peer: id(peer), leaving: node(leaving) });
}

fn switched(rig: &mut Rig, sentinel: u8, to: Letter) {
    rig.publishes(sentinel, Notice::Switched { to: node(to) });
}

fn last(rig: &Rig) -> String {
    rig.outcomes().last().cloned().unwrap_or_default()
}

#[test]
fn commits_at_once_on_announced_switch() {
    let mut rig = led();
    announces(&mut rig, 2, 1, 'A');
    assert_eq!(rig.outcomes(), ["0 hold"], "the announcement alone has no effect");
    switched(&mut rig, 2, 'B');
    assert_eq!(
        rig.outcomes(),
        ["0 hold", "1085 commit B@6 majority"],
        "neither a sentinel nor the node is queried again"
    );
    assert_eq!(*rig.machine.state(), MachineState::Stable);
    assert!(!rig.machine.is_holding());
}

#[test]
fn commits_when_the_leader_votes_last() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(90).promotes('B').disconnects(1).disconnects(2).disconnects(3).at(1000);
    announces(&mut rig, 2, 1, 'A');
    switched(&mut rig, 2, 'B');
    rig.run(5);
    assert_eq!(rig.outcomes(), ["0 hold"]);
    rig.answers(1, view('B', 6, &[2, 3], &['A', 'C']));
    rig.run(1);
    // Queries from before the first vote verify nothing: one more query is sent.
    assert_eq!(rig.outcomes(), ["0 hold", "1006 commit B@6 majority"]);
}

type Case<'a> = &'a dyn Fn(&mut Rig);

#[test]
fn counts_unrelated_switch_as_one_vote() {
    let unannounced = |rig: &mut Rig| switched(rig, 2, 'B');
    let elsewhere = |rig: &mut Rig| {
        announces(rig, 2, 1, 'A');
        switched(rig, 2, 'C');
    };
    let of_another = |rig: &mut Rig| {
        // S3 still names A.
        announces(rig, 2, 3, 'A');
        switched(rig, 2, 'B');
    };
    let of_a_stranger = |rig: &mut Rig| {
        rig.answers(9, view('B', 6, &[2, 3], &['A', 'C']));
        announces(rig, 2, 9, 'A');
        switched(rig, 2, 'B');
    };
    let of_another_switch = |rig: &mut Rig| {
        announces(rig, 2, 1, 'C');
        switched(rig, 2, 'B');
    };
    let by_a_stranger = |rig: &mut Rig| {
        rig.answers(9, view('A', 5, &[1, 2, 3], &['B', 'C']));
        announces(rig, 9, 1, 'A');
        switched(rig, 9, 'B');
    };
    let by_itself = |rig: &mut Rig| {
        announces(rig, 1, 1, 'B');
        switched(rig, 1, 'B');
    };
    let cases: [(&str, Case<'_>); 7] = [
        ("unannounced", &unannounced),
        ("elsewhere", &elsewhere),
        ("of another", &of_another),
        ("of a stranger", &of_a_stranger),
        ("of another switch", &of_another_switch),
        ("by a stranger", &by_a_stranger),
        ("by itself", &by_itself),
    ];
    for (name, case) in cases {
        let mut rig = led();
        case(&mut rig);
        rig.run(100);
        assert_eq!(rig.outcomes(), ["0 hold"], "{name}");
    }
}

#[test]
fn expires_endorsement_after_one_switch() {
    let mut rig = led();
    // S2 is the only sentinel that answers. It switches back before its vote has an effect, because
    // B does not answer.
    rig.nodes.insert('B', Answer::Lost);
    rig.run(100);
    announces(&mut rig, 2, 1, 'A');
    switched(&mut rig, 2, 'B');
    assert!(matches!(rig.machine.state(), MachineState::Committing { .. }));
    rig.answers(2, view('A', 5, &[1, 3], &['B', 'C']));
    rig.answers(3, view('A', 5, &[1, 2], &['B', 'C']));
    assert!(
        !matches!(rig.machine.state(), MachineState::Committing { .. }),
        "its own view is newer than the inferred vote"
    );
    // A repeated view of the leader does not revive the vote.
    rig.answers(1, view('B', 6, &[2, 3], &['A', 'C']));
    rig.promotes('B').run(300);
    assert!(
        !rig.outcomes_untimed().iter().any(|it| it.starts_with("commit")),
        "{:?}",
        rig.outcomes()
    );
}

#[test]
fn ignores_expired_announcement() {
    let mut rig = led();
    // S3 continues to contradict the leader.
    rig.reconnects(1).reconnects(3);
    announces(&mut rig, 2, 1, 'A');
    rig.run(5_100);
    switched(&mut rig, 2, 'B');
    rig.run(100);
    assert!(
        !rig.outcomes_untimed().iter().any(|it| it.starts_with("commit")),
        "{:?}",
        rig.outcomes()
    );
}

#[test]
fn ignores_announced_switch_to_lower_epoch() {
    let mut rig = led();
    rig.reconnects(3).names(3, 'A', 5).answers(2, view('C', 7, &[1, 3], &['A', 'B']));
    rig.run(4_900);
    announces(&mut rig, 2, 1, 'C');
    // The last view of S2 has expired by now, but not the knowledge that it was newer.
    rig.run(200);
    rig.answers(1, view('B', 6, &[2, 3], &['A', 'C']));
    switched(&mut rig, 2, 'B');
    rig.run(100);
    assert!(
        !rig.outcomes_untimed().iter().any(|it| it.starts_with("commit")),
        "{:?}",
        rig.outcomes()
    );
}

/// Two votes are received at 1085; `spoil` changes the node before that.
fn verified_later(spoil: impl FnOnce(&mut Rig)) -> Rig {
    let mut rig = led();
    spoil(&mut rig);
    announces(&mut rig, 2, 1, 'A');
    switched(&mut rig, 2, 'B');
    assert!(
        !rig.outcomes_untimed().iter().any(|it| it.starts_with("commit")),
        "{:?}",
        rig.outcomes()
    );
    assert!(matches!(rig.machine.state(), MachineState::Committing { .. }));
    rig
}

#[test]
fn rejects_old_answer_ahead_of_evidence() {
    let mut rig = verified_later(|rig| {
        rig.nodes.insert('B', Answer::Lost);
        rig.run(51);
    });
    rig.promotes('B').run(2000);
    assert!(last(&rig).ends_with("commit B@6 majority"), "{:?}", rig.outcomes());
}

#[test]
fn rejects_answer_before_connection_loss() {
    // A sentinel that reconfigures the node ends its connections first.
    let mut rig =
        verified_later(|rig| rig.step(MachineEvent::ProbeConnectionLost { node: node('B') }));
    rig.run(5);
    assert_eq!(last(&rig), "1086 commit B@6 majority");
}

#[test]
fn rejects_answer_followed_by_a_failure() {
    for worse in
        [replica('B', 'A', "history-1"), Answer::Failure(crate::ProbeFailure::Unresponsive)]
    {
        let rig = verified_later(|rig| {
            rig.nodes.insert('B', worse);
            rig.run(30);
        });
        assert_eq!(rig.outcomes(), ["0 hold"]);
    }
}

#[test]
fn rejects_answer_from_before_the_first_vote() {
    let mut rig = Rig::booted();
    rig.selects(1, 'B').at(90).promotes('B').at(1000);
    // The last answer of B is a few milliseconds old when S1 and S2 vote at the same time.
    rig.nodes.insert('B', Answer::Lost);
    rig.answers(1, view('B', 6, &[2, 3], &['A', 'C']));
    rig.answers(2, view('B', 6, &[1, 3], &['A', 'C']));
    assert!(matches!(rig.machine.state(), MachineState::Committing { .. }));
    assert_eq!(rig.outcomes(), ["0 hold"]);
}

#[test]
fn restarts_claim_after_withdrawal() {
    let mut rig = led();
    // The leader returns to the committed master, and then names B again.
    rig.answers(1, view('A', 5, &[2, 3], &['B', 'C']));
    rig.nodes.insert('B', Answer::Lost);
    rig.answers(1, view('B', 6, &[2, 3], &['A', 'C']));
    rig.answers(3, view('B', 6, &[1, 2], &['A', 'C']));
    assert!(matches!(rig.machine.state(), MachineState::Committing { .. }), "{:?}", rig.outcomes());
}

#[test]
fn verifies_nothing_ahead_while_gate_is_open() {
    let mut rig = Rig::booted();
    // D is not a listed replica, so nothing holds for it; a majority for it is followed all the
    // same.
    rig.nodes.insert('D', master('D', "history-D", "history-1"));
    rig.disconnects(1).disconnects(2).disconnects(3).run(10);
    rig.answers(1, view('D', 6, &[2, 3], &['A', 'C']));
    rig.run(20);
    rig.answers(2, view('D', 6, &[1, 3], &['A', 'C']));
    assert_eq!(rig.outcomes_untimed(), ["hold"], "the gate closes, then the node is queried");
    rig.run(5);
    assert_eq!(rig.outcomes_untimed(), ["hold", "commit D@6 majority"]);
}

#[test]
fn probes_claimed_node_besides_selected_candidate() {
    let voted = |ended: bool| {
        let mut rig = Rig::booted();
        rig.promotes('C').selects(1, 'B').disconnects(1).disconnects(2).disconnects(3).run(10);
        rig.answers(1, view('C', 6, &[2, 3], &['A', 'B']));
        rig.run(20);
        if ended {
            rig.nodes.insert('C', Answer::Lost);
            rig.step(MachineEvent::ProbeConnectionLost { node: node('C') });
        }
        rig.answers(2, view('C', 6, &[1, 3], &['A', 'B']));
        rig.outcomes()
    };
    assert_eq!(voted(false), ["0 hold", "30 commit C@6 majority"]);
    assert_eq!(voted(true), ["0 hold"]);
}
