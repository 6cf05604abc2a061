//! A planned switchover by one proxy, modelled on `sentinel/src/switchover/`, with the product's
//! own catch-up check.
//!
//! It begins only if a majority of the sentinels names the master and every node that could be
//! promoted follows it. All nodes are connected and asked once before traffic is held. Then the
//! gate closes, the offsets of the master and its replicas are read until the replicas have caught
//! up, and only then a sentinel receives the failover command. The hold ends with the commit, with
//! the refusal or the abort of the failover, with the first irregularity before it, or by itself.

use std::time::{Duration, Instant};

use sentinel::NodeAddr;
use sentinel::simulation::{CatchUp, CatchUpStatus, ReplicationOffsets};

use super::driver::{MachineDriver, Request};
use super::links::Links;
use crate::net::{ConnId, Net, RouteEvent};
use crate::wire::{Addr, Info, MS, Message, Micros, Pid, SECOND};

/// Dial tokens of switchovers are above this.
pub(crate) const TOKENS: u64 = 1 << 60;

const POLL_INTERVAL: Micros = 5 * MS;
const SETTLE_TIME: Duration = Duration::from_millis(30);
/// Timeout of a dial and of a command.
const COMMAND: Micros = 500 * MS;
const CATCH_UP: Micros = 2 * SECOND;
/// From the failover command to the selection of a replica, and to the commit.
const BEGIN: Micros = 2 * SECOND;
const FOLLOW: Micros = 10 * SECOND;

#[derive(Debug)]
struct NodeConnection {
    addr: Addr,
    token: u64,
    connection: Option<ConnId>,
    info: Option<Info>,
}

#[derive(Debug)]
enum SwitchoverPhase {
    Dialling,
    /// All nodes are connected, and traffic is not held yet.
    Preparing,
    CatchUp(CatchUp),
    /// The failover command was sent on this connection.
    Following {
        leader: Option<ConnId>,
        since: Micros,
        has_begun: bool,
    },
    /// It ends, for this reason.
    Failed(&'static str),
}

#[derive(Debug)]
struct ActiveSwitchover {
    base: (Micros, Instant),
    generation: u64,
    look_at: Micros,
    phase: SwitchoverPhase,
    /// The master first. They are asked one after the other.
    nodes: Vec<NodeConnection>,
    /// When the node whose answer is missing was asked.
    asked_at: Option<Micros>,
}

/// The switchover of a proxy. See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Switchover {
    pub(crate) wanted: bool,
    run: Option<ActiveSwitchover>,
    tokens: u64,
}

type Done = (Vec<Request>, Vec<RouteEvent>);

impl Switchover {
    pub(crate) fn next_due(&self) -> Micros {
        self.run.as_ref().map_or(Micros::MAX, |run| run.look_at)
    }

    pub(crate) fn dialled(
        &mut self,
        pid: Pid,
        token: u64,
        connection: Option<ConnId>,
        net: &mut Net,
    ) {
        let Some((run, at)) = self.find(|node| node.token == token) else {
            return connection.into_iter().for_each(|connection| net.close(connection, pid));
        };
        run.nodes[at].connection = connection;
        if connection.is_none() {
            run.phase = SwitchoverPhase::Failed("a node does not accept the connection");
        }
    }

    fn find(
        &mut self,
        is_wanted: impl Fn(&NodeConnection) -> bool,
    ) -> Option<(&mut ActiveSwitchover, usize)> {
        let run = self.run.as_mut()?;
        let at = run.nodes.iter().position(is_wanted)?;
        Some((run, at))
    }

    pub(crate) fn message(&mut self, connection: ConnId, body: &Message, now: Micros) {
        if let (Some((run, at)), Message::InfoIs(info)) =
            (self.find(|node| node.connection == Some(connection)), body)
        {
            run.nodes[at].info = Some((**info).clone());
            (run.asked_at, run.look_at) = (None, now);
        }
    }

    /// The reply to the failover command.
    pub(crate) fn failover_taken(&mut self, connection: ConnId, taken: bool) {
        let Some(run) = &mut self.run else { return };
        if let SwitchoverPhase::Following { leader, .. } = run.phase
            && leader == Some(connection)
            && !taken
        {
            run.phase = SwitchoverPhase::Failed("the sentinel refuses the failover");
        }
    }

    pub(crate) fn closed(&mut self, connection: ConnId) {
        if let Some((run, at)) = self.find(|node| node.connection == Some(connection)) {
            run.nodes[at].connection = None;
            // Afterwards only the sentinels decide.
            if !matches!(run.phase, SwitchoverPhase::Following { .. }) {
                run.phase = SwitchoverPhase::Failed("a node closed the connection");
            }
        }
    }

    pub(crate) fn tick(
        &mut self,
        driver: &mut MachineDriver,
        links: &Links,
        now: Micros,
        pid: Pid,
        net: &mut Net,
    ) -> Option<Done> {
        if std::mem::take(&mut self.wanted) && self.run.is_none() {
            self.begin(driver, links, now, pid, net);
        }
        let run = self.run.as_mut().filter(|run| now >= run.look_at)?;
        run.look_at = now + POLL_INTERVAL;
        if driver.route.target.as_ref().is_none_or(|it| it.generation != run.generation) {
            return self.end("the master changed", driver, now, pid, net);
        }
        match &mut run.phase {
            SwitchoverPhase::Failed(reason) => {
                let reason = *reason;
                self.end(reason, driver, now, pid, net)
            }
            SwitchoverPhase::Following { since, has_begun, .. } => {
                let selected = driver.selected.is_some() || driver.evidence.is_some();
                let aborted = *has_begun && !selected;
                *has_begun |= selected;
                let limit = if *has_begun { FOLLOW } else { BEGIN };
                (aborted || now >= *since + limit)
                    .then(|| self.end("no new master", driver, now, pid, net))?
            }
            SwitchoverPhase::Dialling => {
                if run.nodes.iter().all(|it| it.connection.is_some()) {
                    run.phase = SwitchoverPhase::Preparing;
                }
                None
            }
            SwitchoverPhase::Preparing | SwitchoverPhase::CatchUp(_) => {
                let (master, replicas) = run.read(now, pid, net)?;
                run.evaluate((master, &replicas), (driver, links), now, pid, net)
            }
        }
    }

