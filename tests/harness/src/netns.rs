//! Network partitions on one machine: packet filter rules in a private network namespace.
//!
//! All members of a cluster share one loopback address, so servers are told apart by their ports.
//! That covers both directions of every connection *to* them, which is all of a master's traffic. A
//! sentinel also opens connections from ports that the kernel chooses; [`own_source`] gives it a
//! loopback address to connect from, so that these can be matched as well. The rules drop packets
//! silently, as a broken switch does: no RST is sent, and TCP retransmits after the partition is
//! healed.
//!
//! The rules apply to the whole namespace. To protect the machine, [`Partition::around`] refuses to
//! run in the namespace of process 1. A namespace and its rules end with its last process.
//!
//! The namespace is not created here: a process with threads cannot easily enter another one, so it
//! starts itself again under `unshare --net`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::binary::find_in_path;
use crate::cluster::{Cluster, Node};

const TABLE: &str = "harness_partition";

/// Whether this process is in another network namespace than process 1, as far as it can tell.
#[must_use]
pub fn in_private_namespace() -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    namespace("self").is_some_and(|own| namespace("1") != Some(own))
}

/// Enables the loopback interface of the namespace; it is down in a new one.
///
/// # Errors
/// A message for people.
pub fn loopback_up() -> Result<(), String> {
    run(Command::new("ip").args(["link", "set", "lo", "up"]), "")
}

/// Makes a sentinel connect from a loopback address that no other process uses, restarts it for
/// that, and returns the address.
///
/// # Panics
/// If its configuration cannot be changed, or it does not come back.
#[track_caller]
pub fn own_source(cluster: &Cluster, sentinel: &Node) -> Ipv4Addr {
    let IpAddr::V4(shared) = cluster.address().ip() else { panic!("partitions are made on IPv4") };
    let [a, b, c, d] = shared.octets();
    // Cluster addresses never have a second octet of 255, so this is no other cluster's.
    let own = Ipv4Addr::new(a, 255, b ^ c, d);
    sentinel.kill();
    let file = cluster.folder().join(sentinel.name()).join(format!("{}.conf", sentinel.name()));
    let mut conf = std::fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let _ = write!(conf, "\nbind-source-addr {own}\n");
    std::fs::write(&file, conf).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    sentinel.restart();
    cluster.wait_whole();
    own
}

/// A rule for the traffic of one port. Dropping it removes the rule.
#[derive(Debug)]
pub struct Filter(String);

impl Filter {
    /// Drops every packet silently.
    ///
    /// # Errors
    /// A message for people: no private namespace, no `nft`, or it refused the rules.
    pub fn drop_all(port: u16) -> Result<Self, String> {
        Self::new(port, "drop")
    }

    /// Drops a random share of the packets, in percent.
    ///
    /// # Errors
    /// Like [`drop_all`](Self::drop_all).
    pub fn drop_some(port: u16, percent: u8) -> Result<Self, String> {
        Self::new(port, &format!("numgen random mod 100 < {percent} drop"))
    }

    /// Answers every packet by a reset, as a router does that has forgotten a connection. The peer
    /// learns nothing.
    ///
    /// # Errors
    /// Like [`drop_all`](Self::drop_all).
    pub fn reset_all(port: u16) -> Result<Self, String> {
        Self::new(port, "tcp flags & rst == 0 reject with tcp reset")
    }

    fn new(port: u16, verdict: &str) -> Result<Self, String> {
        if !in_private_namespace() {
            return Err("packets are dropped only in a network namespace of one's own".to_owned());
        }
        let table = format!("harness_filter_{port}");
        let chain = "chain cut { type filter hook output priority 0; policy accept;";
        nft(&format!(
            "table inet {table} {{ {chain}\ntcp dport {port} {verdict}\ntcp sport {port} {verdict}\n}}\n}}\n"
        ))?;
        Ok(Self(table))
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        if let Err(why) = nft(&format!("delete table inet {}\n", self.0)) {
            eprintln!("a filter cannot be taken away: {why}");
        }
    }
}

/// Counts packets to one port that begin with the name of a command, from any sender, including
/// packets that a rule drops and retransmissions. Without pipelining, each request of a client
/// begins a packet.
#[derive(Debug)]
pub struct Counter(String);

