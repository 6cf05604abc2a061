//! The one large buffer of each worker.
//!
//! A byte is read into it, looked at, and written out of it before anything else happens on the
//! thread, so all sessions of a worker can share one. It is large because its size decides the
//! price of large values: with 256 KiB a value of 1 MiB costs a fifth of what it costs with 16 KiB.

use std::cell::RefCell;

/// Its size in bytes, and so the most that is ever [kept](crate::io::kept) for one direction of one
/// session.
pub(crate) const SIZE: usize = 256 * 1024;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SIZE].into_boxed_slice());
}

/// Lends the worker's buffer for as long as `f` runs, which must not lend it again. What is in it
/// is left over from others and has no meaning.
pub(crate) fn with<R>(f: impl FnOnce(&mut [u8]) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| f(scratch))
}
