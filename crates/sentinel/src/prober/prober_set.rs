//! The canaries of one service, and how fast new ones may be sent out.
//!
//! Which nodes are worth a connection is told by sentinels, and one of them may lie: a new list of
//! addresses with every answer would make this process dial whatever it likes, as often as it
//! answers. So new canaries for addresses that are only listed are sent out at a bounded rate, and
//! the others are asked a moment later, as if an answer had been lost. The master in force, and the
//! node that a commit waits for, never wait here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::discovery::messages::DriverMessage;
use crate::link::auth::Denied;
use crate::prober::{self, Bell, ProberFactory};
use crate::rate_limiter::Hush;
use crate::types::AddressMap;
use crate::{NodeAddr, Probe};

/// New canaries at once: more nodes than most masters have.
const AT_ONCE: u32 = 16;

/// After that, one in each such time.
const THEN_EVERY: Duration = Duration::from_millis(125);

struct NodeProber {
    bell: Arc<Bell>,
    problem: Option<Denied>,
    answered_in: Option<Duration>,
    failures: u64,
    _task: AbortOnDropHandle<()>,
}

/// See the module's header.
pub(crate) struct ProberSet {
    group: usize,
    keeper: Arc<ProberFactory>,
    canaries: BTreeMap<NodeAddr, NodeProber>,
    room: Hush,
    out: mpsc::Sender<DriverMessage>,
}

impl ProberSet {
    pub(crate) fn new(
        group: usize,
        keeper: ProberFactory,
        out: mpsc::Sender<DriverMessage>,
    ) -> Self {
        let room = Hush::new(AT_ONCE, THEN_EVERY);
        Self { group, keeper: Arc::new(keeper), canaries: BTreeMap::new(), room, out }
    }

    /// Asks this node. `sure`: more than one sentinel's word stands behind it, so that it waits for
    /// nothing.
    pub(crate) fn ask(&mut self, node: &NodeAddr, sure: bool) {
        if !self.canaries.contains_key(node) {
            if !sure && self.room.speak(Instant::now()).is_none() {
                return;
            }
            let bell = Arc::<Bell>::default();
            let run = prober::run(
                self.group,
                node.clone(),
                Arc::clone(&self.keeper),
                Arc::clone(&bell),
                self.out.clone(),
            );
            let canary = NodeProber {
                bell,
                problem: None,
                answered_in: None,
                failures: 0,
                _task: AbortOnDropHandle::new(tokio::spawn(run)),
            };
            self.canaries.insert(node.clone(), canary);
        }
        if let Some(canary) = self.canaries.get(node) {
            canary.bell.ring(sure);
        }
    }

    /// Calls home whoever watches a node that is not worth it any more.
    pub(crate) fn keep(&mut self, wanted: &BTreeSet<&NodeAddr>) {
        self.canaries.retain(|node, _| wanted.contains(node));
    }

    /// Takes note of a node's answer and of what it refused. Gives the refusal if that is news.
    pub(crate) fn heard(
        &mut self,
        node: &NodeAddr,
        probe: &Probe,
        denied: Option<Denied>,
    ) -> Option<Denied> {
        let canary = self.canaries.get_mut(node)?;
        match probe.outcome {
            Ok(_) => canary.answered_in = Some(probe.asked_at.elapsed()),
            Err(_) => canary.failures += 1,
        }
        let news = denied.clone().filter(|news| canary.problem.as_ref() != Some(news));
        canary.problem = denied;
        news
    }

    /// Why a node refuses our questions, for people.
    pub(crate) fn problem(&self, node: &NodeAddr) -> Option<String> {
        self.canaries.get(node)?.problem.as_ref().map(ToString::to_string)
    }

    /// How long a node's last answer took, and how many questions came to nothing.
    pub(crate) fn answers(&self, node: &NodeAddr) -> (Option<Duration>, u64) {
        self.canaries.get(node).map_or((None, 0), |canary| (canary.answered_in, canary.failures))
    }

    /// Announced address to the address to dial.
    pub(crate) fn address_map(&self) -> &AddressMap {
        &self.keeper.address_map
    }
}
