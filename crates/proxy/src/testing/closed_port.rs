//! A port on which nothing listens.

use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};

/// A port that refuses connections until the socket listens, and that no other socket gets as long
/// as this one is open.
pub(crate) fn closed_port() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // Allows a listener on the same port. The kernel does not choose the port for another socket
    // even so.
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let addr = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, addr)
}
