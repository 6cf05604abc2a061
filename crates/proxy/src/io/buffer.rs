//! The buffers of a worker: one large scratch buffer for reading, and what was read but could not
//! be written yet.
//!
//! A byte is read into the scratch buffer, processed, and written out of it before anything else
//! happens on the thread, so all sessions of a worker can share one. It is large because its size
//! determines the cost of large values: with 256 KiB a value of 1 MiB costs a fifth of what it
//! costs with 16 KiB.
//!
//! A direction of a session keeps at most one read. Ten thousand receivers that do not read would
//! keep 2.5 GB, and refusing new clients does not reduce that. So the more a worker keeps, the less
//! it reads at a time, down to what a session is assumed to need when memory is divided. Receivers
//! that keep up pay for that with more system calls for large values, but only while many others do
//! not.
//!
//! The buffers of the kernel are not counted: they shrink by themselves when a cgroup approaches
//! its limit.

use std::cell::{Cell, RefCell};
use std::io;

use crate::invariant;

/// The size in bytes of the scratch buffer, and thus the most that is [kept](KeptBytes) for one
/// direction of a session.
pub(crate) const SCRATCH_SIZE: usize = 256 * 1024;

thread_local! {
    /// Allocated by the first session, and taken away while it is lent.
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Of a fixed size, so that its length need not be read.
pub(crate) type Scratch = [u8; SCRATCH_SIZE];

/// Lends the worker's scratch buffer to `f`. If `f` borrows it again, it gets another one. Its
/// content is left over from other sessions and has no meaning.
pub(crate) fn with_scratch<R>(f: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut scratch = take_scratch();
    let result = f(&mut *scratch);
    put_back(scratch);
    result
}

/// Takes the worker's scratch buffer, to be [put back](put_back). Without a closure, so that the
/// poll of a session is one function.
#[inline(always)]
pub(crate) fn take_scratch() -> Box<Scratch> {
    SCRATCH.take().unwrap_or_else(new_scratch)
}

/// Puts the worker's scratch buffer back.
#[inline(always)]
pub(crate) fn put_back(scratch: Box<Scratch>) {
    SCRATCH.set(Some(scratch));
}

#[cold]
fn new_scratch() -> Box<Scratch> {
    // Not by way of the stack, where the other one would come from: the lengths are equal.
    let scratch = vec![0; SCRATCH_SIZE].into_boxed_slice().try_into();
    scratch.unwrap_or_else(|_| Box::new([0; SCRATCH_SIZE]))
}

/// The size in bytes of the scratch buffer for TLS: what an earlier read has left, and one more.
const TLS_SCRATCH_SIZE: usize = tls::MAX_WAITING + SCRATCH_SIZE;

thread_local! {
    /// Allocated by the first session that uses TLS.
    static TLS_SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Lends the worker's scratch buffer for ciphertext to `f`, which must not borrow it again. It may
/// be borrowed together with the other one, which has the plaintext.
pub(crate) fn with_tls_scratch<R>(f: impl FnOnce(&mut [u8]) -> R) -> R {
    TLS_SCRATCH.with_borrow_mut(|scratch| {
        if scratch.is_empty() {
            scratch.resize(TLS_SCRATCH_SIZE, 0);
        }
        f(scratch)
    })
}

/// The minimum size of a read.
pub(crate) const MIN_READ: usize = 16 * 1024;

/// Each time a worker keeps this many more bytes, the size of a read is halved. Four halvings lead
/// to [`MIN_READ`].
const HALVING_STEP: usize = 4 << 20;

thread_local! {
    /// The bytes that this worker keeps.
    pub(crate) static KEPT_BYTES: Cell<usize> = const { Cell::new(0) };
    /// The resulting maximum, precomputed for every read.
    static MAX_READ: Cell<usize> = const { Cell::new(SCRATCH_SIZE) };
}

/// The maximum size of a read now.
#[inline]
pub(crate) fn max_read() -> usize {
    MAX_READ.get()
}

/// The most that one direction of a session may keep now: what memory is divided by, once this
/// worker keeps much.
pub(crate) fn max_held() -> usize {
    if MAX_READ.get() > MIN_READ { usize::MAX } else { MIN_READ }
}

/// Whether this worker keeps so much that sessions with large replies have to be slowed or ended.
pub(crate) fn keeps_too_much() -> bool {
    KEPT_BYTES.get() > 64 << 20
}

/// Bytes read and not yet written: those from index `from`.
#[derive(Debug)]
pub(crate) struct KeptBytes {
    pub(super) bytes: Vec<u8>,
    from: usize,
    count: KeptCount,
}

impl KeptBytes {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        let mut kept = Self { bytes, from: 0, count: KeptCount::default() };
        kept.count.set(kept.bytes.len());
        kept
    }

    /// Appends these bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.count.set(self.bytes.len());
    }

    /// What remains to be written.
    pub(crate) fn rest(&self) -> &[u8] {
        // `consume` keeps `from` in range.
        self.bytes.get(self.from..).unwrap_or(&[])
    }

    /// Removes the first `n` bytes, which were written.
    ///
    /// # Errors
    ///
    /// There are fewer.
    pub(crate) fn consume(&mut self, n: usize) -> io::Result<()> {
        let rest = invariant::rest_after(self.rest(), n)?.len();
        self.from = self.bytes.len().saturating_sub(rest);
        Ok(())
    }

    pub(crate) fn into_rest(self) -> Vec<u8> {
        let Self { mut bytes, from, .. } = self;
        bytes.drain(..from.min(bytes.len()));
        bytes
    }
}

/// Counts bytes as kept by this worker.
#[derive(Debug, Default)]
pub(crate) struct KeptCount(usize);

impl KeptCount {
    pub(crate) fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// This many are kept now.
    pub(crate) fn set(&mut self, bytes: usize) {
        if bytes != self.0 {
            // A session ends on the worker on which it began.
            let all = KEPT_BYTES.get().saturating_sub(self.0).saturating_add(bytes);
            KEPT_BYTES.set(all);
            let halvings = (all / HALVING_STEP).min(usize::BITS as usize - 1);
            MAX_READ.set((SCRATCH_SIZE >> halvings).max(MIN_READ));
            self.0 = bytes;
        }
    }
}

impl Drop for KeptCount {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_less_the_more_is_kept() {
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
