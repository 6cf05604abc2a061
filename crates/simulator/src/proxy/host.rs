//! The host of one proxy: its names, connections and clocks, on the simulated network.
//!
//! Discovery writes requests down here while its runtime runs; afterwards the proxy carries them
//! out on the network. What arrives from there wakes the tasks that wait for it.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use sentinel::{Answer, ByteStream, Host};
use target::ClockReading;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::net::{ConnId, Net};
use crate::wire::{Addr, Micros, Pid, SECOND};

/// The wall clock at the start of a run, in microseconds: in November 2023.
const WALL: Micros = 1_700_000_000_000_000;

/// The kernel ends a connection whose peer has not acknowledged anything for this long.
const USER_TIMEOUT: Micros = 3 * SECOND;
/// The kernel probes an idle peer at this interval; another host at its address answers with a
/// reset.
const KEEPALIVE: Micros = SECOND;

/// A request of discovery to its host.
#[derive(Debug)]
pub(super) enum HostRequest {
    Dial(SocketAddr, oneshot::Sender<Socket>),
    LookUp(String, u16, oneshot::Sender<Vec<SocketAddr>>),
    Write(ConnId, Bytes),
    Close(ConnId),
}

/// A connection, with what has arrived on it and was not read yet.
#[derive(Debug)]
struct OpenSocket {
    to: Addr,
    /// When the last request was written.
    asked: Micros,
    unacknowledged_since: Option<Micros>,
    data: BytesMut,
    has_ended: bool,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct HostState {
    now: Micros,
    mono: Micros,
    requests: Vec<HostRequest>,
    sockets: BTreeMap<ConnId, OpenSocket>,
}

impl OpenSocket {
    fn end(&mut self) {
        self.has_ended = true;
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct SimulatedHost {
    state: Mutex<HostState>,
}

impl SimulatedHost {
    fn state(&self) -> MutexGuard<'_, HostState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_clocks(&self, now: Micros, mono: Micros) {
        let mut state = self.state();
        (state.now, state.mono) = (now, mono);
    }

    pub(super) fn take_requests(&self) -> Vec<HostRequest> {
        std::mem::take(&mut self.state().requests)
    }

    /// A connection to `to` that was established at `asked`.
    pub(super) fn open(self: &Arc<Self>, id: ConnId, to: Addr, asked: Micros) -> Socket {
        let (data, has_ended, waker) = (BytesMut::new(), false, None);
        let socket = OpenSocket { to, asked, unacknowledged_since: None, data, has_ended, waker };
        self.state().sockets.insert(id, socket);
        Socket { id, host: Arc::clone(self) }
    }

    /// Hands over what arrived, and returns who answered, and when it was asked. `None`: not one of
    /// these connections.
    pub(super) fn receive(&self, id: ConnId, data: &[u8]) -> Option<(Addr, Micros)> {
        let mut state = self.state();
        let socket = state.sockets.get_mut(&id)?;
        socket.data.extend_from_slice(data);
        socket.waker.take().into_iter().for_each(Waker::wake);
        Some((socket.to, socket.asked))
    }

    /// The connection ended. `false`: not one of these.
    pub(super) fn end(&self, id: ConnId) -> bool {
        self.state().sockets.get_mut(&id).map(OpenSocket::end).is_some()
    }

    /// Ends connections to peers that are gone, as the kernel does.
    pub(super) fn check_connections(&self, pid: Pid, net: &mut Net) {
        let mut state = self.state();
        for (id, socket) in state.sockets.iter_mut().filter(|(_, it)| !it.has_ended) {
            let since = &mut socket.unacknowledged_since;
            if net.gives_up(*id, pid, socket.to, KEEPALIVE, USER_TIMEOUT, since) {
                socket.end();
                net.close(*id, pid);
            }
        }
    }
}

/// The reading of both clocks of a lease.
pub(super) fn reading(now: Micros, mono: Micros) -> ClockReading {
    ClockReading::of(mono * 1000, (WALL + now) * 1000)
}

impl Host for SimulatedHost {
    fn look_up(&self, host: &str, port: u16) -> Answer<Vec<SocketAddr>> {
        let (answer, answered) = oneshot::channel();
        self.state().requests.push(HostRequest::LookUp(host.to_owned(), port, answer));
        Box::pin(async move { answered.await.unwrap_or_default() })
    }

    fn dial(&self, addr: SocketAddr) -> Answer<io::Result<Box<dyn ByteStream>>> {
        let (answer, answered) = oneshot::channel();
        self.state().requests.push(HostRequest::Dial(addr, answer));
        Box::pin(async move {
            match answered.await {
                Ok(socket) => Ok(Box::new(socket) as Box<dyn ByteStream>),
                Err(_) => Err(io::ErrorKind::ConnectionRefused.into()),
            }
        })
    }

    fn clocks(&self) -> (Duration, Duration) {
        let now = self.state().now;
        (Duration::from_micros(now), Duration::from_micros(WALL + now))
    }

    fn lease_clocks(&self) -> ClockReading {
        let state = self.state();
        reading(state.now, state.mono)
    }
}

/// Discovery's end of a connection.
#[derive(Debug)]
pub(super) struct Socket {
    id: ConnId,
    host: Arc<SimulatedHost>,
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.host.state();
        let Some(socket) = state.sockets.get_mut(&self.id) else { return Poll::Ready(Ok(())) };
        if socket.data.is_empty() && !socket.has_ended {
            socket.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let length = socket.data.len().min(into.remaining());
        into.put_slice(&socket.data[..length]);
        socket.data.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut guard = self.host.state();
        let state = &mut *guard;
        let Some(socket) = state.sockets.get_mut(&self.id).filter(|it| !it.has_ended) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        socket.asked = state.mono;
        state.requests.push(HostRequest::Write(self.id, Bytes::copy_from_slice(bytes)));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let mut state = self.host.state();
        state.sockets.remove(&self.id);
        state.requests.push(HostRequest::Close(self.id));
    }
}
