//! Conversations between two ends in one process. A place that nobody attends is that of a process
//! that is stopped: the kernel keeps what is sent to it.

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use super::wire::Peer;
use super::*;

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(20);

struct Rig {
    _folder: tempfile::TempDir,
    path: PathBuf,
    listener: TcpListener,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        Self { _folder: folder, path, listener: TcpListener::bind("127.0.0.1:0").unwrap() }
    }

    fn offer(&self) -> Offer {
        let listener = self.listener.try_clone().unwrap();
        Box::new(move || {
            let addr = listener.local_addr()?;
            Ok(vec![Inherited {
                name: "m".to_owned(),
                addr: addr.into(),
                listener: listener.try_clone()?.into(),
            }])
        })
    }

    /// A process that can be taken over from, and word of that.
    fn attended(&self, taken: Option<Taken>) -> (Closer, Receiver<()>) {
        let place = Place::open(&self.path, taken.is_some()).unwrap();
        self.attend(place, taken)
    }

    fn attend(&self, place: Place, taken: Option<Taken>) -> (Closer, Receiver<()>) {
        let (agreed, told) = channel();
        let closer =
            place.attend(taken, self.offer(), move || agreed.send(()).unwrap_or_default()).unwrap();
        (closer, told)
    }

    fn take(&self) -> Taken {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(taken) = take(&self.path).unwrap() {
                return taken;
            }
            assert!(Instant::now() < deadline, "nobody is there");
        }
    }

    fn until_published(&self) {
        let deadline = Instant::now() + PATIENCE;
        while is_deserted(&self.path) {
            assert!(Instant::now() < deadline, "nobody is there");
        }
    }
}

#[test]
fn hands_over_sockets_with_their_queue() {
    let rig = Rig::new();
    let addr = rig.listener.local_addr().unwrap();
    let (old, told) = rig.attended(None);
    rig.until_published();
    assert_eq!(std::fs::metadata(&rig.path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(Place::open(&rig.path, false), Err(TakeoverError::Occupied(_))));
    // One that goes away half-way changes nothing. The look of `open` was such a one already.
    drop(rig.take());
    let waiting = TcpStream::connect(addr).unwrap();
    let mut taken = rig.take();
    let socket = taken.sockets.pop().unwrap();
    assert_eq!((socket.name.as_str(), socket.addr, taken.sockets.len()), ("m", addr.into(), 0));
    assert!(told.try_recv().is_err());
    let (new, _told) = rig.attended(Some(taken));
    told.recv_timeout(PATIENCE).unwrap();
    old.thread().join().unwrap();
    let (_, peer) = TcpListener::from(socket.listener).accept().unwrap();
    assert_eq!(peer, waiting.local_addr().unwrap());
    assert!(
        !is_deserted(&rig.path),
        "the new one has its place before the old one gives its own up"
    );
    // A process that is told to stop is no longer there for those who come.
    new.close();
    assert!(!rig.path.exists() && take(&rig.path).unwrap().is_none());
}

#[test]
fn replaces_stale_socket_but_nothing_else() {
    let rig = Rig::new();
    assert!(take(&rig.path).unwrap().is_none());
    drop(std::os::unix::net::UnixListener::bind(&rig.path).unwrap());
    assert!(rig.path.exists() && take(&rig.path).unwrap().is_none());
    let (closer, _told) = rig.attended(None);
    rig.until_published();
    closer.close();
    std::fs::write(&rig.path, "data").unwrap();
    assert!(matches!(Place::open(&rig.path, false), Err(TakeoverError::Other(_))));
    assert_eq!(std::fs::read_to_string(&rig.path).unwrap(), "data");
}

#[test]
fn waits_for_process_that_does_not_answer() {
    let rig = Rig::new();
    let stopped = Place::open(&rig.path, false).unwrap();
    stopped.publish().unwrap();
    let path = rig.path.clone();
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(take(&path).unwrap().is_some()));
    assert!(told.recv_timeout(STEP + Duration::from_secs(1)).is_err(), "it did not wait");
    // It wakes.
    let (_closer, _told) = rig.attend(stopped, None);
    assert_eq!(told.recv_timeout(PATIENCE), Ok(true));
}

#[test]
fn finds_nobody_when_process_dies_without_answer() {
    let rig = Rig::new();
    let stopped = Place::open(&rig.path, false).unwrap();
    stopped.publish().unwrap();
    let path = rig.path.clone();
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(take(&path).unwrap().is_none()));
    assert!(told.recv_timeout(Duration::from_millis(500)).is_err());
    drop(stopped);
    assert_eq!(told.recv_timeout(PATIENCE), Ok(true));
}

