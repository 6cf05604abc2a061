//! Networks: IP addresses with a common prefix, and lists of them.
//!
//! IPv4 addresses that a dual-stack socket reports as IPv6 count as IPv4.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// A network: an address and the length of its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    base: IpAddr,
    prefix: u8,
}

impl Network {
    /// The network of `ip` with this prefix, at most the length of the address.
    #[must_use]
    pub fn of(ip: IpAddr, prefix: u8) -> Self {
        let (base, prefix) = match ip.to_canonical() {
            IpAddr::V4(ip) => {
                let prefix = prefix.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                (IpAddr::from((u32::from(ip) & mask).to_be_bytes()), prefix)
            }
            IpAddr::V6(ip) => {
                let prefix = prefix.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                (IpAddr::from((u128::from(ip) & mask).to_be_bytes()), prefix)
            }
        };
        Self { base, prefix }
    }

    /// Parses an address, or a network as address and prefix.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (ip, prefix) = match text.split_once('/') {
            Some((ip, prefix)) => (ip, Some(prefix)),
            None => (text, None),
        };
        let ip: IpAddr = ip.parse().ok()?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) if prefix.bytes().all(|byte| byte.is_ascii_digit()) => {
                prefix.parse().ok()?
            }
            Some(_) => return None,
            None => most,
        };
        (prefix <= most).then(|| Self::of(ip, prefix))
    }

    /// Whether `ip` belongs to it.
    #[must_use]
    pub fn contains(self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        ip.is_ipv4() == self.base.is_ipv4() && Self::of(ip, self.prefix) == self
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

/// A list of networks. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks(Arc<[Network]>);

impl Networks {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `ip` belongs to one of them.
    #[must_use]
    pub fn contain(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(ip))
    }
}

impl FromIterator<Network> for Networks {
    fn from_iter<T: IntoIterator<Item = Network>>(networks: T) -> Self {
        Self(networks.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn list(texts: &[&str]) -> Networks {
        texts.iter().map(|text| Network::parse(text).unwrap()).collect()
    }

    #[test]
    fn contains_addresses_of_its_family_only() {
        let networks = list(&["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"]);
        for (ip, contained) in [
            ("10.255.0.1", true),
            ("11.0.0.1", false),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("::ffff:10.1.2.3", true),
            ("::10.1.2.3", false),
            ("2001:db8:ffff::1", true),
            ("2001:db9::1", false),
        ] {
            assert_eq!(networks.contain(ip.parse().unwrap()), contained, "{ip}");
        }
        let everyone = list(&["0.0.0.0/0"]);
        assert!(everyone.contain("203.0.113.1".parse().unwrap()));
        assert!(!everyone.contain("2001:db8::1".parse().unwrap()));
        assert!(list(&["::/0"]).contain("2001:db8::1".parse().unwrap()));
        assert!(!Networks::default().contain("127.0.0.1".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn agrees_with_comparison_of_bits(v4: bool, a: u128, b: u128, prefix in 0_u8..=128) {
            let ip = |bits: u128| match v4 {
                true => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(bits >> 96).unwrap())),
                // Never an IPv4-mapped address.
                false => IpAddr::V6(Ipv6Addr::from_bits(bits | 1 << 127)),
            };
            let prefix = if v4 { prefix % 33 } else { prefix };
            // Every length of a common prefix occurs.
            let near = a ^ (b >> (b % 128));
            let bits = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => format!("{:032b}", ip.to_bits()),
                IpAddr::V6(ip) => format!("{:0128b}", ip.to_bits()),
            };
            let (one, other) = (ip(a), ip(near));
            let length = usize::from(prefix);
            let same = bits(one)[..length] == bits(other)[..length];
            let network = Network::of(one, prefix);
            prop_assert_eq!(network.contains(other), same);
            prop_assert_eq!(Network::parse(&network.to_string()), Some(network));
        }
    }
}
