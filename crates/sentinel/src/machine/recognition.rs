//! Which process the sentinels and the replicas see at the committed address.
//!
//! A sentinel reads the `run_id` of its master every ten seconds. Where that is not the `run_id` of
//! the process that answers here, the master was restarted, perhaps without data and out of the
//! sentinels' reach, or its name leads to another server here. A first master, and one with another
//! history, have to be the process that the sentinels see.
//!
//! A server at `maxclients` answers a new connection with an error line, as any other process at
//! its address would, such as an empty pod. Its identity is then known only to processes that it
//! had admitted before: its sentinels and its replicas.
//!
//! A replica that is linked to this address, and still has the history of the committed master,
//! has its link from the committed process. If another process had taken over the address, the
//! kernel of that host would have reset the link at the replica's next acknowledgement, of which it
//! sends one each second. A replica therefore counts only if it was asked for a while after the
//! last sign of the doubt, and a link to a host that is gone counts for nothing, since an answer of
//! the server is required, too. What any sentinel says against the process comes first, and a
//! replica that reports itself a master may be its successor.

use std::collections::BTreeSet;
use std::time::Duration;

use super::doubt::Doubt;
use super::nodes::NodeRecord;
use super::{Committed, Machine};
use crate::{Lineage, MyId, NodeAddr, Role, View};

/// The time after which a replica knows that its master was replaced: it acknowledges each second,
/// and the prober may have noticed the server a second after it came.
const LINK_SETTLED: Duration = Duration::from_secs(3);

/// Which process the sentinels see at a node, compared with the one that answered there last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum SeenProcess {
    /// Most see it, or they do not say, or do not agree.
    #[default]
    NoOther,
    /// Most see another one. It may be this one a moment ago, since they ask every ten seconds.
    Another,
    /// Most see another one, which is not that of a moment ago either.
    Third,
}

/// What the sentinels see at a node, and the `run_id` that most of them see.
pub(crate) type Seen = (SeenProcess, Option<Box<str>>);

impl Machine {
    /// Which process most of the sentinels that name this node see there.
    pub(crate) fn seen_at(&self, node: &NodeAddr) -> Seen {
        let views = self.electorate.trusted_views(None);
        let views = views.filter(|view| view.addr == *node && !view.run_id.is_empty());
        let seen: Vec<&str> = views.map(|view| &*view.run_id).collect();
        let count = |run_id: &str| seen.iter().filter(|it| **it == run_id).count();
        let by_most = seen.iter().find(|it| count(it) * 2 > seen.len()).map(|it| (*it).into());
        let report = self.nodes.get(node).and_then(NodeRecord::report);
        let lineage = report.and_then(|it| it.lineage.as_ref());
        let process = match lineage.filter(|it| count(&it.run_id) * 2 < seen.len()) {
            None => SeenProcess::NoOther,
            Some(it) if self.may_be_former(node, &it.run_id) => SeenProcess::Another,
            Some(_) => SeenProcess::Third,
        };
        (process, by_most)
    }

    /// Whether `run_id` may have replaced the process that the sentinels have read at this node. A
    /// node that is not the master has to be the one that they see before it becomes that.
    fn may_be_former(&self, node: &NodeAddr, run_id: &str) -> bool {
        let committed = self.committed.as_ref().filter(|it| it.addr == *node);
        committed.is_some_and(|it| !self.may_decide(&self.seeing_third(it, run_id)))
    }

    /// Whether the sentinel has read another process at the address it names than we have.
    #[must_use]
    pub(crate) fn is_read_as_another(&self, view: &View) -> bool {
        let report = self.nodes.get(&view.addr).and_then(NodeRecord::report);
        let lineage = report.and_then(|it| it.lineage.as_ref());
        !view.run_id.is_empty() && lineage.is_some_and(|it| *it.run_id != *view.run_id)
    }

    /// Whether the process that was committed is not the one that most sentinels see at its
    /// address, as far as they know one; `must_know` if those count that do not.
    pub(super) fn is_seen_as_another(&self, must_know: bool) -> bool {
        let Some(committed) = &self.committed else { return false };
        let Some(lineage) = &committed.lineage else { return false };
        let same = |view: &View| view.addr == committed.addr && view.run_id == lineage.run_id;
        let other = |view: &View| is_another(view, committed, &lineage.run_id, must_know);
        let seeing = self.electorate.member_views().filter(|(_, view)| same(view));
        self.orders.in_force.is_none()
            && self.electorate.trusted_views(None).any(other)
            && !self.may_decide(&seeing.map(|(id, _)| id).collect())
    }

