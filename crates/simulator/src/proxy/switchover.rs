//! A planned switchover by one proxy, with the product's own catch-up check.
//!
//! The gate closes, the offsets of the master and its replicas are read until the replicas have
//! caught up, and only then a sentinel receives the failover command. The hold ends with the
//! commit, or by itself.

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
const CATCH_UP: Micros = 2 * SECOND;
const FOLLOW: Micros = 10 * SECOND;

#[derive(Debug)]
struct NodeConnection {
    addr: Addr,
    token: u64,
    connection: Option<ConnId>,
    info: Option<Info>,
}

#[derive(Debug)]
struct ActiveSwitchover {
    base: (Micros, Instant),
    generation: u64,
    until: Micros,
    look_at: Micros,
    ordered: bool,
    catch_up: CatchUp,
    /// The master first.
    nodes: Vec<NodeConnection>,
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
        let node = self.run.iter_mut().flat_map(|run| &mut run.nodes).find(|it| it.token == token);
        match (node, connection) {
            (Some(node), connection) => node.connection = connection,
            (None, Some(connection)) => net.close(connection, pid),
            (None, None) => {}
        }
    }

    pub(crate) fn message(&mut self, connection: ConnId, body: &Message) {
        let node = self
            .run
            .iter_mut()
            .flat_map(|run| &mut run.nodes)
            .find(|it| it.connection == Some(connection));
        if let (Some(node), Message::InfoIs(info)) = (node, body) {
            node.info = Some((**info).clone());
        }
    }

    pub(crate) fn closed(&mut self, connection: ConnId) {
        let node = self
            .run
            .iter_mut()
            .flat_map(|run| &mut run.nodes)
            .find(|it| it.connection == Some(connection));
        node.into_iter().for_each(|it| (it.connection, it.info) = (None, None));
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
            return self.begin(driver, now, pid, net);
        }
        let run = self.run.as_mut().filter(|run| now >= run.look_at)?;
        run.look_at = now + POLL_INTERVAL;
        let moved = driver.route.target.as_ref().is_none_or(|it| it.generation != run.generation);
        if moved || now >= run.until {
            return self.end(driver, now, pid, net);
        }
        if run.ordered {
            return None;
        }
        match run.evaluate(now, pid, net) {
            CatchUpStatus::Wait => None,
            CatchUpStatus::Abort(_) => self.end(driver, now, pid, net),
            CatchUpStatus::Ready { .. } => {
                run.ordered = true;
                run.until = now + FOLLOW;
                if let Some(connection) = links.any_up() {
                    net.trace_line(pid, || {
                        "switchover: replicas have caught up, requesting the failover".to_owned()
                    });
                    net.send(connection, pid, Message::Failover);
                }
                None
            }
        }
    }

    fn begin(
        &mut self,
        driver: &mut MachineDriver,
        now: Micros,
        pid: Pid,
        net: &mut Net,
    ) -> Option<Done> {
        let target = driver.route.target.clone().filter(|_| !driver.is_closed(now))?;
        net.trace_line(pid, || format!("switchover: started, traffic to {} is held", target.addr));
        let others = driver
            .watched()
            .into_iter()
            .filter_map(|it| Addr::of(&it))
            .filter(|it| *it != target.addr);
        let mut nodes = Vec::new();
        for addr in std::iter::once(target.addr).chain(others) {
            self.tokens += 1;
            let token = TOKENS + net.now + self.tokens;
            net.dial(pid, addr, 500 * MS, token);
            nodes.push(NodeConnection { addr, token, connection: None, info: None });
        }
        let base = (now, Instant::now());
        let until = now + CATCH_UP;
        let catch_up = CatchUp::new(base.1 + Duration::from_micros(CATCH_UP), SETTLE_TIME, false);
        let (generation, look_at) = (target.generation, now + POLL_INTERVAL);
        self.run = Some(ActiveSwitchover {
            base,
            generation,
            until: until + SECOND,
            look_at,
            ordered: false,
            catch_up,
            nodes,
        });
        Some(driver.pause(now, CATCH_UP + FOLLOW + SECOND))
    }

    fn end(
        &mut self,
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
        net.trace_line(pid, || "switchover: ended".to_owned());
        driver.is_paused().then(|| driver.resume(now))
    }
}

impl ActiveSwitchover {
    fn evaluate(&mut self, now: Micros, pid: Pid, net: &mut Net) -> CatchUpStatus {
        let offsets = |info: &Info| ReplicationOffsets {
            is_master: info.master.is_none(),
            link_up: info.link_up,
            offset: info.offset,
            priority: info.priority,
        };
        let mut answers: Vec<(NodeAddr, ReplicationOffsets)> = Vec::new();
        for node in &mut self.nodes {
            if let Some(info) = &node.info {
                answers.push((node.addr.node(), offsets(info)));
            }
        }
        let all = answers.len() == self.nodes.len();
        // The next reading starts after this one is complete, so that the replicas' answers are not
        // older than the master's.
        for node in &mut self.nodes {
            if let (Some(connection), true) = (node.connection, all || node.info.is_none()) {
                node.info = None;
                net.send(connection, pid, Message::Info);
            }
        }
        let at = self.base.1 + Duration::from_micros(now - self.base.0);
        match answers.split_first() {
            Some(((_, master), replicas)) if all => self.catch_up.evaluate(at, *master, replicas),
            _ => CatchUpStatus::Wait,
        }
    }
}
