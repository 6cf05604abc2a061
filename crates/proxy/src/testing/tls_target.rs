//! Servers played by a test that speak TLS.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use socket2::SockRef;
use tls::rustls::{ServerConfig, ServerConnection, StreamOwned};
use tls::{
    ClientCertificates, ClientSettings, ClientSide, ClientTls, Protocols, Roots, ServerSettings,
    ServerTls, TlsConnection, Version,
};

use crate::Options;
use crate::io::stream::{ByteStream, SocketStream};
use crate::io::tls_stream::{HandshakeStep, TlsStream};
use crate::runtime::reactor::{self, Reactor, poll_events};
use crate::session::carry::proof_tests::PING;
use crate::testing::Backend;
use crate::testing::tls_client::{NAME, TestCa};

/// The server's side of a TLS connection over a blocking socket.
pub(crate) type TlsServer = StreamOwned<ServerConnection, TcpStream>;

impl TestCa {
    /// What sessions with targets trust and ask for.
    pub(crate) fn target_settings(&self) -> ClientSettings {
        ClientSettings {
            roots: Roots::Own(self.file()),
            server_name: Some(NAME.to_owned()),
            ..ClientSettings::default()
        }
    }

    /// `options`, for targets that speak TLS.
    pub(crate) fn towards_targets(&self, options: Options) -> Options {
        let tls = ClientTls::new(&self.target_settings()).unwrap();
        Options { target_tls: Some(tls), ..options }
    }

    /// A server with the certificate of this CA.
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        ServerTls::new(&self.settings()).unwrap().config()
    }

    pub(crate) fn server_of(&self, version: Version) -> Arc<ServerConfig> {
        let protocols = Protocols { min: version, max: version, ..Protocols::default() };
        let settings = ServerSettings { protocols, ..self.settings() };
        ServerTls::new(&settings).unwrap().config()
    }

    /// A server that asks clients for a certificate of this CA.
    pub(crate) fn mutual_server(&self, version: Version) -> Arc<ServerConfig> {
        let settings = ServerSettings {
            client_certificates: ClientCertificates::Required,
            client_ca: Some(self.file()),
            protocols: Protocols { min: version, max: version, ..Protocols::default() },
            ..self.settings()
        };
        ServerTls::new(&settings).unwrap().config()
    }
}

impl Backend {
    /// The next connection of the proxy, with which the server has shaken hands.
    pub(crate) fn accept_tls(&self, config: &Arc<ServerConfig>) -> TlsServer {
        let mut server = self.accept_silent_tls(config);
        while server.conn.is_handshaking() {
            server.conn.complete_io(&mut server.sock).unwrap();
        }
        server
    }

    /// The next connection of the proxy, after the server has proved itself by an answer.
    pub(crate) fn accept_proved_tls(&self, config: &Arc<ServerConfig>) -> TlsServer {
        let mut server = self.accept_tls(config);
        answer_proof_tls(&mut server);
        server
    }

    /// The next connection with which the handshake succeeds.
    pub(crate) fn accept_next_tls(&self, config: &Arc<ServerConfig>) -> TlsServer {
        loop {
            let mut server = self.accept_silent_tls(config);
            while server.conn.is_handshaking() && server.conn.complete_io(&mut server.sock).is_ok()
            {
            }
            if !server.conn.is_handshaking() {
                return server;
            }
        }
    }

    /// The next connection of the proxy, with which the server has yet to shake hands.
    pub(crate) fn accept_silent_tls(&self, config: &Arc<ServerConfig>) -> TlsServer {
        let connection = ServerConnection::new(Arc::clone(config)).unwrap();
        StreamOwned::new(connection, self.accept())
    }
}

/// Plays the answer by which a server proves itself.
#[track_caller]
pub(crate) fn answer_proof_tls(server: &mut TlsServer) {
    expect_from(server, PING);
    say(server, b"+PONG\r\n");
}

