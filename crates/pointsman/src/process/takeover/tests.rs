//! Conversations between two ends in one process. A takeover socket without a thread behaves like
//! that of a stopped process: the kernel queues what is sent to it.

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use super::wire::TakeoverPeer;
use super::*;

/// Longer than any step of these tests.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

struct TakeoverFixture {
    _folder: tempfile::TempDir,
    path: PathBuf,
    listener: TcpListener,
}

impl TakeoverFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(TAKEOVER_SOCKET);
        Self { _folder: folder, path, listener: TcpListener::bind("127.0.0.1:0").unwrap() }
    }

    fn offer(&self) -> Offer {
        let listener = self.listener.try_clone().unwrap();
        Box::new(move || {
            let addr = listener.local_addr()?;
            let listener = listener.try_clone()?.into();
            let socket = NamedSocket { name: "m".to_owned(), addr: addr.into(), listener };
            Ok((vec![socket], OfferMark::default()))
        })
    }

    /// A process that can be taken over from, and a channel that reports it.
    fn start_process(&self, taken: Option<TakenSockets>) -> (TakeoverThread, Receiver<()>) {
        let socket = TakeoverSocket::open(&self.path, taken.is_some()).unwrap();
        self.start_on(socket, taken)
    }

    fn start_on(
        &self,
        socket: TakeoverSocket,
        taken: Option<TakenSockets>,
    ) -> (TakeoverThread, Receiver<()>) {
        let (agreed, handed_over) = channel();
        let closer =
            socket.start(taken, self.offer(), move || agreed.send(()).unwrap_or_default()).unwrap();
        (closer, handed_over)
    }

    fn take(&self) -> TakenSockets {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(taken) = take(&self.path).unwrap() {
                return taken;
            }
            assert!(Instant::now() < deadline, "no process listens");
        }
    }

    fn until_published(&self) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while is_unused(&self.path) {
            assert!(Instant::now() < deadline, "no process listens");
        }
    }
}

