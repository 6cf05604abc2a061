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

use std::cell::Cell;
use std::io;

use crate::invariant;
use crate::io::scratch;

/// The least that is read at a time.
pub(crate) const LEAST: usize = 16 * 1024;

/// For each of these in bytes that a worker keeps, reads are half as large. It takes four to get to
/// [`LEAST`].
const STEP: usize = 4 << 20;

thread_local! {
    static ALL: Cell<usize> = const { Cell::new(0) };
    /// What follows from that, ready for every read.
    static MOST: Cell<usize> = const { Cell::new(scratch::SIZE) };
}

/// The most that should be read at a time now.
#[inline]
pub(crate) fn most() -> usize {
    MOST.get()
}

fn set(all: usize) {
    ALL.set(all);
    MOST.set((scratch::SIZE >> (all / STEP).min(usize::BITS as usize - 1)).max(LEAST));
}

fn more(n: usize) {
    set(ALL.get().saturating_add(n));
}

fn less(n: usize) {
    set(ALL.get().saturating_sub(n));
}

/// Bytes read and not yet written: those behind the first `from`.
#[derive(Debug)]
pub(crate) struct Kept {
    bytes: Vec<u8>,
    from: usize,
}

impl Kept {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        more(bytes.len());
        Self { bytes, from: 0 }
    }

    /// Keeps these behind the others.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        more(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// What is still to be written.
    pub(crate) fn rest(&self) -> &[u8] {
        // `took` has seen to it that there is.
        self.bytes.get(self.from..).unwrap_or(&[])
    }

    /// So many of them were written.
    ///
    /// # Errors
    ///
    /// There are not so many.
    pub(crate) fn took(&mut self, n: usize) -> io::Result<()> {
        let rest = invariant::rest_after(self.rest(), n)?.len();
        self.from = self.bytes.len().saturating_sub(rest);
        Ok(())
    }

    pub(crate) fn into_rest(mut self) -> Vec<u8> {
        let from = self.from.min(self.bytes.len());
        less(self.bytes.len());
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

impl Drop for Kept {
    fn drop(&mut self) {
        // A session ends on the worker that it began on.
        less(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_is_kept_the_less_is_read_and_none_of_it_is_forgotten() {
        assert_eq!(most(), scratch::SIZE);
        let mut all = Vec::new();
        for read in [256, 128, 64, 32, 16, 16, 16, 16] {
            assert_eq!(most(), read * 1024);
            all.push(Kept::new(vec![0; STEP]));
        }
        let (mut first, second) = (all.remove(0), all.remove(0));
        first.took(STEP - 1).unwrap();
        assert!(first.took(2).is_err());
        first.add(b"x");
        assert_eq!((first.rest().len(), first.into_rest().len(), most()), (2, 2, LEAST));
        drop(second);
        all.truncate(1);
        assert_eq!(most(), scratch::SIZE / 2);
        all.clear();
        assert_eq!((most(), ALL.get()), (scratch::SIZE, 0));
    }
}
