//! Pipes of the kernel, through which bytes go from one socket to another without entering this
//! process.
//!
//! A worker has a few of them and lends them out, each to one direction of one session at a time.
//! One that is given back empty is lent again; one with something in it is closed, so what was
//! meant for one session can never come out in another, nor in one that was forbidden to have it.
//!
//! Whether the system lets us (a sandbox may not) is found out with a single byte before the
//! workers start, so that the first large value is not what meets a refusal. What only real sockets
//! show is met by a worker's first attempt, which has nothing to lose. After a refusal the worker
//! copies.
//!
//! Deliberately absent: when it is worth while, which [`bulk`](crate::io::bulk) decides.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use crate::limits;
use crate::session::broken;

/// How much one holds: as much as is read at a time.
pub(crate) const PIPE_SIZE: usize = crate::io::buffer::SCRATCH_SIZE;

/// Most pipes of a worker in use; each is two descriptors. Linux lets a user without privileges
/// have 64 MiB in pipes of more than the least size.
pub(crate) const MAX_PIPES: usize = 32;

/// Most that are kept for the next one; each is two descriptors.
const MAX_IDLE: usize = 4;

#[derive(Debug, Default)]
struct PipePool {
    idle: Vec<(OwnedFd, OwnedFd)>,
    in_use: usize,
    disabled: bool,
}

thread_local! {
    static POOL: RefCell<PipePool> = RefCell::default();
}

/// A pipe that is lent out. Given back, or closed, when dropped.
#[derive(Debug)]
pub(crate) struct Pipe {
    /// Where it is read and where it is written; gone only while it is dropped.
    ends: Option<(OwnedFd, OwnedFd)>,
    len: usize,
}

/// How many pipes a worker may use now.
fn allowed() -> usize {
    limits::pipes_per_worker().min(MAX_PIPES)
}

/// An empty pipe, if this worker may have one more.
pub(crate) fn acquire() -> Option<Box<Pipe>> {
    POOL.with_borrow_mut(|pool| {
        if pool.disabled || pool.in_use >= allowed() {
            return None;
        }
        let ends = pool.idle.pop().or_else(|| {
            let (reader, writer) = open().ok()?;
            // A pipe of another size works too.
            let _size = fcntl_setpipe_size(&writer, PIPE_SIZE);
            Some((reader, writer))
        })?;
        pool.in_use += 1;
        Some(Box::new(Pipe { ends: Some(ends), len: 0 }))
    })
}

fn open() -> Result<(OwnedFd, OwnedFd), Errno> {
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
}

/// Moves a byte from one socket to another.
fn splice_one_byte() -> Result<(), Errno> {
    let pair = || socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let ((speaker, source), (sink, _listener)) = (pair()?, pair()?);
    rustix::io::write(&speaker, b"x")?;
    let mut pipe = Pipe { ends: Some(open()?), len: 0 };
    let moved = pipe.fill(&source, 1).and_then(|_| pipe.drain(&sink));
    // It is not a worker's, and must not be given back to a pool.
    pipe.ends = None;
    moved.map(drop)
}

/// What the system says to bytes that are moved this way, if that is a refusal. A lack of
/// descriptors is none.
pub(crate) fn unsupported() -> Option<io::Error> {
    splice_one_byte().err().map(io::Error::from).filter(is_unsupported)
}

/// Whether that is the answer of a system that does not do this: an old kernel, a sandbox, or a
/// socket of an unusual kind.
pub(crate) fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::INVAL
                | Errno::NOSYS
                | Errno::PERM
                | Errno::ACCESS
                | Errno::OPNOTSUPP
                | Errno::NOMEM
        )
    ) || error.kind() == io::ErrorKind::Unsupported
}

/// No pipes for this worker any more: the system does not move bytes this way. Whether that is
/// news.
pub(crate) fn disable() -> bool {
    POOL.with_borrow_mut(|pool| {
        pool.idle.clear();
        !std::mem::replace(&mut pool.disabled, true)
    })
}

