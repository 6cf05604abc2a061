//! Recognises the committed master although it rejects the prober's connection.
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
use super::{Committed, Machine};
use crate::{Lineage, MyId, NodeAddr, Role, View};

/// The time after which a replica knows that its master was replaced: it acknowledges each second,
/// and the prober may have noticed the server a second after it came.
const LINK_SETTLED: Duration = Duration::from_secs(3);

impl Machine {
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
                    || view.failing_over
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
