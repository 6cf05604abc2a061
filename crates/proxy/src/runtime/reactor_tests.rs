//! Sockets and tasks of one worker without a proxy: no event is lost, and none reaches the wrong
//! task.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::io::stream::{ByteStream, ClientStream, SocketStream};
use crate::runtime::alarm::Alarm;
use crate::runtime::heartbeat::BEAT_INTERVAL;
use crate::runtime::reactor::{self, Reactor};
use crate::runtime::tasks::{self, Panicked, Tasks, WorkerHandle};
use crate::runtime::timers::TimerThread;
use crate::runtime::wake_flag::FlaggedWaker;
use crate::testing::SOON;

/// Counts its wake-ups.
#[derive(Default)]
struct WakeCounter(AtomicUsize);

impl WakeCounter {
    fn times(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn reactor() -> Arc<WorkerHandle> {
    let home = WorkerHandle::new().unwrap();
    reactor::install(Reactor::new(home.wake_fd()).unwrap());
    home
}

fn pair() -> (SocketStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (SocketStream::accepted(ours.into(), false).unwrap(), theirs)
}

#[test]
fn ends_every_wait_without_a_limit_at_the_next_tick() {
    let home = reactor();
    let tasks = Tasks::new(Arc::clone(&home));
    let begin = Instant::now();
    let (clock, thread) = TimerThread::start(vec![home]).unwrap();
    for _ in 0..3 {
        assert!(reactor::poll_events(&mut reactor::no_events(), None, drop).unwrap());
        tasks.collect_remote_wakes();
    }
    assert!(begin.elapsed() >= BEAT_INTERVAL * 2, "{:?}", begin.elapsed());
    drop(clock);
    thread.join().unwrap();
}

/// One iteration without waiting.
fn poll_once() {
    reactor::poll_events(&mut reactor::no_events(), Some(&reactor::NO_WAIT), drop).unwrap();
}

fn read(stream: &mut SocketStream, waker: &Waker) -> Poll<usize> {
    stream.poll_read(&mut Context::from_waker(waker), &mut [0; 64]).map(Result::unwrap)
}

#[test]
fn wakes_reader_at_next_byte_only() {
    let _home = reactor();
    let (mut stream, mut peer) = pair();
    let woken = Arc::<WakeCounter>::default();
    let waker = Waker::from(Arc::clone(&woken));
    for round in 0..5 {
        assert!(read(&mut stream, &waker).is_pending());
        poll_once();
        assert_eq!(woken.times(), round);
        peer.write_all(b"abc").unwrap();
        poll_once();
        poll_once();
        assert_eq!(woken.times(), round + 1);
        assert_eq!(read(&mut stream, &waker), Poll::Ready(3));
        // The short read has shown that there is no more.
        assert!(read(&mut stream, &waker).is_pending());
    }
}

/// An alarm that is set again while it is due, or before, wakes its task once more.
#[test]
fn wakes_task_at_each_alarm() {
    let _home = reactor();
    let (alarm, count) = (Alarm::new().unwrap(), Arc::new(WakeCounter::default()));
    let waker = Waker::from(Arc::clone(&count));
    let cx = Context::from_waker(&waker);
    alarm.set(Duration::from_secs(100), &cx).unwrap();
    for times in 1..=3 {
        let begin = Instant::now();
        alarm.set(Duration::from_micros(300), &cx).unwrap();
        while count.times() < times {
            poll_once();
            assert!(begin.elapsed() < SOON, "{times}");
        }
        assert!(begin.elapsed() >= Duration::from_micros(300));
    }
}

#[test]
fn peeks_bytes_that_are_not_yet_reported() {
    let _home = reactor();
    let (mut stream, mut peer) = pair();
    // The first read finds nothing, so the next one waits for the event loop, which does not run
    // here.
    assert!(read(&mut stream, Waker::noop()).is_pending() && !stream.has_unread());
    peer.write_all(b"PING\r\n").unwrap();
    assert!(read(&mut stream, Waker::noop()).is_pending() && stream.has_unread());
    poll_once();
    assert_eq!((read(&mut stream, Waker::noop()), stream.has_unread()), (Poll::Ready(6), false));
}

#[test]
fn reads_end_after_short_read() {
    let _home = reactor();
    let (mut stream, mut peer) = pair();
    let woken = Arc::<WakeCounter>::default();
    let waker = Waker::from(Arc::clone(&woken));
    assert!(read(&mut stream, &waker).is_pending());
    peer.write_all(b"bye").unwrap();
    drop(peer);
    poll_once();
    assert!(woken.times() > 0 && stream.peer_closed_now());
    assert_eq!(read(&mut stream, &waker), Poll::Ready(3));
    // No further event comes: what was recorded must be enough.
    assert_eq!(read(&mut stream, &waker), Poll::Ready(0));
}

#[test]
fn wakes_writer_when_peer_has_read() {
    let _home = reactor();
    let (mut stream, mut peer) = pair();
    let woken = Arc::<WakeCounter>::default();
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let bytes = vec![7; 1 << 20];
    let mut sent = 0;
    while let Poll::Ready(n) = stream.poll_write(&mut cx, &bytes) {
        sent += n.unwrap();
    }
    poll_once();
    assert_eq!(woken.times(), 0);
    let mut got = vec![0; sent];
    peer.read_exact(&mut got).unwrap();
    poll_once();
    assert_eq!(woken.times(), 1);
    assert!(stream.poll_write(&mut cx, b"x").is_ready());
}

#[test]
fn ignores_event_of_closed_socket_in_reused_slot() {
    let _home = reactor();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    // A second descriptor makes the kernel report events of the first one after it was closed.
    let keeps = OwnedFd::from(ours.try_clone().unwrap());
    let first = SocketStream::accepted(ours.into(), false).unwrap();
    theirs.write_all(b"for the first one").unwrap();
    drop(first);
    let (mut second, mut peer) = pair();
    let woken = Arc::<WakeCounter>::default();
    let waker = Waker::from(Arc::clone(&woken));
    assert!(read(&mut second, &waker).is_pending());
    poll_once();
    theirs.write_all(b"and more").unwrap();
    poll_once();
    assert_eq!(woken.times(), 0);
    assert!(read(&mut second, &waker).is_pending());
    peer.write_all(b"x").unwrap();
    poll_once();
    assert_eq!((woken.times(), read(&mut second, &waker)), (1, Poll::Ready(1)));
    drop(keeps);
}

/// Runs until `done`; fails if nothing happens for long.
fn run(tasks: &mut Tasks, done: impl Fn() -> bool) -> Result<(), Panicked> {
    loop {
        tasks.run_round()?;
        if done() {
            return Ok(());
        }
        let wait = if tasks.is_busy() { Duration::ZERO } else { SOON }.try_into().unwrap();
        let begin = Instant::now();
        let mut events = reactor::no_events();
        if reactor::poll_events(&mut events, Some(&wait), |key| tasks.wake(key)).unwrap() {
            tasks.collect_remote_wakes();
        }
        assert!(begin.elapsed() < SOON, "a wake-up was lost");
    }
}

/// A socket keeps the key of its task, unless it was polled with a waker that does more.
#[test]
fn wakes_by_the_waker_of_the_last_poll() {
    let home = reactor();
    let mut tasks = Tasks::new(home);
    let (mut stream, mut peer) = pair();
    let flagged: Rc<RefCell<Vec<bool>>> = Rc::default();
    let (seen, mut watch) = (Rc::clone(&flagged), None);
    tasks::spawn(poll_fn(move |cx| {
        let FlaggedWaker { flag, waker } =
            watch.get_or_insert_with(|| FlaggedWaker::new(cx.waker()));
        seen.borrow_mut().push(flag.take_woken());
        let is_own = seen.borrow().len() % 2 == 1;
        while read(&mut stream, if is_own { cx.waker() } else { waker }).is_ready() {}
        Poll::<()>::Pending
    }));
    for polls in 1..=5 {
        run(&mut tasks, || flagged.borrow().len() == polls).unwrap();
        peer.write_all(b"x").unwrap();
    }
    // It is set initially.
    assert_eq!(*flagged.borrow(), [true, false, true, false, true]);
}

/// However often its sockets and its waker wake it before a round.
#[test]
fn polls_a_task_once_per_round() {
    let home = reactor();
    let mut tasks = Tasks::new(home);
    let ((mut first, mut peer), (mut second, mut other)) = (pair(), pair());
    let polls: Rc<RefCell<Vec<Waker>>> = Rc::default();
    let seen = Rc::clone(&polls);
    tasks::spawn(poll_fn(move |cx| {
        seen.borrow_mut().push(cx.waker().clone());
        for stream in [&mut first, &mut second] {
            while read(stream, cx.waker()).is_ready() {}
        }
        Poll::<()>::Pending
    }));
    tasks.run_round().unwrap();
    let waker = polls.borrow()[0].clone();
    for round in 2..5 {
        let mut events = reactor::no_events();
        waker.wake_by_ref();
        peer.write_all(b"x").unwrap();
        other.write_all(b"x").unwrap();
        reactor::poll_events(&mut events, Some(&reactor::NO_WAIT), |key| tasks.wake(key)).unwrap();
        waker.wake_by_ref();
        tasks.run_round().unwrap();
        assert_eq!((polls.borrow().len(), tasks.is_busy()), (round, false));
    }
}

#[test]
fn loses_no_wake_up_from_other_threads() {
    const TASKS: usize = 20;
    const EACH: usize = 20_000;
    let home = reactor();
    let mut tasks = Tasks::new(home);
    let ended = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = std::sync::mpsc::channel();
    for _ in 0..TASKS {
        let (delivered, ended, sender) =
            (Arc::new(AtomicUsize::new(0)), Arc::clone(&ended), sender.clone());
        tasks::spawn(async move {
            let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
            sender.send((Arc::clone(&delivered), waker)).unwrap();
            // Only the last wake-up brings the number that ends the task.
            poll_fn(|_| {
                if delivered.load(Ordering::Relaxed) == EACH {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            ended.fetch_add(1, Ordering::SeqCst);
        });
    }
    tasks.run_round().unwrap();
    let all: Vec<_> = (0..TASKS).map(|_| receiver.recv().unwrap()).collect();
    thread::scope(|scope| {
        for chunk in all.chunks(TASKS / 2) {
            scope.spawn(move || {
                for _ in 0..EACH {
                    for (delivered, waker) in chunk {
                        delivered.fetch_add(1, Ordering::Relaxed);
                        waker.wake_by_ref();
                    }
                }
            });
        }
        run(&mut tasks, || ended.load(Ordering::SeqCst) == TASKS).unwrap();
    });
}

#[test]
fn ignores_waker_of_ended_task_in_reused_slot() {
    let home = reactor();
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
fn ends_one_task_on_panic_and_worker_if_essential() {
    let home = reactor();
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
fn polls_tasks_of_essential_task_before_the_rest() {
    let home = reactor();
    let mut tasks = Tasks::new(home);
    let recorded = Arc::new(std::sync::Mutex::new(Vec::new()));
    let recorder = |what: &'static str| {
        let recorded = Arc::clone(&recorded);
        move || recorded.lock().unwrap().push(what)
    };
    // Each of them records its name in its second round; the essential task spawns one.
    let (spawned_task, other, child) =
        (recorder("spawned_task"), recorder("other"), recorder("child of another"));
    tasks::spawn_essential(async move {
        tasks::yield_now().await;
        tasks::spawn(async move { spawned_task() });
        std::future::pending::<()>().await;
    });
    tasks::spawn(async move {
        tasks::yield_now().await;
        tasks::spawn(async move { child() });
        other();
    });
    tasks.run_round().unwrap();
    tasks.run_round().unwrap();
    assert_eq!(*recorded.lock().unwrap(), ["spawned_task", "other", "child of another"]);
}

#[test]
fn polls_a_small_request_before_the_next_large_value() {
    const HEAVY: usize = 8;
    let home = reactor();
    let mut tasks = Tasks::new(home);
    let (mut stream, mut peer) = pair();
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
        poll_fn(|cx| stream.poll_read(cx, &mut [0; 64])).await.unwrap();
        at.store(before.load(Ordering::SeqCst), Ordering::SeqCst);
    });
    run(&mut tasks, || large.load(Ordering::SeqCst) >= 5 * HEAVY).unwrap();
    peer.write_all(b"x").unwrap();
    let written = large.load(Ordering::SeqCst);
    run(&mut tasks, || read.load(Ordering::SeqCst) < usize::MAX).unwrap();
    // One heavy task may have run before the event loop polled the sockets.
    let waited = read.load(Ordering::SeqCst) - written;
    assert!(waited <= 1, "after {waited} large values");
    // The heavy tasks make progress too.
    run(&mut tasks, || large.load(Ordering::SeqCst) >= 10 * HEAVY).unwrap();
}
