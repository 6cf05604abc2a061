//! A Service whose endpoint a controller moves after a failover, as operators of Redis on
//! Kubernetes do with a label.
//!
//! The packet filter translates the address of new connections to that of the endpoint, like
//! kube-proxy. Connections that exist keep their server, whatever happens to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::agent::named;
use crate::cluster::{Cluster, HARNESS};
use crate::netns::nft;
use crate::wait::pause;

/// How often the controller asks the sentinels.
const LOOK: Duration = Duration::from_millis(100);

/// A Service and its controller. Dropping it ends both.
#[derive(Debug)]
pub struct Service {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts a Service in front of the master, whose controller moves it `delay` after a majority
    /// of the sentinels has named another one.
    ///
    /// # Panics
    /// Outside of a private network namespace, or if `nft` refuses the rules.
    #[must_use]
    #[track_caller]
    pub fn start(cluster: &Cluster, delay: Duration) -> Self {
        let addr = cluster.address().port();
        let (sentinels, name) = (cluster.sentinel_addrs(), cluster.name().to_owned());
        let mut endpoint = cluster.master().addr();
        set(addr, endpoint).unwrap_or_else(|why| panic!("{why}"));
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut due: Option<(SocketAddr, Instant)> = None;
            while !is_over.load(Ordering::Acquire) {
                let master = majority(&sentinels, &name).filter(|it| *it != endpoint);
                due = master.map(|master| match due {
                    Some((known, at)) if known == master => (known, at),
                    _ => (master, Instant::now() + delay),
                });
                if let Some((master, _)) = due.filter(|(_, at)| *at <= Instant::now()) {
                    match set(addr, master) {
                        Ok(()) => endpoint = master,
                        Err(why) => eprintln!("an endpoint cannot be moved: {why}"),
                    }
                }
                pause(LOOK);
            }
        });
        Self { addr, stop, thread: Some(thread) }
    }

    /// The address of the Service.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // A thread that panicked has printed the reason.
        let _ = self.thread.take().map(JoinHandle::join);
        if let Err(why) = nft(&format!("delete table ip {}\n", table(self.addr))) {
            eprintln!("a Service cannot be taken away: {why}");
        }
    }
}

fn table(addr: SocketAddr) -> String {
    format!("harness_service_{}", addr.port())
}

/// Translates new connections to this endpoint from now on.
fn set(addr: SocketAddr, endpoint: SocketAddr) -> Result<(), String> {
    let (table, ip, port) = (table(addr), addr.ip(), addr.port());
    let chain = "chain output { type nat hook output priority -100; policy accept;";
    nft(&format!(
        "table ip {table}\ndelete table ip {table}\n\
         table ip {table} {{ {chain}\nip daddr {ip} tcp dport {port} dnat to {endpoint}\n}}\n}}\n"
    ))
}

/// The master that more than half of the sentinels name.
fn majority(sentinels: &[SocketAddr], name: &str) -> Option<SocketAddr> {
    let named: Vec<_> =
        sentinels.iter().filter_map(|sentinel| named(HARNESS, *sentinel, name)).collect();
    let votes = |addr: &SocketAddr| named.iter().filter(|it| *it == addr).count();
    named.iter().copied().find(|addr| votes(addr) * 2 > sentinels.len())
}
