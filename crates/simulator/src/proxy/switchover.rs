//! A planned switchover by one proxy, with the product's own judgement of who has caught up.
//!
//! The gate shuts, the master and its replicas are asked for their offsets until the master stands
//! still and all have everything, and only then a sentinel is given the order. The pause ends with
//! the commit, or by itself.

use std::time::{Duration, Instant};

use sentinel::NodeAddr;
use sentinel::simulation::{CatchUp, ReplicationOffsets, Verdict};

use super::driver::{Driver, Happened, Want};
use super::links::Links;
use crate::net::{ConnId, Net};
use crate::wire::{Addr, Body, Info, MS, Pid, SECOND, Us};

/// Dial tokens of switchovers are above this.
pub(crate) const TOKENS: u64 = 1 << 60;

const LOOK_EVERY: Us = 5 * MS;
const STILL: Duration = Duration::from_millis(30);
const CATCH_UP: Us = 2 * SECOND;
const FOLLOW: Us = 10 * SECOND;

#[derive(Debug)]
struct Peer {
    addr: Addr,
    token: u64,
    conn: Option<ConnId>,
    said: Option<Info>,
}

#[derive(Debug)]
struct Run {
    base: (Us, Instant),
    generation: u64,
    until: Us,
    look_at: Us,
    ordered: bool,
    catch_up: CatchUp,
    /// The master first.
    peers: Vec<Peer>,
}

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Switchover {
    pub(crate) wanted: bool,
    run: Option<Run>,
    tokens: u64,
}

type Done = (Vec<Want>, Vec<Happened>);

impl Switchover {
    pub(crate) fn next_due(&self) -> Us {
        self.run.as_ref().map_or(Us::MAX, |run| run.look_at)
    }

    pub(crate) fn dialled(&mut self, pid: Pid, token: u64, conn: Option<ConnId>, net: &mut Net) {
        let peer = self.run.iter_mut().flat_map(|run| &mut run.peers).find(|it| it.token == token);
        match (peer, conn) {
            (Some(peer), conn) => peer.conn = conn,
            (None, Some(conn)) => net.close(conn, pid),
            (None, None) => {}
        }
    }

    pub(crate) fn message(&mut self, conn: ConnId, body: &Body) {
        let peer =
            self.run.iter_mut().flat_map(|run| &mut run.peers).find(|it| it.conn == Some(conn));
        if let (Some(peer), Body::InfoIs(info)) = (peer, body) {
            peer.said = Some((**info).clone());
        }
    }

    pub(crate) fn closed(&mut self, conn: ConnId) {
        let peer =
            self.run.iter_mut().flat_map(|run| &mut run.peers).find(|it| it.conn == Some(conn));
        peer.into_iter().for_each(|it| (it.conn, it.said) = (None, None));
    }

    pub(crate) fn tick(
        &mut self,
        driver: &mut Driver,
        links: &Links,
        now: Us,
        pid: Pid,
        net: &mut Net,
    ) -> Option<Done> {
        if std::mem::take(&mut self.wanted) && self.run.is_none() {
            return self.begin(driver, now, pid, net);
        }
        let run = self.run.as_mut().filter(|run| now >= run.look_at)?;
        run.look_at = now + LOOK_EVERY;
        let moved = driver.route.target.as_ref().is_none_or(|it| it.generation != run.generation);
        if moved || now >= run.until {
            return self.end(driver, now, pid, net);
        }
        if run.ordered {
            return None;
        }
        match run.weigh(now, pid, net) {
            Verdict::Wait => None,
            Verdict::Abort(_) => self.end(driver, now, pid, net),
            Verdict::Ready { .. } => {
                run.ordered = true;
                run.until = now + FOLLOW;
                if let Some(conn) = links.any_up() {
                    net.say(pid, || {
                        "switchover: all have caught up, the failover is ordered".to_owned()
                    });
                    net.send(conn, pid, Body::Failover);
                }
                None
            }
        }
    }

    fn begin(&mut self, driver: &mut Driver, now: Us, pid: Pid, net: &mut Net) -> Option<Done> {
        let target = driver.route.target.clone().filter(|_| !driver.is_closed(now))?;
        net.say(pid, || format!("switchover: begins, {} is held", target.addr));
        let others = driver
            .watched()
            .into_iter()
            .filter_map(|it| Addr::of(&it))
            .filter(|it| *it != target.addr);
        let mut peers = Vec::new();
        for addr in std::iter::once(target.addr).chain(others) {
            self.tokens += 1;
            let token = TOKENS + net.now + self.tokens;
            net.dial(pid, addr, 500 * MS, token);
            peers.push(Peer { addr, token, conn: None, said: None });
        }
        let base = (now, Instant::now());
        let until = now + CATCH_UP;
        let catch_up = CatchUp::new(base.1 + Duration::from_micros(CATCH_UP), STILL, false);
        let (generation, look_at) = (target.generation, now + LOOK_EVERY);
        self.run = Some(Run {
            base,
            generation,
            until: until + SECOND,
            look_at,
            ordered: false,
            catch_up,
            peers,
        });
        Some(driver.pause(now, CATCH_UP + FOLLOW + SECOND))
    }

    fn end(&mut self, driver: &mut Driver, now: Us, pid: Pid, net: &mut Net) -> Option<Done> {
        for conn in self.run.take().into_iter().flat_map(|run| run.peers).filter_map(|it| it.conn) {
            net.close(conn, pid);
        }
        net.say(pid, || "switchover: over".to_owned());
        driver.is_paused().then(|| driver.resume(now))
    }
}

impl Run {
    fn weigh(&mut self, now: Us, pid: Pid, net: &mut Net) -> Verdict {
        let offsets = |info: &Info| ReplicationOffsets {
            is_master: info.master.is_none(),
            link_up: info.link_up,
            offset: info.offset,
            priority: info.priority,
        };
        let mut said: Vec<(NodeAddr, ReplicationOffsets)> = Vec::new();
        for peer in &mut self.peers {
            if let Some(info) = &peer.said {
                said.push((peer.addr.node(), offsets(info)));
            }
        }
        let all = said.len() == self.peers.len();
        // The next look is asked for with this one in hand: the replicas' answers are not older
        // than the master's.
        for peer in &mut self.peers {
            if let (Some(conn), true) = (peer.conn, all || peer.said.is_none()) {
                peer.said = None;
                net.send(conn, pid, Body::Info);
            }
        }
        let at = self.base.1 + Duration::from_micros(now - self.base.0);
        match said.split_first() {
            Some(((_, master), replicas)) if all => self.catch_up.weigh(at, *master, replicas),
            _ => Verdict::Wait,
        }
    }
}