/// Reads exactly these bytes.
#[track_caller]
pub(crate) fn expect_from(stream: &mut impl Read, bytes: &[u8]) {
    let mut read = vec![0; bytes.len()];
    stream.read_exact(&mut read).unwrap();
    assert_eq!(String::from_utf8_lossy(&read), String::from_utf8_lossy(bytes));
}

#[track_caller]
pub(crate) fn say(stream: &mut impl Write, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    stream.flush().unwrap();
}

/// Reads to the end, and returns whether it was announced.
#[track_caller]
pub(crate) fn read_to_end(server: &mut TlsServer) -> (Vec<u8>, bool) {
    let mut read = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match server.read(&mut buffer) {
            Ok(0) => return (read, true),
            Ok(n) => read.extend_from_slice(&buffer[..n]),
            Err(error) => {
                let closed = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
                assert!(closed.contains(&error.kind()), "{error}");
                return (read, false);
            }
        }
    }
}

/// A connection to a server over a socket pair with small buffers, whose other end the test plays
/// record by record.
pub(crate) struct FarEnd {
    pub(crate) conn: ServerConnection,
    pub(crate) sock: UnixStream,
    /// Decrypted.
    pub(crate) read: Vec<u8>,
    /// Bytes taken from the socket.
    pub(crate) received: usize,
    _eventfd: std::os::fd::OwnedFd,
}

pub(crate) fn noop() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Records the events of all sockets of this thread.
pub(crate) fn record_events() {
    poll_events(&mut reactor::no_events(), Some(&reactor::NO_WAIT), drop).unwrap();
}

impl FarEnd {
    /// Both ends after the handshake.
    pub(crate) fn pair(version: Version) -> (TlsStream<ClientSide>, Self) {
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        reactor::install(Reactor::new(&eventfd).unwrap());
        let (ours, theirs) = UnixStream::pair().unwrap();
        for socket in [&ours, &theirs] {
            socket.set_nonblocking(true).unwrap();
            SockRef::from(socket).set_send_buffer_size(1).unwrap();
        }
        let ca = TestCa::new();
        let client = ClientTls::new(&ca.target_settings()).unwrap();
        let (config, name) = client.connect(NAME).unwrap();
        let connection = TlsConnection::connect(config, name).unwrap();
        let socket = SocketStream::accepted(ours.into(), false).unwrap();
        let mut stream = TlsStream::new(socket, connection);
        let conn = ServerConnection::new(ca.server_of(version)).unwrap();
        let mut far = Self { conn, sock: theirs, read: Vec::new(), received: 0, _eventfd: eventfd };
        far.shake(&mut stream);
        far.received = 0;
        (stream, far)
    }

    fn shake(&mut self, stream: &mut TlsStream<ClientSide>) {
        let mut received = Vec::new();
        loop {
            record_events();
            stream.update_readiness(&mut noop());
            match stream.poll_handshake(&mut noop(), &mut received) {
                Poll::Ready(Ok(HandshakeStep::Complete)) => break,
                Poll::Ready(Ok(HandshakeStep::Receive)) => {
                    let _read = stream.poll_receive(&mut noop(), &mut received);
                }
                Poll::Ready(Err(error)) => panic!("{error:?}"),
                Poll::Pending => {}
            }
            self.progress();
        }
        while self.progress() > 0 || self.conn.wants_write() {}
        assert!(!self.conn.is_handshaking());
    }

    /// Sends and receives what is possible at once. Returns how much was received.
    pub(crate) fn progress(&mut self) -> usize {
        while self.conn.wants_write() && self.conn.write_tls(&mut self.sock).is_ok() {}
        let mut taken = 0;
        while let Ok(read @ 1..) = self.conn.read_tls(&mut self.sock) {
            taken += read;
            let state = self.conn.process_new_packets().unwrap();
            let mut piece = vec![0; state.plaintext_bytes_to_read()];
            self.conn.reader().read_exact(&mut piece).unwrap();
            self.read.append(&mut piece);
        }
        self.received += taken;
        taken
    }
}
