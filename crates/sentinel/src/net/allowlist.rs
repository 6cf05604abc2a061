//! The option `nodes`: networks and names in which Redis nodes and learned sentinels may be.
//!
//! Sentinels announce whatever somebody made them believe, and every announced address would be
//! dialled. The list is compared with the announced address before anything is resolved or dialled:
//! an IP address has to be in one of the networks, a name has to be one of the names. A network
//! permits no name, because a name resolves to whatever its owner chooses.

use std::fmt;
use std::sync::Arc;

use target::Network;

use crate::NodeAddr;

/// One entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedHost {
    /// The IP addresses of a network.
    Network(Network),
    /// This name, in lower case.
    Name(Box<str>),
    /// Every name below a domain, which begins with a dot: `*.example.com` is `.example.com`.
    Below(Box<str>),
}

impl AllowedHost {
    /// Parses a network, an IP address, a name, or `*.` and a domain. `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(network) = Network::parse(text) {
            return Some(Self::Network(network));
        }
        let domain = text.strip_prefix('*');
        let name = domain.map_or(Some(text), |domain| domain.strip_prefix('.'))?;
        // The port does not matter; `parse` knows what a name consists of.
        let name = NodeAddr::parse(name, "1").filter(|addr| addr.ip().is_none())?.host;
        let is_name = name.split('.').all(|label| !label.is_empty());
        let entry = if domain.is_some() {
            Self::Below(format!(".{name}").into())
        } else {
            Self::Name(name)
        };
        is_name.then_some(entry)
    }

    fn contains(&self, addr: &NodeAddr) -> bool {
        // Absolute names mean the same with the dot at their end.
        let host = addr.host.strip_suffix('.').unwrap_or(&addr.host);
        match self {
            Self::Network(network) => addr.ip().is_some_and(|ip| network.contains(ip)),
            Self::Name(name) => host.eq_ignore_ascii_case(name),
            Self::Below(domain) => host
                .len()
                .checked_sub(domain.len())
                .filter(|at| *at > 0)
                .and_then(|at| host.get(at..))
                .is_some_and(|end| end.eq_ignore_ascii_case(domain)),
        }
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => network.fmt(f),
            Self::Name(name) => f.write_str(name),
            Self::Below(domain) => write!(f, "*{domain}"),
        }
    }
}

/// The whole list; empty permits every address. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowlist(Arc<[AllowedHost]>);

impl Allowlist {
    /// Whether this announced address may be dialled.
    #[must_use]
    pub fn permits(&self, addr: &NodeAddr) -> bool {
        self.0.is_empty() || self.0.iter().any(|host| host.contains(addr))
    }
}

impl FromIterator<AllowedHost> for Allowlist {
    fn from_iter<T: IntoIterator<Item = AllowedHost>>(hosts: T) -> Self {
        Self(hosts.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(texts: &[&str]) -> Allowlist {
        texts.iter().map(|text| AllowedHost::parse(text).expect("an entry")).collect()
    }

    fn permits(list: &Allowlist, host: &str) -> bool {
        list.permits(&NodeAddr { host: host.into(), port: 6379 })
    }

    #[test]
    fn permits_addresses_in_networks_and_listed_names() {
        let list = list(&["10.0.0.0/8", "2001:db8::7", "Redis-0.example.com", "*.redis.svc"]);
        for (host, permitted) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("11.0.0.1", false),
            ("2001:db8::7", true),
            ("2001:db8::8", false),
            ("redis-0.example.com", true),
            ("REDIS-0.example.com.", true),
            ("x.redis-0.example.com", false),
            ("a.redis.svc", true),
            ("a.b.redis.svc.", true),
            ("redis.svc", false),
            (".redis.svc", false),
            ("evilredis.svc", false),
            ("a.redis.svc.evil.example", false),
            // A name that looks as if it were inside a network.
            ("10.1.2.3.evil.example", false),
        ] {
            assert_eq!(permits(&list, host), permitted, "{host}");
        }
    }

    #[test]
    fn permits_everything_without_entries() {
        for host in ["203.0.113.1", "::1", "anything.example"] {
            assert!(permits(&Allowlist::default(), host));
        }
    }

    #[test]
    fn parses_and_prints_entries() {
        for (text, shown) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("192.0.2.1", "192.0.2.1/32"),
            ("*.Redis.svc", "*.redis.svc"),
            ("redis_0", "redis_0"),
        ] {
            assert_eq!(AllowedHost::parse(text).expect(text).to_string(), shown);
        }
        for text in ["", "*", "*.", "*a.b", "a..b", ".a", "a.*.b", "10.0.0.0/40", "a:1", "[::1]"] {
            assert_eq!(AllowedHost::parse(text), None, "{text:?}");
        }
    }
}
