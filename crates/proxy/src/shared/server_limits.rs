//! Whether a server limits what it keeps for one client.
//!
//! It closes a connection with more unread replies than `client-output-buffer-limit` allows, and
//! the largest ones beyond `maxmemory-clients`. For the server the members of a shared connection
//! are one client: a large reply to one of them would end all others.

/// The request: all settings of clients, since only newer servers accept several names.
pub(crate) const ASK_LIMITS: &[u8] = b"*3\r\n$6\r\nCONFIG\r\n$3\r\nGET\r\n$8\r\n*client*\r\n";

/// The largest reply that is read, in bytes.
pub(crate) const LARGEST_LIMITS: usize = 64 * 1024;

/// Whether the reply says that there is such a limit. A server that refuses to answer does not say
/// so.
pub(crate) fn limits_clients(reply: &[u8]) -> bool {
    let Ok(reply) = std::str::from_utf8(reply) else { return false };
    // Each text follows its length on a line of its own.
    let texts: Vec<&str> = reply.split("\r\n").skip(2).step_by(2).collect();
    texts.chunks_exact(2).any(|pair| match pair {
        ["client-output-buffer-limit", limits] => {
            let mut normal = limits.split(' ').skip_while(|word| *word != "normal").skip(1);
            normal.by_ref().take(2).any(|bytes| bytes != "0")
        }
        ["maxmemory-clients", limit] => *limit != "0",
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(first: &str, limits: &str, memory: &str) -> Vec<u8> {
        let texts = [
            "maxclients",
            "10000",
            "maxmemory-clients",
            memory,
            "client-output-buffer-limit",
            limits,
        ];
        let text = |it: &&str| format!("${}\r\n{it}\r\n", it.len());
        format!("{first}\r\n{}", texts.iter().map(text).collect::<String>()).into_bytes()
    }

    #[test]
    fn finds_limits_of_ordinary_clients() {
        let others = "slave 268435456 67108864 60 pubsub 33554432 8388608 60";
        for (normal, memory, is_limited) in [
            ("normal 0 0 0", "0", false),
            ("normal 0 0 0", "5%", true),
            ("normal 0 0 0", "4194304", true),
            ("normal 1048576 0 0", "0", true),
            ("normal 0 1048576 60", "0", true),
            // Without a soft limit its time means nothing.
            ("normal 0 0 60", "0", false),
        ] {
            for (first, limits) in
                [("*6", format!("{normal} {others}")), ("%3", format!("{others} {normal}"))]
            {
                let reply = reply(first, &limits, memory);
                assert_eq!(limits_clients(&reply), is_limited, "{limits} {memory}");
            }
        }
        for other in [&b""[..], b"-NOPERM no\r\n", b"*0\r\n", b"\xff"] {
            assert!(!limits_clients(other));
        }
    }
}