    /// Whether most sentinels have read, since the master was committed, that another process runs
    /// at its address. A name may lead somewhere else from here than from there.
    pub(super) fn has_become_another(&self) -> bool {
        let Some(committed) = &self.committed else { return false };
        let Some(lineage) = &committed.lineage else { return false };
        let views = self.electorate.informed_since(committed.since);
        let others = views.filter(|(_, it)| is_another(it, committed, &lineage.run_id, false));
        self.orders.in_force.is_none() && self.may_decide(&others.map(|(id, _)| id).collect())
    }

    /// The sentinels that have read, since the master was committed, that a process runs at its
    /// address that is neither that one nor `run_id`, which answers here: the name may lead to
    /// another server here.
    pub(super) fn seeing_third(&self, committed: &Committed, run_id: &str) -> BTreeSet<&MyId> {
        let former = committed.lineage.as_ref().map(|it| &*it.run_id);
        let views = self.electorate.informed_since(committed.since);
        let third = views.filter(|(id, view)| {
            self.electorate.trusts(id)
                && former != Some(&*view.run_id)
                && is_another(view, committed, run_id, false)
        });
        third.map(|(id, _)| id).collect()
    }

    /// Whether others see the committed process at the committed address.
    pub(super) fn is_seen_as_same(&self, doubt: &Doubt, committed: &Committed) -> bool {
        let Some(lineage) = &committed.lineage else { return false };
        self.sentinels_see_same_process(doubt, committed, lineage)
            || self.replicas_see_same_process(doubt, committed, lineage)
    }

    /// Sentinels are connected already. If a majority sees the committed process, and sees it up,
    /// the process is present.
    fn sentinels_see_same_process(
        &self,
        doubt: &Doubt,
        committed: &Committed,
        lineage: &Lineage,
    ) -> bool {
        let same = |view: &View| {
            view.addr == committed.addr && view.run_id == lineage.run_id && !view.down
        };
        let votes = self.electorate.member_views().filter(|(_, view)| same(view)).map(|(id, _)| id);
        let fresh: BTreeSet<&MyId> =
            self.electorate.own_votes_since(doubt.until()).map(|(id, ..)| id).collect();
        self.electorate.is_majority(&votes.filter(|id| fresh.contains(id)).collect())
    }

    fn replicas_see_same_process(
        &self,
        doubt: &Doubt,
        committed: &Committed,
        lineage: &Lineage,
    ) -> bool {
        let objects = |view: &View| {
            view.addr == committed.addr
                && (view.down
                    || view.rebooted
                    || view.replaces(&committed.addr)
                    || view.run_id != lineage.run_id)
        };
        if self.electorate.trusted_views(Some(doubt.until())).any(objects) {
            return false;
        }
        // One of the replicas may have been promoted, by hand or out of the sentinels' reach.
        let is_master = |node: &NodeAddr, role: &Role| {
            *role == Role::Master && self.nodes.family.contains(node)
        };
        let mut reports = self.nodes.iter().filter_map(|(node, it)| Some((node, it.report()?)));
        if reports.any(|(node, report)| is_master(node, &report.role)) {
            return false;
        }
        let since = doubt.until() + LINK_SETTLED;
        let dialled = NodeAddr::from(committed.dialled);
        let links = self.nodes.iter().filter_map(|(_, node)| {
            let report = node.last_since(since)?.outcome.as_ref().ok()?;
            let Role::Replica { master, connected: true } = &report.role else { return None };
            let is_ours = *master == committed.addr || *master == dialled;
            is_ours.then_some(report.lineage.as_ref()?)
        });
        let mut links = links.map(|it| it.replid == lineage.replid).peekable();
        links.peek().is_some() && links.all(|same| same)
    }
}

/// Whether a sentinel sees another process than `run_id` at the committed address; `must_know` if
/// one that has not read its `run_id` yet counts, too.
pub(super) fn is_another(
    view: &View,
    committed: &Committed,
    run_id: &str,
    must_know: bool,
) -> bool {
    let unknown = view.run_id.is_empty() && !must_know;
    view.addr == committed.addr && *view.run_id != *run_id && !unknown
}