    /// Connects to the nodes, if a switchover is permitted.
    fn begin(
        &mut self,
        driver: &MachineDriver,
        links: &Links,
        now: Micros,
        pid: Pid,
        net: &mut Net,
    ) {
        let target = driver.route.target.as_ref().filter(|_| !driver.is_closed(now));
        let replicas = driver.switchover_replicas(|id| links.voting_link(id).is_some());
        let Some((target, replicas)) = target.zip(replicas) else {
            return net.trace_line(pid, || "switchover: refused".to_owned());
        };
        net.trace_line(pid, || format!("switchover: started, from {}", target.addr));
        let mut nodes = Vec::new();
        for addr in std::iter::once(target.addr).chain(replicas) {
            self.tokens += 1;
            let token = TOKENS + net.now + self.tokens;
            net.dial(pid, addr, COMMAND, token);
            nodes.push(NodeConnection { addr, token, connection: None, info: None });
        }
        self.run = Some(ActiveSwitchover {
            base: (now, Instant::now()),
            generation: target.generation,
            look_at: now + POLL_INTERVAL,
            phase: SwitchoverPhase::Dialling,
            nodes,
            asked_at: None,
        });
    }

    fn end(
        &mut self,
        reason: &'static str,
        driver: &mut MachineDriver,
        now: Micros,
        pid: Pid,
        net: &mut Net,
    ) -> Option<Done> {
        for connection in
            self.run.take().into_iter().flat_map(|run| run.nodes).filter_map(|it| it.connection)
        {
            net.close(connection, pid);
        }
        net.trace_line(pid, || format!("switchover: ended, {reason}"));
        driver.is_paused().then(|| driver.resume(now))
    }
}

/// The offsets of the master, and of the replicas.
type Reading = (ReplicationOffsets, Vec<(NodeAddr, ReplicationOffsets)>);

impl ActiveSwitchover {
    /// Asks the next node. Returns the offsets once all nodes have answered.
    fn read(&mut self, now: Micros, pid: Pid, net: &mut Net) -> Option<Reading> {
        if self.asked_at.is_some_and(|at| now >= at + COMMAND) {
            self.phase = SwitchoverPhase::Failed("a node does not answer");
            return None;
        }
        if let Some(node) = self.nodes.iter().find(|it| it.info.is_none()) {
            if self.asked_at.is_none() {
                self.asked_at = Some(now);
                node.connection.into_iter().for_each(|it| net.send(it, pid, Message::Info));
            }
            return None;
        }
        let offsets = |info: &Info| ReplicationOffsets {
            is_master: info.master.is_none(),
            link_up: info.link_up,
            offset: info.offset,
            priority: info.priority,
        };
        let infos = self.nodes.iter_mut().map(|it| (it.addr.node(), it.info.take()));
        let mut read = infos.filter_map(|(node, info)| Some((node, offsets(&info?))));
        let (_, master) = read.next()?;
        Some((master, read.collect()))
    }

    /// Closes the gate after the first reading, and requests the failover after the one with which
    /// the replicas have caught up.
    fn evaluate(
        &mut self,
        (master, replicas): (ReplicationOffsets, &[(NodeAddr, ReplicationOffsets)]),
        (driver, links): (&mut MachineDriver, &Links),
        now: Micros,
        pid: Pid,
        net: &mut Net,
    ) -> Option<Done> {
        let at = self.base.1 + Duration::from_micros(now - self.base.0);
        match &mut self.phase {
            SwitchoverPhase::Preparing if master.is_master => {
                let until = at + Duration::from_micros(CATCH_UP);
                self.phase = SwitchoverPhase::CatchUp(CatchUp::new(until, SETTLE_TIME, false));
                net.trace_line(pid, || "switchover: traffic is held".to_owned());
                Some(driver.pause(now, CATCH_UP + FOLLOW))
            }
            SwitchoverPhase::Preparing => {
                self.phase = SwitchoverPhase::Failed("the node is no master");
                None
            }
            SwitchoverPhase::CatchUp(catch_up) => {
                match catch_up.evaluate(at, master, replicas) {
                    CatchUpStatus::Wait => {}
                    CatchUpStatus::Abort(_) => {
                        self.phase = SwitchoverPhase::Failed("the replicas do not catch up");
                    }
                    CatchUpStatus::Ready { .. } => self.start_failover(links, now, pid, net),
                }
                None
            }
            _ => None,
        }
    }

    fn start_failover(&mut self, links: &Links, now: Micros, pid: Pid, net: &mut Net) {
        let leader = links.any_up();
        self.phase = SwitchoverPhase::Following { leader, since: now, has_begun: false };
        if let Some(leader) = leader {
            net.trace_line(pid, || {
                "switchover: replicas have caught up, requesting the failover".to_owned()
            });
            net.send(leader, pid, Message::Failover);
        }
    }
}