#[test]
fn dials_full_queue_no_longer_than_told() {
    let rig = Rig::new();
    let stopped = Place::open(&rig.path, false).unwrap();
    stopped.publish().unwrap();
    let mut queued = Vec::new();
    let begin = Instant::now();
    let error = loop {
        match Peer::dial(&rig.path, Duration::from_millis(100)) {
            Ok(peer) => queued.push(peer.unwrap()),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(begin.elapsed() < PATIENCE && !queued.is_empty());
    // Such a place is not free, either.
    assert!(matches!(Place::open(&rig.path, false), Err(TakeoverError::Occupied(_))));
}

#[test]
fn ignores_late_word_of_process_that_died() {
    let rig = Rig::new();
    let (old, told) = rig.attended(None);
    rig.until_published();
    // Says that it serves, and is gone before that is read or confirmed.
    let peer = Peer::dial(&rig.path, STEP).unwrap().unwrap();
    let soon = Instant::now() + PATIENCE;
    peer.say(HELLO, None, soon).unwrap();
    peer.say(SERVING, None, soon).unwrap();
    drop(peer);
    // The next one is attended to, and by the same process.
    let taken = rig.take();
    assert!(told.try_recv().is_err(), "it would have left for a process that is dead");
    drop(taken);
    old.close();
    old.thread().join().unwrap();
    assert!(told.try_recv().is_err());
}

#[test]
fn relieves_process_that_wakes_after_all() {
    let rig = Rig::new();
    let place = Place::open(&rig.path, false).unwrap();
    place.publish().unwrap();
    let path = rig.path.clone();
    let taking = std::thread::spawn(move || take(&path).unwrap().unwrap());
    // The old one gives its sockets, and is stopped: its next words come when it wakes.
    let socket = rustix::net::accept(&place.socket).unwrap();
    let old = Peer::accepted(socket);
    let soon = || Instant::now() + PATIENCE;
    old.expect(HELLO, soon()).unwrap();
    let addr = rig.listener.local_addr().unwrap();
    old.say(&format!("{addr} m"), Some(&rig.listener.try_clone().unwrap().into()), soon()).unwrap();
    old.say(END, None, soon()).unwrap();
    let (new, _told) = rig.attended(Some(taking.join().unwrap()));
    old.expect(SERVING, soon()).unwrap();
    old.say(CONFIRM, None, soon()).unwrap();
    old.expect(SERVING, soon()).unwrap();
    // It loses the conversation, and is asked again.
    drop(old);
    let old = Peer::accepted(rustix::net::accept(&place.socket).unwrap());
    old.expect(HELLO, soon()).unwrap();
    old.say(END, None, soon()).unwrap();
    old.expect(SERVING, soon()).unwrap();
    old.say(LEAVING, None, soon()).unwrap();
    assert!(wire::is_closed(&old.hear(soon()).unwrap_err()));
    drop(place);
    assert!(!is_deserted(&rig.path));
    new.close();
}

#[test]
fn keeps_old_process_when_told_to_stop_before_it_left() {
    let rig = Rig::new();
    let place = Place::open(&rig.path, false).unwrap();
    place.publish().unwrap();
    let path = rig.path.clone();
    let taking = std::thread::spawn(move || take(&path).unwrap().unwrap());
    let old = Peer::accepted(rustix::net::accept(&place.socket).unwrap());
    let soon = || Instant::now() + PATIENCE;
    old.expect(HELLO, soon()).unwrap();
    old.say(END, None, soon()).unwrap();
    let (new, told) = rig.attended(Some(taking.join().unwrap()));
    old.expect(SERVING, soon()).unwrap();
    new.close();
    assert!(
        wire::is_closed(&old.hear(soon()).unwrap_err()),
        "the old one learns that nobody serves instead of it"
    );
    new.thread().join().unwrap();
    assert!(told.try_recv().is_err() && rig.path.exists(), "the old one's place is untouched");
}

#[test]
fn passes_second_successor_on_to_first() {
    let rig = Rig::new();
    let (old, _) = rig.attended(None);
    rig.until_published();
    let taken = rig.take();
    let path = rig.path.clone();
    let second = std::thread::spawn(move || take(&path).unwrap());
    let (_new, told) = rig.attended(Some(taken));
    old.thread().join().unwrap();
    // It found the first one, and did not believe that nobody is there.
    let taken = second.join().unwrap().unwrap();
    let (last, _) = rig.attended(Some(taken));
    told.recv_timeout(PATIENCE).unwrap();
    last.close();
}

#[test]
fn hears_what_has_come_before_it_looks_at_the_clock() {
    let rig = Rig::new();
    let place = Place::open(&rig.path, false).unwrap();
    place.publish().unwrap();
    let one = Peer::dial(&rig.path, STEP).unwrap().unwrap();
    let other = Peer::accepted(rustix::net::accept(&place.socket).unwrap());
    let past = Instant::now();
    one.say(SERVING, None, past).unwrap();
    // As after a stop that was longer than the step.
    other.expect(SERVING, past).unwrap();
    assert_eq!(other.hear(past).unwrap_err().kind(), io::ErrorKind::TimedOut);
    drop(one);
    assert!(other.has_gone() && wire::is_closed(&other.hear(past).unwrap_err()));
}
