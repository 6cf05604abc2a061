//! The accept loop with rare failures: out of descriptors, out of memory, and clients that
//! disconnect before they are accepted.

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
use crate::listener::accept_loop::{drain_queue, serve};
use crate::listener::inbox::Inboxes;
use crate::listener::listen_socket::{AcceptSource, ListenSocket};
use crate::runtime::reactor::{self, Reactor};
use crate::runtime::tasks::{self, Tasks, WorkerHandle};
use crate::testing::{SOON, context};

/// Fails as configured, then accepts the clients of a real listener.
struct FaultySource {
    faults: VecDeque<Errno>,
    /// How many more times too few descriptors are free, after a shortage.
    shortages: AtomicUsize,
    tried: Arc<AtomicUsize>,
    real: ListenSocket,
}

impl AcceptSource for FaultySource {
    fn poll_accept(&mut self, cx: &Context<'_>) -> Poll<Result<(OwnedFd, Peer), Errno>> {
        let polled = match self.faults.pop_front() {
            Some(errno) => Poll::Ready(Err(errno)),
            None => self.real.poll_accept(cx),
        };
        if polled.is_ready() {
            self.tried.fetch_add(1, Ordering::Relaxed);
        }
        polled
    }

    fn accept(&self) -> Result<(OwnedFd, Peer), Errno> {
        self.real.accept()
    }

    fn has_free_descriptors(&self) -> Result<(), Errno> {
        let left = self
            .shortages
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left.is_ok() { Err(Errno::MFILE) } else { Ok(()) }
    }
}

/// Accepts a client after these failures, and returns the number of attempts, the duration by the
/// test's clock, and the counted failures.
async fn accept_after(faults: &[Errno], shortages: usize) -> (usize, Duration, u64) {
    let worker = WorkerHandle::new().unwrap();
    reactor::install(Reactor::new(worker.wake_fd()).unwrap());
    let (_points, context) = context();
    let context = Arc::new(context);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    // The client must be in the queue: an attempt that finds none would be one too many.
    let mut listen_socket = [PollFd::new(&listener, PollFlags::IN)];
    let soon = Timespec::try_from(SOON).unwrap();
    assert_eq!(poll(&mut listen_socket, Some(&soon)), Ok(1), "the client never connected");
    let tried = Arc::new(AtomicUsize::new(0));
    let addr = listener.local_addr().unwrap().into();
    let real = ListenSocket::new(listener.into(), &addr).unwrap();
    let (faults, shortages) = (faults.iter().copied().collect(), AtomicUsize::new(shortages));
    let source = FaultySource { faults, shortages, tried: Arc::clone(&tried), real };
    let begin = Instant::now();
    let accepted = async {
        while context.counters.accepted.get() == 0 {
            // A paused clock that advances: one step for the pauses.
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(begin.elapsed() < Duration::from_secs(60), "no client was accepted");
        }
    };
    let (inboxes, permit) = (Inboxes::new([worker]), context.listener.drain.accept_permit());
    let serving = serve(source, Arc::clone(&context), inboxes, permit);
    tokio::select! {
        () = serving => panic!("it ended"),
        () = accepted => {}
    }
    (tried.load(Ordering::Relaxed), begin.elapsed(), context.counters.accept_errors.get())
}

#[tokio::test(start_paused = true)]
async fn accepts_at_once_after_aborted_clients() {
    let (tried, took, errors) = accept_after(&[Errno::CONNABORTED; 50], 0).await;
    assert!(tried >= 51 && errors == 50, "{tried} {errors}");
    assert!(took < Duration::from_millis(50), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn backs_off_without_resources_and_recovers() {
    for errno in [Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::MFILE] {
        let (tried, took, errors) = accept_after(&[errno; 8], 0).await;
        // 5 + 10 + 20 + 40 + 80 + 160 + 320 + 500 ms, and no more attempts than failures and one or
        // two successes.
        assert!((9..=10).contains(&tried) && errors == 8, "{errno:?}: {tried} {errors}");
        assert!(
            took >= Duration::from_millis(1135) && took < Duration::from_millis(1500),
            "{errno:?}: {took:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn accepts_nothing_that_it_cannot_serve() {
    let (tried, took, errors) = accept_after(&[Errno::MFILE], 5).await;
    // One failure, and no attempt before descriptors are free: 5 + 10 + 20 + 40 + 80 + 160 ms.
    assert!((2..=3).contains(&tried) && errors == 6, "{tried} {errors}");
    assert!(took >= Duration::from_millis(315) && took < Duration::from_millis(500), "{took:?}");
}

#[test]
fn runs_sessions_while_queue_is_drained() {
    const CLIENTS: usize = 100;
    let worker = WorkerHandle::new().unwrap();
    reactor::install(Reactor::new(worker.wake_fd()).unwrap());
    let (_points, context) = context();
    let context = Arc::new(context);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let addr = listener.local_addr().unwrap();
    let clients: Vec<TcpStream> = (0..CLIENTS).map(|_| TcpStream::connect(addr).unwrap()).collect();
    let listen_socket = ListenSocket::new(listener.into(), &addr.into()).unwrap();
    let mut draining = pin!(drain_queue(&listen_socket, &context));
    let mut polls = 1;
    while draining.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
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

/// The number of clients that have been accepted after each of two rounds of the worker's tasks.
fn accepted_by_round(silent_clients_before: usize) -> [usize; 2] {
    const CLIENTS: usize = 40;
    let worker = WorkerHandle::new().unwrap();
    reactor::install(Reactor::new(worker.wake_fd()).unwrap());
    let mut tasks = Tasks::new(Arc::clone(&worker));
    let (_points, context) = context();
    (0..silent_clients_before).for_each(|_| context.silent_clients.record(true));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let addr = listener.local_addr().unwrap();
    let _clients: Vec<TcpStream> =
        (0..CLIENTS).map(|_| TcpStream::connect(addr).unwrap()).collect();
    let tried = Arc::new(AtomicUsize::new(0));
    let real = ListenSocket::new(listener.into(), &addr.into()).unwrap();
    let shortages = AtomicUsize::new(0);
    let source =
        FaultySource { faults: VecDeque::new(), shortages, tried: Arc::clone(&tried), real };
    let (inboxes, permit) = (Inboxes::new([worker]), context.listener.drain.accept_permit());
    tasks::spawn_essential(serve(source, context, inboxes, permit));
    [(); 2].map(|()| {
        tasks.run_round().unwrap();
        tried.load(Ordering::Relaxed)
    })
}

#[tokio::test(start_paused = true)]
async fn accepts_few_clients_per_round_in_a_flood() {
    assert_eq!(accepted_by_round(0), [32, 40]);
    // Four per millisecond that passes.
    let begin = std::time::Instant::now();
    let [first, second] = accepted_by_round(20);
    let most = 4 + 4 * (begin.elapsed().as_millis() as usize + 1);
    assert!(4 <= first && first <= second && second <= most, "{first}, {second} of {most}");
}
