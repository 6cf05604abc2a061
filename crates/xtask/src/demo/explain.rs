//! Sentinel's events in plain words.

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

    /// As [`of`](Self::of), for an address as it stands in a payload.
    fn of_words(&self, ip: Option<&&str>, port: Option<&&str>) -> String {
        let (ip, port) = (ip.copied().unwrap_or("?"), port.copied().unwrap_or("?"));
        match (ip.parse(), port.parse()) {
            (Ok(ip), Ok(port)) => self.of(SocketAddr::new(ip, port)),
            _ => format!("{ip}:{port}"),
        }
    }
}

/// What an event means, or `None` for the many that would only puzzle a visitor.
pub(super) fn explain(channel: &str, payload: &str, names: &Names) -> Option<String> {
    let words: Vec<&str> = payload.split(' ').collect();
    let who = names.of_words(words.get(2), words.get(3));
    let of_master = words.first() == Some(&"master");
    Some(match channel {
        "+sdown" if of_master => format!("{who} does not answer me"),
        "-sdown" if of_master => format!("{who} answers me again"),
        "+odown" => format!("enough of us agree that {who} is down"),
        "+try-failover" => "I would lead a failover; who votes for me?".to_owned(),
        "+elected-leader" => "I was elected to lead it".to_owned(),
        "+selected-slave" => format!("I choose {who} as the new master"),
        "+failover-state-wait-promotion" => format!("I have told {who} to become the master"),
        "+promoted-slave" => format!("{who} says that it is the master now"),
        "+switch-master" => {
            format!("the new master is {}", names.of_words(words.get(3), words.get(4)))
        }
        "+slave-reconf-done" => format!("{who} follows the new master"),
        "+failover-end" => "the failover is over".to_owned(),
        "+convert-to-slave" => format!("{who} came back and was made a replica"),
        "-failover-abort-not-elected"
        | "-failover-abort-no-good-slave"
        | "-failover-abort-slave-timeout" => "the failover was given up".to_owned(),
        "+tilt" => "my clock jumped: I only watch for a while".to_owned(),
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
        assert_eq!(said("+sdown", "master mymaster 127.1.2.3 1"), "redis-1 does not answer me");
        assert_eq!(
            said("+selected-slave", "slave 127.1.2.3:2 127.1.2.3 2 @ mymaster 127.1.2.3 1"),
            "I choose redis-2 as the new master"
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
