//! One session from its ticket to its close.

use std::net::SocketAddr;
use std::sync::Arc;

use drain::{Drain, Ticket};
use tokio::net::TcpStream;

use crate::close::Reason;
use crate::limits::Place;
use crate::worker::Seat;

/// A client that was let in.
#[derive(Debug)]
pub(crate) struct Session {
    client: TcpStream,
    peer: SocketAddr,
    seat: Arc<Seat>,
    ticket: Ticket,
    places: (Place, Place),
}

impl Session {
    pub(crate) fn new(
        client: TcpStream,
        peer: SocketAddr,
        seat: Arc<Seat>,
        drain: &Drain,
        places: (Place, Place),
    ) -> Self {
        seat.block.accepted.one();
        Self { client, peer, seat, ticket: drain.ticket(), places }
    }

    pub(crate) async fn run(self) {
        self.seat.block.close(Reason::Aborted);
    }
}
