//! The node probers of one service, with a limit on how fast new ones are started.
//!
//! Sentinels name the nodes to probe, and one of them may be faulty or malicious: a new list of
//! addresses with every answer would make this process dial arbitrary addresses as often as it
//! polls. New probers for addresses that are merely listed are therefore started at a bounded rate;
//! the rest is retried shortly after, as if an answer had been lost. The current master, and the
//! node that a commit waits for, are exempt from the limit.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tls::{FaultKind, Version};
use tokio_util::task::AbortOnDropHandle;

use crate::clock;
use crate::link::login::Login;
use crate::link::messages::ProbeProblem;
use crate::machine::Seen;
use crate::prober::server_commands::CommandsQuestion;
use crate::prober::{self, ProbeSettings, ProbeTrigger, ProberFactory};
use crate::rate_limiter::RateLimiter;
use crate::{NodeAddr, Probe, Trust, Verify};

/// Probers started at once: more nodes than most masters have.
const DIAL_BURST: u32 = 16;

/// Interval between further ones.
const DIAL_INTERVAL: Duration = Duration::from_millis(125);

/// What is known of the probes of one node.
#[derive(Default)]
pub(crate) struct ProbeStats {
    /// Why the node refuses probes, or what is wrong with TLS.
    problem: Option<ProbeProblem>,
    /// The version of TLS of its last answer.
    pub(crate) tls: Option<Version>,
    /// The duration of its last answered probe.
    pub(crate) answered_in: Option<Duration>,
    /// How many probes failed.
    pub(crate) failures: u64,
}

impl ProbeStats {
    /// The kind of the problem, if it is one of TLS.
    pub(crate) fn tls_fault(&self) -> Option<FaultKind> {
        match &self.problem {
            Some(ProbeProblem::Tls(fault)) => Some(fault.kind),
            _ => None,
        }
    }

    /// The problem, for operators.
    pub(crate) fn problem(&self) -> Option<String> {
        self.problem.as_ref().map(ToString::to_string)
    }
}

struct ProberHandle {
    trigger: Arc<ProbeTrigger>,
    stats: ProbeStats,
    _task: AbortOnDropHandle<()>,
}

/// The node probers of one service. See the module's header.
pub(crate) struct ProberSet {
    service: usize,
    factory: Arc<ProberFactory>,
    probers: BTreeMap<NodeAddr, ProberHandle>,
    dial_limiter: RateLimiter,
    /// The question to the master about its commands.
    commands: Option<CommandsQuestion>,
}

impl ProberSet {
    pub(crate) fn new(service: usize, factory: ProberFactory) -> Self {
        Self {
            service,
            factory: Arc::new(factory),
            probers: BTreeMap::new(),
            dial_limiter: RateLimiter::new(DIAL_BURST, DIAL_INTERVAL),
            commands: None,
        }
    }

    /// The master has answered a probe: asks it about its commands, unless its process has been
    /// asked. With less than full verification nothing but its probe is sent to a node.
    pub(crate) fn ask_commands(
        &mut self,
        service: &Arc<str>,
        node: &NodeAddr,
        dialled: SocketAddr,
        run_id: Option<&str>,
    ) {
        if self.settings().verify != Verify::Role {
            return;
        }
        let kept = self.commands.take().filter(|it| it.is_to(dialled, run_id));
        let question = kept.unwrap_or_else(|| CommandsQuestion::new(dialled, run_id));
        self.commands.insert(question).ask(service, node, &self.factory);
    }

    /// Applies these settings from now on. Nodes that are dialled at another address, or no longer
    /// permitted, lose their connection.
    pub(crate) fn set(&mut self, settings: ProbeSettings) {
        let settings = Arc::new(settings);
        let before = self.factory.settings.swap(Arc::clone(&settings));
        let moved = |node: &&NodeAddr| {
            before.dial(node) != settings.dial(node)
                || before.permits(node) != settings.permits(node)
        };
        let moved: Vec<NodeAddr> = self.probers.keys().filter(moved).cloned().collect();
        for node in moved {
            self.probers.remove(&node);
            self.ask(&node, true, Trust::Stranger, Seen::default());
        }
    }

    /// The credentials of these nodes.
    pub(crate) fn settings(&self) -> Arc<ProbeSettings> {
        self.factory.settings.load_full()
    }

    pub(crate) fn login(&self) -> &Login {
        &self.factory.login
    }

    /// Requests a probe of this node. `urgent`: more than one sentinel names it, so no limit
    /// applies.
    pub(crate) fn ask(&mut self, node: &NodeAddr, urgent: bool, trust: Trust, seen: Seen) {
        if !self.probers.contains_key(node) {
            if !urgent && self.dial_limiter.allow(clock::now()).is_none() {
                return;
            }
            let trigger = Arc::<ProbeTrigger>::default();
            let run = prober::run(
                self.service,
                node.clone(),
                Arc::clone(&self.factory),
                Arc::clone(&trigger),
            );
            let prober = ProberHandle {
                trigger,
                stats: ProbeStats::default(),
                _task: AbortOnDropHandle::new(tokio::spawn(run)),
            };
            self.probers.insert(node.clone(), prober);
        }
        if let Some(prober) = self.probers.get(node) {
            prober.trigger.request(urgent, trust, seen);
        }
    }

    /// Stops the probers of all other nodes.
    pub(crate) fn retain(&mut self, wanted: &BTreeSet<&NodeAddr>) {
        self.probers.retain(|node, _| wanted.contains(node));
    }

    /// Records the result of a probe, and returns its problem if it is a new one.
    pub(crate) fn record(
        &mut self,
        node: &NodeAddr,
        probe: &Probe,
        problem: Option<ProbeProblem>,
        tls: Option<Version>,
    ) -> Option<ProbeProblem> {
        let stats = &mut self.probers.get_mut(node)?.stats;
        match probe.outcome {
            Ok(_) => (stats.answered_in, stats.tls) = (Some(clock::since(probe.asked_at)), tls),
            Err(_) => stats.failures += 1,
        }
        let news = problem.clone().filter(|news| stats.problem.as_ref() != Some(news));
        stats.problem = problem;
        news
    }

    /// What is known of the probes of this node.
    pub(crate) fn stats(&self, node: &NodeAddr) -> Option<&ProbeStats> {
        Some(&self.probers.get(node)?.stats)
    }
}
