//! Installs the packages that a command needs and this machine lacks.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use harness::{BROWSERS, Binary, find_in_path};

use crate::needs::{
    BROWSER, DIST, HAPROXY, IPROUTE, NFTABLES, NPM, Need, OPENSSL, REDIS, VALGRIND, advice,
};
use crate::seconds;

/// Installs redis-server and redis-sentinel if they are missing.
///
/// # Errors
/// A message for people: the command to run, or what failed.
pub fn whatever_is_missing() -> Result<(), String> {
    install(&[REDIS])
}

/// Installs what the tests need: Redis, and if possible the tools for network faults and for the
/// status page.
///
/// # Errors
/// Like [`whatever_is_missing`]. The optional tools may stay missing; tests that need them report
/// it.
pub fn for_tests() -> Result<(), String> {
    for_failovers_of_ours()?;
    // The cut-over from haproxy is a test.
    if_possible(&[HAPROXY, OPENSSL]);
    let page: &[Need] = if harness::has_axe_core() { &[BROWSER] } else { &[BROWSER, NPM] };
    if_possible(page);
    if !harness::has_axe_core() {
        println!("Getting axe-core from npm, into target/page-tools");
        if let Err(why) = harness::axe_core() {
            println!("{why}");
        }
    }
    Ok(())
}

/// Installs Redis, and if possible the tools that cut networks.
///
/// # Errors
/// Like [`whatever_is_missing`]; the tools that cut networks may stay missing.
pub fn for_failovers_of_ours() -> Result<(), String> {
    install(&[REDIS])?;
    if_possible(&[NFTABLES, IPROUTE]);
    Ok(())
}

/// Installs what the failover benchmark needs in addition: haproxy, and if possible the tools that
/// cut networks.
///
/// # Errors
/// Like [`whatever_is_missing`]; the tools that cut networks may stay missing.
pub fn for_failovers() -> Result<(), String> {
    install(&[HAPROXY])?;
    for_failovers_of_ours()
}

/// Installs what the traffic benchmark needs: Redis, and `ip` for a network namespace.
///
/// # Errors
/// Like [`whatever_is_missing`]; `ip` may stay missing.
pub fn for_traffic() -> Result<(), String> {
    install(&[REDIS])?;
    if_possible(&[IPROUTE]);
    Ok(())
}

/// Installs valgrind, which counts instructions.
///
/// # Errors
/// Like [`whatever_is_missing`].
pub fn for_instructions() -> Result<(), String> {
    install(&[VALGRIND])
}

/// Installs what a release is built and tried out with.
///
/// # Errors
/// Like [`whatever_is_missing`].
pub fn for_dist() -> Result<(), String> {
    install(&[&DIST[..], &[REDIS]].concat())
}

fn if_possible(needs: &[Need]) {
    if let Err(why) = install(needs) {
        println!("{why}");
    }
}

fn install(needs: &[Need]) -> Result<(), String> {
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let apt = find_in_path("apt-get").is_some();
    if !apt || !rustix::process::geteuid().is_root() {
        return Err(advice(&missing, apt));
    }
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    let names = packages.join(", ");
    println!("Installing {names} (it is missing, and this runs as root)");
    let start = Instant::now();
    let install = [&["install", "-y", "--no-install-recommends"], &packages[..]].concat();
    // The lists may be missing, or older than the archive.
    let is_done = apt_get(&install, Stdio::null())
        || (apt_get(&["update"], Stdio::inherit()) && apt_get(&install, Stdio::inherit()));
    if !is_done {
        return Err(format!("Installing {names} failed; apt-get says why above."));
    }
    println!("Installed in {}\n", seconds(start.elapsed()));
    if self::missing(needs).is_empty() {
        Ok(())
    } else {
        Err("It is installed and still not found in PATH.".to_owned())
    }
}

/// Runs apt-get, which says nothing but its errors. Whether it succeeded.
fn apt_get(args: &[&str], errors: Stdio) -> bool {
    let mut command = Command::new("apt-get");
    command.arg("-qq").args(args).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(errors).status().is_ok_and(|status| status.success())
}

fn missing(needs: &[Need]) -> Vec<Need> {
    needs.iter().copied().filter(|need| !is_here(*need)).collect()
}

fn is_here(need: Need) -> bool {
    if need == REDIS {
        return Binary::Server.find().is_some() && Binary::Sentinel.find().is_some();
    }
    if need == BROWSER {
        return std::env::var_os("CHROMIUM").is_some()
            || BROWSERS.iter().any(|name| find_in_path(name).is_some());
    }
    // Programs for root are often not in the PATH of other users.
    let elsewhere = ["/usr/sbin", "/sbin"].map(|folder| Path::new(folder).join(need.what));
    find_in_path(need.what).is_some() || elsewhere.iter().any(|path| path.is_file())
}
