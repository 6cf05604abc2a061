//! How an attack begins and ends, and what a proxy could know of it.

use std::rc::Rc;

use crate::cluster::Cluster;
use crate::hostile::Conspiracy;
use crate::plan::HostileConfig;
use crate::wire::{Addr, Micros, Pid};

impl Cluster {
    /// Starts the outsiders, and turns configured sentinels.
    pub(crate) fn attack(&mut self, until: Micros) {
        let Some(config) = self.plan.hostile else { return };
        let plot = Rc::new(self.conspire(config));
        for outsider in &mut self.outsiders {
            self.net.start(outsider.pid);
            outsider.start(Rc::clone(&plot), &mut self.net);
        }
        let mut insiders: Vec<usize> = (0..self.sentinels.len()).collect();
        self.net.rng.shuffle(&mut insiders);
        for at in insiders.into_iter().take(config.insiders) {
            self.net.trace_line(self.sentinels[at].pid, || "TURNS HOSTILE".to_owned());
            self.sentinels[at].plot = Some(Rc::clone(&plot));
        }
        self.net.trace.add(self.net.now, "FAULT", format!("{plot:?}"));
        self.undo_at(until, Self::end_attack);
    }

    fn conspire(&self, config: HostileConfig) -> Conspiracy {
        let mut nodes: Vec<Addr> = self.redis.iter().map(|it| self.net.addr(it.pid)).collect();
        nodes.swap(0, self.master());
        let outsiders = self.outsiders.iter().map(|it| (it.id, self.net.addr(it.pid)));
        let configured = self.sentinels.iter().map(|it| (it.id, self.net.addr(it.pid)));
        Conspiracy::new(config.seed, nodes, configured.collect(), outsiders.collect())
    }

    /// Ends all outsiders; insiders are honest again.
    pub(crate) fn end_attack(&mut self) {
        self.outsiders.iter().for_each(|it| self.net.crash(it.pid, false));
        self.sentinels.iter_mut().for_each(|it| it.plot = None);
    }

    /// Whether a process of the attack has this address.
    pub(crate) fn is_outside(&self, addr: Addr) -> bool {
        self.outsiders.iter().any(|it| self.net.addr(it.pid) == addr)
    }

    /// Whether most configured sentinels lie, or follow a hello with a higher epoch: what Sentinel
    /// itself believes, a proxy has to believe.
    pub(crate) fn is_captured(&self) -> bool {
        let lost = self
            .sentinels
            .iter()
            .filter(|it| it.plot.is_some() || self.is_outside(it.current_master()));
        lost.count() > self.sentinels.len() / 2
    }

    /// The configured sentinels that a proxy can find and reach: those that lie, and the others.
    pub(crate) fn liars_and_honest(&self, proxy: Pid) -> (usize, usize) {
        let dns = &self.net.dns;
        let known = |pid: Pid| !dns.missing && !dns.left_out.contains(&pid);
        let heard =
            self.sentinels.iter().filter(|it| known(it.pid) && self.can_hear(proxy, it.pid));
        let (liars, honest): (Vec<_>, Vec<_>) = heard.partition(|it| it.plot.is_some());
        (liars.len(), honest.len())
    }

    /// Whether most of the configured sentinels that a proxy reaches list the process at `addr`.
    pub(crate) fn is_listed(&self, proxy: Pid, addr: Addr) -> bool {
        let heard = || self.sentinels.iter().filter(|it| self.can_hear(proxy, it.pid));
        let lists = heard().filter(|it| it.plot.is_some() || it.knows(addr));
        lists.count() * 2 > heard().count()
    }
}
