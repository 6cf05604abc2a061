//! A network partition between two sets of addresses, until the value is dropped.
//!
//! Packets are dropped silently, as by a broken switch; TCP retransmits them after the partition is
//! healed. Several partitions may exist at a time. For clusters whose members have addresses of
//! their own (`Builder::start_apart`).

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::netns::{in_private_namespace, nft};

/// A partition. Dropping it heals the network.
#[derive(Debug)]
pub struct Cut(String);

impl Cut {
    /// Drops all packets between the two sets of addresses, in both directions.
    ///
    /// # Panics
    /// Outside of a private network namespace, or if `nft` refuses the rules.
    #[must_use]
    #[track_caller]
    pub fn between(these: &[IpAddr], those: &[IpAddr]) -> Self {
        let (these, those) = (set(these), set(those));
        Self::new(&format!(
            "ip saddr {these} ip daddr {those} drop\nip saddr {those} ip daddr {these} drop"
        ))
    }

    /// Drops all packets from these addresses to those; what flows back is not affected.
    ///
    /// # Panics
    /// Like [`between`](Self::between).
    #[must_use]
    #[track_caller]
    pub fn one_way(these: &[IpAddr], those: &[IpAddr]) -> Self {
        Self::new(&format!("ip saddr {} ip daddr {} drop", set(these), set(those)))
    }

    /// Drops all packets that processes of a group of users send to these addresses.
    ///
    /// # Panics
    /// Like [`between`](Self::between).
    #[must_use]
    #[track_caller]
    pub fn of_group(group: u32, those: &[IpAddr]) -> Self {
        Self::new(&format!("meta skgid {group} ip daddr {} drop", set(those)))
    }

    /// Drops all packets on connections from `from` to a port of `to`; connections that `to` opened
    /// to `from` are not affected.
    ///
    /// # Panics
    /// Like [`between`](Self::between).
    #[must_use]
    #[track_caller]
    pub fn of_dials(from: IpAddr, to: IpAddr, port: u16) -> Self {
        Self::new(&format!(
            "ip saddr {from} ip daddr {to} tcp dport {port} drop\nip saddr {to} ip daddr {from} tcp sport {port} drop"
        ))
    }

    /// Rejects new connections from `from` to a port of `to`; open connections are not affected.
    ///
    /// # Panics
    /// Like [`between`](Self::between).
    #[must_use]
    #[track_caller]
    pub fn refusing(from: IpAddr, to: IpAddr, port: u16) -> Self {
        let first = "tcp flags & (syn | ack) == syn";
        Self::new(&format!(
            "ip saddr {from} ip daddr {to} tcp dport {port} {first} reject with tcp reset"
        ))
    }

    #[track_caller]
    fn new(rules: &str) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        assert!(in_private_namespace(), "packets are dropped only in a private network namespace");
        let table = format!("harness_cut_{}", COUNTER.fetch_add(1, Ordering::Relaxed));
        let chain = "chain cut { type filter hook output priority 0; policy accept;";
        nft(&format!("table inet {table} {{ {chain}\n{rules}\n}}\n}}\n"))
            .unwrap_or_else(|why| panic!("{why}"));
        Self(table)
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        if let Err(why) = nft(&format!("delete table inet {}\n", self.0)) {
            eprintln!("the network cannot be healed: {why}");
        }
    }
}

/// The addresses as `nft` writes a set.
pub(crate) fn set(addresses: &[IpAddr]) -> String {
    let all: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    format!("{{ {} }}", all.join(", "))
}