impl Pipe {
    /// How many bytes are in it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Moves up to `most` bytes from a socket into it and returns how many; 0 at the socket's end.
    /// Must be empty.
    ///
    /// # Errors
    ///
    /// The socket's error; `AGAIN` if it has nothing now. Nothing is lost.
    pub(crate) fn fill(&mut self, socket: impl AsFd, most: usize) -> Result<usize, Errno> {
        let (_, writer) = self.ends.as_ref().ok_or(Errno::BADF)?;
        let n = splice(
            socket,
            None,
            writer,
            None,
            most.min(PIPE_SIZE),
            SpliceFlags::MOVE | SpliceFlags::NONBLOCK,
        )?;
        self.len += n;
        Ok(n)
    }

    /// Moves what is in it into a socket, as far as that takes it, and returns how much.
    ///
    /// # Errors
    ///
    /// The socket's error; `AGAIN` if it takes nothing now. What was not moved is still here.
    pub(crate) fn drain(&mut self, socket: impl AsFd) -> Result<usize, Errno> {
        let (reader, _) = self.ends.as_ref().ok_or(Errno::BADF)?;
        let n = splice(
            reader,
            None,
            socket,
            None,
            self.len,
            SpliceFlags::MOVE | SpliceFlags::NONBLOCK,
        )?;
        self.len = self.len.saturating_sub(n);
        Ok(n)
    }

    /// Takes out what is in it.
    ///
    /// # Errors
    ///
    /// Not all of it is there.
    pub(crate) fn read_all(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len];
        let mut at = 0;
        while let (Some(room @ [_, ..]), Some((reader, _))) = (bytes.get_mut(at..), &self.ends) {
            match rustix::io::read(reader, room) {
                Ok(n @ 1..) => at += n,
                Err(Errno::INTR) => {}
                // A pipe has no errors of its own, and what it holds is there.
                Ok(0) | Err(_) => break,
            }
        }
        let all = at == self.len;
        self.len = 0;
        if all { Ok(bytes) } else { Err(broken::broken("a pipe held less than was put into it")) }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take() else { return };
        let read_all = self.len == 0;
        // At the end of the thread there is no pool any more, and the pipe is closed.
        let _gone = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            pool.in_use = pool.in_use.saturating_sub(1);
            if read_all && !pool.disabled && pool.idle.len() < MAX_IDLE.min(allowed()) {
                pool.idle.push(ends);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn idle() -> usize {
        POOL.with_borrow(|pool| pool.idle.len())
    }

    #[test]
    fn an_empty_pipe_is_lent_again_and_one_with_something_in_it_never() {
        let (mut from, source) = UnixStream::pair().unwrap();
        let (sink, mut to) = UnixStream::pair().unwrap();
        let mut pipe = acquire().unwrap();
        from.write_all(b"first").unwrap();
        assert_eq!(pipe.fill(&source, 100), Ok(5));
        assert_eq!((pipe.drain(&sink), pipe.len()), (Ok(5), 0));
        drop(pipe);
        assert_eq!(idle(), 1);
        let mut pipe = acquire().unwrap();
        from.write_all(b"second").unwrap();
        assert_eq!(pipe.fill(&source, 100), Ok(6));
        drop(pipe);
        assert_eq!(idle(), 0);
        let mut pipe = acquire().unwrap();
        from.write_all(b"third").unwrap();
        assert_eq!((pipe.len(), pipe.fill(&source, 3), pipe.drain(&sink)), (0, Ok(3), Ok(3)));
        let mut got = [0; 8];
        to.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"firstthi");
        assert_eq!((pipe.fill(&source, 100), pipe.read_all().unwrap()), (Ok(2), b"rd".to_vec()));
        drop(pipe);
        assert_eq!(idle(), 1);
    }

    #[test]
    fn their_number_is_bounded_and_after_a_refusal_there_are_none() {
        let in_use: Vec<_> = (0..MAX_PIPES).map(|_| acquire().unwrap()).collect();
        assert!(acquire().is_none());
        drop(in_use);
        assert_eq!(idle(), MAX_IDLE);
        assert!(acquire().is_some());
        assert!(disable() && !disable());
        assert!(acquire().is_none());
        assert_eq!(idle(), 0);
    }

    #[test]
    fn this_system_does_not_refuse_and_a_lack_of_descriptors_is_no_refusal() {
        assert!(unsupported().is_none(), "{:?}", unsupported());
        assert_eq!(idle(), 0, "what was tried leaves nothing behind");
        assert!(!is_unsupported(&Errno::MFILE.into()) && is_unsupported(&Errno::PERM.into()));
    }
}