#[test]
fn hands_over_sockets_with_their_queue() {
    let fixture = TakeoverFixture::new();
    let addr = fixture.listener.local_addr().unwrap();
    let (old, handed_over) = fixture.start_process(None);
    fixture.until_published();
    assert_eq!(std::fs::metadata(&fixture.path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(TakeoverSocket::open(&fixture.path, false), Err(TakeoverError::Occupied(_))));
    // A process that disappears during a takeover changes nothing. The check by `open` was one
    // already.
    drop(fixture.take());
    let waiting = TcpStream::connect(addr).unwrap();
    let mut taken = fixture.take();
    let socket = taken.sockets.pop().unwrap();
    assert_eq!((socket.name.as_str(), socket.addr, taken.sockets.len()), ("m", addr.into(), 0));
    assert!(handed_over.try_recv().is_err());
    let (new, _told) = fixture.start_process(Some(taken));
    handed_over.recv_timeout(TEST_TIMEOUT).unwrap();
    old.thread().join().unwrap();
    let (_, peer) = TcpListener::from(socket.listener).accept().unwrap();
    assert_eq!(peer, waiting.local_addr().unwrap());
    assert!(!is_unused(&fixture.path), "the new socket is published before the old one is closed");
    // A process that was asked to stop no longer offers its sockets.
    new.close();
    assert!(!fixture.path.exists() && take(&fixture.path).unwrap().is_none());
}

#[test]
fn replaces_stale_socket_but_nothing_else() {
    let fixture = TakeoverFixture::new();
    assert!(take(&fixture.path).unwrap().is_none());
    drop(std::os::unix::net::UnixListener::bind(&fixture.path).unwrap());
    assert!(fixture.path.exists() && take(&fixture.path).unwrap().is_none());
    let (closer, _told) = fixture.start_process(None);
    fixture.until_published();
    closer.close();
    std::fs::write(&fixture.path, "data").unwrap();
    assert!(matches!(TakeoverSocket::open(&fixture.path, false), Err(TakeoverError::Other(_))));
    assert_eq!(std::fs::read_to_string(&fixture.path).unwrap(), "data");
}

#[test]
fn waits_for_process_that_does_not_answer() {
    let fixture = TakeoverFixture::new();
    let stopped = TakeoverSocket::open(&fixture.path, false).unwrap();
    stopped.publish().unwrap();
    let path = fixture.path.clone();
    let (sender, handed_over) = channel();
    std::thread::spawn(move || sender.send(take(&path).unwrap().is_some()));
    assert!(handed_over.recv_timeout(STEP + Duration::from_secs(1)).is_err(), "it did not wait");
    // The stopped process resumes.
    let (_closer, _told) = fixture.start_on(stopped, None);
    assert_eq!(handed_over.recv_timeout(TEST_TIMEOUT), Ok(true));
}

#[test]
fn finds_no_process_after_it_died_without_answer() {
    let fixture = TakeoverFixture::new();
    let stopped = TakeoverSocket::open(&fixture.path, false).unwrap();
    stopped.publish().unwrap();
    let path = fixture.path.clone();
    let (sender, handed_over) = channel();
    std::thread::spawn(move || sender.send(take(&path).unwrap().is_none()));
    assert!(handed_over.recv_timeout(Duration::from_millis(500)).is_err());
    drop(stopped);
    assert_eq!(handed_over.recv_timeout(TEST_TIMEOUT), Ok(true));
}

#[test]
fn dials_full_queue_within_time_limit() {
    let fixture = TakeoverFixture::new();
    let stopped = TakeoverSocket::open(&fixture.path, false).unwrap();
    stopped.publish().unwrap();
    let mut queued = Vec::new();
    let begin = Instant::now();
    let error = loop {
        match TakeoverPeer::dial(&fixture.path, Duration::from_millis(100)) {
            Ok(peer) => queued.push(peer.unwrap()),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(begin.elapsed() < TEST_TIMEOUT && !queued.is_empty());
    // A socket with a full queue is not free either.
    assert!(matches!(TakeoverSocket::open(&fixture.path, false), Err(TakeoverError::Occupied(_))));
}

#[test]
fn ignores_late_message_of_dead_process() {
    let fixture = TakeoverFixture::new();
    let (old, handed_over) = fixture.start_process(None);
    fixture.until_published();
    // Sends "serving", and is gone before that is read or confirmed.
    let peer = TakeoverPeer::dial(&fixture.path, STEP).unwrap().unwrap();
    let soon = Instant::now() + TEST_TIMEOUT;
    peer.send(HELLO, None, soon).unwrap();
    peer.send(SERVING, None, soon).unwrap();
    drop(peer);
    // The same process serves the next request.
    let taken = fixture.take();
    assert!(handed_over.try_recv().is_err(), "it must not leave to a dead process");
    drop(taken);
    old.close();
    old.thread().join().unwrap();
    assert!(handed_over.try_recv().is_err());
}

#[test]
fn completes_takeover_when_stopped_process_resumes() {
    let fixture = TakeoverFixture::new();
    let socket = TakeoverSocket::open(&fixture.path, false).unwrap();
    socket.publish().unwrap();
    let path = fixture.path.clone();
    let taking = std::thread::spawn(move || take(&path).unwrap().unwrap());
    // The old process sends its sockets, and is stopped: its next messages come when it resumes.
    let accepted = rustix::net::accept(&socket.socket).unwrap();
    let old = TakeoverPeer(accepted);
    let soon = || Instant::now() + TEST_TIMEOUT;
    old.expect(HELLO, soon()).unwrap();
    let addr = fixture.listener.local_addr().unwrap();
    old.send(&format!("{addr} m"), Some(&fixture.listener.try_clone().unwrap().into()), soon())
        .unwrap();
    old.send(END, None, soon()).unwrap();
    let (new, _told) = fixture.start_process(Some(taking.join().unwrap()));
    old.expect(SERVING, soon()).unwrap();
    old.send(CONFIRM, None, soon()).unwrap();
    old.expect(SERVING, soon()).unwrap();
    // It loses the conversation, and is asked again.
    drop(old);
    let old = TakeoverPeer(rustix::net::accept(&socket.socket).unwrap());
    old.expect(HELLO, soon()).unwrap();
    old.send(END, None, soon()).unwrap();
    old.expect(SERVING, soon()).unwrap();
    old.send(LEAVING, None, soon()).unwrap();
    assert!(wire::is_closed(&old.receive(soon()).unwrap_err()));
    drop(socket);
    assert!(!is_unused(&fixture.path));
    new.close();
}

#[test]
fn keeps_old_process_when_stopped_before_completion() {
    let fixture = TakeoverFixture::new();
    let socket = TakeoverSocket::open(&fixture.path, false).unwrap();
    socket.publish().unwrap();
    let path = fixture.path.clone();
    let taking = std::thread::spawn(move || take(&path).unwrap().unwrap());
    let old = TakeoverPeer(rustix::net::accept(&socket.socket).unwrap());
    let soon = || Instant::now() + TEST_TIMEOUT;
    old.expect(HELLO, soon()).unwrap();
    old.send(END, None, soon()).unwrap();
    let (new, handed_over) = fixture.start_process(Some(taking.join().unwrap()));
    old.expect(SERVING, soon()).unwrap();
    new.close();
    assert!(
        wire::is_closed(&old.receive(soon()).unwrap_err()),
        "the old process notices that no other one serves"
    );
    new.thread().join().unwrap();
    assert!(
        handed_over.try_recv().is_err() && fixture.path.exists(),
        "the old socket is untouched"
    );
}

#[test]
fn serves_second_successor_from_first() {
    let fixture = TakeoverFixture::new();
    let (old, _) = fixture.start_process(None);
    fixture.until_published();
    let taken = fixture.take();
    let path = fixture.path.clone();
    let second = std::thread::spawn(move || take(&path).unwrap());
    let (_new, handed_over) = fixture.start_process(Some(taken));
    old.thread().join().unwrap();
    // It found the first one, and did not conclude that no process listens.
    let taken = second.join().unwrap().unwrap();
    let (last, _) = fixture.start_process(Some(taken));
    handed_over.recv_timeout(TEST_TIMEOUT).unwrap();
    last.close();
}

#[test]
fn reads_queued_message_before_checking_deadline() {
    let fixture = TakeoverFixture::new();
    let socket = TakeoverSocket::open(&fixture.path, false).unwrap();
    socket.publish().unwrap();
    let one = TakeoverPeer::dial(&fixture.path, STEP).unwrap().unwrap();
    let other = TakeoverPeer(rustix::net::accept(&socket.socket).unwrap());
    let past = Instant::now();
    one.send(SERVING, None, past).unwrap();
    // As after a stop that was longer than the step.
    other.expect(SERVING, past).unwrap();
    assert_eq!(other.receive(past).unwrap_err().kind(), io::ErrorKind::TimedOut);
    drop(one);
    assert!(other.has_gone() && wire::is_closed(&other.receive(past).unwrap_err()));
}