impl Counter {
    /// Starts to count. `command` holds the first bytes of a request on the wire, at most sixteen:
    /// a rule cannot match more.
    ///
    /// # Errors
    /// A message for people: no private namespace, no `nft`, or it refused the rules.
    pub fn of(port: u16, command: &[u8]) -> Result<Self, String> {
        if !in_private_namespace() {
            return Err("packets are counted only in a network namespace of one's own".to_owned());
        }
        let bytes: String = command.iter().take(16).fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        let name = format!("harness_count_{port}");
        // Before the rules that drop packets.
        let chain = "chain count { type filter hook output priority -10; policy accept;";
        let matched = format!("tcp dport {port} @ih,0,{} 0x{bytes}", bytes.len() * 4);
        let rule = format!("{matched} counter name seen update @last {{ tcp sport }}");
        // The age of an element is the time since the last packet of its connection, by the
        // kernel's clock.
        let last = "set last { type inet_service; flags dynamic,timeout; timeout 1h; size 65535; }";
        nft(&format!(
            "table inet {name} {{\ncounter seen {{ }}\n{last}\n{chain}\n{rule}\n}}\n}}\n"
        ))?;
        Ok(Self(name))
    }

    /// The number of packets so far.
    ///
    /// # Errors
    /// A message for people, if `nft` fails.
    pub fn packets(&self) -> Result<u64, String> {
        let text = self.list(["counter", "seen"])?;
        let mut words = text.split_ascii_whitespace().skip_while(|word| *word != "packets");
        words
            .nth(1)
            .and_then(|word| word.parse().ok())
            .ok_or_else(|| format!("nft lists no counter: {text}"))
    }

    /// The time since the last packet of each connection, to some milliseconds, including the
    /// duration of this query.
    ///
    /// # Errors
    /// A message for people, if `nft` fails.
    pub fn ages(&self) -> Result<Vec<Duration>, String> {
        let text = self.list(["set", "last"])?;
        let words: Vec<&str> = text.split([' ', ',', '\n']).collect();
        let left = words
            .windows(2)
            .filter(|pair| pair.first() == Some(&"expires"))
            .filter_map(|pair| span(pair.get(1)?));
        Ok(left.map(|left| Duration::from_secs(3600).saturating_sub(left)).collect())
    }

