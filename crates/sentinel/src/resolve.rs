//! Names to addresses, without ever waiting for a name server on a worker and without piling up look-ups.
//!
//! The system's resolver may block for minutes. Each [`Lookup`] therefore has at most one look-up under way, on the runtime's
//! bounded pool of blocking threads; who asks waits for as long as it can afford and finds the answer later if it comes late.
//! The last good answer is kept while look-ups fail.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use tokio::task::JoinHandle;

/// The most addresses taken from one name.
const MAX_ADDRESSES: usize = 32;

/// Why a name has no address now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResolveError {
    /// The resolver said no, or gave nothing.
    #[error("the name does not resolve")]
    NotFound,
    /// The resolver did not answer in time; it goes on in the background.
    #[error("the name server does not answer")]
    TimedOut,
}

/// One name with its port.
#[derive(Debug)]
pub(crate) struct Lookup {
    host: Box<str>,
    port: u16,
    pending: Option<JoinHandle<Vec<SocketAddr>>>,
    last_good: Vec<SocketAddr>,
}

impl Lookup {
    pub(crate) fn new(host: &str, port: u16) -> Self {
        Self { host: host.into(), port, pending: None, last_good: Vec::new() }
    }

    /// The addresses now: at once for an IP address, else by asking, for `patience` at most. Fails only if there is no
    /// earlier answer to fall back on.
    pub(crate) async fn addresses(&mut self, patience: Duration) -> Result<Vec<SocketAddr>, ResolveError> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, self.port)]);
        }
        let pending = self.pending.get_or_insert_with(|| {
            let (host, port) = (self.host.clone(), self.port);
            tokio::task::spawn_blocking(move || look_up(&host, port))
        });
        let error = match tokio::time::timeout(patience, pending).await {
            Err(_) => ResolveError::TimedOut,
            Ok(answer) => {
                self.pending = None;
                let found = answer.unwrap_or_default();
                if !found.is_empty() {
                    self.last_good.clone_from(&found);
                    return Ok(found);
                }
                ResolveError::NotFound
            }
        };
        if self.last_good.is_empty() { Err(error) } else { Ok(self.last_good.clone()) }
    }
}

fn look_up(host: &str, port: u16) -> Vec<SocketAddr> {
    let mut found: Vec<SocketAddr> = (host, port).to_socket_addrs().map(|it| it.collect()).unwrap_or_default();
    found.sort_unstable();
    found.dedup();
    found.truncate(MAX_ADDRESSES);
    found
}

/// Whether a connection to `addr` would come back to one of our own listeners.
pub(crate) fn leads_back(addr: SocketAddr, own: &[SocketAddr]) -> bool {
    own.iter().any(|ours| {
        ours.port() == addr.port() && (ours.ip() == addr.ip() || (ours.ip().is_unspecified() && is_local(addr.ip())))
    })
}

/// Whether `ip` belongs to this machine: only then can a socket be bound to it.
fn is_local(ip: IpAddr) -> bool {
    std::net::UdpSocket::bind((ip, 0)).is_ok()
}

/// Whether an address that a sentinel at `said_by` announces can be meant for us. A sentinel on another machine that announces
/// a loopback address means itself.
pub(crate) fn is_usable(ip: IpAddr, said_by: IpAddr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast() && (!ip.is_loopback() || said_by.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_needs_no_resolver_and_a_bad_name_is_an_error() {
        let mut lookup = Lookup::new("::1", 26379);
        assert_eq!(lookup.addresses(Duration::ZERO).await, Ok(vec!["[::1]:26379".parse().expect("address")]));
        let mut lookup = Lookup::new("name.invalid", 1);
        assert_eq!(lookup.addresses(Duration::from_secs(30)).await, Err(ResolveError::NotFound));
    }

    #[tokio::test]
    async fn the_last_good_answer_outlives_a_failing_resolver() {
        let good: SocketAddr = "10.1.2.3:1".parse().expect("address");
        let mut lookup = Lookup::new("name.invalid", 1);
        lookup.last_good = vec![good];
        assert_eq!(lookup.addresses(Duration::from_secs(30)).await, Ok(vec![good]));
    }

    #[test]
    fn our_own_listeners_are_recognised() {
        let own: Vec<SocketAddr> = ["0.0.0.0:6379", "192.0.2.1:7000"].map(|it| it.parse().expect("address")).to_vec();
        assert!(leads_back("127.0.0.1:6379".parse().expect("address"), &own));
        assert!(leads_back("192.0.2.1:7000".parse().expect("address"), &own));
        assert!(!leads_back("127.0.0.1:6380".parse().expect("address"), &own));
        assert!(!leads_back("198.51.100.7:6379".parse().expect("address"), &own));
    }

    #[test]
    fn loopback_means_the_speaker_unless_we_share_the_machine() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("address");
        assert!(!is_usable(ip("127.0.0.1"), ip("10.0.0.1")));
        assert!(is_usable(ip("127.0.0.1"), ip("127.0.0.2")));
        assert!(!is_usable(ip("0.0.0.0"), ip("127.0.0.1")));
        assert!(is_usable(ip("10.0.0.1"), ip("10.0.0.2")));
    }
}
