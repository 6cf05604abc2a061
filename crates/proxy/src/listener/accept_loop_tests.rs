//! The accept loop before a listener that fails as the system rarely does: out of descriptors
//! everywhere, out of memory, and with clients that are gone before they are taken.

use std::collections::VecDeque;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::time::Instant;

use crate::address::Peer;
use crate::context::WorkerContext;
use crate::io::stream::SocketStream;
use crate::limits::Admission;
use crate::listener::accept_loop::{drain_queue, serve};
use crate::listener::inbox::Inboxes;
use crate::listener::listen_socket::{AcceptSource, ListenSocket};
use crate::runtime::reactor::{self, Reactor};
use crate::runtime::tasks;
use crate::runtime::tasks::WorkerHandle;
use crate::session::Session;
use crate::testing::{SOON, context};

/// Fails as told, then gives the clients of a real listener.
struct Faulty {
    faults: VecDeque<Errno>,
    /// So often there is no room, once there was a lack.
    cramped: AtomicUsize,
    tried: Arc<AtomicUsize>,
    then: ListenSocket,
}

impl AcceptSource for Faulty {
    fn poll_accept(&mut self, cx: &Context<'_>) -> Poll<Result<(OwnedFd, Peer), Errno>> {
        let polled = match self.faults.pop_front() {
            Some(errno) => Poll::Ready(Err(errno)),
            None => self.then.poll_accept(cx),
        };
        if polled.is_ready() {
            self.tried.fetch_add(1, Ordering::Relaxed);
        }
        polled
    }

    fn accept(&self) -> Result<(OwnedFd, Peer), Errno> {
        self.then.accept()
    }

    fn has_free_descriptors(&self) -> Result<(), Errno> {
        let left = self
            .cramped
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left.is_ok() { Err(Errno::MFILE) } else { Ok(()) }
    }
}

fn start(stream: SocketStream, peer: Peer, context: Arc<WorkerContext>, admission: Admission) {
    tasks::spawn(Session::new(peer, context, admission).run(stream));
}

/// Lets a client in behind these faults, and returns how often was tried, how long it took by the
/// test's clock, and the counted failures.
async fn behind(faults: &[Errno], cramped: usize) -> (usize, Duration, u64) {
    let home = WorkerHandle::new().unwrap();
    let _reactor = reactor::install(Reactor::new(home.wake_fd()).unwrap());
    let (_points, context) = context();
    let context = Arc::new(context);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    // A queue is taken to have somebody in it: an attempt that finds nobody would be one too many.
    let mut listen_socket = [PollFd::new(&listener, PollFlags::IN)];
    let soon = Timespec::try_from(SOON).unwrap();
    assert_eq!(poll(&mut listen_socket, Some(&soon)), Ok(1), "the client never came");
    let tried = Arc::new(AtomicUsize::new(0));
    let addr = listener.local_addr().unwrap().into();
    let then = ListenSocket::new(listener.into(), &addr).unwrap();
    let (faults, cramped) = (faults.iter().copied().collect(), AtomicUsize::new(cramped));
    let faulty = Faulty { faults, cramped, tried: Arc::clone(&tried), then };
    let begin = Instant::now();
    let accepted = async {
        while context.counters.accepted() == 0 {
            // A clock that jumps: a step for the pauses.
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(begin.elapsed() < Duration::from_secs(60), "nobody was let in");
        }
    };
    let (inboxes, permit) = (Inboxes::new([home]), context.drain.accept_permit());
    let serving = serve(faulty, Arc::clone(&context), (0, inboxes), start, permit);
    tokio::select! {
        () = serving => panic!("it ended"),
        () = accepted => {}
    }
    (tried.load(Ordering::Relaxed), begin.elapsed(), context.counters.accept_errors())
}

#[tokio::test(start_paused = true)]
async fn a_client_that_was_aborted_in_the_queue_holds_up_nobody() {
    let (tried, took, errors) = behind(&[Errno::CONNABORTED; 50], 0).await;
    assert!(tried >= 51 && errors == 50, "{tried} {errors}");
    assert!(took < Duration::from_millis(50), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn out_of_descriptors_or_memory_it_pauses_longer_and_longer_and_goes_on() {
    for errno in [Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::MFILE] {
        let (tried, took, errors) = behind(&[errno; 8], 0).await;
        // 5 + 10 + 20 + 40 + 80 + 160 + 320 + 500 ms, and no more attempts than failures and one
        // success or two.
        assert!((9..=10).contains(&tried) && errors == 8, "{errno:?}: {tried} {errors}");
        assert!(
            took >= Duration::from_millis(1135) && took < Duration::from_millis(1500),
            "{errno:?}: {took:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn in_want_of_descriptors_nobody_is_taken_who_could_not_be_served() {
    let (tried, took, errors) = behind(&[Errno::MFILE], 5).await;
    // Its one failure, and then nothing before there was room: 5 + 10 + 20 + 40 + 80 + 160 ms.
    assert!((2..=3).contains(&tried) && errors == 6, "{tried} {errors}");
    assert!(took >= Duration::from_millis(315) && took < Duration::from_millis(500), "{took:?}");
}

#[test]
fn lets_sessions_run_while_it_empties_the_queue() {
    const CLIENTS: usize = 100;
    let home = WorkerHandle::new().unwrap();
    let _reactor = reactor::install(Reactor::new(home.wake_fd()).unwrap());
    let (_points, context) = context();
    let context = Arc::new(context);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let addr = listener.local_addr().unwrap();
    let clients: Vec<TcpStream> = (0..CLIENTS).map(|_| TcpStream::connect(addr).unwrap()).collect();
    let listen_socket = ListenSocket::new(listener.into(), &addr.into()).unwrap();
    let mut emptying = pin!(drain_queue(&listen_socket, &context, start));
    let mut polls = 1;
    while emptying.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        polls += 1;
    }
    assert!(polls > CLIENTS / 32, "{polls} polls for {CLIENTS} clients");
    assert_eq!(
        listen_socket.accept().err(),
        Some(Errno::AGAIN),
        "some of {} are left",
        clients.len()
    );
}
