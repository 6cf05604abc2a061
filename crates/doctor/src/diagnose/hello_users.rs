//! Findings about the users of Redis nodes that may announce sentinels without being one.

use super::{Findings, Severity};
use crate::observed::{AclUser, HELLO, Observed};

/// Reports the users of each node that may announce sentinels without being one.
pub(super) fn diagnose(findings: &mut Findings, observed: &Observed) {
    for node in &observed.nodes {
        let Some(users) = &node.details.users else { continue };
        let sentinels = &node.details.sentinel_users;
        let enabled = || users.iter().filter(|it| it.enabled);
        let is_sentinel = |it: &AclUser| it.name != "default" && sentinels.contains(&it.name);
        let publishers: Vec<&str> =
            enabled().filter(|it| it.announces && !is_sentinel(it)).map(|it| &*it.name).collect();
        // Without the connections of sentinels, a single user with a name may be theirs.
        let unknown = sentinels.is_empty() && publishers.len() == 1 && publishers != ["default"];
        if publishers.is_empty() || unknown {
            continue;
        }
        let (severity, own) = if publishers == ["default"] {
            (Severity::Note, sentinels.is_empty() || sentinels.iter().any(|it| *it == "default"))
        } else {
            (Severity::Warning, false)
        };
        let what = format!(
            "its users that may publish to {HELLO}: {}: a client can announce sentinels and \
             masters of its own",
            publishers.join(", ")
        );
        let first = if own {
            "give the sentinels a user of their own first (sentinel auth-user). Then, "
        } else {
            ""
        };
        let user = publishers.first().copied().unwrap_or("default");
        let remedy = format!(
            "{first}for each of them: ACL SETUSER {user} resetchannels &<channels of the \
             application>, and the same in its ACL file"
        );
        findings.add((severity, "hello-users"), &node.addr, what, remedy);
    }
}
