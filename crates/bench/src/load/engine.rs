//! One epoll instance for the backend and the clients.
//!
//! Edge-triggered, so that a client costs one `recv` and one `send` per request and no `epoll_ctl`:
//! after an event, a socket is read until a read returns less than was asked for.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::sink::{LISTENER, SINK, Sink};

/// The size of one read.
const BUFFER: usize = 256 << 10;
/// The event number of the timer.
const TICK: u64 = u64::MAX - 1;
/// Events per call.
const EVENTS: usize = 512;

/// The event loop. It serves the backend; the clients belong to the jobs.
#[allow(missing_debug_implementations, reason = "the kernel's events have none")]
pub struct Engine {
    epoll: OwnedFd,
    sink: Sink,
    events: Vec<epoll::Event>,
    timer: Option<OwnedFd>,
    pub(crate) buffer: Vec<u8>,
    /// Numbers of the clients with events from the last [`turn`](Self::turn).
    ready: Vec<usize>,
}

impl Engine {
    pub(crate) fn new(at: SocketAddr) -> io::Result<(Self, SocketAddr)> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let sink = Sink::new(listener(at)?);
        let addr = sink.addr()?;
        epoll::add(
            &epoll,
            sink.listener(),
            epoll::EventData::new_u64(LISTENER),
            epoll::EventFlags::IN,
        )?;
        let (events, ready) = (Vec::with_capacity(EVENTS), Vec::with_capacity(EVENTS));
        Ok((Self { epoll, sink, events, timer: None, buffer: vec![0; BUFFER], ready }, addr))
    }

    /// Watches a client under a number.
    pub(crate) fn watch(&self, stream: &TcpStream, number: usize) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, stream, epoll::EventData::new_u64(number as u64), flags())?)
    }

    /// Sets how often [`turn`](Self::turn) returns at least; `None` removes the limit. The timeout
    /// of `turn` itself has a resolution of milliseconds.
    pub(crate) fn tick_every(&mut self, gap: Option<Duration>) -> io::Result<()> {
        self.timer = None;
        if let Some(gap) = gap.map(timespec) {
            let timer = timerfd_create(
                TimerfdClockId::Monotonic,
                TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
            )?;
            timerfd_settime(
                &timer,
                TimerfdTimerFlags::empty(),
                &Itimerspec { it_interval: gap, it_value: gap },
            )?;
            epoll::add(
                &self.epoll,
                &timer,
                epoll::EventData::new_u64(TICK),
                epoll::EventFlags::IN,
            )?;
            self.timer = Some(timer);
        }
        Ok(())
    }

    /// Waits for events, serves those of the backend, and calls `serve` with the number of each
    /// client that has events.
    pub(crate) fn turn_with(
        &mut self,
        mut serve: impl FnMut(&mut Self, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        self.turn(Duration::from_millis(100))?;
        let ready = std::mem::take(&mut self.ready);
        ready.iter().try_for_each(|number| serve(self, *number))?;
        self.ready = ready;
        Ok(())
    }

    /// Waits for events, serves those of the backend, and collects the clients that have events.
    pub(crate) fn turn(&mut self, timeout: Duration) -> io::Result<()> {
        self.events.clear();
        self.ready.clear();
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut self.events),
            Some(&timespec(timeout)),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &self.events {
            let number = event.data.u64();
            if number == TICK {
                // The read rearms the timer; the number of expirations and an error do not matter.
                let _ = self.timer.as_ref().map(|timer| rustix::io::read(timer, &mut [0_u8; 8]));
            } else if number == LISTENER {
                self.sink.accept(&self.epoll, flags())?;
            } else if number & SINK != 0 {
                self.sink.serve(place(number), &mut self.buffer);
            } else {
                self.ready.push(place(number));
            }
        }
        Ok(())
    }
}

fn flags() -> epoll::EventFlags {
    epoll::EventFlags::IN
        | epoll::EventFlags::OUT
        | epoll::EventFlags::RDHUP
        | epoll::EventFlags::ET
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number & (SINK - 1)).unwrap_or(usize::MAX)
}

/// A listener whose queue holds as many connections as may arrive at once.
fn listener(at: SocketAddr) -> io::Result<TcpListener> {
    let socket =
        socket2::Socket::new(socket2::Domain::for_address(at), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&at.into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}
