//! The text of the configuration files. Pure, so that a cluster's settings can be read and tested
//! in one place.
//!
//! Fast and without persistence on purpose: nothing is saved to disk, replicas synchronise without
//! delay, a server stops at once.

use std::fmt::Write as _;

use super::builder::Builder;

/// One redis-server.
pub(super) struct RedisPlan<'a> {
    pub(super) builder: &'a Builder,
    /// The addresses to bind.
    pub(super) bind: &'a str,
    /// The address announced to sentinels and to the master.
    pub(super) announced: &'a str,
    pub(super) port: u16,
    /// The port of its master; `None` for a master.
    pub(super) master: Option<u16>,
    /// Major and minor version of its program.
    pub(super) version: (u32, u32),
}

/// The redis.conf of one server.
pub(super) fn redis_conf(plan: &RedisPlan<'_>) -> String {
    let RedisPlan { builder, bind, announced, port, master, version } = plan;
    let mut conf = format!(
        "bind {bind}\nport {port}\nprotected-mode no\nsave \"\"\nappendonly no\n\
         repl-diskless-sync yes\nrepl-diskless-sync-delay 0\nrepl-diskless-load swapdb\nrepl-backlog-size 16mb\n\
         repl-ping-replica-period 1\nreplica-announce-ip {announced}\nreplica-announce-port {port}\n\
         hz 50\n"
    );
    // A server of another version would not start with them.
    if *version >= (7, 0) {
        line(&mut conf, "enable-debug-command yes");
        line(&mut conf, "shutdown-timeout 0");
    }
    if let Some(password) = &builder.password {
        line(&mut conf, &format!("requirepass {password}"));
        line(&mut conf, &format!("masterauth {password}"));
    }
    for user in &builder.users {
        line(&mut conf, &format!("user {user}"));
    }
    for extra in &builder.redis_lines {
        line(&mut conf, extra);
    }
    if let Some(master) = master {
        line(&mut conf, &format!("replicaof {announced} {master}"));
    }
    conf
}

/// A master that a sentinel watches, and what the file says about it.
pub(super) struct Watched<'a> {
    pub(super) name: &'a str,
    pub(super) master: u16,
    pub(super) replicas: Vec<u16>,
}

/// One redis-sentinel.
pub(super) struct SentinelPlan<'a> {
    pub(super) builder: &'a Builder,
    pub(super) bind: &'a str,
    pub(super) announced: &'a str,
    /// Port and run id of every sentinel.
    pub(super) sentinels: &'a [(u16, String)],
    /// The index of this sentinel among them.
    pub(super) index: usize,
    pub(super) watched: &'a [Watched<'a>],
}

/// The sentinel.conf of one sentinel.
///
/// By default it lists the replicas and the other sentinels from the start, like the file of a
/// sentinel that is restarted: discovery through hello messages takes seconds in which nothing of
/// interest happens.
pub(super) fn sentinel_conf(plan: &SentinelPlan<'_>) -> String {
    let SentinelPlan { builder, bind, announced, sentinels, index, watched } = plan;
    let (port, run_id) = &sentinels[*index];
    let mut conf = format!(
        "bind {bind}\nport {port}\nprotected-mode no\nsentinel announce-ip {announced}\nsentinel announce-port {port}\n"
    );
    if announced.parse::<std::net::IpAddr>().is_err() {
        conf.push_str("sentinel resolve-hostnames yes\nsentinel announce-hostnames yes\n");
    }
    if !builder.discover {
        line(&mut conf, &format!("sentinel myid {run_id}"));
    }
    if let Some(password) = &builder.sentinel_password {
        line(&mut conf, &format!("requirepass {password}"));
        line(&mut conf, &format!("sentinel sentinel-pass {password}"));
    }
    for user in &builder.sentinel_users {
        line(&mut conf, &format!("user {user}"));
    }
    let down_after = builder.down_after.as_millis();
    let failover_timeout = builder.failover_timeout.as_millis();
    let quorum = builder.quorum();
    for Watched { name, master, replicas } in *watched {
        let _ = write!(
            conf,
            "sentinel monitor {name} {announced} {master} {quorum}\n\
             sentinel down-after-milliseconds {name} {down_after}\nsentinel failover-timeout {name} {failover_timeout}\n\
             sentinel parallel-syncs {name} 10\n"
        );
        if let Some(password) = &builder.password {
            line(&mut conf, &format!("sentinel auth-pass {name} {password}"));
        }
        if !builder.discover {
            for replica in replicas {
                line(&mut conf, &format!("sentinel known-replica {name} {announced} {replica}"));
            }
            for (port, run_id) in sentinels.iter().filter(|(other, _)| other != port) {
                line(
                    &mut conf,
                    &format!("sentinel known-sentinel {name} {announced} {port} {run_id}"),
                );
            }
        }
    }
    for extra in &builder.sentinel_lines {
        line(&mut conf, extra);
    }
    conf
}

fn line(conf: &mut String, line: &str) {
    conf.push_str(line);
    conf.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configures_passwords_everywhere() {
        let builder = Builder::default().password("secret").sentinel_password("other");
        let plan = RedisPlan {
            builder: &builder,
            bind: "127.1.2.3",
            announced: "127.1.2.3",
            port: 7,
            master: Some(6),
            version: (7, 0),
        };
        let conf = redis_conf(&plan);
        for line in
            ["requirepass secret", "masterauth secret", "replicaof 127.1.2.3 6", "bind 127.1.2.3"]
        {
            assert!(conf.lines().any(|found| found == line), "{line} in\n{conf}");
        }
        let sentinels = [(8, "a".repeat(40)), (9, "b".repeat(40))];
        let watched = [Watched { name: "m", master: 6, replicas: vec![7] }];
        let plan = SentinelPlan {
            builder: &builder,
            bind: "127.1.2.3",
            announced: "127.1.2.3",
            sentinels: &sentinels,
            index: 1,
            watched: &watched,
        };
        let conf = sentinel_conf(&plan);
        let peer = format!("sentinel known-sentinel m 127.1.2.3 8 {}", "a".repeat(40));
        for line in [
            "requirepass other",
            "sentinel sentinel-pass other",
            "sentinel auth-pass m secret",
            &peer,
        ] {
            assert!(conf.lines().any(|found| found == line), "{line} in\n{conf}");
        }
        assert!(
            !conf.contains(&format!("9 {}", "b".repeat(40))),
            "a sentinel is no peer of itself"
        );
    }
}
