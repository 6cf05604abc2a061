//! A slow network: what some addresses dial arrives late, in both directions.
//!
//! Kernels of test machines have no queue that delays packets, so connections are redirected to a
//! relay in this process. It forwards each piece after the delay, from the address of the dialler.
//! As in a network, what was sent and is not delivered is under way when its sender dies.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use crate::cut::set;
use crate::netns::{in_private_namespace, nft};
use crate::wait::pause;

const TABLE: &str = "harness_slow_link";
/// Marks the connections of the relay, which are not redirected.
const MARK: u32 = 0x51;
/// Pieces under way in one direction, at most; more wait at the sender.
const UNDER_WAY: usize = 4096;

/// Connections that are late. Dropping it lets new ones through; those that exist stay late.
#[derive(Debug)]
pub struct SlowLink(());

impl SlowLink {
    /// Delays everything on connections that are opened from these addresses, in each direction.
    ///
    /// # Panics
    /// Outside of a private network namespace, or if `nft` refuses the rules.
    #[must_use]
    #[track_caller]
    pub fn from(these: &[IpAddr], delay: Duration) -> Self {
        assert!(in_private_namespace(), "packets are redirected only in a private namespace");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port for the relay");
        let port = listener.local_addr().expect("its address").port();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A connection that cannot be opened is closed, as the server would.
                std::thread::spawn(move || relay(&client, delay));
            }
        });
        let rule = format!(
            "meta mark != {MARK} meta l4proto tcp ip saddr {} redirect to :{port}",
            set(these)
        );
        let chain = "chain dials { type nat hook output priority -100; policy accept;";
        nft(&format!("table ip {TABLE} {{ {chain}\n{rule}\n}}\n}}\n"))
            .unwrap_or_else(|why| panic!("{why}"));
        Self(())
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        if let Err(why) = nft(&format!("delete table ip {TABLE}\n")) {
            eprintln!("the network stays slow: {why}");
        }
    }
}

/// Connects to where `client` wanted to, and forwards both directions.
fn relay(client: &TcpStream, delay: Duration) -> io::Result<()> {
    let server = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    server.set_mark(MARK)?;
    server.bind(&SocketAddr::new(client.peer_addr()?.ip(), 0).into())?;
    server.connect(&SockRef::from(client).original_dst_v4()?)?;
    let server = TcpStream::from(server);
    for (from, to) in [(client, &server), (&server, client)] {
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        to.set_nodelay(true)?;
        let (late, due) = sync_channel(UNDER_WAY);
        std::thread::spawn(move || send_late(&late, from, delay));
        std::thread::spawn(move || deliver(&due, to));
    }
    Ok(())
}

/// Reads to the end; an empty piece is the end.
fn send_late(late: &SyncSender<(Instant, Vec<u8>)>, mut from: TcpStream, delay: Duration) {
    let mut buffer = [0; 16 * 1024];
    loop {
        let read = from.read(&mut buffer).unwrap_or(0);
        let piece = (Instant::now() + delay, buffer[..read].to_vec());
        if late.send(piece).is_err() || read == 0 {
            return;
        }
    }
}

fn deliver(due: &Receiver<(Instant, Vec<u8>)>, mut to: TcpStream) {
    for (at, piece) in due {
        pause(at.saturating_duration_since(Instant::now()));
        if piece.is_empty() || to.write_all(&piece).is_err() {
            break;
        }
    }
    // Both directions: a dead process reads nothing either.
    let _ = to.shutdown(Shutdown::Both);
}
