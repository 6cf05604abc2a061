//! The readers' side of one service: carries out on the pool what the roster decides.
//!
//! It is driven by the service's group, after every step of the machine and a few times a second, and asks nobody anything itself: the
//! canaries that watch the nodes for the machine are the roster's witnesses, too.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use route::{Destination, Empty, Generation, Moment, PoolWriter};
use tracing::{info, warn};

use crate::hush::Hush;
use crate::roster::{Facts, Leader, Member, Roster, Ruling, Standing, listed};
use crate::seen::{SeenReplica, SeenReplicas};
use crate::{Lack, Machine, NodeAddr, ReplicaRules, State, View};

/// Sessions' hints make the replicas be asked again this often at most.
const HINTS_APART: Duration = Duration::from_millis(100);

/// What a service with readers needs.
#[derive(Debug)]
pub struct Replicas {
    /// Who may serve them.
    pub rules: ReplicaRules,
    /// What is published.
    pub writer: PoolWriter,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Yard {
    roster: Roster,
    writer: PoolWriter,
    /// What was published last, with the master that may stand in.
    published: Option<(Vec<Member>, Option<Generation>)>,
    ejections: u64,
    readmissions: u64,
    hint_after: Option<Instant>,
    /// Bounds what is logged about replicas.
    hush: Hush,
}

impl Yard {
    pub(crate) fn new(replicas: Replicas) -> Self {
        Self {
            roster: Roster::new(replicas.rules),
            writer: replicas.writer,
            published: None,
            ejections: 0,
            readmissions: 0,
            hint_after: None,
            hush: Hush::new(20, Duration::from_secs(5)),
        }
    }

    /// Nothing may go to this address as to a replica any more. Before the points lead there, not after it.
    pub(crate) fn bar(&mut self, dialled: SocketAddr) {
        self.writer.bar(dialled);
    }

    /// The process was stopped: what was said is not believed until the replicas have been asked again.
    pub(crate) fn wake(&mut self, now: Instant) {
        self.roster.wake(now);
    }

    /// Gives the word for what was published, unless it is in doubt.
    pub(crate) fn vouch(&mut self, looked: Moment, span: Duration) {
        if self.roster.sees() {
            self.writer.vouch(looked, span);
        }
    }

    /// The members to be asked again because a session noticed something; nobody if that was a moment ago.
    pub(crate) fn hinted(&mut self, now: Instant) -> Vec<NodeAddr> {
        if self.hint_after.is_some_and(|at| now < at) {
            return Vec::new();
        }
        self.hint_after = Some(now + HINTS_APART);
        let members = self.published.iter().flat_map(|(members, _)| members);
        members.map(|member| member.addr.clone()).collect()
    }

    /// Brings the pool in line with all that is known.
    pub(crate) fn turn(&mut self, now: Instant, service: &str, machine: &Machine) {
        let ruling = judge(&mut self.roster, now, machine);
        for dialled in &ruling.barred {
            self.writer.bar(*dialled);
        }
        if let Some(members) = ruling.members {
            let master = self.writer.master().map(|target| target.generation());
            let next = (members, master);
            if self.published.as_ref() != Some(&next) {
                self.publish(now, service, next);
            }
        }
        for (addr, from, to) in ruling.changes {
            self.tell(now, service, &addr, (from, to));
        }
    }

    fn publish(&mut self, now: Instant, service: &str, next: (Vec<Member>, Option<Generation>)) {
        let had = self.published.as_ref().map(|(members, _)| members.len());
        let (has, mut to) = (next.0.len(), Vec::with_capacity(next.0.len()));
        for Member { addr, dialled, run_id } in &next.0 {
            to.push(Destination { addr: *dialled, name: addr.to_string().into(), epoch: 0, run_id: run_id.clone() });
        }
        self.writer.publish(to);
        self.published = Some(next);
        if has == 0 && had != Some(0) {
            let Some(unsaid) = self.hush.speak(now) else { return };
            let instead = match self.writer.pool().empty() {
                Empty::Reject => "readers are turned away",
                Empty::Master => "readers go to the master",
            };
            warn!(service, unsaid, "no replica may serve readers: {instead}");
        }
    }

    fn tell(&mut self, now: Instant, service: &str, addr: &NodeAddr, (from, to): (Standing, Standing)) {
        let (left, came) = (from == Standing::Eligible, to == Standing::Eligible);
        self.ejections += u64::from(left);
        self.readmissions += u64::from(came && from == Standing::Recovering);
        if !left && !came {
            return;
        }
        let Some(unsaid) = self.hush.speak(now) else { return };
        let replicas = self.published.as_ref().map_or(0, |(members, _)| members.len());
        let (was, is) = (from.label(), to.label());
        info!(service, unsaid, replica = %addr, was, is, replicas, "a replica for readers came or went");
    }

    /// What is seen of it now.
    pub(crate) fn seen(&self) -> SeenReplicas {
        let members = self.published.as_ref().map(|(members, _)| members.len());
        let sessions = |dialled: Option<SocketAddr>| {
            let there = self.writer.known().iter().filter(|target| Some(target.addr()) == dialled);
            there.map(|target| target.load()).sum()
        };
        let replicas = self.roster.standings().map(|it| SeenReplica {
            addr: it.addr.clone(),
            standing: it.standing,
            lag: it.lag,
            sessions: sessions(it.dialled),
        });
        SeenReplicas {
            eligible: members,
            stands_in: self.writer.pool().empty() == Empty::Master,
            replicas: replicas.collect(),
            ejections: self.ejections,
            readmissions: self.readmissions,
        }
    }
}

/// What the roster makes of all that the machine knows now.
pub fn judge(roster: &mut Roster, now: Instant, machine: &Machine) -> Ruling {
    let committed = machine.committed();
    let leader = committed.map(|it| {
        let history = it.lineage.as_ref();
        Leader {
            addr: &it.addr,
            dialled: it.dialled,
            replid: history.map_or("", |lineage| &*lineage.replid),
            replid2: history.map_or("", |lineage| &*lineage.replid2),
        }
    });
    let candidate = match machine.state() {
        State::Armed { candidate, .. } => candidate.as_ref(),
        State::Committing { addr, .. } => Some(addr),
        _ => None,
    };
    let views: Vec<&View> = machine.views().filter(|(_, member, ..)| *member).map(|(_, _, view, _)| view).collect();
    let facts = Facts {
        leader,
        candidate,
        calm: *machine.state() == State::Stable,
        cut_off: matches!(machine.state(), State::NoMaster { lack: Lack::Minority, .. }),
        listed: leader.and_then(|leader| listed(leader.addr, views.iter().copied())),
    };
    let answers = machine.nodes().filter_map(|(addr, probe)| Some((addr, probe?)));
    roster.judge(now, &facts, answers)
}
