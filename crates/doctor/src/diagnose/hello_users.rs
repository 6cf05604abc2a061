//! Findings about the users of Redis nodes that may announce sentinels without being one.

use super::Severity::{Note, Warning};
use super::{Case, Findings};
use crate::observed::{AclUser, HELLO};

/// Reports the users of each node that may announce sentinels without being one.
pub(super) fn diagnose(found: &mut Findings, case: &Case<'_>) {
    for node in &case.nodes {
        let Some(users) = &node.details.users else { continue };
        let sentinels = &node.details.sentinel_users;
        let is_sentinel = |it: &AclUser| it.name != "default" && sentinels.contains(&it.name);
        let publishers = users.iter().filter(|it| it.enabled && it.announces && !is_sentinel(it));
        let publishers: Vec<&str> = publishers.map(|it| &*it.name).collect();
        let Some(user) = publishers.first() else { continue };
        // Without the connections of sentinels, a single user with a name may be theirs.
        let unknown = sentinels.is_empty() && publishers.len() == 1 && publishers != ["default"];
        if unknown {
            continue;
        }
        let severity = if publishers == ["default"] { Note } else { Warning };
        let is_shared = sentinels.is_empty() || sentinels.iter().any(|it| *it == "default");
        let what = format!(
            "its users that may publish to {HELLO}: {}: a client can announce sentinels and \
             masters of its own",
            publishers.join(", ")
        );
        let first = if severity == Note && is_shared {
            "give the sentinels a user of their own first (sentinel auth-user). Then, "
        } else {
            ""
        };
        let remedy = format!(
            "{first}for each of them: ACL SETUSER {user} resetchannels &<channels of the \
             application>, and the same in its ACL file"
        );
        found.add(severity, "hello-users", &node.addr, what, remedy);
    }
}
