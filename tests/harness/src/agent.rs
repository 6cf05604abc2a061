//! The agents of haproxy's agent checks: one beside each server, which says whether the sentinel
//! beside it names that server as the master.
//!
//! An agent has the server's address, so that a [`Cut`](crate::Cut) separates it, too.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::client::Client;
use crate::cluster::Cluster;
use crate::wait::pause;

/// How often it looks for a question.
const LOOK: Duration = Duration::from_millis(10);
/// How long it waits for the sentinel.
const PATIENCE: Duration = Duration::from_millis(500);

/// A running agent. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Agent {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// One agent per server of the first group.
    ///
    /// # Panics
    /// If a port cannot be bound, or there is no sentinel.
    #[track_caller]
    pub(crate) fn beside_each(cluster: &Cluster) -> Vec<Self> {
        let sentinels = cluster.sentinel_addrs();
        let beside = sentinels.iter().cycle();
        let pairs = cluster.nodes().iter().map(crate::Node::addr).zip(beside);
        pairs.map(|(server, sentinel)| Self::start(server, *sentinel, cluster.name())).collect()
    }

    #[track_caller]
    fn start(server: SocketAddr, sentinel: SocketAddr, name: &str) -> Self {
        let IpAddr::V4(own) = server.ip() else { panic!("agents need IPv4") };
        let listener = TcpListener::bind((own, 0)).expect("a port for an agent");
        listener.set_nonblocking(true).expect("a listener that does not block");
        let port = listener.local_addr().expect("its address").port();
        let stop = Arc::new(AtomicBool::new(false));
        let (is_over, name) = (Arc::clone(&stop), name.to_owned());
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::Acquire) {
                let Ok((mut asking, _)) = listener.accept() else {
                    pause(LOOK);
                    continue;
                };
                let word =
                    if named(own, sentinel, &name) == Some(server) { "up\n" } else { "down\n" };
                // haproxy may have given up.
                let _ = asking.write_all(word.as_bytes());
            }
        });
        Self { port, stop, thread: Some(thread) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // A thread that panicked has printed the reason.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The master that a sentinel names to a client with this address.
pub(crate) fn named(own: Ipv4Addr, sentinel: SocketAddr, name: &str) -> Option<SocketAddr> {
    let mut client = Client::connect_from(own, sentinel).ok()?;
    client.set_timeout(PATIENCE).ok()?;
    let reply = client.cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name]).ok()?;
    let [host, port] = reply.items() else { return None };
    Some(SocketAddr::new(host.text()?.parse().ok()?, port.int()?.try_into().ok()?))
}
