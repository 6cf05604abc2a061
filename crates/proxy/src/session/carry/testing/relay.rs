//! Lets a model server speak TLS: accepts TLS connections and relays each to a plain one.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use tls::rustls::{IoState, ServerConfig, ServerConnection};

/// Accepts connections until it is dropped.
pub(crate) struct TlsRelay {
    pub(crate) addr: SocketAddr,
    is_over: Arc<AtomicBool>,
}

impl TlsRelay {
    pub(crate) fn start(server: SocketAddr, config: Arc<ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let is_over = Arc::<AtomicBool>::default();
        let over = Arc::clone(&is_over);
        thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(inner) = TcpStream::connect(server) else { continue };
                socket.set_nodelay(true).unwrap();
                inner.set_nodelay(true).unwrap();
                let tls = ServerConnection::new(Arc::clone(&config)).unwrap();
                let both = Arc::new(Connection { tls: Mutex::new(tls), socket, inner });
                let other = Arc::clone(&both);
                thread::spawn(move || both.relay_requests());
                thread::spawn(move || other.relay_replies());
            }
        });
        Self { addr, is_over }
    }
}

impl Drop for TlsRelay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.addr));
    }
}

struct Connection {
    tls: Mutex<ServerConnection>,
    socket: TcpStream,
    inner: TcpStream,
}

impl Connection {
    fn relay_requests(&self) {
        let mut received = [0; 4096];
        while let Ok(read @ 1..) = (&self.socket).read(&mut received) {
            let Some(requests) = self.decrypt(&received[..read]) else { break };
            if (&self.inner).write_all(&requests).is_err() {
                break;
            }
        }
        drop(self.inner.shutdown(Shutdown::Write));
    }

    /// `None` if the peer broke the protocol.
    fn decrypt(&self, mut received: &[u8]) -> Option<Vec<u8>> {
        let (mut tls, mut requests) = (self.tls.lock().unwrap(), Vec::new());
        while !received.is_empty() {
            tls.read_tls(&mut received).unwrap();
            let state = tls.process_new_packets();
            let before = requests.len();
            let arrived = state.as_ref().map_or(0, IoState::plaintext_bytes_to_read);
            requests.resize(before + arrived, 0);
            tls.reader().read_exact(&mut requests[before..]).unwrap();
            self.send(&mut tls);
            state.ok()?;
        }
        Some(requests)
    }

    fn relay_replies(&self) {
        let mut replies = [0; 4096];
        while let Ok(read @ 1..) = (&self.inner).read(&mut replies) {
            let mut tls = self.tls.lock().unwrap();
            tls.writer().write_all(&replies[..read]).unwrap();
            self.send(&mut tls);
        }
        let mut tls = self.tls.lock().unwrap();
        tls.send_close_notify();
        self.send(&mut tls);
        drop(self.socket.shutdown(Shutdown::Both));
    }

    fn send(&self, tls: &mut ServerConnection) {
        while tls.wants_write() && tls.write_tls(&mut &self.socket).is_ok() {}
    }
}
