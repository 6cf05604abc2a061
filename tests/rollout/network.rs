//! A node with pods and a service, built from network namespaces.
//!
//! The test runs on the node. Each pod has its own namespace and address on a bridge. The service
//! has an address without an interface: packet filter rules send each new connection to a random
//! endpoint and remember the choice, as kube-proxy does; existing connections keep their endpoint.
//!
//! Everything is in the test's own namespaces, including mounts, so nothing is left when it ends.
//! It needs root; otherwise the tests fail and say so.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use harness::{find_in_path, in_private_namespace};

/// The address of the node.
pub(crate) const NODE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// The address of the service.
pub(crate) const SERVICE: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)), 6379);
/// The ports of a pod for clients and for probes.
pub(crate) const PORTS: (u16, u16) = (6379, 8888);

/// Set in the process that runs inside the namespaces.
const INSIDE: &str = "ROLLOUT_INSIDE";
const SCRIPT: &str = "mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && exec \"$0\" \"$@\"";

/// Runs `inside` in new namespaces, in which this test is started again.
pub(crate) fn inside(test: &str, inside: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        assert!(in_private_namespace(), "{INSIDE} is set, and this is the machine's own network");
        build();
        inside();
        return;
    }
    for program in ["unshare", "ip", "nft"] {
        assert!(
            find_in_path(program).is_some(),
            "{program} is missing: Debian's util-linux, iproute2 and nftables"
        );
    }
    let this = std::env::current_exe().expect("the path of this test");
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--propagation", "private", "--", "sh", "-c", SCRIPT]);
    command
        .arg(this)
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(INSIDE, "1")
        .process_group(0);
    let status = command.status().expect("unshare");
    assert!(
        status.success(),
        "{test} failed in its namespaces (root is needed to make them): {status}"
    );
}

fn build() {
    ip(&["link", "set", "lo", "up"]);
    ip(&["link", "add", "node", "type", "bridge"]);
    ip(&["addr", "add", &format!("{NODE}/16"), "dev", "node"]);
    ip(&["link", "set", "node", "up"]);
    ip(&["route", "add", &format!("{}/32", SERVICE.ip()), "dev", "node"]);
}

/// Creates a pod's namespace. It is not removed: the node ends with the test.
pub(crate) fn pod(number: u8) -> (String, Ipv4Addr) {
    let (name, outside) = (format!("pod-{number}"), format!("pod{number}"));
    let address = Ipv4Addr::new(10, 77, 1, number);
    ip(&["netns", "add", &name]);
    ip(&["link", "add", &outside, "type", "veth", "peer", "name", "eth0", "netns", &name]);
    ip(&["link", "set", &outside, "master", "node", "up"]);
    ip(&["-n", &name, "addr", "add", &format!("{address}/16"), "dev", "eth0"]);
    ip(&["-n", &name, "link", "set", "eth0", "up"]);
    ip(&["-n", &name, "link", "set", "lo", "up"]);
    (name, address)
}

/// Sends new connections to these pods from now on.
pub(crate) fn set_endpoints(pods: &BTreeSet<Ipv4Addr>) {
    let map: Vec<String> =
        pods.iter().enumerate().map(|(number, pod)| format!("{number} : {pod}")).collect();
    let verdict = match map.len() {
        0 => "drop".to_owned(),
        count => format!("dnat to numgen random mod {count} map {{ {} }}", map.join(", ")),
    };
    let (ip, port) = (SERVICE.ip(), SERVICE.port());
    let rules = format!(
        "table ip services\ndelete table ip services\ntable ip services {{\n  chain output {{\n    type nat hook output \
         priority -100; policy accept;\n    ip daddr {ip} tcp dport {port} {verdict}\n  }}\n}}\n"
    );
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("nft");
    nft.stdin.take().expect("a pipe").write_all(rules.as_bytes()).expect("nft's input");
    assert!(nft.wait().expect("nft").success(), "nft refused\n{rules}");
}

fn ip(args: &[&str]) {
    let status = Command::new("ip").args(args).status().expect("ip");
    assert!(status.success(), "ip {args:?}: {status}");
}
