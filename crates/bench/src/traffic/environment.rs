//! Prepares the machine for a measurement: limits, priority, loopback, congestion control, cores.

use std::fs;

use harness::loopback_up;
use rustix::process::setpriority_process;

use crate::{cores, space};

/// The nice value of all measured processes, for root.
const PRECEDENCE: i32 = -15;

/// Raises the limits on open files and ports, enables the loopback interface, and raises the
/// priority if allowed.
pub(super) fn prepare() {
    if let Err(error) = setpriority_process(None, PRECEDENCE) {
        println!("Measuring without precedence over other processes ({error}).");
    }
    // A limit that cannot be raised shows when it is reached.
    let _files = harness::raise_files();
    if space::entered().is_some() {
        if let Err(why) = loopback_up() {
            println!("{why}");
        }
        let set =
            |setting: &str, value: &str| fs::write(format!("/proc/sys/net/ipv4/{setting}"), value);
        if let Err(error) = set("ip_local_port_range", "10000 65535") {
            println!(
                "The range of ports stays as it is ({error}); new connections may run out of them."
            );
        }
        // BBR, the default of some machines, paces what it sends, but loopback has no bottleneck. A
        // namespace may choose only among what its parent allows, which always includes Reno;
        // without loss the two are the same.
        let control = "tcp_congestion_control";
        if let Err(error) = set(control, "cubic").or_else(|_| set(control, "reno")) {
            println!("The congestion control stays as it is ({error}).");
        }
    }
}

/// The core for load and Redis, to which this process and all its children are pinned; and the core
/// for the proxies.
pub(super) fn cores() -> Result<(usize, usize), String> {
    let [first, second, ..] = *cores::allowed()? else {
        return Err("This needs two cores: one for the proxy, one for everything else.".to_owned());
    };
    cores::pin(first)?;
    Ok((first, second))
}
