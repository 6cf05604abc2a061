//! Explains Sentinel's events in plain words.

use std::net::SocketAddr;

/// Addresses and the short names that the demo gives them.
#[derive(Debug, Clone, Default)]
pub(super) struct Names(Vec<(SocketAddr, String)>);

impl Names {
    pub(super) fn new(named: impl IntoIterator<Item = (SocketAddr, String)>) -> Self {
        Self(named.into_iter().collect())
    }

    /// The name of an address, or the address itself.
    pub(super) fn of(&self, addr: SocketAddr) -> String {
        self.0
            .iter()
            .find(|(known, _)| *known == addr)
            .map_or_else(|| addr.to_string(), |(_, name)| name.clone())
    }

    /// Like [`of`](Self::of), for an address as it is written in a payload.
    fn of_words(&self, ip: Option<&&str>, port: Option<&&str>) -> String {
        let (ip, port) = (ip.copied().unwrap_or("?"), port.copied().unwrap_or("?"));
        match (ip.parse(), port.parse()) {
            (Ok(ip), Ok(port)) => self.of(SocketAddr::new(ip, port)),
            _ => format!("{ip}:{port}"),
        }
    }
}

/// The meaning of an event, or `None` for the many that would confuse a new user.
pub(super) fn explain(channel: &str, payload: &str, names: &Names) -> Option<String> {
    let words: Vec<&str> = payload.split(' ').collect();
    let who = names.of_words(words.get(2), words.get(3));
    let of_master = words.first() == Some(&"master");
    Some(match channel {
        "+sdown" if of_master => format!("{who} does not answer"),
        "-sdown" if of_master => format!("{who} answers again"),
        "+odown" => format!("a quorum agrees that {who} is down"),
        "+try-failover" => "asks the other sentinels to be elected leader".to_owned(),
        "+elected-leader" => "was elected leader of the failover".to_owned(),
        "+selected-slave" => format!("selected {who} as the new master"),
        "+failover-state-wait-promotion" => format!("ordered {who} to become master"),
        "+promoted-slave" => format!("{who} reports the role master"),
        "+switch-master" => {
            format!("the new master is {}", names.of_words(words.get(3), words.get(4)))
        }
        "+slave-reconf-done" => format!("{who} follows the new master"),
        "+failover-end" => "the failover is over".to_owned(),
        "+convert-to-slave" => format!("{who} came back and became a replica"),
        "-failover-abort-not-elected"
        | "-failover-abort-no-good-slave"
        | "-failover-abort-slave-timeout" => "the failover was aborted".to_owned(),
        "+tilt" => "its clock jumped: takes no part in failovers for a while".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let addr = |port| SocketAddr::from(([127, 1, 2, 3], port));
        Names::new([(addr(1), "redis-1".to_owned()), (addr(2), "redis-2".to_owned())])
    }

    #[test]
    fn calls_servers_by_name() {
        let said = |channel, payload| explain(channel, payload, &names()).unwrap_or_default();
        assert_eq!(said("+sdown", "master mymaster 127.1.2.3 1"), "redis-1 does not answer");
        assert_eq!(
            said("+selected-slave", "slave 127.1.2.3:2 127.1.2.3 2 @ mymaster 127.1.2.3 1"),
            "selected redis-2 as the new master"
        );
        assert_eq!(
            said("+switch-master", "mymaster 127.1.2.3 1 127.1.2.3 2"),
            "the new master is redis-2"
        );
        assert_eq!(said("+switch-master", "mymaster 127.1.2.3 1 db 9"), "the new master is db:9");
    }

    #[test]
    fn leaves_out_confusing_events() {
        assert_eq!(explain("+new-epoch", "1", &names()), None);
        assert_eq!(
            explain("+sdown", "slave 127.1.2.3:1 127.1.2.3 1 @ mymaster 127.1.2.3 2", &names()),
            None
        );
    }
}
