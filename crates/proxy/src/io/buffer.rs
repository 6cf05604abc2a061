//! What was read and could not be written yet, and how much of that a worker holds in all.
//!
//! One direction keeps no more than was read at a time, so the size of a read bounds it: 256 KiB,
//! which is what makes large values cheap. Ten thousand receivers that stand still would be 2.5 GB
//! then, and nobody new being let in does not make that less. So the more a worker keeps, the less
//! it reads at a time, down to what a session is counted with when the memory is shared out.
//! Receivers that keep up pay for that with more system calls for large values, but only while many
//! others do not.
//!
//! Deliberately absent: the kernel's own buffers, which shrink by themselves when a cgroup comes
//! near its bound.

use std::cell::{Cell, RefCell};
use std::io;

use crate::session::broken;

/// Its size in bytes, and so the most that is ever [kept](crate::io::kept) for one direction of one
/// session.
pub(crate) const SCRATCH_SIZE: usize = 256 * 1024;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_SIZE].into_boxed_slice());
}

/// Lends the worker's buffer for as long as `f` runs, which must not lend it again. What is in it
/// is left over from others and has no meaning.
pub(crate) fn with_scratch<R>(f: impl FnOnce(&mut [u8]) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| f(scratch))
}

/// The least that is read at a time.
pub(crate) const MIN_READ: usize = 16 * 1024;

/// For each of these in bytes that a worker keeps, reads are half as large. It takes four to get to
/// [`MIN_READ`].
const HALVING_STEP: usize = 4 << 20;

thread_local! {
    static KEPT_BYTES: Cell<usize> = const { Cell::new(0) };
    /// What follows from that, ready for every read.
    static MAX_READ: Cell<usize> = const { Cell::new(SCRATCH_SIZE) };
}

/// The most that should be read at a time now.
#[inline]
pub(crate) fn max_read() -> usize {
    MAX_READ.get()
}

fn set_kept(all: usize) {
    KEPT_BYTES.set(all);
    MAX_READ
        .set((SCRATCH_SIZE >> (all / HALVING_STEP).min(usize::BITS as usize - 1)).max(MIN_READ));
}

fn add_kept(n: usize) {
    set_kept(KEPT_BYTES.get().saturating_add(n));
}

fn remove_kept(n: usize) {
    set_kept(KEPT_BYTES.get().saturating_sub(n));
}

/// Bytes read and not yet written: those behind the first `from`.
#[derive(Debug)]
pub(crate) struct KeptBytes {
    bytes: Vec<u8>,
    from: usize,
}

impl KeptBytes {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        add_kept(bytes.len());
        Self { bytes, from: 0 }
    }

    /// Keeps these behind the others.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        add_kept(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// What is still to be written.
    pub(crate) fn rest(&self) -> &[u8] {
        // `consume` has seen to it that there is.
        self.bytes.get(self.from..).unwrap_or(&[])
    }

    /// So many of them were written.
    ///
    /// # Errors
    ///
    /// There are not so many.
    pub(crate) fn consume(&mut self, n: usize) -> io::Result<()> {
        let rest = broken::behind(self.rest(), n)?.len();
        self.from = self.bytes.len().saturating_sub(rest);
        Ok(())
    }

    pub(crate) fn into_rest(mut self) -> Vec<u8> {
        let from = self.from.min(self.bytes.len());
        remove_kept(self.bytes.len());
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.drain(..from);
        bytes
    }

    /// Bytes of memory.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.bytes.capacity()
    }
}

impl Drop for KeptBytes {
    fn drop(&mut self) {
        // A session ends on the worker that it began on.
        remove_kept(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_is_kept_the_less_is_read_and_none_of_it_is_forgotten() {
        assert_eq!(max_read(), SCRATCH_SIZE);
        let mut all = Vec::new();
        for read in [256, 128, 64, 32, 16, 16, 16, 16] {
            assert_eq!(max_read(), read * 1024);
            all.push(KeptBytes::new(vec![0; HALVING_STEP]));
        }
        let (mut first, second) = (all.remove(0), all.remove(0));
        first.consume(HALVING_STEP - 1).unwrap();
        assert!(first.consume(2).is_err());
        first.add(b"x");
        assert_eq!((first.rest().len(), first.into_rest().len(), max_read()), (2, 2, MIN_READ));
        drop(second);
        all.truncate(1);
        assert_eq!(max_read(), SCRATCH_SIZE / 2);
        all.clear();
        assert_eq!((max_read(), KEPT_BYTES.get()), (SCRATCH_SIZE, 0));
    }
}
