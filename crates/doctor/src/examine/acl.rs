//! Which users of a Redis server may announce sentinels: reads the rules in a reply to `ACL LIST`.
//! Pure.
//!
//! Sentinels introduce themselves in the channel [`HELLO`]. A client that may publish there adds
//! sentinels of its own to every list, and at a higher epoch even another master. No proxy can
//! prevent that for clients that connect to Redis directly, or within scripts; an ACL can.

use std::collections::BTreeSet;

use tls::OutsideText;

use crate::observed::{AclUser, HELLO};
use sentinel::connections::Reply;

/// Limit for the users that are read.
const MAX_USERS: usize = 256;

/// Reads a reply to `ACL LIST`. `None` if it was refused.
pub(super) fn read_users(reply: &Reply) -> Option<Vec<AclUser>> {
    let lines = reply.list()?.iter().take(MAX_USERS);
    Some(lines.filter_map(|line| read_user(line.text()?)).collect())
}

/// Reads a line such as `user default on nopass ~* resetchannels &app:* +@all (+publish &x)`.
fn read_user(line: &str) -> Option<AclUser> {
    let (root, selectors) = line.split_once(" (").unwrap_or((line, ""));
    let mut words = root.split_ascii_whitespace();
    let name = words.next().filter(|it| *it == "user").and(words.next())?;
    let rules: Vec<&str> = words.collect();
    // Before Redis 6.2 there are no rules about channels: every user may use all of them.
    let has_channels = rules.iter().any(|it| it.starts_with('&') || it.ends_with("channels"));
    let selectors = selectors.split('(').map(|it| it.trim_end_matches([')', ' ']));
    let in_selector = |it: &str| may_announce(it.split_ascii_whitespace(), false);
    Some(AclUser {
        name: name.into(),
        enabled: rules.contains(&"on"),
        nopass: rules.contains(&"nopass"),
        announces: may_announce(rules.iter().copied(), !has_channels)
            || selectors.into_iter().any(in_selector),
    })
}

/// Whether these rules allow `PUBLISH` in the channel of the sentinels. The last rule about a
/// command wins; a pattern of channels adds to those before.
fn may_announce<'a>(rules: impl Iterator<Item = &'a str>, all_channels: bool) -> bool {
    let (mut command, mut channel) = (false, all_channels);
    for rule in rules {
        match rule {
            "+@all" | "allcommands" | "+@pubsub" | "+@fast" | "+publish" => command = true,
            "-@all" | "nocommands" | "-@pubsub" | "-@fast" | "-publish" => command = false,
            "allchannels" => channel = true,
            "resetchannels" => channel = false,
            _ => channel |= rule.strip_prefix('&').is_some_and(|it| may_match(it, HELLO)),
        }
    }
    command && channel
}

/// Whether a pattern of Redis may match a text: what precedes its first special character and what
/// follows its last one does. Patterns with more between these are rare, and count as matching.
fn may_match(pattern: &str, text: &str) -> bool {
    let special = ['*', '?', '[', ']', '\\'];
    let Some(start) = pattern.find(special) else { return pattern == text };
    let end = pattern.rsplit(special).next().unwrap_or_default();
    let starts = pattern.get(..start).is_some_and(|start| text.starts_with(start));
    starts && text.ends_with(end)
}

/// The users with which sentinels subscribe: they have to publish there. From a reply to
/// `CLIENT LIST`.
pub(super) fn read_sentinel_users(reply: &Reply) -> BTreeSet<OutsideText> {
    let lines = reply.text().unwrap_or_default().lines();
    lines.filter_map(sentinel_user).map(OutsideText::from).collect()
}

/// The user in a line such as `id=3 addr=… name=sentinel-0123abcd-pubsub … user=default …`.
fn sentinel_user(line: &str) -> Option<&str> {
    let field = |key: &str| line.split(' ').find_map(|it| it.strip_prefix(key));
    let name = field("name=")?;
    field("user=").filter(|_| name.starts_with("sentinel-") && name.ends_with("-pubsub"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announces(rules: &str) -> bool {
        read_user(&format!("user app on {rules}")).expect("a user").announces
    }

    #[test]
    fn reads_who_may_publish_hellos() {
        for rules in [
            "nopass sanitize-payload ~* &* +@all",
            "#1c2 ~* allchannels -@all +publish",
            "#1c2 ~* +@all",
            "#1c2 ~* resetchannels &app:* &__sent* +@all",
            "#1c2 ~* resetchannels &*:hell[a-o] -@all +@pubsub",
            "#1c2 ~* resetchannels -@all +get (~x resetchannels &*:hello -@all +publish)",
        ] {
            assert!(announces(rules), "{rules}");
        }
        for rules in [
            "#1c2 ~* resetchannels +@all",
            "#1c2 ~* resetchannels &app:* +@all",
            "#1c2 ~* &* +@all -publish",
            "#1c2 ~* &* +@all -@pubsub",
            "#1c2 ~* &* -@all +get",
            "#1c2 ~* resetchannels &__sentinel__:hell -@all +publish",
            "#1c2 ~* &* -@all +get (~x resetchannels -@all +publish)",
        ] {
            assert!(!announces(rules), "{rules}");
        }
        let user = read_user("user default off nopass ~* &* +@all").expect("a user");
        assert!(!user.enabled && user.nopass && user.name == "default");
        assert_eq!(read_user("no rules"), None);
    }

    #[test]
    fn misses_no_pattern_that_matches() {
        for (pattern, may_match) in [
            ("*", true),
            ("**hello", true),
            ("__sentinel__:hello", true),
            ("__sentinel__?hello", true),
            ("__sentinel__:[^i]ello", true),
            ("__sentinel__\\:hello", true),
            ("__sentinel__:hell[n-p]", true),
            ("*l*l*l*", true),
            ("app:*", false),
            ("*:events", false),
            ("__sentinel__:hell", false),
            ("", false),
        ] {
            assert_eq!(super::may_match(pattern, HELLO), may_match, "{pattern}");
        }
    }

    #[test]
    fn reads_users_of_sentinels_from_their_connections() {
        let list = "id=3 addr=10.0.0.1:1 name=sentinel-abc-pubsub user=watch cmd=subscribe\n\
                    id=4 addr=10.0.0.2:1 name=mine user=app cmd=subscribe\n";
        let reply = Reply::Text(bytes::Bytes::from_static(list.as_bytes()));
        let users: Vec<OutsideText> = read_sentinel_users(&reply).into_iter().collect();
        assert_eq!(users, ["watch"]);
    }
}