    fn list(&self, [kind, name]: [&str; 2]) -> Result<String, String> {
        let program = find_in_path("nft").ok_or("nft is missing (Debian's nftables)")?;
        let output = Command::new(program).args(["list", kind, "inet", &self.0, name]).output();
        let output = output.map_err(|error| format!("nft: {error}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Parses a duration as `nft` prints it: `59m58s68ms`.
fn span(text: &str) -> Option<Duration> {
    let (mut sum, mut rest) = (Duration::ZERO, text);
    while !rest.is_empty() {
        let digits = rest.find(|it: char| !it.is_ascii_digit())?;
        let (number, behind) = rest.split_at(digits);
        let unit = behind.find(|it: char| it.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit);
        let millis = match unit {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1000,
            "ms" => 1,
            _ => return None,
        };
        sum += Duration::from_millis(millis * number.parse::<u64>().ok()?);
        rest = behind;
    }
    Some(sum)
}

impl Drop for Counter {
    fn drop(&mut self) {
        if let Err(why) = nft(&format!("delete table inet {}\n", self.0)) {
            eprintln!("a counter cannot be taken away: {why}");
        }
    }
}

/// Limits the traffic of one port to a rate such as `1mbit`, with packets of ordinary size, until
/// the namespace ends. Other traffic is not limited.
///
/// # Errors
/// A message for people: no private namespace, no `tc`, or a kernel without these disciplines.
pub fn shape(port: u16, rate: &str) -> Result<(), String> {
    queue(port, "", rate)
}

/// Sends a random half of the packets of one port through a queue with this rate, so that later
/// packets overtake them; until the namespace ends.
///
/// # Errors
/// Like [`shape`].
pub fn reorder(port: u16, rate: &str) -> Result<(), String> {
    queue(port, "numgen random mod 2 0", rate)
}

/// How many segments reached this namespace's sockets out of order.
///
/// # Panics
/// If the kernel does not count them.
#[must_use]
pub fn overtaken() -> u64 {
    let text = std::fs::read_to_string("/proc/self/net/netstat").expect("the kernel's counters");
    let mut lines =
        text.lines().filter_map(|line| line.strip_prefix("TcpExt:")).map(str::split_whitespace);
    let (names, numbers) = (lines.next().expect("names"), lines.next().expect("numbers"));
    let found = names.zip(numbers).find(|(name, _)| *name == "TCPOFOQueue");
    found.and_then(|(_, number)| number.parse().ok()).expect("a count of segments out of order")
}

/// Sends matching packets of one port through a queue with this rate.
fn queue(port: u16, which: &str, rate: &str) -> Result<(), String> {
    if !in_private_namespace() {
        return Err(
            "the network is slowed down only in a network namespace of one's own".to_owned()
        );
    }
    // The kernel's classes select packets by the priority that a rule sets.
    let lines = [
        "ip link set lo mtu 1500".to_owned(),
        "tc qdisc add dev lo root handle 1: htb".to_owned(),
        format!("tc class add dev lo parent 1: classid 1:3 htb rate {rate}"),
        "tc qdisc add dev lo parent 1:3 pfifo limit 50".to_owned(),
    ];
    let rules = format!(
        "tcp dport {port} {which} meta priority set 1:3\ntcp sport {port} {which} meta priority set 1:3\n"
    );
    nft(&format!(
        "table inet harness_shape {{ chain c {{ type filter hook output priority 0; policy accept;\n{rules}}}\n}}\n"
    ))?;
    for line in lines {
        let mut words = line.split(' ');
        run(Command::new(words.next().unwrap_or_default()).args(words), "")
            .map_err(|why| format!("{line}: {why}"))?;
    }
    Ok(())
}

/// Servers that are cut off from all other processes. Dropping it heals the network.
#[derive(Debug)]
pub struct Partition(());

impl Partition {
    /// Cuts off a server together with the sentinel that connects from `source`. The two still
    /// reach each other, like two processes of one pod or machine.
    ///
    /// # Errors
    /// A message for people: no private namespace, no `nft`, or it refused the rules.
    pub fn around(server: &Node, sentinel: &Node, source: Ipv4Addr) -> Result<Self, String> {
        if !in_private_namespace() {
            return Err("a partition is made only in a network namespace of one's own".to_owned());
        }
        nft(&rules(server.addr().port(), sentinel.addr().port(), source)).map(|()| Self(()))
    }

    /// Drops the packets between a server and the process that connects from `source`; all other
    /// connections of both keep working.
    ///
    /// # Errors
    /// Like [`around`](Self::around).
    pub fn between(server: &Node, source: Ipv4Addr) -> Result<Self, String> {
        if !in_private_namespace() {
            return Err("a partition is made only in a network namespace of one's own".to_owned());
        }
        let port = server.addr().port();
        nft(&table(&[
            format!("ip saddr {source} tcp dport {port} drop"),
            format!("ip daddr {source} tcp sport {port} drop"),
        ]))
        .map(|()| Self(()))
    }

    /// Whether partitions are possible here; tested with rules that match nothing.
    ///
    /// # Errors
    /// A message for people that says why not.
    pub fn possible() -> Result<(), String> {
        if !in_private_namespace() {
            return Err("there is no network namespace of its own".to_owned());
        }
        nft(&rules(1, 2, Ipv4Addr::new(127, 255, 255, 254))).map(|()| drop(Self(())))
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        if let Err(why) = nft(&format!("delete table inet {TABLE}\n")) {
            eprintln!("the partition cannot be healed: {why}");
        }
    }
}

fn rules(server: u16, sentinel: u16, source: Ipv4Addr) -> String {
    let ports = format!("{{ {server}, {sentinel} }}");
    table(&[
        format!("ip saddr {source} tcp dport {server} accept"),
        format!("ip daddr {source} tcp sport {server} accept"),
        format!("tcp dport {ports} drop"),
        format!("tcp sport {ports} drop"),
        format!("ip saddr {source} drop"),
        format!("ip daddr {source} drop"),
    ])
}

fn table(rules: &[String]) -> String {
    let head = "type filter hook output priority 0; policy accept;";
    format!("table inet {TABLE} {{ chain cut {{\n{head}\n{}\n}}\n}}\n", rules.join("\n"))
}

pub(crate) fn nft(rules: &str) -> Result<(), String> {
    let program = find_in_path("nft").ok_or("nft is missing (Debian's nftables)")?;
    run(Command::new(program).args(["-f", "-"]), rules)
}

fn run(command: &mut Command, input: &str) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let words = |error: std::io::Error| format!("{name}: {error}");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(words)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).map_err(words)?;
    }
    let output = child.wait_with_output().map_err(words)?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{name} ended with {}: {said}", output.status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_inside_traffic_before_drops() {
        let rules = rules(7001, 7002, Ipv4Addr::new(127, 255, 3, 4));
        let at = |text: &str| rules.find(text).unwrap_or_else(|| panic!("{text} in\n{rules}"));
        assert!(
            at("ip saddr 127.255.3.4 tcp dport 7001 accept") < at("tcp dport { 7001, 7002 } drop")
        );
        assert!(at("ip daddr 127.255.3.4 tcp sport 7001 accept") < at("ip daddr 127.255.3.4 drop"));
    }

    #[test]
    fn reads_durations_of_nft() {
        assert_eq!(span("59m58s68ms"), Some(Duration::from_millis(3_598_068)));
        assert_eq!(span("1h"), Some(Duration::from_secs(3600)));
        assert_eq!([span("5x"), span("s"), span("ms5")], [None; 3]);
    }

    #[test]
    fn refuses_the_machines_namespace() {
        if !in_private_namespace() {
            assert!(Partition::possible().is_err());
        }
    }
}
