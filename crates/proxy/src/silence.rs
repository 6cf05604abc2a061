//! Clients that say nothing: from the start, or any more.
//!
//! Silence is only held against a client that could have been heard. While the gate is shut nobody is read from, so that time
//! does not count; and it is judged after everything that has come was moved, so a request that waits in the kernel while
//! this process is held up is never taken for silence. Blocked and subscribed sessions, those in a transaction and those that
//! wait for a reply are silent by nature.
//!
//! Idleness is counted in quarters of its timeout in which nothing came: that needs no clock on the way of a byte, and
//! errs by at most one quarter, to the client's favour.
//!
//! Deliberately absent: the end of one direction, which has a timeout of its own.

use std::task::Waker;
use std::time::Duration;

use resp::Standing;

use crate::alarm::Alarm;
use crate::close::Reason;
use crate::options::Options;

/// Silent quarters of the idle timeout after which a client counts as idle.
const QUARTERS: u8 = 4;

/// What is looked at when the time has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// The client has sent something since it came.
    pub(crate) heard: bool,
    /// Bytes forwarded from it, of which only a change counts.
    pub(crate) moved: u32,
    /// Where the session stands.
    pub(crate) standing: Standing,
}

/// The watch over one session's client.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    alarm: Alarm,
    /// Nothing was read for a while because the gate was shut.
    excused: bool,
    /// Silent quarters so far.
    quarters: u8,
    moved: u32,
}

impl Silence {
    /// Begins to watch, if the options want it.
    pub(crate) fn watch(&mut self, options: &Options, heard: bool, waker: &Waker) {
        let first = options.first_byte_timeout;
        let span = if heard || first.is_zero() { options.client_idle_timeout / QUARTERS.into() } else { first };
        if span > Duration::ZERO {
            self.alarm.set(span, waker);
        }
    }

    /// The client is not read from at present.
    pub(crate) fn excuse(&mut self) {
        self.excused = true;
    }

    /// Why the session should end, if it should. To be asked after everything that had come was moved.
    pub(crate) fn judge(&mut self, options: &Options, facts: Facts, waker: &Waker) -> Option<Reason> {
        if !self.alarm.is_set() {
            // A reload may have turned it on.
            self.watch(options, facts.heard, waker);
            return None;
        }
        if !self.alarm.is_due(waker) {
            return None;
        }
        self.alarm.clear();
        let silent = !std::mem::take(&mut self.excused);
        if !facts.heard && !options.first_byte_timeout.is_zero() {
            if silent {
                return Some(Reason::FirstByteTimeout);
            }
        } else if silent && facts.moved == self.moved && matches!(facts.standing, Standing::Quiet | Standing::Pinned) {
            self.quarters += 1;
        } else {
            self.quarters = 0;
        }
        self.moved = facts.moved;
        self.watch(options, facts.heard, waker);
        (self.quarters >= QUARTERS).then_some(Reason::IdleTimeout)
    }
}
