//! Sockets and tasks of one worker, without a proxy around them: no event is lost, and none reaches
//! the wrong one.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::io::stream::ByteStream;
use crate::io::stream::SocketStream;
use crate::runtime::reactor::{self, InstalledReactor, Reactor};
use crate::runtime::tasks::{self, Panicked, Tasks, WorkerHandle};
use crate::testing::SOON;

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Woken {
    fn times(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn reactor() -> (InstalledReactor, Arc<WorkerHandle>) {
    let home = WorkerHandle::new().unwrap();
    (reactor::install(Reactor::new(home.wake_fd()).unwrap()), home)
}

fn pair() -> (SocketStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (SocketStream::accepted(ours.into(), false).unwrap(), theirs)
}

/// One turn that does not wait.
fn turn() {
    reactor::poll_events(&mut Vec::new(), Duration::ZERO).unwrap();
}

fn read(line: &mut SocketStream, waker: &Waker) -> Poll<usize> {
    line.poll_read(&mut Context::from_waker(waker), &mut [0; 64]).map(Result::unwrap)
}

#[test]
fn who_finds_nothing_is_woken_by_the_next_byte_and_not_before() {
    let _reactor = reactor();
    let (mut line, mut peer) = pair();
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(Arc::clone(&woken));
    for round in 0..5 {
        assert!(read(&mut line, &waker).is_pending());
        turn();
        assert_eq!(woken.times(), round);
        peer.write_all(b"abc").unwrap();
        turn();
        turn();
        assert_eq!(woken.times(), round + 1);
        assert_eq!(read(&mut line, &waker), Poll::Ready(3));
        // The short read has told that there is no more.
        assert!(read(&mut line, &waker).is_pending());
    }
}

#[test]
fn what_the_event_loop_has_not_told_of_is_seen() {
    let _reactor = reactor();
    let (mut line, mut peer) = pair();
    // The first read finds nothing, so that the next one waits for the event loop, which gets no
    // turn here.
    assert!(read(&mut line, Waker::noop()).is_pending() && !line.has_unread());
    peer.write_all(b"PING\r\n").unwrap();
    assert!(read(&mut line, Waker::noop()).is_pending() && line.has_unread());
    turn();
    assert_eq!((read(&mut line, Waker::noop()), line.has_unread()), (Poll::Ready(6), false));
}

#[test]
fn an_end_behind_a_short_read_is_not_missed() {
    let _reactor = reactor();
    let (mut line, mut peer) = pair();
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(Arc::clone(&woken));
    assert!(read(&mut line, &waker).is_pending());
    peer.write_all(b"bye").unwrap();
    drop(peer);
    turn();
    assert!(woken.times() > 0 && line.peer_closed_now());
    assert_eq!(read(&mut line, &waker), Poll::Ready(3));
    // No further event comes: what was noted must be enough.
    assert_eq!(read(&mut line, &waker), Poll::Ready(0));
}

#[test]
fn a_full_socket_takes_bytes_again_when_its_peer_has_read() {
    let _reactor = reactor();
    let (mut line, mut peer) = pair();
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let bytes = vec![7; 1 << 20];
    let mut sent = 0;
    while let Poll::Ready(n) = line.poll_write(&mut cx, &bytes) {
        sent += n.unwrap();
    }
    turn();
    assert_eq!(woken.times(), 0);
    let mut got = vec![0; sent];
    peer.read_exact(&mut got).unwrap();
    turn();
    assert_eq!(woken.times(), 1);
    assert!(line.poll_write(&mut cx, b"x").is_ready());
}

#[test]
fn an_event_of_a_closed_socket_does_not_reach_the_next_owner_of_its_slot() {
    let _reactor = reactor();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    // A second descriptor keeps the kernel telling of the first one after it was closed.
    let keeps = OwnedFd::from(ours.try_clone().unwrap());
    let first = SocketStream::accepted(ours.into(), false).unwrap();
    theirs.write_all(b"for the first one").unwrap();
    drop(first);
    let (mut second, mut peer) = pair();
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(Arc::clone(&woken));
    assert!(read(&mut second, &waker).is_pending());
    turn();
    theirs.write_all(b"and more").unwrap();
    turn();
    assert_eq!(woken.times(), 0);
    assert!(read(&mut second, &waker).is_pending());
    peer.write_all(b"x").unwrap();
    turn();
    assert_eq!((woken.times(), read(&mut second, &waker)), (1, Poll::Ready(1)));
    drop(keeps);
}

/// Turns until all have ended; fails if nothing happens for long.
fn run(tasks: &mut Tasks, done: impl Fn() -> bool) -> Result<(), Panicked> {
    let mut events = Vec::new();
    loop {
        tasks.run_round()?;
        if done() {
            return Ok(());
        }
        let wait = if tasks.is_busy() { Duration::ZERO } else { SOON };
        let begin = Instant::now();
        if reactor::poll_events(&mut events, wait).unwrap() {
            tasks.collect_remote_wakes();
        }
        assert!(begin.elapsed() < SOON, "a wake-up was lost");
    }
}

#[test]
fn wake_ups_from_other_threads_are_not_lost() {
    const TASKS: usize = 20;
    const EACH: usize = 20_000;
    let (_reactor, home) = reactor();
    let mut tasks = Tasks::new(home);
    let ended = Arc::new(AtomicUsize::new(0));
    let (tell, told) = std::sync::mpsc::channel();
    for _ in 0..TASKS {
        let (given, ended, tell) =
            (Arc::new(AtomicUsize::new(0)), Arc::clone(&ended), tell.clone());
        tasks::spawn(async move {
            let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
            tell.send((Arc::clone(&given), waker)).unwrap();
            // Only the last wake-up brings the number that ends it.
            poll_fn(|_| {
                if given.load(Ordering::Relaxed) == EACH { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            ended.fetch_add(1, Ordering::SeqCst);
        });
    }
    tasks.run_round().unwrap();
    let all: Vec<_> = (0..TASKS).map(|_| told.recv().unwrap()).collect();
    thread::scope(|scope| {
        for chunk in all.chunks(TASKS / 2) {
            scope.spawn(move || {
                for _ in 0..EACH {
                    for (given, waker) in chunk {
                        given.fetch_add(1, Ordering::Relaxed);
                        waker.wake_by_ref();
                    }
                }
            });
        }
        run(&mut tasks, || ended.load(Ordering::SeqCst) == TASKS).unwrap();
    });
}

#[test]
fn a_waker_of_a_task_that_has_ended_does_not_poll_its_successor() {
    let (_reactor, home) = reactor();
    let mut tasks = Tasks::new(home);
    let kept = Arc::new(std::sync::Mutex::new(None));
    let keep = Arc::clone(&kept);
    tasks::spawn(async move {
        *keep.lock().unwrap() = Some(poll_fn(|cx| Poll::Ready(cx.waker().clone())).await);
    });
    tasks.run_round().unwrap();
    let old = kept.lock().unwrap().take().unwrap();
    let polls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&polls);
    tasks::spawn(poll_fn(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Poll::Pending
    }));
    tasks.run_round().unwrap();
    old.wake_by_ref();
    thread::scope(|scope| scope.spawn(|| old.wake_by_ref()).join().unwrap());
    tasks.collect_remote_wakes();
    tasks.run_round().unwrap();
    assert_eq!(polls.load(Ordering::SeqCst), 1);
}

#[test]
fn a_panic_costs_one_task_and_one_of_a_vital_task_the_worker() {
    let (_reactor, home) = reactor();
    let mut tasks = Tasks::new(home);
    let ended = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ended);
    tasks::spawn(async { panic!("a test's panic") });
    tasks::spawn(async move {
        tasks::yield_now().await;
        count.fetch_add(1, Ordering::SeqCst);
    });
    run(&mut tasks, || ended.load(Ordering::SeqCst) == 1).unwrap();
    tasks::spawn_essential(async { panic!("a test's panic") });
    assert_eq!(tasks.run_round(), Err(Panicked));
}

#[test]
fn who_is_born_to_a_vital_task_goes_before_the_others_of_the_round() {
    let (_reactor, home) = reactor();
    let mut tasks = Tasks::new(home);
    let said = Arc::new(std::sync::Mutex::new(Vec::new()));
    let say = |what: &'static str| {
        let said = Arc::clone(&said);
        move || said.lock().unwrap().push(what)
    };
    // Each says something in its second round; the entrance lets somebody in.
    let (guest, other, child) = (say("guest"), say("other"), say("child of another"));
    tasks::spawn_essential(async move {
        tasks::yield_now().await;
        tasks::spawn(async move { guest() });
        std::future::pending::<()>().await;
    });
    tasks::spawn(async move {
        tasks::yield_now().await;
        tasks::spawn(async move { child() });
        other();
    });
    tasks.run_round().unwrap();
    tasks.run_round().unwrap();
    assert_eq!(*said.lock().unwrap(), ["guest", "other", "child of another"]);
}

#[test]
fn polls_a_small_request_before_the_next_large_value() {
    const HEAVY: usize = 8;
    let (_reactor, home) = reactor();
    let mut tasks = Tasks::new(home);
    let (mut line, mut peer) = pair();
    let (large, read) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(usize::MAX)));
    for _ in 0..HEAVY {
        let large = Arc::clone(&large);
        tasks::spawn(async move {
            loop {
                large.fetch_add(1, Ordering::SeqCst);
                tasks::record_bytes(1 << 20);
                tasks::yield_now().await;
            }
        });
    }
    let (before, at) = (Arc::clone(&large), Arc::clone(&read));
    tasks::spawn(async move {
        poll_fn(|cx| line.poll_read(cx, &mut [0; 64])).await.unwrap();
        at.store(before.load(Ordering::SeqCst), Ordering::SeqCst);
    });
    run(&mut tasks, || large.load(Ordering::SeqCst) >= 5 * HEAVY).unwrap();
    peer.write_all(b"x").unwrap();
    let written = large.load(Ordering::SeqCst);
    run(&mut tasks, || read.load(Ordering::SeqCst) < usize::MAX).unwrap();
    // One may have had its turn before the event loop looked.
    let waited = read.load(Ordering::SeqCst) - written;
    assert!(waited <= 1, "after {waited} large values");
    // And each of the large ones goes on.
    run(&mut tasks, || large.load(Ordering::SeqCst) >= 10 * HEAVY).unwrap();
}
