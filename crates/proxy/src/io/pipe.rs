//! Kernel pipes, through which bytes move from socket to socket without entering this process.
//!
//! A worker owns a few of them and lends each to one direction of one session at a time. A pipe
//! that is returned empty is reused; one with content is closed, so bytes of one session can never
//! reach another one, nor a target that must not receive them.
//!
//! Whether the system permits splicing (a sandbox may not) is determined with a single byte before
//! the workers start, so that no large value encounters a refusal. What only real sockets reveal is
//! detected by a worker's first attempt, which has nothing to lose. After a refusal the worker
//! copies.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use crate::{invariant, limits};

/// The capacity of a pipe: the size of a read.
pub(crate) const PIPE_SIZE: usize = crate::io::buffer::SCRATCH_SIZE;

/// The maximum number of pipes that a worker uses; each has two descriptors. Linux permits an
/// unprivileged user 64 MiB in pipes above the minimum size.
pub(crate) const MAX_PIPES: usize = 32;

/// The maximum number of idle pipes kept for reuse.
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

/// A pipe in use. Returned to the pool, or closed, when dropped.
#[derive(Debug)]
pub(crate) struct Pipe {
    /// Its read end and its write end; `None` only while it is dropped.
    ends: Option<(OwnedFd, OwnedFd)>,
    len: usize,
}

/// How many pipes a worker may use now.
fn allowed() -> usize {
    limits::PIPES_PER_WORKER.load(Ordering::Relaxed).min(MAX_PIPES)
}

/// An empty pipe, if this worker may use one more.
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
    // It belongs to no worker and must not be returned to a pool.
    pipe.ends = None;
    moved.map(drop)
}

/// The system's error if it does not permit splicing. A lack of descriptors does not count.
pub(crate) fn unsupported() -> Option<io::Error> {
    splice_one_byte().err().map(io::Error::from).filter(is_unsupported)
}

/// Whether this error means that splicing is not available: an old kernel, a sandbox, or an unusual
/// kind of socket.
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

/// Pages are moved instead of copied where that is possible.
const SPLICE: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

/// Stops the use of pipes on this worker. Returns whether that is a change.
pub(crate) fn disable() -> bool {
    POOL.with_borrow_mut(|pool| {
        pool.idle.clear();
        !std::mem::replace(&mut pool.disabled, true)
    })
}

impl Pipe {
    /// The number of bytes in it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Moves up to `most` bytes from a socket into the pipe, which must be empty, and returns how
    /// many; 0 at the end of the socket.
    ///
    /// # Errors
    ///
    /// The socket's error; `AGAIN` if it has nothing now. Nothing is lost.
    pub(crate) fn fill(&mut self, socket: impl AsFd, most: usize) -> Result<usize, Errno> {
        let (_, writer) = self.ends.as_ref().ok_or(Errno::BADF)?;
        let n = splice(socket, None, writer, None, most.min(PIPE_SIZE), SPLICE)?;
        self.len += n;
        Ok(n)
    }

    /// Moves as much of the content into a socket as it accepts, and returns how much.
    ///
    /// # Errors
    ///
    /// The socket's error; `AGAIN` if it accepts nothing now. What was not moved stays in the pipe.
    pub(crate) fn drain(&mut self, socket: impl AsFd) -> Result<usize, Errno> {
        let (reader, _) = self.ends.as_ref().ok_or(Errno::BADF)?;
        let n = splice(reader, None, socket, None, self.len, SPLICE)?;
        self.len = self.len.saturating_sub(n);
        Ok(n)
    }

    /// Removes and returns the content.
    ///
    /// # Errors
    ///
    /// Not all of it is there.
    pub(crate) fn read_all(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len];
        let mut at = 0;
        while let (Some(buffer @ [_, ..]), Some((reader, _))) = (bytes.get_mut(at..), &self.ends) {
            match rustix::io::read(reader, buffer) {
                Ok(n @ 1..) => at += n,
                Err(Errno::INTR) => {}
                // A pipe has no errors of its own, and its content is available.
                Ok(0) | Err(_) => break,
            }
        }
        let all = at == self.len;
        self.len = 0;
        if all {
            Ok(bytes)
        } else {
            Err(invariant::violation("a pipe holds fewer bytes than were put into it"))
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take() else { return };
        let read_all = self.len == 0;
        // At the end of the thread the pool no longer exists, and the pipe is closed.
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
    fn reuses_empty_pipes_only() {
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
    fn bounds_pipes_and_has_none_when_disabled() {
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
    fn accepts_splice_here_and_tells_shortage_from_refusal() {
        assert!(unsupported().is_none(), "{:?}", unsupported());
        assert_eq!(idle(), 0, "the trial leaves no idle pipe");
        assert!(!is_unsupported(&Errno::MFILE.into()) && is_unsupported(&Errno::PERM.into()));
    }
}
