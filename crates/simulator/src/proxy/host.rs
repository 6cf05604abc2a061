//! The host of one proxy: its names, connections and clocks, on the simulated network.
//!
//! Discovery writes requests down here while its runtime runs; afterwards the proxy carries them
//! out on the network. What arrives from there wakes the tasks that wait for it.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use sentinel::{Answer, ByteStream, Host};
use target::ClockReading;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::net::ConnId;
use crate::wire::Micros;

/// The wall clock at the start of a run, in microseconds: in November 2023.
const WALL: Micros = 1_700_000_000_000_000;

/// A request of discovery to its host.
#[derive(Debug)]
pub(super) enum HostRequest {
    Dial(SocketAddr, oneshot::Sender<Socket>),
    LookUp(String, u16, oneshot::Sender<Vec<SocketAddr>>),
    Write(ConnId, Bytes),
    Close(ConnId),
}

/// What has arrived on a connection and was not read yet.
#[derive(Debug, Default)]
struct Received {
    data: BytesMut,
    has_ended: bool,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct HostState {
    now: Micros,
    mono: Micros,
    requests: Vec<HostRequest>,
    sockets: BTreeMap<ConnId, Received>,
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct SimulatedHost {
    itself: Weak<SimulatedHost>,
    state: Mutex<HostState>,
}

impl SimulatedHost {
    pub(super) fn new() -> Arc<Self> {
        let new = |itself: &Weak<Self>| Self { itself: itself.clone(), state: Mutex::default() };
        Arc::new_cyclic(new)
    }

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

    /// A connection that was established.
    pub(super) fn open(&self, id: ConnId) -> Option<Socket> {
        self.state().sockets.insert(id, Received::default());
        Some(Socket { id, host: self.itself.upgrade()? })
    }

    /// The open connections.
    pub(super) fn sockets(&self) -> Vec<ConnId> {
        let state = self.state();
        state.sockets.iter().filter(|(_, it)| !it.has_ended).map(|(id, _)| *id).collect()
    }

    /// Hands over what arrived; `None`: the connection ended. `false`: not one of these.
    pub(super) fn receive(&self, id: ConnId, data: Option<&[u8]>) -> bool {
        let mut state = self.state();
        let Some(socket) = state.sockets.get_mut(&id) else { return false };
        match data {
            Some(data) => socket.data.extend_from_slice(data),
            None => socket.has_ended = true,
        }
        if let Some(waker) = socket.waker.take() {
            waker.wake();
        }
        true
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
        let mut state = self.host.state();
        if state.sockets.get(&self.id).is_none_or(|it| it.has_ended) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
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
