//! Drops the first packet of exactly one connection attempt.

use std::net::SocketAddr;
use std::process::Command;

use crate::binary::find_in_path;
use crate::netns::{in_private_namespace, nft};

/// Drops the first SYN to an address silently and lets all later ones pass. Dropping the value
/// removes the rule.
#[derive(Debug)]
pub struct LostDial(String);

impl LostDial {
    /// Waits for a connection attempt to `to` and drops it.
    ///
    /// # Errors
    /// A message for people: no private namespace, no `nft`, or it refused the rules.
    pub fn to(to: SocketAddr) -> Result<Self, String> {
        if !in_private_namespace() {
            return Err("packets are dropped only in a network namespace of one's own".to_owned());
        }
        let (family, ip, port) = (if to.is_ipv4() { "ip" } else { "ip6" }, to.ip(), to.port());
        let table = format!("harness_lost_{family}_{port}");
        let matched = format!("{family} daddr {ip} tcp dport {port} tcp flags & (syn|ack) == syn");
        let chain = "chain cut { type filter hook output priority 0; policy accept;";
        nft(&format!(
            "table inet {table} {{\ncounter lost {{ }}\n{chain}\n{matched} limit rate 1/day burst 1 packets counter name lost drop\n}}\n}}\n"
        ))?;
        Ok(Self(table))
    }

    /// Whether an attempt was dropped.
    ///
    /// # Errors
    /// A message for people, if `nft` fails.
    pub fn is_over(&self) -> Result<bool, String> {
        let program = find_in_path("nft").ok_or("nft is missing (Debian's nftables)")?;
        let output =
            Command::new(program).args(["list", "counter", "inet", &self.0, "lost"]).output();
        let output = output.map_err(|error| format!("nft: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut words = text.split_ascii_whitespace().skip_while(|word| *word != "packets");
        words.nth(1).map(|word| word != "0").ok_or_else(|| format!("nft lists no counter: {text}"))
    }
}

impl Drop for LostDial {
    fn drop(&mut self) {
        if let Err(why) = nft(&format!("delete table inet {}\n", self.0)) {
            eprintln!("a rule cannot be taken away: {why}");
        }
    }
}
